"""`photinus submit`, without a cluster; on real YARN see tests/fault/test_yarn.py."""

import json
import shlex
import signal
import subprocess
import zipfile
from importlib import metadata

import pytest

from photinus.cli import submit
from photinus.deploy import packaging

url_to_fs = pytest.importorskip("fsspec.core").url_to_fs

CORE = (
    "<configuration><property><name>fs.defaultFS</name><value>memory://host</value></property>"
    "</configuration>"
)
FAKE = """#!/bin/sh
# Stands in for spark-submit: keeps what it was told, and speaks as it does.
printf '%s\\0' "$@" > "$TOLD"
echo "PYTHONPATH=$PYTHONPATH" > "$TOLD.environment"
for s in ACCEPTED ACCEPTED RUNNING ${LAST:-FINISHED}; do
    echo "INFO Client: Application report for application_1_0001 (state: $s)" >&2
done
echo "diagnostics: the end" >&2
exit ${ENDS:-0}
"""


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Settings of a cluster, a small environment, and a spark-submit that only listens."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "yarn-site.xml").write_text("<configuration/>")
    (tmp_path / "conf" / "core-site.xml").write_text(CORE)
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path / "conf"))
    monkeypatch.setenv("HADOOP_USER_NAME", tmp_path.name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))
    few = {name: metadata.distribution(name) for name in ("photinus", "click")}
    monkeypatch.setattr(packaging, "distributions", lambda: few)
    program = tmp_path / "spark" / "bin" / "spark-submit"
    program.parent.mkdir(parents=True)
    program.write_text(FAKE)
    program.chmod(0o755)
    (tmp_path / "spark" / "jars").mkdir()
    (tmp_path / "spark" / "jars" / "spark.jar").write_text("a jar")
    monkeypatch.setattr(packaging, "spark_home", lambda: tmp_path / "spark")
    monkeypatch.setattr("photinus.deploy.java.ensure_java", lambda: "/usr")
    return f"memory://host/user/{tmp_path.name}"


@pytest.fixture
def remote(job, tmp_path):
    """A job whose rows lie where a node can read them."""
    text = (tmp_path / job).read_text()
    (tmp_path / "remote.toml").write_text(text.replace('"t', '"memory://host/t'))
    for name in ("train.parquet", "test.parquet"):
        put(f"memory://host/{name}", (tmp_path / name).read_bytes())
    return "remote.toml"


def put(address, data):
    filesystem, path = url_to_fs(address)
    filesystem.pipe_file(path, data)


def test_a_job_is_sent_and_started_on_a_node(call, cluster, remote, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "of/this/machine")
    code, out, err = call("submit", remote, "--deploy-mode", "cluster", "--workers", 3)
    assert (code, err) == (0, "")
    arguments = (tmp_path / "told").read_text().split("\0")[:-1]
    program, folder, job = arguments[-3:]
    assert program.endswith("launch.py")
    assert folder.startswith(f"{cluster}/runs/blobs-")
    assert job == "job.toml"
    assert arguments[arguments.index("--files") + 1].endswith("/job.toml")
    assert (
        f"{cluster}/.photinus/photinus-environment-" in arguments[arguments.index("--archives") + 1]
    )
    assert "spark.executor.instances=3" in arguments
    assert (tmp_path / "told.environment").read_text() == "PYTHONPATH=\n"
    assert f"photinus evaluate {folder}" in out
    assert [line for line in out.splitlines() if "application_1_0001" in line] == [
        f"application_1_0001: {state}" for state in ("accepted", "running", "finished")
    ]
    archives = [line for line in out.splitlines() if line.startswith("photinus-")]
    beginnings, ends = archives[::2], archives[1::2]
    assert all(line.endswith(": made and sent once, which takes minutes") for line in beginnings)
    assert [line.split(":")[0] for line in ends] == [line.split(":")[0] for line in beginnings]
    assert out.count("sent to") == len(ends) == 2
    _, second_output, _ = call("submit", remote, "--deploy-mode", "cluster")
    assert second_output.count("there already") == 2
    assert "sent to" not in second_output
    assert "takes minutes" not in second_output


