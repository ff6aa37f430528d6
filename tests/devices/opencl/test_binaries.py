"""Kernels that were compiled before, and what is said of those that do not fit."""

import json

import pytest
import torch

from photinus.cli.main import main
from photinus.core.errors import NotReadyError, UsageError
from photinus.devices.opencl import engine as engines
from photinus.devices.opencl.binaries import MANIFEST, VARIABLE, build, usable_engine
from photinus.devices.opencl.engine import OpenCLEngine
from photinus.devices.opencl.offload import Offload


@pytest.fixture
def folder(opencl, tmp_path, monkeypatch):
    """Kernels for this device, which the environment names."""
    build(opencl, tmp_path)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return tmp_path


def change(folder, **fields):
    about = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(about | fields))


def test_a_device_computes_with_compiled_kernels_and_no_source(folder, opencl, monkeypatch):
    made = usable_engine(opencl)
    monkeypatch.setattr(OpenCLEngine, "options", lambda _: pytest.fail("it compiles"))
    again = usable_engine(opencl)
    x = torch.arange(6.0).view(2, 3)
    for engine in (made, again):
        with Offload(engine):
            y = x @ x.t()
        assert torch.equal(y, x @ x.t())


def test_a_boards_own_file_is_tested_and_gets_a_manifest(folder, opencl, tmp_path):
    file = folder / "kernels.bin"
    flavour = json.loads((folder / MANIFEST).read_text())["flavour"]
    path = build(opencl, tmp_path / "own", file.rename(folder / "gemm.aocx"), flavour)
    about = json.loads(path.read_text())
    assert (about["file"], about["device"], about["flavour"]) == (
        "gemm.aocx",
        opencl.title,
        flavour,
    )
    assert (path.parent / "gemm.aocx").is_file()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"device": "Stratix 10"}, "are for another device than opencl:.*; got Stratix 10, and"),
        ({"source": "0" * 64}, "are of another version of photinus"),
        ({"flavour": "tall"}, "are of another version of photinus"),
        ({"sha256": "0" * 64}, "the file kernels.bin of .* is damaged; got SHA-256"),
        ({"file": "other.bin"}, "names no kernels; got .*No such file"),
        ({"more": 1}, "names no kernels"),
    ],
)
def test_kernels_that_do_not_fit_are_refused_in_a_sentence(folder, opencl, fields, said):
    change(folder, **fields)
    with pytest.raises(NotReadyError, match=said) as refused:
        usable_engine(opencl)
    assert "\n" not in str(refused.value)


def test_a_cut_file_never_reaches_the_driver(folder, opencl, monkeypatch):
    file = folder / "kernels.bin"
    file.write_bytes(file.read_bytes()[:2000])
    monkeypatch.setattr(OpenCLEngine, "__init__", lambda *_: pytest.fail("it does"))
    with pytest.raises(NotReadyError, match="is damaged"):
        usable_engine(opencl)


def test_a_folder_without_kernels_is_refused(opencl, tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "none"))
    with pytest.raises(NotReadyError, match=f"{VARIABLE} names no kernels"):
        usable_engine(opencl)
    with pytest.raises(UsageError, match="the kernels cannot be read"):
        build(opencl, tmp_path, tmp_path / "none")


def test_a_binary_that_the_driver_refuses_is_told_in_a_sentence(opencl):
    with pytest.raises(NotReadyError, match="the binary of the kernels is refused by opencl") as no:
        OpenCLEngine(opencl, binary=b"hello" * 100)
    assert "\n" not in str(no.value)


def test_kernels_that_do_not_compile_are_told_in_a_sentence(opencl, monkeypatch):
    monkeypatch.setattr(engines, "source", lambda: "no kernel;")
    with pytest.raises(NotReadyError, match="the kernels are not compiled by opencl") as refused:
        OpenCLEngine(opencl)
    assert "\n" not in str(refused.value)


def test_a_device_that_computes_wrongly_fails_its_test(opencl, monkeypatch):
    wrong = engines.source().replace("sum[w] + ", "").replace("y[offset[j]]", "y[offset[j]] + 1")
    monkeypatch.setattr(engines, "source", lambda: wrong)
    with pytest.raises(
        NotReadyError, match=r"fails its test: it computes a product wrongly; got \d"
    ):
        usable_engine(opencl)


def test_kernels_are_built_and_printed_by_the_command_line(opencl, tmp_path, capsys):
    for arguments in (["kernels", "build", str(tmp_path / "k")], ["kernels", "source"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0
    said = capsys.readouterr().out
    assert f"for {opencl.title}; workers use it with {VARIABLE}={tmp_path / 'k'}" in said
    assert "__kernel void tile" in said
    assert (tmp_path / "k" / MANIFEST).is_file()
