"""Where a slot's rows lie: in memory, in files without a name, or nowhere (they stream).

A spool's files are unlinked as soon as they are made (mode 0600): no other user can open them by
a name, and the system takes the space back whichever way the worker ends, a crash included.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import FileIO
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from photinus.core.errors import NotReadyError
from photinus.core.settings import validate, whole
from photinus.feed.arrow import ColumnSpec, arrays
from photinus.feed.base import Array
from photinus.feed.checks import Sieve
from photinus.feed.rows import Rows
from photinus.feed.stream import Block, Stream

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Budget", "Storage", "gather"]

_FREE_PART = 0.9
"""Of what a disk has left: the rest is for others."""
_BLOCK_BYTES = 1 << 24


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """How much of this host a slot's rows may take."""

    memory_bytes: int = 1 << 30
    disk_bytes: int = 64 << 30
    folder: str = ""
    """Where rows are spooled: a local disk, e.g. one of Spark's; empty is the system's own."""

    LIMITS = {  # noqa: RUF012 - dataclass slots: a plain class attribute, never written
        "memory_bytes": whole(0),
        "disk_bytes": whole(0),
    }

    def __post_init__(self) -> None:
        validate(self)


class Storage:
    """Hands out room within a budget, memory first; what is given up is room again.

    Example:
        >>> room = Storage(Budget(memory_bytes=80, disk_bytes=0))
        >>> kept = room((10,), np.dtype(np.float64))
        >>> room((1,), np.dtype(np.float64)) is None
        True
    """

    def __init__(self, budget: Budget) -> None:
        self._folder = budget.folder or tempfile.gettempdir()
        self._left = {"memory": budget.memory_bytes, "disk": budget.disk_bytes}

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array | None:
        """Returns an empty array, or None where neither memory nor disk has the room."""
        size = math.prod(shape) * dtype.itemsize
        if size <= self._left["memory"]:
            return self._lent(np.empty(shape, dtype), "memory")
        if size > self.disk_left():
            return None
        with self.file() as file:
            try:
                _reserve(file, size)
            except OSError:  # the disk is fuller than it said
                return None
            return self.mapped(file, shape, dtype, mode="r+")

    def memory_left(self) -> int:
        """Bytes."""
        return self._left["memory"]

    def disk_left(self) -> int:
        """Bytes: of the budget, and of most of what the disk has free."""
        try:
            free = int(shutil.disk_usage(self._folder).free * _FREE_PART)
        except OSError as error:
            raise self._unusable(error) from error
        return min(self._left["disk"], free)

    def file(self) -> FileIO:
        """Opens a file that has no name.

        Raises:
            NotReadyError: the folder cannot be written to.
        """
        try:
            return tempfile.TemporaryFile(dir=self._folder, buffering=0)
        except OSError as error:
            raise self._unusable(error) from error

    def mapped(
        self, file: FileIO, shape: tuple[int, ...], dtype: np.dtype[Any], mode: str = "r"
    ) -> Array:
        """Maps a file into memory; it lives as long as the array."""
        if not math.prod(shape):
            return np.empty(shape, dtype)
        memmap: Array = np.memmap(file, dtype, mode=mode, shape=shape)  # type: ignore[call-overload]
        return self._lent(np.asarray(memmap), "disk")

    def _lent(self, array: Array, kind: str) -> Array:
        self._left[kind] -= array.nbytes
        weakref.finalize(array, self._give_back, kind, array.nbytes).atexit = False
        return array

    def _give_back(self, kind: str, size: int) -> None:
        self._left[kind] += size

    def _unusable(self, error: OSError) -> NotReadyError:
        wrong = f"rows cannot be spooled to {self._folder}"
        return NotReadyError(wrong, got=error.strerror, do="name a folder on a local disk")


