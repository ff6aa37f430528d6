"""What travels to nodes that have nothing."""

import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from photinus import __version__
from photinus.core.errors import CheckpointError, NotReadyError
from photinus.deploy import packaging


@pytest.fixture
def few(monkeypatch):
    """An environment of one small package, whose archive is made in no time."""
    monkeypatch.setattr(
        packaging, "distributions", lambda: {"click": metadata.distribution("click")}
    )


def unpacked(archive, folder):
    path = archive.path_in(folder)
    place = folder / "environment"
    place.mkdir()
    subprocess.run(["tar", "-xf", path, "-C", place], check=True)  # as a node does
    return place


def run(python, *arguments, cwd, **environment):
    command = [str(python), *arguments]
    defaults = {"PATH": "/usr/bin:/bin", "PHOTINUS_NODE_PYTHON": sys.executable}
    return subprocess.run(
        command, env=defaults | environment, cwd=cwd, capture_output=True, text=True
    )


def test_all_that_photinus_needs_travels_and_the_tools_of_its_makers_do_not():
    names = set(packaging.distributions())
    assert {"photinus", "torch", "numpy", "pyarrow", "pandas", "pyspark", "safetensors"} <= names
    assert not {"pytest", "ruff", "mypy", "hypothesis"} & names


@pytest.mark.usefixtures("few")
def test_a_nodes_python_finds_the_packages_that_travelled_and_photinus_beside_them(tmp_path):
    home = unpacked(packaging.environment(), tmp_path)
    packaging.own_code(tmp_path / "photinus.zip")
    program = (
        "import click, photinus; from importlib.metadata import version; "
        "print(click.__file__); print(photinus.__file__); print(version('photinus'))"
    )
    # -S: without the packages of this machine
    process = run(home / packaging.LAUNCHER, "-S", "-c", program, cwd=tmp_path)
    assert process.stderr == ""
    click_path, code_path, version = process.stdout.split()
    assert click_path.startswith(str(home))
    assert code_path.startswith(str(tmp_path / "photinus.zip"))
    assert version == __version__


@pytest.mark.usefixtures("few")
def test_a_node_without_that_python_says_so(tmp_path):
    home = unpacked(packaging.environment(), tmp_path)
    place = tmp_path / "bin"
    place.mkdir()
    for name in ("sh", "dirname", "uname"):
        (place / name).symlink_to(f"/bin/{name}")
    process = run(home / packaging.LAUNCHER, cwd=tmp_path, PATH=str(place), PHOTINUS_NODE_PYTHON="")
    assert process.returncode == 3
    assert f"no Python {sys.version_info[0]}.{sys.version_info[1]} on" in process.stderr
    assert "--python PATH" in process.stderr


@pytest.mark.usefixtures("few")
def test_a_python_that_is_named_and_missing_is_not_replaced_by_another(tmp_path):
    home = unpacked(packaging.environment(), tmp_path)
    path = f"{Path(sys.executable).resolve().parent}:/usr/bin:/bin"
    program = ("-S", "-c", "print(1)")
    named = {"PATH": path, "PHOTINUS_NODE_PYTHON": "/opt/no where/python"}
    process = run(home / packaging.LAUNCHER, *program, cwd=tmp_path, **named)
    assert (process.returncode, process.stdout) == (3, "")
    assert "; got /opt/no where/python; name it: --python PATH" in process.stderr
    process = run(home / packaging.LAUNCHER, *program, cwd=tmp_path, PATH=path)
    assert process.stdout == "1\n"


@pytest.mark.usefixtures("few")
def test_the_same_packages_have_the_same_name_and_others_another(tmp_path, monkeypatch):
    first = packaging.environment()
    assert packaging.environment().name == first.name
    monkeypatch.setattr(packaging, "distributions", lambda: {"rich": metadata.distribution("rich")})
    assert packaging.environment().name != first.name
    first.path_in(tmp_path)
    newest = packaging.environment().path_in(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [newest.name], "the older one makes room"


@pytest.mark.usefixtures("few")
def test_an_archive_is_sent_once(tmp_path):
    pytest.importorskip("fsspec")
    folder = f"memory://archives/{tmp_path.name}"
    archive = packaging.environment()
    assert packaging.sent(archive, tmp_path, folder) == (f"{folder}/{archive.name}", True)
    (tmp_path / archive.name).unlink()
    assert packaging.sent(archive, tmp_path, folder) == (f"{folder}/{archive.name}", False)
    assert not list(tmp_path.iterdir()), "what is there already is not made again"
    assert packaging.sent(archive, tmp_path, "") == (str(tmp_path / archive.name), False)


@pytest.mark.usefixtures("few")
def test_places_that_cannot_be_written_are_named(tmp_path, monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    (tmp_path / "file").touch()
    with pytest.raises(NotReadyError, match=r"file/.* cannot be written"):
        packaging.environment().path_in(tmp_path / "file")

    def refuse(*_, **__):
        raise OSError("no space")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "put_file", refuse)
    with pytest.raises(CheckpointError, match="cannot be written to; got no space"):
        packaging.sent(packaging.environment(), tmp_path, "memory://full")


def test_sparks_jars_travel_as_they_are(tmp_path):
    archive = packaging.jars()
    assert archive.name.startswith(f"photinus-spark-{metadata.version('pyspark')}-")


def test_a_spark_that_is_only_a_client_has_no_jars(tmp_path, monkeypatch):
    monkeypatch.setattr(packaging, "spark_home", lambda: tmp_path)
    with pytest.raises(NotReadyError, match="pyspark has no jars"):
        packaging.jars()


def test_the_code_that_travels_has_no_compiled_files(tmp_path):
    packaging.own_code(tmp_path / "photinus.zip")
    with zipfile.ZipFile(tmp_path / "photinus.zip") as archive:
        names = archive.namelist()
    assert "photinus/engine/spark/daemon.py" in names
    assert not [name for name in names if "__pycache__" in name]
