"""Packs arrays and plain values of any structure into bytes, and back; no code travels.

A parcel is the length of its table, the table (JSON), and the arrays' own bytes, each at a
multiple of 64, so that arrays are used in place on arrival.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from photinus.core.errors import FrameError, UsageError
from photinus.core.parameters import Vector, is_finite

_KINDS = "biufc"
"""The types of numpy that travel: truth values, whole, real and complex numbers."""
_ALIGNED = 64
_LENGTH = struct.Struct("<Q")
_PLAIN = (type(None), bool, int, float, str)


def is_plain(value: object) -> bool:
    """Returns whether a value is None, a truth value, a number or a text of Python's own."""
    return type(value) in _PLAIN


def is_array(value: object) -> bool:
    """Returns whether a value is a numpy array of numbers."""
    return type(value) is np.ndarray and value.dtype.kind in _KINDS


def packed(tree: object, name: str = "this") -> Vector:
    """Returns a tree of arrays and plain values as one vector of bytes [n].

    Args:
        tree: arrays, numbers, texts, None, and lists, tuples and dicts of them.
        name: what the tree is, for the error.

    Raises:
        UsageError: something else is in it.

    Example:
        >>> unpacked(packed({"w": np.ones(2), "words": 7, 3: ("a", None)}))
        {'w': array([1., 1.]), 'words': 7, 3: ('a', None)}
    """
    table, arrays = _Writer().written(tree, name)
    text = json.dumps(table, separators=(",", ":")).encode()
    start = _aligned(_LENGTH.size + len(text))
    ends = [start]
    for array in arrays:
        ends.append(_aligned(ends[-1] + array.nbytes))
    parcel = np.zeros(ends[-1], np.uint8)
    parcel[: _LENGTH.size] = np.frombuffer(_LENGTH.pack(len(text)), np.uint8)
    parcel[_LENGTH.size : _LENGTH.size + len(text)] = np.frombuffer(text, np.uint8)
    for array, at in zip(arrays, ends, strict=False):
        room = parcel[at : at + array.nbytes].view(array.dtype).reshape(array.shape)
        room[...] = array
    return parcel


def unpacked(parcel: Vector) -> Any:  # noqa: ANN401 - any tree
    """The inverse of `packed`; the arrays are parts of the parcel, to be written to.

    Raises:
        FrameError: these bytes are no parcel.
    """
    try:
        (size,) = _LENGTH.unpack(parcel[: _LENGTH.size].tobytes())
        table = json.loads(parcel[_LENGTH.size : _LENGTH.size + size].tobytes())
        return _Reader(parcel, _aligned(_LENGTH.size + size)).read(table)
    except (struct.error, ValueError, KeyError, TypeError, RecursionError) as error:
        raise FrameError("these bytes are no parcel", got=type(error).__name__) from error


def arrays_in(tree: object) -> Iterator[Vector]:
    """Yields the arrays of a tree."""
    if isinstance(tree, np.ndarray):
        yield tree
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from arrays_in(value)
    elif isinstance(tree, (list, tuple)):
        for value in tree:
            yield from arrays_in(value)


def is_sound(tree: object) -> bool:
    """Returns whether no array of a tree holds a NaN or an infinite number."""
    return all(is_finite(array.reshape(-1)) for array in arrays_in(tree))


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


class _Writer:
    """Turns a tree into its table, and collects the arrays on the way."""

    def __init__(self) -> None:
        self._arrays: list[Vector] = []
        self._end = 0

    def written(self, tree: object, name: str) -> tuple[Any, list[Vector]]:
        return self._entry(tree, name), self._arrays

    def _entry(self, tree: object, name: str) -> Any:  # noqa: ANN401 - JSON
        if is_plain(tree):
            return tree
        if is_array(tree):
            assert isinstance(tree, np.ndarray)
            return {"array": self._placed(tree)}
        if isinstance(tree, np.generic) and tree.dtype.kind in _KINDS:
            return {"scalar": self._placed(np.asarray(tree))}
        if type(tree) in (list, tuple):
            entries = [self._entry(value, f"{name}[{i}]") for i, value in enumerate(tree)]  # type: ignore[arg-type,var-annotated]
            return {"list" if isinstance(tree, list) else "tuple": entries}
        if isinstance(tree, dict) and all(is_plain(key) for key in tree):
            items = tree.items()
            return {"dict": [[key, self._entry(value, f"{name}[{key!r}]")] for key, value in items]}
        raise UsageError(
            f"{name} must be an array or a plain value",
            got=f"{type(tree).__module__}.{type(tree).__qualname__}",
            do="use numpy arrays, numbers, texts, None, and lists, tuples and dicts of them",
        )

    def _placed(self, array: Vector) -> list[Any]:
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        at, self._end = self._end, _aligned(self._end + little.nbytes)
        self._arrays.append(little)
        return [little.dtype.str, list(little.shape), at]


class _Reader:
    """Turns a table back into the tree, over the bytes from `start` on."""

    def __init__(self, parcel: Vector, start: int) -> None:
        self._parcel, self._start = parcel, start

    def read(self, entry: Any) -> Any:  # noqa: ANN401 - JSON in, a tree out
        if not isinstance(entry, dict):
            return entry
        [(kind, value)] = entry.items()
        if kind == "dict":
            return {key: self.read(item) for key, item in value}
        if kind in ("list", "tuple"):
            items = [self.read(item) for item in value]
            return items if kind == "list" else tuple(items)
        array = self._array(*value)
        return array[()] if kind == "scalar" else array

    def _array(self, dtype: str, shape: list[int], at: int) -> Vector:
        kind = np.dtype(dtype)
        if kind.kind not in _KINDS or at < 0:
            raise ValueError(dtype)
        at += self._start
        room = self._parcel[at : at + math.prod(shape) * kind.itemsize]
        return room.view(kind).reshape(shape)