def _reserve(file: FileIO, size: int) -> None:
    """Takes the space now: a mapped page that finds the disk full later would kill the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
    else:
        file.truncate(size)


def gather(
    batches: Iterable[pa.RecordBatch], spec: ColumnSpec, sieve: Sieve, budget: Budget
) -> Rows | Stream:
    """Takes in a partition: into memory, else to disk, else (what fits neither) as a stream.

    Args:
        batches: the partition's rows, one pass.
        spec: which columns, and what they are.
        sieve: checks the rows, and counts those that it leaves out.
        budget: of memory and disk.

    Raises:
        DataError: a column or a row is wrong.
        NotReadyError: the spool's folder cannot be written to.
    """
    room = Storage(budget)
    blocks = _blocks(batches, spec, sieve)
    held, fits = _held(blocks, room.memory_left())
    if not held:
        labels = None if spec.label is None else np.empty(0, np.int64)
        return Rows.of(np.empty((0, *spec.shape), spec.dtype), labels, scale=spec.scale, room=room)
    if fits:
        features, labels = _in_memory(held, room)
        return Rows.of(features, labels, scale=spec.scale, room=room)
    spool = _Spool(room, held[0])
    incoming = chain(_drained(held), blocks)
    for block in incoming:
        if not spool.add(block):
            return Stream(chain(spool.blocks(), (block,), incoming), spec.scale)
    features, labels = spool.arrays()
    return Rows.of(features, labels, scale=spec.scale, room=room)


def _blocks(batches: Iterable[pa.RecordBatch], spec: ColumnSpec, sieve: Sieve) -> Iterator[Block]:
    for batch in batches:
        block = arrays(batch, spec, sieve)
        if len(block[0]):
            yield block
    sieve.end()


def _held(blocks: Iterator[Block], most_bytes: int) -> tuple[deque[Block], bool]:
    """Takes blocks until they are more than `most_bytes`; tells whether that were all."""
    held: deque[Block] = deque()
    size = 0
    for block in blocks:
        held.append(block)
        size += _bytes(block)
        if size > most_bytes:
            return held, False
    return held, True


def _bytes(block: Block) -> int:
    return block[0].nbytes + (0 if block[1] is None else block[1].nbytes)


def _drained(held: deque[Block]) -> Iterator[Block]:
    """Gives the blocks away one by one, so that each is freed once it is copied."""
    while held:
        yield held.popleft()


def _in_memory(held: deque[Block], room: Storage) -> Block:
    rows = sum(len(features) for features, _ in held)
    joined = []
    for part in held[0]:
        out = None if part is None else room((rows, *part.shape[1:]), part.dtype)
        joined.append(out)
    features, labels = joined
    assert features is not None
    start = 0
    for some, their_labels in _drained(held):
        features[start : start + len(some)] = some
        if labels is not None:
            labels[start : start + len(some)] = their_labels
        start += len(some)
    return features, labels


class _Spool:
    """Rows on their way to disk: features and labels in a file each."""

    def __init__(self, room: Storage, first: Block) -> None:
        self._room = room
        self._like = [part[:0] for part in first if part is not None]
        self._files = [room.file() for _ in self._like]
        self._rows = 0
        self._left = room.disk_left()

    def add(self, block: Block) -> bool:
        """Writes a block; False when it does not fit, and then nothing of it counts."""
        if _bytes(block) > self._left:
            return False
        parts = (part for part in block if part is not None)
        try:
            for file, part in zip(self._files, parts, strict=True):
                left = np.ascontiguousarray(part).data.cast("B")
                while left:  # a raw file may take a part of what it is given
                    left = left[file.write(left) :]
        except OSError:  # the disk is fuller than it said: what came before still holds
            return False
        self._left -= _bytes(block)
        self._rows += len(block[0])
        return True

    def arrays(self) -> Block:
        """Maps what was written."""
        mapped = [
            self._room.mapped(file, (self._rows, *like.shape[1:]), like.dtype)
            for file, like in zip(self._files, self._like, strict=True)
        ]
        for file in self._files:
            file.close()
        return mapped[0], mapped[1] if len(mapped) > 1 else None

    def blocks(self) -> Iterator[Block]:
        """Gives back what was written, in its order, in blocks of some megabytes."""
        features, labels = self.arrays()
        rows = max(1, _BLOCK_BYTES // max(1, features[:1].nbytes))
        for start in range(0, self._rows, rows):
            some = slice(start, start + rows)
            yield features[some], None if labels is None else labels[some]
