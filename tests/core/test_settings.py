"""Limits as data, one form of refusal, plain values and back."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest

from photinus.core.errors import UsageError
from photinus.core.settings import (
    Limit,
    above,
    at_least,
    between,
    from_dict,
    one_of,
    to_dict,
    unknown_name,
    validate,
    whole,
)


@dataclass(frozen=True)
class Inner:
    size: int = 3


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str
    rate: float = 0.5
    inner: Inner = field(default_factory=Inner)
    maybe: Inner | None = None
    inners: tuple[Inner, ...] = ()
    sizes: tuple[int, ...] = ()
    table: Mapping[str, int | None] = field(default_factory=dict)
    count: int | None = None
    LIMITS = {"rate": above(0), "count": Limit.optional(whole(1))}  # noqa: RUF012

    def __post_init__(self):
        validate(self)


@pytest.mark.parametrize(
    ("limit", "good", "bad", "text"),
    [
        (whole(1), [1, 7], [0, 1.0, True, "1", None], "a whole number of at least 1"),
        (above(0), [0.1, 3], [0, -1, float("inf"), float("nan"), True, "1"], "a number above 0"),
        (at_least(0), [0, 2.5], [-0.1, None], "a number of at least 0"),
        (between(0, 1), [0, 0.5, 1], [1.1, -1], "a number from 0 to 1"),
        (one_of("a", 2), ["a", 2], ["b", None], "one of 'a', 2"),
        (Limit.optional(whole(2)), [None, 2], [1], "a whole number of at least 2, or left out"),
        (Limit.each(above(0)), [1, (1, 2)], [0, (1, 0), ()], "a number above 0, or several such"),
    ],
)
def test_limits_hold_and_say_what_they_are(limit, good, bad, text):
    assert limit.text == text
    assert all(limit.holds(v) for v in good)
    assert not any(limit.holds(v) for v in bad)


def test_a_refusal_names_field_class_limit_and_value():
    with pytest.raises(UsageError) as raised:
        Outer(name="x", rate=-1)
    assert str(raised.value) == "rate of Outer must be a number above 0; got -1"


def test_a_class_without_limits_is_always_valid():
    validate(Inner())


WHOLE = Outer(
    name="x",
    rate=2.0,
    inner=Inner(4),
    maybe=Inner(5),
    inners=(Inner(1), Inner(2)),
    sizes=(1, 2),
    table={"a": 1},
)


def test_plain_values_and_back():
    assert from_dict(Outer, to_dict(WHOLE)) == WHOLE
    assert to_dict(WHOLE)["inners"] == [{"size": 1}, {"size": 2}]
    assert "count" not in to_dict(WHOLE), "TOML has no null"
    assert to_dict(Outer(name="x", table={"a": None, "b": 2}))["table"] == {"b": 2}


def test_from_toml():
    text = 'name = "x"\nrate = 1\nsizes = [1, 2]\n[maybe]\nsize = 9\n[inner]\nsize = 4\n'
    outer = from_dict(Outer, tomllib.loads(text))
    assert outer == Outer(name="x", rate=1.0, sizes=(1, 2), maybe=Inner(9), inner=Inner(4))
    assert isinstance(outer.rate, float)
    assert from_dict(Outer, {"name": "x", "maybe": None}).maybe is None


def test_an_unknown_key_is_refused_with_the_nearest():
    with pytest.raises(UsageError, match="unknown setting of Outer; got 'nmae'; did you mean"):
        from_dict(Outer, {"nmae": "x"})


def test_a_missing_key_is_refused():
    with pytest.raises(UsageError, match=r"Outer cannot be made; got \{\}; .*missing"):
        from_dict(Outer, {})


def test_an_unknown_name_gets_the_nearest_or_all():
    assert "did you mean 'averaging'?" in str(unknown_name("x", "averging", ["averaging", "b"]))
    assert "did you mean 'a'?" in str(unknown_name("column", "A", ["a", "b"]))
    assert "known: averaging, b" in str(unknown_name("x", "zzz", ["b", "averaging"]))


@pytest.mark.parametrize(("name", "known"), [("inputShape", "cpuShare"), ("auroc", "accuracy")])
def test_a_name_with_some_letters_of_another_is_not_taken_for_it(name, known):
    assert f"known: {known}" in str(unknown_name("Param", name, [known]))


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("mes", "mse"),
        ("entropy", "cross_entropy"),
        ("freeze", "frozen"),
        ("huber_loss", "huber"),
    ],
)
def test_a_name_that_begins_alike_or_a_part_of_one_is_taken_for_it(name, known):
    assert f"did you mean {known!r}?" in str(unknown_name("loss", name, [known]))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (5, "Outer must be a table of settings; got 5"),
        ({"inner": 5}, "inner of Outer must be a table; got 5; a table has size"),
        ({"maybe": 5}, "maybe of Outer must be a table; got 5; a table has size"),
        ({"inners": 5}, "inners of Outer must be a list; got 5"),
        ({"inners": [5]}, "inners of Outer must be a table; got 5; a table has size"),
        ({"sizes": "ab"}, "sizes of Outer must be a list; got 'ab'"),
    ],
)
def test_a_value_of_another_shape_than_its_field_is_named(values, said):
    with pytest.raises(UsageError) as raised:
        from_dict(Outer, values)
    assert str(raised.value) == said


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": 5}, "name of Outer must be a string; got 5"),
        ({"name": "a", "inner": {"size": 1}}, "inner of Outer must be of type Inner; got"),
        ({"name": "a", "sizes": 5}, "sizes of Outer must be a list; got 5"),
        ({"name": "a", "table": [1]}, "table of Outer must be a table of names and values"),
        ({"name": "a", "count": np.int64(2)}, "int(...), float(...) or .tolist()"),
    ],
)
def test_a_field_without_a_limit_must_be_of_its_plain_type(fields, said):
    with pytest.raises(UsageError, match=re.escape(said)):
        Outer(**fields)


def test_what_cannot_be_compared_does_not_hold():
    @dataclass(frozen=True)
    class Share:
        value: object
        LIMITS = {"value": Limit("below 1", lambda v: v < 1)}  # noqa: RUF012

    with pytest.raises(UsageError, match="value of Share must be below 1; got 'x'"):
        validate(Share("x"))
