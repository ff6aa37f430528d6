"""Spark's classes in a file: the first Java writes it, and the next ones read it."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from photinus.deploy.class_archive import archive_options
from photinus.deploy.java import java_home

pytestmark = pytest.mark.processes


@pytest.fixture
def home(monkeypatch, tmp_path):
    """Returns the home of a Java that has an archive of its own classes."""
    home = java_home()
    if home is None or not (home / "lib" / "server" / "classes.jsa").exists():
        pytest.skip("no Java with an archive of its own classes")
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    for name in ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))
    return str(home)


def started(home, *more):
    """Returns what Java prints with the options."""
    command = [f"{home}/bin/java", *shlex.split(archive_options(home)), *more, "-version"]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    return result.stdout + result.stderr


def files(tmp_path, suffix):
    """Returns the archives of a kind: .new as Java has written them, .jsa as it reads them."""
    return list((tmp_path / "a cache" / "photinus" / "java").glob(f"*{suffix}"))


def test_the_first_java_writes_the_archive_and_the_next_one_reads_it(home, tmp_path):
    assert "ArchiveClassesAtExit" in archive_options(home)
    assert "warning" not in started(home)
    assert "SharedArchiveFile" in archive_options(home)
    assert not files(tmp_path, ".new")
    assert "(top)" in started(home, "-Xlog:class+load=info:stdout"), "of the file, not Java's own"
    folder = files(tmp_path, ".jsa")[0].parent
    assert folder.stat().st_mode & 0o777 == 0o700, "code that Java trusts"


def test_an_archive_that_was_cut_short_is_written_anew(home, tmp_path):
    started(home)
    (written,) = files(tmp_path, ".new")
    written.chmod(0o600)
    written.write_bytes(bytes(8) + written.read_bytes()[8:])  # Java writes the first bytes last
    assert "ArchiveClassesAtExit" in archive_options(home)
    started(home)
    assert "SharedArchiveFile" in archive_options(home)


def test_an_archive_of_before_the_machine_started_is_written_anew(home, tmp_path):
    started(home)
    (written,) = files(tmp_path, ".new")
    os.utime(written, (1, 1))
    assert "ArchiveClassesAtExit" in archive_options(home)
    assert not files(tmp_path, "")


def test_java_starts_without_an_archive_that_is_another_javas(home, tmp_path):
    started(home)
    archive_options(home)
    (path,) = files(tmp_path, ".jsa")
    path.chmod(0o600)
    path.write_bytes(bytes(8) + path.read_bytes()[8:])
    output = started(home)
    assert output.startswith("openjdk")
    assert "warning" not in output


def test_another_version_of_spark_has_an_archive_of_its_own(home, tmp_path):
    before = archive_options(home)
    os.utime(tmp_path / "spark" / "jars", (1, 1))
    assert archive_options(home) != before


@pytest.mark.parametrize("name", ["SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR"])
def test_where_spark_reads_a_folder_of_settings_there_is_none(home, tmp_path, monkeypatch, name):
    folder = tmp_path / "conf"
    folder.mkdir()
    monkeypatch.setenv(name, str(folder))
    assert archive_options(home) != ""
    (folder / "spark-defaults.conf").write_text("")
    assert archive_options(home) == "", "Java would end with an error that names the folder"


def test_without_javas_own_archive_or_a_place_there_is_none(home, tmp_path, monkeypatch):
    assert archive_options(str(tmp_path)) == ""
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path(__file__) / "no folder"))
    assert archive_options(home) == ""