def test_of_a_user_whose_nodes_have_sparks_jars_no_jars_are_sent(call, cluster, remote):
    own = ("--conf", "spark.yarn.jars=local:/opt/spark/jars/*")
    code, out, _ = call("submit", remote, "--deploy-mode", "cluster", *own)
    assert code == 0
    assert "photinus-environment" in out
    assert "photinus-spark" not in out


def test_an_application_that_fails_is_a_failure_with_its_last_words(
    call, cluster, remote, monkeypatch
):
    monkeypatch.setenv("ENDS", "1")
    put(f"{cluster}/runs/c/coordinator-1.json", b"{}")
    given = ("--deploy-mode", "cluster", "--folder", f"{cluster}/runs/c")
    code, _, err = call("submit", remote, *given)
    assert code == 1
    assert "the application failed; got diagnostics: the end; photinus report memory://" in err


@pytest.mark.parametrize(
    ("states", "do"),
    [
        (("ACCEPTED", "FAILED"), "; yarn logs -applicationId application_1_0001 shows what"),
        ((), "got diagnostics: the end\n"),  # YARN has not taken it: there are no logs
    ],
)
def test_an_application_that_fails_before_its_run_began_names_its_logs_and_no_report(
    call, cluster, remote, tmp_path, monkeypatch, states, do
):
    monkeypatch.setenv("ENDS", "1")
    program = FAKE.replace("ACCEPTED ACCEPTED RUNNING ${LAST:-FINISHED}", " ".join(states))
    thrown = 'Exception in thread "main" SparkException: finished with failed status'
    program = program.replace("exit", f"echo '{thrown}' >&2\nexit")
    (tmp_path / "spark" / "bin" / "spark-submit").write_text(program)
    code, _, err = call("submit", remote, "--deploy-mode", "cluster")
    assert code == 1
    assert "photinus: the application failed, before its run began; got diagnostics: the end" in err
    assert do in err
    assert "photinus report" not in err


def test_an_application_that_somebody_ends_says_how_to_go_on(call, cluster, remote, monkeypatch):
    monkeypatch.setenv("ENDS", "1")
    monkeypatch.setenv("LAST", "KILLED")
    code, _, err = call("submit", remote, "--deploy-mode", "cluster", "--folder", f"{cluster}/a b")
    assert code == 1
    command = f"photinus submit --resume '{cluster}/a b' --deploy-mode cluster"
    expected = (
        f"photinus: the application was ended by YARN, or by somebody; continue with: {command}"
    )
    assert err.strip().splitlines()[-1] == expected


def test_what_a_command_needs_to_go_on_with_a_run_is_in_what_it_says(
    call, cluster, remote, tmp_path, monkeypatch
):
    monkeypatch.setenv("ENDS", "1")
    monkeypatch.setenv("LAST", "KILLED")
    (tmp_path / "nets.py").touch()
    text = (tmp_path / remote).read_text()
    module = 'kind = "module"\nmodule = "nets:net"\nepochs = 3\n\n[data]'
    start, _, end = text.replace("[data]", "\0").partition("\0")
    (tmp_path / remote).write_text(start.partition("kind")[0] + module + end)
    needed = ["--python", "/opt/p y", "--py-files", "nets.py", "--conf", "spark.executor.memory=2g"]
    folder = f"{cluster}/runs/a"
    given = ["--deploy-mode", "cluster", "--folder", folder, *needed]
    _, _, err = call("submit", remote, *given)
    again = f"continue with: photinus submit --resume {folder} --deploy-mode cluster "
    assert shlex.split(err.strip().partition(again)[2]) == [*needed, "--trust-code"]


