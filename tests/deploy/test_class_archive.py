"""Spark's classes in a file: the first Java writes it, and the next ones read it."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from photinus.deploy.class_archive import reading_options, writing_options
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


def started(home, options, *more):
    """Returns what Java prints with the options."""
    command = [f"{home}/bin/java", *shlex.split(options), *more, "-version"]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    return result.stdout + result.stderr


def only_file(tmp_path):
    """Returns the archive: .jsa as Java reads it, or of another name as it was written."""
    (path,) = (tmp_path / "a cache" / "photinus" / "java").iterdir()
    return path


def test_one_java_writes_the_archive_and_the_next_one_reads_it(home, tmp_path):
    assert reading_options(home) == "", "a session that did not ask for it does not take longer"
    assert "warning" not in started(home, writing_options(home))
    assert "(top)" in started(home, reading_options(home), "-Xlog:class+load=info:stdout"), (
        "of the file, not of Java's own"
    )
    assert writing_options(home) == "", "it is there"
    assert only_file(tmp_path).suffix == ".jsa"
    assert only_file(tmp_path).parent.stat().st_mode & 0o777 == 0o700, "code that Java trusts"


def test_an_archive_that_was_cut_short_is_written_anew(home, tmp_path):
    started(home, writing_options(home))
    written = only_file(tmp_path)
    written.chmod(0o600)
    written.write_bytes(bytes(8) + written.read_bytes()[8:])  # Java writes the first bytes last
    assert reading_options(home) == ""
    started(home, writing_options(home))
    assert "SharedArchiveFile" in reading_options(home)


def test_an_archive_of_before_the_machine_started_is_not_read(home, tmp_path):
    started(home, writing_options(home))
    written = only_file(tmp_path)
    other = written.rename(written.with_suffix(".of-another-start"))
    assert reading_options(home) == ""
    assert "ArchiveClassesAtExit" in writing_options(home)
    assert not other.exists()


def test_java_starts_without_an_archive_that_is_another_javas(home, tmp_path):
    started(home, writing_options(home))
    reading_options(home)
    path = only_file(tmp_path)
    path.chmod(0o600)
    path.write_bytes(bytes(8) + path.read_bytes()[8:])
    output = started(home, reading_options(home))
    assert output.startswith("openjdk")
    assert "warning" not in output


def test_another_version_of_spark_has_an_archive_of_its_own(home, tmp_path):
    before = writing_options(home)
    os.utime(tmp_path / "spark" / "jars", (1, 1))
    assert writing_options(home) != before


def test_an_archive_of_another_user_is_not_read(home, monkeypatch):
    started(home, writing_options(home))
    assert reading_options(home) != ""
    me = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    assert reading_options(home) == ""


@pytest.mark.parametrize("name", ["SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR"])
def test_where_spark_reads_a_folder_of_settings_there_is_none(home, tmp_path, monkeypatch, name):
    folder = tmp_path / "conf"
    folder.mkdir()
    monkeypatch.setenv(name, str(folder))
    assert writing_options(home) != ""
    (folder / "spark-defaults.conf").write_text("")
    assert writing_options(home) == "", "Java would end with an error that names the folder"


def test_without_javas_own_archive_or_a_place_there_is_none(home, tmp_path, monkeypatch):
    assert writing_options(str(tmp_path)) == ""
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path(__file__) / "no folder"))
    assert writing_options(home) == reading_options(home) == ""
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "gone"))
    assert writing_options(home) == reading_options(home) == ""
