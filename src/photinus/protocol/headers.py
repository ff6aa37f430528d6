"""Which fields the header of each kind of frame has, and what each of them must be.

A reader of frames from a link passes each through `checked` first. It refuses malformed headers
with a `FrameError`, and all code behind it reads fields without further checks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from photinus.core.errors import FrameError
from photinus.strategies.codecs import CODECS
from photinus.transport.frames import Frame

_Holds = Callable[[Any], bool]


def _is_whole(value: Any) -> bool:  # noqa: ANN401 - JSON
    return type(value) is int and -1 <= value < 1 << 63


def _is_number(value: Any) -> bool:  # noqa: ANN401 - JSON
    return type(value) is float or (type(value) is int and abs(value) < 1 << 63)


def _is_amount(value: Any) -> bool:  # noqa: ANN401 - JSON
    return _is_number(value) and value >= 0 and math.isfinite(value)


def _is_text(value: Any) -> bool:  # noqa: ANN401 - JSON
    return type(value) is str


def _list(holds: _Holds) -> _Holds:
    return lambda value: type(value) is list and all(map(holds, value))


def _table(holds: _Holds) -> _Holds:
    return lambda value: type(value) is dict and all(map(holds, value.values()))


def _row(*rules: _Holds) -> _Holds:
    def holds(value: Any) -> bool:  # noqa: ANN401 - JSON
        is_row = type(value) is list and len(value) == len(rules)
        return is_row and all(rule(v) for rule, v in zip(rules, value, strict=True))

    return holds


def _is_fragment(value: Any) -> bool:  # noqa: ANN401 - JSON
    return _row(_is_whole, _is_whole)(value) and 0 <= value[0] <= value[1]


def _is_of_slots(value: Any) -> bool:  # noqa: ANN401 - JSON
    return _table(_is_whole)(value) and all(slot.isdecimal() for slot in value)


_RULES: tuple[tuple[str, _Holds, str], ...] = (
    (
        "a whole number from -1 to 2^63",
        _is_whole,
        "version position steps examples steps_since examples_since unanswered hello rows has"
        " passes pid budget start asked edition doubled bytes to kept reading",
    ),
    (
        "a number, finite and not negative",
        _is_amount,
        "epochs seconds progress compute_seconds wait_seconds apart",
    ),
    (
        "a text",
        _is_text,
        "attempt host address device fingerprint name reason level text error type cause merge"
        " digest",
    ),
    (
        "true or false",
        lambda value: type(value) is bool,
        "stop save measure call is_unfinished sends_inner is_fresh is_idle is_behind is_last "
        "is_finite guards restores is_weightless",
    ),
    ("a list of whole numbers", _list(_is_whole), "slots leases history parts wholes near"),
    ("a table of whole numbers", _table(_is_whole), "labels taken"),
    ("slots and whole numbers", _is_of_slots, "sent"),
    ("a table of numbers", _table(_is_number), "metrics measured"),
    ("a table of types and shapes", _table(_row(_is_text, _list(_is_whole))), "shard kinds"),
    ("two numbers", _row(_is_number, _is_number), "span"),
    ("start <= stop", _is_fragment, "fragment"),
    ("slots, leases and addresses", _list(_row(_is_whole, _is_whole, _is_text)), "peers"),
    (f"one of {', '.join(CODECS)}", lambda value: value in tuple(CODECS), "codec"),
)
"""What a field must be, how that is tested, and which fields it holds for."""
FIELDS: Mapping[str, tuple[str, _Holds]] = {
    name: (words, holds) for words, holds, names in _RULES for name in names.split()
}

_HERE = ("version", "edition", "peers")
_OF_MEETING = ("version", "slots")
NEEDED: Mapping[str, tuple[str, ...]] = {
    "hello": ("attempt", "hello", "rows", "has"),
    "grant": (
        *("version", "position", "budget", "progress", "rows", "span", "sends_inner", "shard"),
        *("is_fresh", "is_idle", "is_behind", "history", "attempt", "hello"),
    ),
    "push": ("version", "position"),
    "fetch": ("version",),
    "close": ("version", "position", "is_unfinished"),
    "state": ("version", "position"),
    "page": ("version", "name", "start", "kinds", "is_last"),
    **dict.fromkeys(("agreed", "heal", "ack", "publish"), ("version",)),
    **{"here": (*_HERE, "call"), "meet": (*_HERE, "slots")},
    **dict.fromkeys(("part", "whole", "norm", "ready"), _OF_MEETING),
    "missing": (*_OF_MEETING, "parts", "wholes", "near"),
}
"""The fields that each kind must have; other fields must keep `FIELDS` where they are present."""
ARRAYS: Mapping[str, tuple[str, ...]] = {
    "state": ("floats", "integers"),
    **dict.fromkeys(("part", "whole"), ("vector",)),
    "norm": ("squares",),
}
"""The arrays that each kind must have."""
NUMBERS = ("squares", "came", "serves", "steps", "is_all", "start", "after")
"""The arrays of a single number, in any kind: one without it is missing. Others may be empty."""


def checked(frame: Frame) -> Frame:
    """Returns a frame that was read, if its header has the fields of its kind.

    Raises:
        FrameError: a field is missing, or is not what it must be; an array holds no number.
    """
    kind, header = frame.kind, frame.header
    needed, arrays = NEEDED.get(kind, ()), ARRAYS.get(kind, ())
    missing = [name for name in needed if name not in header]
    missing += [name for name in arrays if name not in frame.arrays]
    empty = [name for name in NUMBERS if name in frame.arrays and not frame.arrays[name].size]
    if empty:
        wrong = f"a {kind} of worker {frame.slot} must hold a number in {', '.join(empty)}"
        raise FrameError(wrong, got="empty arrays")
    if missing:
        wrong = f"a {kind} must hold {', '.join((*needed, *arrays))}"
        raise FrameError(wrong, got=f"none of {', '.join(missing)} from worker {frame.slot}")
    for name, value in header.items():
        rule = FIELDS.get(name)
        if rule is not None and not rule[1](value):
            wrong = f"{name} in a {kind} of worker {frame.slot} must be {rule[0]}"
            raise FrameError(wrong, got=repr(value)[:200])
    return frame