def test_an_application_that_fails_says_why_its_run_failed(call, cluster, remote, monkeypatch):
    monkeypatch.setenv("ENDS", "1")
    ended = {"at": 1.0, "kind": "RunEnded", "state": "failed", "seconds": 1.0, "metrics": {}}
    lines = [json.dumps({**ended, "reason": reason}) for reason in ("a row is wrong", "not again")]
    put(f"{cluster}/runs/b/events.jsonl", "\n".join(lines).encode())
    given = ("--deploy-mode", "cluster", "--folder", f"{cluster}/runs/b")
    _, _, err = call("submit", remote, *given)
    assert "the application failed; got a row is wrong; photinus report memory://" in err
    assert err.endswith(
        "yarn logs -applicationId application_1_0001 shows what the containers wrote\n"
    )


def test_a_dry_run_prints_the_line_and_sends_nothing(call, cluster, remote, tmp_path):
    (tmp_path / "conf" / "core-site.xml").write_text(CORE.replace("//host", "//localhost:1"))
    nowhere = ("--set", "data.path=memory://localhost:1/rows")  # nothing is asked
    _, out, err = call("submit", remote, "--deploy-mode", "cluster", "--dry-run", *nowhere)
    words = shlex.split(out)
    assert words[words.index("--files") + 1] == "job.toml"
    assert words[words.index("--py-files") + 1] == "photinus.zip"  # no path that is gone
    assert err.startswith("this line cannot be run by itself: photinus.zip, job.toml and the arch")
    assert words[0].endswith("/bin/spark-submit")
    assert words[-1] == "job.toml"
    assert not (tmp_path / "told").exists()
    assert not (tmp_path / "cache").exists()
    _, out, _ = call("submit", remote, "--dry-run", "--master", "spark://host:7077")
    assert "--master spark://host:7077" in out
    assert "--py-files photinus.zip " in out
    assert "pyspark-shell" in out


def test_a_driver_here_trains_as_train_does_with_the_clusters_spark(
    call, cluster, job, tmp_path, monkeypatch
):
    captured = {}
    (tmp_path / "nets.py").touch()

    def begin(job, folder, command):
        import os

        words = shlex.split(os.environ["PYSPARK_SUBMIT_ARGS"])
        code = words[words.index("--py-files") + 1].split(",")[0]
        captured.update(
            job=job,
            folder=folder,
            command=command,
            words=words,
            python=os.environ["PYSPARK_PYTHON"],
        )
        captured["files"] = zipfile.ZipFile(code).namelist()

    for name in ("PYSPARK_SUBMIT_ARGS", "PYSPARK_PYTHON", "SPARK_HOME", "JAVA_HOME", "PYTHONPATH"):
        monkeypatch.setenv(name, "")  # so that what the command sets is taken back
    monkeypatch.setattr("photinus.cli.train.begin", begin)
    assert call("submit", job, "--folder", "run")[0] == 0
    assert captured["job"].engine == "spark"
    assert (captured["folder"], captured["command"]) == ("run", "submit --master yarn")
    assert captured["python"] == "./environment/bin/python"
    assert captured["words"][-1] == "pyspark-shell"
    assert "photinus/cli/launch.py" in captured["files"]
    assert call("submit", job, "--folder", "run", "--py-files", "nets.py")[0] == 0
    assert captured["command"] == "submit --master yarn --py-files nets.py"


@pytest.mark.usefixtures("cluster", "remote")
@pytest.mark.parametrize("mode", ["client", "cluster"])
@pytest.mark.parametrize("key", ["path", "test"])
def test_rows_that_are_not_at_their_address_are_told_before_anything_is_sent(
    call, tmp_path, mode, key
):
    rows = f"data.{key}=memory://host/nowhere.parquet"
    code, out, err = call("submit", "remote.toml", "--deploy-mode", mode, "--set", rows)
    wrong = "there is no memory://host/nowhere.parquet; name a file or a folder of files"
    assert (code, out, err) == (2, "", f"photinus: {wrong}\n")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("is_package", [False, True])
