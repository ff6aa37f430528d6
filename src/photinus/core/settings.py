"""Settings as frozen dataclasses: limits as data, and one function that words every refusal.

A settings class lists its limits in `LIMITS` and calls `validate(self)` in `__post_init__`.
`to_dict` and `from_dict` carry it through TOML and JSON and back.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from photinus.core.errors import UsageError

S = TypeVar("S")

FAR_LABEL = 1000
"""A label of so many times the classes, or more, is no number of a class: an identifier, say."""
NUMBER_THE_CLASSES = "number the classes 0, 1, 2, ... (StringIndexer does)"
"""What to do about labels that are none."""


@dataclass(frozen=True, slots=True)
class Limit:
    """What a value must be: `text` completes the sentence "x of Y must be"."""

    text: str
    holds: Callable[[Any], bool]

    @staticmethod
    def optional(limit: Limit) -> Limit:
        """Returns `limit`, or None."""
        return Limit(f"{limit.text}, or left out", lambda v: v is None or limit.holds(v))

    @staticmethod
    def each(limit: Limit) -> Limit:
        """Returns `limit`, of one value or of every one in a tuple."""
        return Limit(
            f"{limit.text}, or several such",
            lambda v: all(map(limit.holds, v)) if isinstance(v, tuple) and v else limit.holds(v),
        )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def whole(least: int) -> Limit:
    """A whole number of at least `least`."""
    return Limit(
        f"a whole number of at least {least}",
        lambda v: isinstance(v, int) and not isinstance(v, bool) and v >= least,
    )


def above(least: float) -> Limit:
    """A finite number above `least`."""
    return Limit(f"a number above {least:g}", lambda v: _is_number(v) and v > least)


def at_least(least: float) -> Limit:
    """A finite number of at least `least`."""
    return Limit(f"a number of at least {least:g}", lambda v: _is_number(v) and v >= least)


def between(least: float, most: float) -> Limit:
    """A number from `least` to `most`, both included."""
    return Limit(
        f"a number from {least:g} to {most:g}", lambda v: _is_number(v) and least <= v <= most
    )


def one_of(*choices: object) -> Limit:
    """One of the values named."""
    choices_text = ", ".join(repr(c) for c in choices)
    return Limit(f"one of {choices_text}", lambda v: v in choices)


def validate(instance: object, of: str = "") -> None:
    """Checks a settings object against its class's `LIMITS`, and all other fields' plain types.

    Args:
        instance: what is checked.
        of: what the user calls it; left out, its class's name.

    Raises:
        UsageError: `every of Averaging must be a whole number of at least 1; got 0`.
    """
    cls: Any = type(instance)
    for name, limit in _limits_of(cls).items():
        value = getattr(instance, name)
        try:
            holds = limit.holds(value)
        except (TypeError, ValueError):  # compared with what is no number
            holds = False
        if not holds:
            wrong = f"{name} of {of or cls.__name__} must be {limit.text}"
            is_numpy = type(value).__module__ == "numpy"
            do = "make it plain: int(...), float(...) or .tolist()" if is_numpy else ""
            do = _list_hint(value) if limit is _TEXTS and isinstance(value, str) else do
            raise UsageError(wrong, got=repr(value), do=do)


_TYPE_LIMITS: Mapping[Any, Limit] = {
    str: Limit("a string", lambda v: isinstance(v, str)),
    bool: Limit("True or False", lambda v: isinstance(v, bool)),
    int: Limit("a whole number", lambda v: isinstance(v, int) and not isinstance(v, bool)),
    float: Limit("a number", lambda v: isinstance(v, (int, float)) and not isinstance(v, bool)),
    tuple: Limit("a list", lambda v: isinstance(v, (tuple, list))),
    Mapping: Limit("a table of names and values", lambda v: isinstance(v, Mapping)),
}
_TEXTS = Limit(
    "a list of strings",
    lambda v: isinstance(v, (tuple, list)) and all(isinstance(text, str) for text in v),
)


@functools.cache
def _limits_of(cls: Any) -> Mapping[str, Limit]:  # noqa: ANN401 - any dataclass
    """Returns a class's limits, and for each field without one the limit of its type."""
    limits = dict(getattr(cls, "LIMITS", {}))
    hints = typing.get_type_hints(cls)
    for name in [f.name for f in dataclasses.fields(cls) if f.name not in limits]:
        kind = typing.get_origin(hints[name]) or hints[name]
        if kind is tuple and typing.get_args(hints[name])[:1] == (str,):
            limits[name] = _TEXTS
        elif kind in _TYPE_LIMITS:
            limits[name] = _TYPE_LIMITS[kind]
        elif dataclasses.is_dataclass(kind):
            limits[name] = _instance_limit(typing.cast(type, kind))
    return limits


