"""Packs arrays and plain values of any structure into bytes, and back; no code travels.

The bytes are the length of a table, the table (JSON), and the arrays' own bytes, each at a
multiple of 64, so that arrays are used in place on arrival. Of an array some rows may travel: the
others are 0, or the receiver holds them.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from types import MappingProxyType
from typing import Any

import numpy as np

from photinus.core.errors import FrameError, UsageError
from photinus.core.parameters import Vector, is_finite

_KINDS = "biufc"
"""The types of numpy that travel: truth values, whole, real and complex numbers."""
_ALIGNED = 64
_LENGTH = struct.Struct("<Q")
_PLAIN = (type(None), bool, int, float, str)
_MOST_BYTES = 4 << 30
"""Of an array whose rows of 0 were left out: as many as the arrays of a frame may hold."""

Place = tuple[Any, ...]
"""Where an array lies in a tree: the keys and numbers that lead to it."""


def is_plain(value: object) -> bool:
    """Returns whether a value is None, a truth value, a number or a text of Python's own."""
    return type(value) in _PLAIN


def is_array(value: object) -> bool:
    """Returns whether a value is a numpy array of numbers."""
    return type(value) is np.ndarray and value.dtype.kind in _KINDS


def packed(
    tree: object, name: str = "this", moved: Mapping[Place, Vector] = MappingProxyType({})
) -> Vector:
    """Returns a tree of arrays and plain values as one vector of bytes [n].

    An array travels without its rows of 0 where that takes fewer bytes.

    Args:
        tree: arrays, numbers, texts, None, and lists, tuples and dicts of them.
        name: what the tree is, for the error.
        moved: of the arrays in these places only these rows travel [r]; the receiver holds the
            others.

    Raises:
        UsageError: something else is in it.

    Example:
        >>> unpacked(packed({"w": np.ones(2), "words": 7, 3: ("a", None)}))
        {'w': array([1., 1.]), 'words': 7, 3: ('a', None)}
    """
    table, arrays = _Writer(name, moved).written(tree)
    text = json.dumps(table, separators=(",", ":")).encode()
    start = _aligned(_LENGTH.size + len(text))
    ends = [start]
    for array in arrays:
        ends.append(_aligned(ends[-1] + array.nbytes))
    data = np.zeros(ends[-1], np.uint8)
    data[: _LENGTH.size] = np.frombuffer(_LENGTH.pack(len(text)), np.uint8)
    data[_LENGTH.size : _LENGTH.size + len(text)] = np.frombuffer(text, np.uint8)
    for array, at in zip(arrays, ends, strict=False):
        target = data[at : at + array.nbytes].view(array.dtype).reshape(array.shape)
        target[...] = array
    return data


def unpacked(data: Vector, held: Any = None) -> Any:  # noqa: ANN401 - any tree
    """The inverse of `packed`; the arrays are parts of `data`, to be written to.

    Args:
        data: the bytes [n].
        held: the tree that the receiver holds; rows that moved are written into its arrays, and
            they are then part of the result.

    Raises:
        FrameError: these bytes hold no packed value.
    """
    try:
        (size,) = _LENGTH.unpack(data[: _LENGTH.size].tobytes())
        table = json.loads(data[_LENGTH.size : _LENGTH.size + size].tobytes())
        return _Reader(data, _aligned(_LENGTH.size + size)).read(table, held)
    except (struct.error, ValueError, LookupError, TypeError, RecursionError) as error:
        raise FrameError("these bytes hold no packed value", got=type(error).__name__) from error


def arrays_in(tree: object, place: Place = ()) -> Iterator[tuple[Place, Vector]]:
    """Yields the arrays of a tree, each with its place."""
    if isinstance(tree, np.ndarray):
        yield place, tree
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield from arrays_in(value, (*place, key))
    elif isinstance(tree, (list, tuple)):
        for number, value in enumerate(tree):
            yield from arrays_in(value, (*place, number))


def bits_by_row(array: Vector) -> Vector:
    """Returns an array's bits as whole numbers [rows, n]; the array is not empty."""
    flat = np.ascontiguousarray(array).reshape(len(array), -1)
    return flat.view(f"u{min(8, array.itemsize)}")