def test_a_module_of_this_folder_that_does_not_travel_is_told_before_anything_is_sent(
    call, cluster, remote, tmp_path, is_package
):
    text = (tmp_path / remote).read_text()
    module = 'kind = "module"\nmodule = "nets.small:net"\nepochs = 3\n\n[data]'
    (tmp_path / remote).write_text(text.partition("kind")[0] + module + text.partition("[data]")[2])
    files = tmp_path / "nets" / "__init__.py" if is_package else tmp_path / "nets.py"
    files.parent.mkdir(exist_ok=True)
    files.touch()
    code, out, err = call("submit", remote, "--deploy-mode", "cluster")
    assert (code, out) == (2, "")
    do = "make a zip of the folder nets, and add --py-files nets.zip"
    assert err.endswith(f"; got nets.small:net; {do if is_package else 'add --py-files nets.py'}\n")
    assert not (tmp_path / "cache").exists()
    zipfile.ZipFile(tmp_path / "nets.zip", "w").close()
    for given in (
        ("--environment", "installed"),
        ("--py-files", "nets.zip"),
        ("--conf", "spark.executorEnv.PYTHONPATH=/opt/nets"),
    ):
        assert call("submit", remote, "--deploy-mode", "cluster", *given)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "words", "end"),
    [
        (["--master", "yran"], "the master is unknown; got 'yran'", 2),
        (["missing.toml"], "missing.toml cannot be read", 2),
        ([], "no job is named", 2),
        (["remote.toml", "--deploy-mode", "cluster", "--folder", "run"], "keeps its run at an", 2),
        (["job.toml", "--deploy-mode", "cluster"], "cannot read a path of this machine", 2),
        (["cifar10", "--deploy-mode", "cluster"], "of this machine; got none", 2),
        (["remote.toml", "--py-files", "nets.py"], "must exist; got nets.py", 2),
        (["remote.toml", "--resume", "memory://host/run"], "start=memory://host/run/model", 2),
        (["remote.toml", "--conf", "spark.my.password=x"], "must not stand in a command", 2),
        (["remote.toml", "--master", "local[2]", "--python", "/no"], "leave --python out", 2),
    ],
)
@pytest.mark.usefixtures("cluster", "remote")
def test_a_wrong_word_is_told_before_anything_is_sent(call, arguments, words, end, tmp_path):
    code, out, err = call("submit", *arguments)
    assert (code, out) == (end, "")
    assert words in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "cache").exists()


def test_without_a_clusters_settings_the_environment_is_not_ready(call, job, monkeypatch):
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    code, _, err = call("submit", job)
    assert code == 3
    assert "the cluster's settings are not here" in err


@pytest.mark.parametrize("mode", ["client", "cluster"])
@pytest.mark.usefixtures("cluster")
def test_a_cluster_that_does_not_answer_is_told_before_anything_is_made(
    call, remote, tmp_path, mode
):
    (tmp_path / "conf" / "core-site.xml").write_text(CORE.replace("//host", "//localhost:1"))
    code, out, err = call("submit", remote, "--deploy-mode", mode)
    assert (code, out) == (3, "")
    assert err.startswith("photinus: nothing answers at memory://localhost:1/user/")
    assert not (tmp_path / "cache").exists()


def test_a_page_that_is_told_again_is_said_once():
    lines = ["\t tracking URL: http://host:8088/proxy/a/", "\t tracking URL: N/A"] * 2
    assert list(submit.states(lines)) == ["  http://host:8088/proxy/a/"]


@pytest.mark.processes
def test_who_stops_looking_at_a_run_on_a_node_ends_what_looks_and_not_the_run(capsys):
    """SIGTERM reaches this process alone, as Ctrl-C does not."""
    with subprocess.Popen(["sleep", "600"], text=True) as process:
        with (
            pytest.raises(KeyboardInterrupt),
            submit._continuing_remotely("hdfs://h:1/runs/a", process),
        ):
            raise KeyboardInterrupt("SIGTERM")
        assert process.wait() == -signal.SIGTERM
    assert "the run continues without this command" in capsys.readouterr().out