def _instance_limit(cls: type) -> Limit:
    return Limit(f"of type {cls.__name__}", lambda v: isinstance(v, cls))


def _list_hint(text: str) -> str:
    """Returns how names are written that were given in one text."""
    return f"write {[part.strip() for part in text.split(',')]}"


def unknown_column(name: str, known: typing.Iterable[str]) -> UsageError:
    """Returns the error for a column that is not there; several names in one text are taken apart.

    Example:
        >>> str(unknown_column("left,right", ["left", "right"]))
        "unknown column; got 'left,right'; one name is one column: write ['left', 'right']"
    """
    columns = set(known)
    if "," in name and {part.strip() for part in name.split(",")} <= columns:
        do = f"one name is one column: {_list_hint(name)}"
        return UsageError("unknown column", got=repr(name), do=do)
    return unknown_name("column", name, columns)


_MIN_SIMILARITY, _MIN_SAME_BEGIN = 0.68, 0.65
"""How similar a name must be to be suggested: below the first one 'inputShape' would be 'cpuShare'.
Below the second one 'auroc' would be 'accuracy'; it is for names that begin alike: 'freeze' is
'frozen'."""


_PRESENT_NAMES = {"road": "transport"}
"""Name of a setting in earlier versions -> its present one."""


def unknown_name(kind: str, name: str, known: typing.Iterable[str]) -> UsageError:
    """Returns the error for a name that is none of `known`, with the nearest one as a hint."""
    names = sorted(known)
    present = _PRESENT_NAMES.get(name, name)
    matches = [known_name for known_name in names if known_name.casefold() == present.casefold()]
    matches = matches or difflib.get_close_matches(name, names, n=1, cutoff=_MIN_SIMILARITY)
    same_begin = [known_name for known_name in names if known_name[:1] == name[:1]]
    matches = matches or difflib.get_close_matches(name, same_begin, n=1, cutoff=_MIN_SAME_BEGIN)
    hint = f"did you mean {matches[0]!r}?" if matches else f"known: {', '.join(names)}"
    return UsageError(f"unknown {kind}", got=repr(name), do=hint)


def named_settings(cls: type[S]) -> type[S]:
    """Has a dataclass's constructor refuse an unknown setting with the nearest known one.

    Example:
        >>> @named_settings
        ... @dataclass(kw_only=True)
        ... class Net:
        ...     hidden: int = 3
        >>> Net(hiden=4)
        Traceback (most recent call last):
        photinus.core.errors.UsageError: unknown setting of Net; got 'hiden'; did you mean 'hidden'?
    """
    plain_init = cls.__init__
    fields = [f for f in dataclasses.fields(cls) if f.init]  # type: ignore[arg-type]
    known = [f.name for f in fields]
    missing = dataclasses.MISSING
    required = [f.name for f in fields if f.default is missing and f.default_factory is missing]

    @functools.wraps(plain_init)
    def checked_init(self: Any, *args: Any, **values: Any) -> None:  # noqa: ANN401 - any settings
        for name in values:
            if name not in known:
                raise unknown_name(f"setting of {cls.__name__}", name, known)
        if absent := [name for name in required[len(args) :] if name not in values]:
            raise UsageError(f"{cls.__name__} needs {absent[0]}", do=f"{absent[0]}=...")
        plain_init(self, *args, **values)

    cls.__init__ = checked_init  # type: ignore[method-assign]
    return cls


