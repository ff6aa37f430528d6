"""Every script of `benchmarks/` can be imported, says its processor, and runs at its smallest."""

import importlib
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MODULES = sorted(path.stem for path in BENCHMARKS.glob("*.py"))
SCRIPTS = [
    *(path.name for path in sorted(BENCHMARKS.glob("*.py")) if "__main__" in path.read_text()),
    *(path.parent.name for path in sorted(BENCHMARKS.glob("*/__main__.py"))),
]


@pytest.fixture
def machine(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("machine")


@pytest.mark.parametrize("name", MODULES)
def test_a_script_can_be_imported(name, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    importlib.import_module(name)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_takes_small(name):
    path = BENCHMARKS / name
    text = (path / "__main__.py" if path.is_dir() else path).read_text()
    assert "--small" in text or "    begin(" in text, "tests run it by --small: see machine.py"


def test_small_stands_for_the_scripts_own_words_and_others_come_after(machine, monkeypatch, capsys):
    monkeypatch.delenv("PHOTINUS_PROCESSOR_SAID", raising=False)
    monkeypatch.setattr(sys, "argv", ["script", "--keep", "--small"])
    machine.begin("--rows", "5")
    assert sys.argv == ["script", "--rows", "5", "--keep"]
    output = capsys.readouterr().out
    machine.begin()  # as a child that the script starts
    assert capsys.readouterr().out == ""
    del os.environ["PHOTINUS_PROCESSOR_SAID"]  # by hand: monkeypatch would put it back
    assert output.startswith("processor: ")
    assert output.endswith("\n")
    assert output.count("\n") == 1


@pytest.mark.parametrize(
    "held", [(), ("ATEN_CPU_CAPABILITY",), ("ONEDNN_MAX_CPU_ISA", "OPENBLAS_CORETYPE")]
)
def test_the_processors_line_has_name_instructions_and_what_holds_them(held, machine, monkeypatch):
    for name in machine.HELD:  # the shell that runs the tests may set some
        monkeypatch.delenv(name, raising=False)
    for name in held:
        monkeypatch.setenv(name, "avx2")
    line = machine.processor()
    assert ("held to" in line) == bool(held)
    assert " ".join(f"{name}=avx2" for name in held) in line
    assert f"{os.cpu_count()} cores" in line
    if platform.system() == "Linux":
        assert any(width in line for width in machine.WIDTHS)


@pytest.mark.slow
@pytest.mark.mnist
@pytest.mark.processes
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs_at_its_smallest_size(name, request, tmp_path):
    command = [sys.executable, str(BENCHMARKS / name), "--small"]
    if name in ("text_sentiment.py", "fine_tuning_rates.py"):
        command += ["--base", str(request.getfixturevalue("small_encoder"))]
    paths = os.pathsep.join([str(BENCHMARKS), str(BENCHMARKS.parent / "src")])
    process = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": paths},
        start_new_session=True,
    )
    if process.returncode == 3:
        pytest.skip(process.stderr.strip().splitlines()[-1])
    assert process.returncode == 0, process.stderr[-3000:]
    assert len(process.stdout.splitlines()) > 1, "it measured nothing"
