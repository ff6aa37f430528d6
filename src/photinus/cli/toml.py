"""Writes plain values as TOML; the standard library only reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(values: Mapping[str, Any]) -> str:
    """Returns plain values as TOML: plain ones first, then a table for each that holds more.

    Args:
        values: str, bool, int, float, lists of these, and mappings; nothing is None.

    Example:
        >>> print(to_toml({"workers": 4, "data": {"name": "mnist", "lr": [0.1, 0.5]}}), end="")
        workers = 4
        <BLANKLINE>
        [data]
        name = "mnist"
        lr = [0.1, 0.5]
    """
    return "\n".join(_lines(values, ())).strip() + "\n"


def _lines(values: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    tables = {name: v for name, v in values.items() if isinstance(v, Mapping)}
    lines = [f"{_key(name)} = {_value(v)}" for name, v in values.items() if name not in tables]
    if path and (lines or not tables):
        lines = ["", f"[{'.'.join(map(_key, path))}]", *lines]
    for name, table in tables.items():
        lines += _lines(table, (*path, name))
    return lines


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name)


def _value(value: Any) -> str:  # noqa: ANN401 - what stands in a table
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):  # inside a list
        return "{" + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, float):
        return repr(value)  # TOML writes inf and nan as Python does
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
