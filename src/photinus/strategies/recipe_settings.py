"""Strategies as plain values, for TOML and JSON, and back."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from photinus.core.clock import Epochs, Examples, Seconds, Steps, Trigger
from photinus.core.errors import UsageError
from photinus.core.settings import unknown_name
from photinus.strategies.outer import Descent, OuterOptimizer, outer_from_dict

_TRIGGERS: Mapping[str, Callable[[Any], Trigger]] = {
    **{"steps": Steps, "seconds": Seconds, "examples": Examples, "epochs": Epochs},
    "partitions": Epochs,
}


def _trigger(name: str, values: Mapping[str, Any]) -> Trigger:
    """Returns a trigger of its plain values; `name` is what the user calls it."""
    for key in values:
        if key not in _TRIGGERS:
            raise unknown_name(f"limit of {name}", key, _TRIGGERS)
    if not values:
        raise UsageError(f"{name} needs a limit", do="such as {steps = 10}")
    return functools.reduce(Trigger.__or__, (_TRIGGERS[key](n) for key, n in values.items()))


_TABLE_PARTS: dict[str, tuple[type, Callable[[str, Mapping[str, Any]], Any], str]] = {
    "every": (Trigger, _trigger, "{steps = 10}"),
    "fetch": (Trigger, _trigger, "{steps = 10}"),
    "outer": (OuterOptimizer, lambda _, values: outer_from_dict(values), '{name = "sgd"}'),
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
    if isinstance(value, OuterOptimizer):
        return {"name": value.name, **_settings_of(value)}
    if isinstance(value, Trigger):
        return {name: number for name, number in _settings_of(value).items() if number is not None}
    return value


def parts_of(recipe: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parts of a recipe that plain values stand for.

    Raises:
        UsageError: a name or an option is unknown, or a limit does not hold.
    """
    parts = dict(values)
    if isinstance(parts.get("outer"), str):
        parts["outer"] = {"name": parts["outer"]}
    for part, (kind, parse, example) in _TABLE_PARTS.items():
        name = f"{part} of {recipe}"
        if isinstance(parts.get(part), Mapping):
            parts[part] = parse(name, parts[part])
        if part in parts and not isinstance(parts[part], kind):
            wrong, got = f"{name} must be a table", repr(parts[part])
            raise UsageError(wrong, got=got, do=f"such as {part} = {example}")
    return parts


def outer_text(outer: OuterOptimizer) -> str:
    """Returns an outer optimizer in words: `sgd(lr=1)`."""
    pairs = _settings_of(outer).items()
    texts = [f"{n}={v:g}" if isinstance(v, (int, float)) else f"{n}={v.__name__}" for n, v in pairs]
    return f"{outer.name}({', '.join(texts)})"


def _settings_of(instance: Any) -> dict[str, Any]:  # noqa: ANN401 - any dataclass
    return {f.name: getattr(instance, f.name) for f in dataclasses.fields(instance)}
