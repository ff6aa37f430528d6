"""Strategies as plain values, for TOML and JSON, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from photinus.core.clock import Trigger
from photinus.core.errors import UsageError
from photinus.core.settings import from_dict
from photinus.strategies.outer import Descent, Outer, outer_from_dict


def _trigger(values: Mapping[str, Any]) -> Trigger:
    plain = dict(values)
    partitions = plain.pop("partitions", None)
    if partitions is None:
        return from_dict(Trigger, plain)
    each = from_dict(Trigger, {"epochs": partitions})
    return each | from_dict(Trigger, plain) if plain else each


_TABLES: dict[str, tuple[type, Callable[[Mapping[str, Any]], Any]]] = {
    "every": (Trigger, _trigger),
    "fetch": (Trigger, _trigger),
    "outer": (Outer, outer_from_dict),
}
"""Parts that are tables of their own in plain values."""


def plain_of(value: Any) -> Any:  # noqa: ANN401 - any part
    """Returns a part as plain values: the inverse of `parts_of`.

    Example:
        >>> from photinus.core.clock import Steps
        >>> plain_of(Steps(7))
        {'steps': 7}
    """
    if isinstance(value, Descent):
        function = f"{value.function.__module__}:{value.function.__qualname__}"
        return {"name": value.name, "function": function}
    if isinstance(value, Outer):
        return {"name": value.name, **_settings(value)}
    if isinstance(value, Trigger):
        return {name: number for name, number in _settings(value).items() if number is not None}
    return value


def parts_of(recipe: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parts of a recipe that plain values stand for.

    Raises:
        UsageError: a name or an option is unknown, or a limit does not hold.
    """
    parts = dict(values)
    if isinstance(parts.get("outer"), str):
        parts["outer"] = {"name": parts["outer"]}
    for part, (kind, made) in _TABLES.items():
        if isinstance(parts.get(part), Mapping):
            parts[part] = made(parts[part])
        if part in parts and not isinstance(parts[part], kind):
            raise UsageError(f"{part} of {recipe} must be a table", got=repr(parts[part]))
    return parts


def shown(outer: Outer) -> str:
    """Returns an outer optimizer in words: `sgd(lr=1)`."""
    pairs = _settings(outer).items()
    told = [f"{n}={v:g}" if isinstance(v, (int, float)) else f"{n}={v.__name__}" for n, v in pairs]
    return f"{outer.name}({', '.join(told)})"


def _settings(instance: Any) -> dict[str, Any]:  # noqa: ANN401 - any dataclass
    return {f.name: getattr(instance, f.name) for f in dataclasses.fields(instance)}
