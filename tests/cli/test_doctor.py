"""`photinus doctor`: what it finds, and what it says to do."""

from importlib import metadata
from types import SimpleNamespace

import pytest

from photinus.cli.main import EXIT_CODES, main
from photinus.core.errors import NotReadyError


def call(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(["doctor", *arguments])
    output = capsys.readouterr()
    return ended.value.code, output.out, output.err


def test_a_machine_that_has_all_is_ready(capsys):
    code, out, err = call(capsys, "--no-spark")
    assert (code, err) == (0, "")
    assert {line.split()[0] for line in out.splitlines()} == {"ok"}
    for name in ("Python", "torch", "pyspark", "pyarrow", "pandas", "Java", "port"):
        assert name in out


def test_a_missing_package_comes_with_what_to_install(capsys, monkeypatch):
    real = metadata.version

    def version(name):
        if name == "pyarrow":
            raise metadata.PackageNotFoundError(name)
        return "3.0.1" if name == "pandas" else real(name)

    monkeypatch.setattr(metadata, "version", version)
    code, out, err = call(capsys, "--no-spark")
    assert code == EXIT_CODES["not ready"]
    assert "pip install 'photinus[spark]'" in out
    assert "pip install 'pandas<3'" in out
    assert err == "photinus: missing: pyarrow; see what to do above\n"


def test_a_missing_java_comes_with_what_to_install(capsys, monkeypatch):
    def ensure():
        raise NotReadyError("Spark needs Java 17 or 21", do="install Java 17 or 21")

    monkeypatch.setattr("photinus.deploy.java.ensure_java", ensure)
    code, out, _ = call(capsys, "--no-spark")
    assert code == EXIT_CODES["not ready"]
    assert "-> install Java 17 or 21" in out


@pytest.mark.spark
def test_spark_and_its_workers_are_looked_at(capsys, spark):
    code, out, err = call(capsys, "--workers", "2")
    assert (code, err) == (0, "")
    for name in ("slots", "workers' Python", "workers' torch", "they reach the driver"):
        assert name in out


@pytest.mark.spark
def test_too_few_retries_are_named(capsys, spark):
    out = call(capsys, "--workers", "2")[1]
    assert "Spark gives a task up after 4 failures, and its job" in out
    assert "-> start the application with master local[N,20]" in out


@pytest.mark.spark
def test_too_few_slots_are_named(capsys, spark):
    code, out, _ = call(capsys, "--workers", "5")
    assert code == EXIT_CODES["not ready"]
    assert "use 4 workers or fewer" in out


def test_where_a_cluster_is_named_it_says_whether_a_job_can_be_submitted(
    capsys, monkeypatch, tmp_path
):
    pytest.importorskip("fsspec")
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("HADOOP_USER_NAME", "mary")
    _, out, _ = call(capsys, "--no-spark")
    assert "no yarn-site.xml; got" in out
    assert "copy /etc/hadoop/conf from a node" in out
    (tmp_path / "yarn-site.xml").write_text("<configuration/>")
    value = "<name>fs.defaultFS</name><value>memory://host</value>"
    core = f"<configuration><property>{value}</property></configuration>"
    (tmp_path / "core-site.xml").write_text(core)
    _, out, _ = call(capsys, "--no-spark")
    assert "archives and runs below memory://host/user/mary" in out
    (tmp_path / "core-site.xml").write_text(core.replace("host<", "localhost:1<"))
    _, out, _ = call(capsys, "--no-spark")
    assert "nothing answers at memory://localhost:1/user/mary" in out


@pytest.mark.parametrize("is_configured", [True, False])
def test_its_java_writes_the_archive_that_later_ones_read(capsys, monkeypatch, is_configured):
    def session(workers, name, extra):
        assert extra == {"spark.driver.extraJavaOptions": "-XX:ArchiveClassesAtExit=x"}
        settings = extra if is_configured else {}  # not those of an application of the user's
        return SimpleNamespace(conf=SimpleNamespace(get=settings.get))

    patch = monkeypatch.setattr
    patch("photinus.deploy.java.java_home", lambda: "/a/java")
    patch(
        "photinus.deploy.class_archive.writing_options",
        {"/a/java": "-XX:ArchiveClassesAtExit=x"}.get,
    )
    patch("photinus.engine.spark.session.spark_session", session)
    patch("photinus.engine.spark.diagnostics.diagnose", lambda spark, workers: iter(()))
    code, out, err = call(capsys)
    assert (code, err) == (0, "")
    assert ("Java's start" in out) == is_configured