def pays(rows: Vector, array: Vector) -> bool:
    """Returns whether these rows of an array take fewer bytes with their numbers than all do."""
    return len(rows) * (rows.itemsize + array.nbytes // len(array)) < array.nbytes


def is_sound(tree: object) -> bool:
    """Returns whether no array of a tree holds a NaN or an infinite number."""
    return all(is_finite(array.reshape(-1)) for _, array in arrays_in(tree))


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


class _Writer:
    """Turns a tree into its table, and collects the arrays on the way."""

    def __init__(self, name: str, moved: Mapping[Place, Vector]) -> None:
        self._name, self._moved = name, moved
        self._arrays: list[Vector] = []
        self._end = 0

    def written(self, tree: object) -> tuple[Any, list[Vector]]:
        return self._entry(tree, ()), self._arrays

    def _entry(self, tree: object, place: Place) -> Any:  # noqa: ANN401 - JSON
        if is_plain(tree):
            return tree
        if is_array(tree):
            assert isinstance(tree, np.ndarray)
            return self._array(tree, self._moved.get(place))
        if isinstance(tree, np.generic) and tree.dtype.kind in _KINDS:
            return {"scalar": self._placed(np.asarray(tree))}
        if type(tree) in (list, tuple):
            entries = [self._entry(value, (*place, i)) for i, value in enumerate(tree)]  # type: ignore[arg-type,var-annotated]
            return {"list" if isinstance(tree, list) else "tuple": entries}
        if isinstance(tree, dict) and all(is_plain(key) for key in tree):
            items = tree.items()
            return {"dict": [[key, self._entry(value, (*place, key))] for key, value in items]}
        raise UsageError(
            f"{self._name}{''.join(f'[{key!r}]' for key in place)} must be an array or a plain "
            "value",
            got=f"{type(tree).__module__}.{type(tree).__qualname__}",
            do="use numpy arrays, numbers, texts, None, and lists, tuples and dicts of them",
        )

    def _array(self, array: Vector, moved: Vector | None) -> dict[str, Any]:
        if moved is not None:
            return {"moved": [self._placed(moved), self._placed(array[moved])]}
        if array.ndim > 1 and array.size:
            filled = np.flatnonzero(bits_by_row(array).any(axis=1))
            if pays(filled, array):
                rows = self._placed(filled), self._placed(array[filled])
                return {"filled": [len(array), *rows]}
        return {"array": self._placed(array)}

    def _placed(self, array: Vector) -> list[Any]:
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        at, self._end = self._end, _aligned(self._end + little.nbytes)
        self._arrays.append(little)
        return [little.dtype.str, list(little.shape), at]


class _Reader:
    """Turns a table back into the tree, over the bytes from `start` on."""

    def __init__(self, data: Vector, start: int) -> None:
        self._data, self._start = data, start

    def read(self, entry: Any, held: Any) -> Any:  # noqa: ANN401 - JSON in, a tree out
        if not isinstance(entry, dict):
            return entry
        [(kind, value)] = entry.items()
        if kind == "dict":
            named = held if isinstance(held, dict) else {}
            return {key: self.read(item, named.get(key)) for key, item in value}
        if kind in ("list", "tuple"):
            own = held if isinstance(held, (list, tuple)) else ()
            pairs = zip_longest(value, own[: len(value)])
            items = [self.read(item, part) for item, part in pairs]
            return items if kind == "list" else tuple(items)
        if kind == "moved":
            rows, numbers = (self._array(*placed) for placed in value)
            held[rows] = numbers
            return held
        if kind == "filled":
            return self._filled(*value)
        array = self._array(*value)
        return array[()] if kind == "scalar" else array

    def _filled(self, count: int, rows: list[Any], numbers: list[Any]) -> Vector:
        rows_at, received = self._array(*rows), self._array(*numbers)
        shape = count, *received.shape[1:]
        if math.prod(shape) * received.itemsize > _MOST_BYTES:
            raise ValueError(shape)
        array = np.zeros(shape, received.dtype)
        array[rows_at] = received
        return array

    def _array(self, dtype: str, shape: list[int], at: int) -> Vector:
        kind = np.dtype(dtype)
        if kind.kind not in _KINDS or at < 0:
            raise ValueError(dtype)
        at += self._start
        raw = self._data[at : at + math.prod(shape) * kind.itemsize]
        return raw.view(kind).reshape(shape)
