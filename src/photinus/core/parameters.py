"""The parameters as one flat, contiguous buffer with a layout; exchanges copy nothing.

Sections: *trained* goes through the strategy; *floats* (BatchNorm's running statistics) travel
beside it as float32 and are merged by their weighted mean, never through an outer optimizer;
*integers* (counters) take the maximum.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from photinus.core.errors import NotReadyError, UsageError

Vector = NDArray[Any]
"""One flat buffer [n]: parameters, gradients and deltas alike."""

TRAINED, FLOATS, INTEGERS = "trained", "floats", "integers"
SECTIONS = (TRAINED, FLOATS, INTEGERS)


@dataclass(frozen=True, slots=True)
class Entry:
    """Where one tensor lies in its section."""

    name: str
    shape: tuple[int, ...]
    offset: int
    section: str = TRAINED

    @property
    def size(self) -> int:
        """How many numbers the tensor holds."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Layout:
    """Names and shapes of all tensors, in the order in which they lie in the buffer.

    Args:
        entries: of each tensor its name, shape, section and place; `Layout.of` makes them.
        dtype: of the trained section: float32, or float64 for exact comparisons.
        sparse: names of the trained tables of which a step changes few rows: only these travel.

    Example:
        >>> Layout.of([("w", (2, 3), TRAINED), ("b", (3,), TRAINED)]).size(TRAINED)
        9
    """

    entries: tuple[Entry, ...]
    dtype: str = "float32"
    """Of the trained section: float32, or float64 for exact comparisons."""
    sparse: tuple[str, ...] = ()
    """Names of the trained tables of which a step changes few rows: only these travel."""

    @classmethod
    def of(
        cls,
        tensors: Iterable[tuple[str, Sequence[int], str]],
        dtype: str = "float32",
        sparse: Iterable[str] = (),
    ) -> Layout:
        """Lays out (name, shape, section) one behind the other.

        Args:
            tensors: sections are "trained", "floats" and "integers".
            dtype: as of the class.
            sparse: likewise.
        """
        entries, offsets = [], dict.fromkeys(SECTIONS, 0)
        for name, shape, section in tensors:
            entry = Entry(name, tuple(int(n) for n in shape), offsets[section], section)
            offsets[section] += entry.size
            entries.append(entry)
        return cls(tuple(entries), dtype, tuple(sparse))

    def size(self, section: str = TRAINED) -> int:
        """How many numbers a section holds."""
        return sum(e.size for e in self.entries if e.section == section)

    def entry(self, name: str) -> Entry:
        """Returns the entry of that name.

        Raises:
            UsageError: there is none.
        """
        for entry in self.entries:
            if entry.name == name:
                return entry
        raise UsageError("no tensor of that name", got=repr(name), do=f"known: {self.names()}")

    def names(self) -> tuple[str, ...]:
        """All names, in order."""
        return tuple(e.name for e in self.entries)

    def fingerprint(self) -> str:
        """Names, shapes and dtype in 16 hex digits: two sides that differ are refused at hello."""
        text = json.dumps([self.dtype, [(e.name, e.shape, e.section) for e in self.entries]])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class Parameters:
    """A layout and its three buffers. `view(name)` shares memory with the buffer.

    Args:
        layout: names, shapes and sections of the tensors.
        trained: the buffer of what is trained [n]; without one, zeros.
        floats: the buffer of running statistics [m], float32, likewise.
        integers: the buffer of counters [c], int64, likewise.

    Example:
        >>> p = Parameters(Layout.of([("w", (2, 2), TRAINED)]))
        >>> p.view("w")[1, 0] = 5.0
        >>> p.trained.tolist()
        [0.0, 0.0, 5.0, 0.0]
    """

    def __init__(
        self,
        layout: Layout,
        trained: Vector | None = None,
        floats: Vector | None = None,
        integers: Vector | None = None,
    ) -> None:
        self.layout = layout
        self.trained = _buffer(layout, TRAINED, layout.dtype, trained)
        self.floats = _buffer(layout, FLOATS, "float32", floats)
        self.integers = _buffer(layout, INTEGERS, "int64", integers)
        self._views: dict[str, Vector] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Returns what a copy needs: views of its own buffers are made when they are asked for."""
        return {**self.__dict__, "_views": {}}

    def section(self, name: str) -> Vector:
        """Returns one of the three buffers [n]."""
        buffers = {TRAINED: self.trained, FLOATS: self.floats, INTEGERS: self.integers}
        return buffers[name]

    def view(self, name: str) -> Vector:
        """Returns one tensor in its shape; writing into it writes into the buffer."""
        if name not in self._views:  # models ask in each step
            entry = self.layout.entry(name)
            flat = self.section(entry.section)[entry.offset : entry.offset + entry.size]
            self._views[name] = flat.reshape(entry.shape)
        return self._views[name]

    def copy(self) -> Parameters:
        """Returns the same numbers in buffers of their own."""
        return Parameters(
            self.layout, self.trained.copy(), self.floats.copy(), self.integers.copy()
        )

    def tensors(self) -> Mapping[str, Vector]:
        """All tensors by name, as views."""
        return {e.name: self.view(e.name) for e in self.layout.entries}


def _buffer(layout: Layout, section: str, dtype: str, values: Vector | None) -> Vector:
    size = layout.size(section)
    if values is None:
        try:
            return np.zeros(size, dtype)
        except (MemoryError, ValueError) as error:  # ValueError: more than any array may hold
            raise NotReadyError(
                "the model's parameters do not fit in memory",
                got=f"{size * np.dtype(dtype).itemsize >> 20} MiB",
                do="use a smaller model, or sharded tables",
            ) from error
    if values.shape != (size,) or values.dtype != np.dtype(dtype):
        raise UsageError(
            f"the {section} buffer must be {dtype}[{size}]",
            got=f"{values.dtype}{list(values.shape)}",
        )
    return np.ascontiguousarray(values)


def is_finite(vector: Vector) -> bool:
    """Returns whether no number is NaN or infinite, in one pass without a copy."""
    if vector.dtype.kind != "f" or vector.size == 0:
        return True
    # the sum of squares is finite only when all are; a false alarm (overflow) is looked at closely
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(np.dot(vector, vector))) or bool(np.isfinite(vector).all())


def fingerprint(*buffers: Vector) -> str:
    """Returns 16 hex digits of the bytes: equal on all workers when they agree bit for bit."""
    digest = hashlib.blake2b(digest_size=8)
    for buffer in buffers:
        digest.update(np.ascontiguousarray(buffer).view(np.uint8).data)
    return digest.hexdigest()
