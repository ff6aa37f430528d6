"""What `photinus` exports completes itself: signatures, types, and docs of every parameter."""

import ast
import inspect
import itertools
import re
import textwrap

import pytest

import photinus

CALLABLES = [name for name in photinus.__all__ if callable(getattr(photinus, name))]


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


@pytest.mark.parametrize("name", CALLABLES)
def test_a_public_callable_names_and_types_all_that_it_takes(name):
    parameters = inspect.signature(getattr(photinus, name)).parameters.values()
    for parameter in parameters:
        assert parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL), parameter
        assert parameter.annotation is not parameter.empty, parameter
    kinds = {parameter.annotation for parameter in parameters}
    assert kinds != {"Any"}, "its signature says nothing"


@pytest.mark.parametrize("name", CALLABLES)
def test_a_public_callable_explains_every_parameter(name):
    item = getattr(photinus, name)
    assert set(inspect.signature(item).parameters) - documented(item) == set()
