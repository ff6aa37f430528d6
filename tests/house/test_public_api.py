"""What `photinus` exports completes itself: signatures, types, and docs of every parameter."""

import ast
import inspect
import itertools
import pydoc
import re
import textwrap
from pathlib import Path

import pytest

import photinus
import photinus.data
import photinus.nn
import photinus.testing
import photinus.zoo

PUBLISHED = {
    name: item
    for module in (photinus, photinus.data, photinus.nn, photinus.testing, photinus.zoo)
    for name in module.__all__
    if callable(item := getattr(module, name))
}


def documented(item: object) -> set[str]:
    """Names with a line in an `Args:` section, or fields with a text of their own below them."""
    kinds = inspect.getmro(item) if isinstance(item, type) else (item,)
    names = set()
    for kind in kinds:
        _, _, args = (inspect.getdoc(kind) or "").partition("Args:\n")
        names.update(re.findall(r"^ {4}(\w+): \S", args.partition("\n\n")[0], re.MULTILINE))
        if isinstance(kind, type) and kind.__module__.startswith("photinus"):
            names.update(fields_with_text(kind))
    return names


def fields_with_text(kind: type) -> list[str]:
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0].body
    return [
        field.target.id
        for field, text in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    ]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_public_callable_names_and_types_all_that_it_takes(name):
    parameters = inspect.signature(PUBLISHED[name]).parameters.values()
    for parameter in parameters:
        assert parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL), parameter
        assert parameter.annotation is not parameter.empty, parameter
    kinds = {parameter.annotation for parameter in parameters}
    assert kinds != {"Any"}, "its signature says nothing"


def test_no_signature_of_a_public_callable_names_a_type_that_only_its_file_knows():
    methods = {
        f"{name}.{key}": value
        for name, kind in PUBLISHED.items()
        for key, value in (vars(kind) if isinstance(kind, type) else {}).items()
        if key[0] != "_" and inspect.isfunction(value)
    }
    named = {
        name: re.findall(r"\b_[A-Z]\w+", str(inspect.signature(item)))
        for name, item in {**PUBLISHED, **methods}.items()
    }
    assert {name: found for name, found in named.items() if found} == {}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_public_callable_explains_every_parameter(name):
    item = PUBLISHED[name]
    assert set(inspect.signature(item).parameters) - documented(item) == set()


KINDS = [name for name, item in PUBLISHED.items() if isinstance(item, type)]


@pytest.mark.parametrize("name", KINDS)
def test_a_public_method_says_what_it_does_or_the_class_that_it_is_from_does(name):
    own = vars(PUBLISHED[name]).items()
    public = [k for k, v in own if k[0] != "_" and (callable(v) or isinstance(v, property))]
    assert [k for k in public if not inspect.getdoc(getattr(PUBLISHED[name], k))] == []


ROOT = Path(__file__).parents[2]
PUBLIC = {"photinus.data", "photinus.nn", "photinus.testing", "photinus.zoo"}
"""Modules that are public by their names: networks in job files, the feed alone, layers, tests."""


def code_of(path: Path) -> list[str]:
    text = path.read_text()
    if path.suffix == ".py":
        return [text]
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def modules_imported(code: str) -> set[str]:
    tree = ast.walk(ast.parse(code))
    return {
        name
        for node in tree
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }


TAUGHT = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.py")]


@pytest.mark.parametrize("path", TAUGHT, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_examples_and_docs_import_public_names_only(path):
    imported = {name for code in code_of(path) for name in modules_imported(code)}
    assert {name for name in imported if name.startswith("photinus.")} <= PUBLIC


def test_names_for_tools_are_the_names_that_are_imported():
    tree = ast.parse(Path(photinus.__file__).read_text())
    (guarded,) = (node for node in tree.body if isinstance(node, ast.If))
    typed = {alias.name for line in guarded.body for alias in line.names}
    assert typed == set(photinus.__all__)


def shown() -> set[str]:
    """What docs/api.md shows: modules, or names in their modules."""
    return set(re.findall(r"^::: (\S+)$", (ROOT / "docs/api.md").read_text(), re.MULTILINE))


def shown_as(name: str) -> set[str]:
    """A public name's own place, and the module that it lives in."""
    if name in photinus._MODULES:
        return {f"photinus.{photinus._MODULES[name]}"}
    home = f"photinus.{photinus._HOME_OF[name]}"
    return {home, f"{home}.{name}"}


def test_every_public_name_is_on_the_page_of_the_api():
    assert [name for name in photinus.__all__ if not shown_as(name) & shown()] == []
    assert {"photinus.data.dataset.batches", "photinus.nn", "photinus.zoo"} <= shown()


def test_what_the_page_of_the_api_shows_is_there():
    assert [place for place in shown() if pydoc.locate(place) is None] == []