def paths_to(name: str, cls: Any, within: str = "") -> list[str]:  # noqa: ANN401 - any dataclass
    """Returns the dotted paths to settings of that name in a settings class.

    Args:
        name: of the setting.
        cls: a dataclass whose fields may be of other ones.
        within: the path to `cls`.
    """
    hints, paths = typing.get_type_hints(cls), []
    for field in (f for f in dataclasses.fields(cls) if f.init):
        path = f"{within}{field.name}"
        paths += [path] if field.name == name else []
        if dataclasses.is_dataclass(hints[field.name]):
            paths += paths_to(name, hints[field.name], f"{path}.")
    return paths


def to_dict(instance: Any) -> dict[str, Any]:  # noqa: ANN401 - any dataclass
    """Returns a settings object as plain values; what is None is left out (TOML has no null)."""
    pairs = {f.name: getattr(instance, f.name) for f in dataclasses.fields(instance) if f.init}
    return {name: _to_plain(value) for name, value in pairs.items() if value is not None}


def _to_plain(value: Any) -> Any:  # noqa: ANN401 - any field's value
    if dataclasses.is_dataclass(value):
        return to_dict(value)
    if isinstance(value, (tuple, list)):
        return [_to_plain(v) for v in value]
    if isinstance(value, Mapping):
        return {k: _to_plain(v) for k, v in value.items() if v is not None}
    return value


def from_dict(cls: type[S], values: Mapping[str, Any]) -> S:
    """Builds a settings object from plain values: the inverse of `to_dict`.

    Raises:
        UsageError: a key is unknown (with the nearest known one), a value has another shape
            than its field, or a limit does not hold.
    """
    if not isinstance(values, Mapping):
        raise UsageError(f"{cls.__name__} must be a table of settings", got=repr(values))
    hints = typing.get_type_hints(cls)
    known = {f.name for f in dataclasses.fields(cls) if f.init}  # type: ignore[arg-type]
    for key in values:
        if key not in known:
            raise unknown_name(f"setting of {cls.__name__}", key, known)
    converted = {
        key: _convert(f"{key} of {cls.__name__}", hints[key], value)
        for key, value in values.items()
    }
    try:
        return cls(**converted)
    except TypeError as error:
        raise UsageError(
            f"{cls.__name__} cannot be made", got=dict(values), do=str(error)
        ) from error


def _convert(name: str, hint: Any, value: Any) -> Any:  # noqa: ANN401 - any field's type
    """Returns a plain value in the shape that the field's type names: dataclass or tuple."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        member_types = [a for a in typing.get_args(hint) if a is not type(None)]
        structured_types = [
            a for a in member_types if dataclasses.is_dataclass(a) or typing.get_origin(a)
        ]
        if value is None or not structured_types or type(value) in member_types:
            return value
        return _convert(name, structured_types[0], value)
    if dataclasses.is_dataclass(hint) and not isinstance(value, typing.cast(type, hint)):
        return _nested_settings(name, typing.cast(type, hint), value)
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, (list, tuple)):
            is_list_of_texts = isinstance(value, str) and typing.get_args(hint)[0] is str
            do = _list_hint(value) if is_list_of_texts else ""
            raise UsageError(f"{name} must be a list", got=repr(value), do=do)
        return tuple(_convert(name, typing.get_args(hint)[0], v) for v in value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value


def _nested_settings(name: str, cls: Any, value: Any) -> Any:  # noqa: ANN401 - any dataclass
    if _is_number(value) and hasattr(cls, "constant"):  # a schedule that stays as it is
        return cls.constant(float(value))
    if not isinstance(value, Mapping):
        known = ", ".join(f.name for f in dataclasses.fields(cls) if f.init)
        kinds = "a number or a table" if hasattr(cls, "constant") else "a table"
        raise UsageError(f"{name} must be {kinds}", got=repr(value), do=f"a table has {known}")
    return from_dict(cls, value)
