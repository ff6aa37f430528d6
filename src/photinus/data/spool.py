"""Stores a slot's rows in memory or in unnamed files; rows that fit neither stream.

In memory they lie in pages mapped for them alone: arrays grow in place while rows arrive, so that
no second copy of all rows ever stands beside the first, and what is freed goes back to the system.

A spool's files are unlinked as soon as they are made (mode 0600): no other user can open them by
a name, and the system takes the space back whichever way the worker ends, a crash included.
"""

from __future__ import annotations

import contextlib
import errno
import math
import mmap
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from io import FileIO
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from photinus.core.errors import NotReadyError
from photinus.core.settings import validate, whole
from photinus.data.arrow import ColumnSpec, arrays
from photinus.data.base import Array, Block
from photinus.data.checks import RowChecker
from photinus.data.inputs import Inputs, from_parts, parts_of
from photinus.data.rows import Rows
from photinus.data.stream import Stream

if TYPE_CHECKING:
    import pyarrow as pa


_USABLE_SHARE = 0.9
"""Of what a disk has left: the rest is for others."""
_BLOCK_BYTES = 1 << 24
_INDEX_BYTES = 32
"""Of a row's place in the index: hash and order, and in an epoch its place and its number."""
_FIRST_BYTES = 64 << 20
"""Of an array that grows; its double comes next. What no row has touched takes no memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """How much memory and disk of this host a slot's rows may take, as they are stored.

    Beside it a worker takes what Python and torch need (some 300 MB), its model, and a block of
    rows that is on its way.
    """

    memory_bytes: int = 1 << 30
    """Of rows, what is made of them, and their index, 32 bytes a row. The index lies in memory
    wherever the rows do; what of it does not fit is not refused."""
    disk_bytes: int = 64 << 30
    folder: str = ""
    """Where rows are spooled: a local disk, e.g. one of Spark's; empty is the system's own."""

    LIMITS = {  # noqa: RUF012 - dataclass slots: a plain class attribute, never written
        "memory_bytes": whole(0),
        "disk_bytes": whole(0),
    }

    def __post_init__(self) -> None:
        validate(self)

    def within(self, memory: int | None) -> Budget:
        """Returns the budget of a process that may take so much memory: rows get half of it.

        Example:
            >>> Budget().within(1 << 20).memory_bytes
            524288
        """
        if memory is None:
            return self
        return replace(self, memory_bytes=min(self.memory_bytes, memory // 2))


class Storage:
    """Allocates within a budget, memory first; what is released can be allocated again.

    Example:
        >>> storage = Storage(Budget(memory_bytes=80, disk_bytes=0))
        >>> array = storage((10,), np.dtype(np.float64))
        >>> storage((1,), np.dtype(np.float64)) is None
        True
    """

    def __init__(self, budget: Budget) -> None:
        self._folder = budget.folder or tempfile.gettempdir()
        self._available = {"memory": budget.memory_bytes, "disk": budget.disk_bytes}

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype[Any], of: int = 0) -> Array | None:
        """Returns an array of zeros, or None where neither memory nor disk has the room."""
        size = math.prod(shape) * dtype.itemsize
        if max(size, of) <= self._available["memory"]:
            return self._track(_Pages(size).array(shape, dtype), "memory")
        if size > self.disk_left():
            return None
        with self.file() as file:
            try:
                _reserve(file, size)
            except OSError:  # the disk is fuller than it reported
                return None
            return self.mapped(file, shape, dtype, mode="r+")

    def has_memory_for(self, rows: int, size: int) -> bool:
        """Returns whether so many rows of `size` bytes in all, and their index, fit into memory."""
        return size + rows * _INDEX_BYTES <= self._available["memory"]

    def reserve_index(self, rows: int) -> None:
        """Counts the index of so many rows."""
        self._available["memory"] = max(0, self._available["memory"] - rows * _INDEX_BYTES)

    def adopt(self, pages: _Pages, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Returns an array over pages that were gathered, and counts them as memory."""
        return self._track(pages.array(shape, dtype), "memory")

    def disk_left(self) -> int:
        """Bytes: of the budget, and of most of what the disk has free."""
        try:
            free = int(shutil.disk_usage(self._folder).free * _USABLE_SHARE)
        except OSError as error:
            raise self._folder_error(error) from error
        return min(self._available["disk"], free)

    def file(self) -> FileIO:
        """Opens a file that has no name.

        Raises:
            NotReadyError: the folder cannot be written to.
        """
        try:
            return tempfile.TemporaryFile(dir=self._folder, buffering=0)
        except OSError as error:
            raise self._folder_error(error) from error

    def mapped(
        self, file: FileIO, shape: tuple[int, ...], dtype: np.dtype[Any], mode: str = "r"
    ) -> Array:
        """Maps a file into memory; it stays open as long as the array exists."""
        if not math.prod(shape):
            return np.empty(shape, dtype)
        memmap: Array = np.memmap(file, dtype, mode=mode, shape=shape)  # type: ignore[call-overload]
        return self._track(np.asarray(memmap), "disk")

    def _track(self, array: Array, kind: str) -> Array:
        self._available[kind] -= array.nbytes
        weakref.finalize(array, self._release, kind, array.nbytes).atexit = False
        return array

    def _release(self, kind: str, size: int) -> None:
        self._available[kind] += size

    def _folder_error(self, error: OSError) -> NotReadyError:
        wrong = f"rows cannot be spooled to {self._folder}"
        return NotReadyError(wrong, got=error.strerror, do="name a folder on a local disk")


def _reserve(file: FileIO, size: int) -> None:
    """Takes the space now: a mapped page that finds the disk full later would kill the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
    else:
        file.truncate(size)


class _Pages:
    """Memory that is the system's own pages: it grows in place, and is given back at once.

    The C library would keep what is freed, and copy what grows.
    """

    def __init__(self, size: int = 0) -> None:
        self._map = _mapping(size) if size else None

    def reserve(self, size: int) -> None:
        """Grows to `size` bytes or more; no array of these pages may be alive."""
        if self._map is None:
            self._map = _mapping(max(size, _FIRST_BYTES))
        elif size > len(self._map):
            try:
                self._resize(max(size, 2 * len(self._map)))
            except MemoryError:  # where untouched memory counts, too
                self._resize(size)

    def shrink(self, size: int) -> None:
        """Gives back what lies behind the first `size` bytes; no array may be alive."""
        if self._map is not None and 0 < size < len(self._map):
            self._resize(size)

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any], offset: int = 0) -> Array:
        """Returns an array over these pages, which are kept as long as the array exists."""
        if self._map is None or not math.prod(shape):
            return np.empty(shape, dtype)
        return np.ndarray(shape, dtype, buffer=self._map, offset=offset)

    def _resize(self, size: int) -> None:
        assert self._map is not None
        try:
            self._map.resize(size)
        except (SystemError, OSError):  # without mremap, or no room: only a copy is left
            old, self._map = self._map, _mapping(size)
            common = min(size, len(old))
            with memoryview(old) as source, memoryview(self._map) as target:
                target[:common] = source[:common]
            old.close()


def _mapping(size: int) -> mmap.mmap:
    """Returns `size` bytes of memory that is this process's alone."""
    try:
        mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        raise MemoryError(f"no {size >> 20} MiB for rows") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping


class _MemoryBuffer:
    """Rows on their way into memory: every array of a block in pages of its own."""

    def __init__(self, first: Block) -> None:
        self._template = first.part(slice(0, 0))
        self._arrays = [part[:0] for part in _arrays_of(first)]
        self._pages = [_Pages() for _ in self._arrays]
        self._counts = [0] * len(self._arrays)
        self.rows = 0

    def fits(self, block: Block, storage: Storage) -> bool:
        """Returns whether these rows and a block more would fit."""
        counted = zip(self._counts, self._arrays, strict=True)
        size = sum(count * _row_bytes(template) for count, template in counted)
        return storage.has_memory_for(self.rows + len(block.features), size + _block_bytes(block))

    def add(self, block: Block) -> None:
        """Copies a block behind those before it."""
        for i, (template, part) in enumerate(zip(self._arrays, _arrays_of(block), strict=True)):
            start = self._counts[i] * _row_bytes(template)
            self._pages[i].reserve(start + len(part) * _row_bytes(template))
            self._pages[i].array(part.shape, template.dtype, start)[...] = part
            self._counts[i] += len(part)
        self.rows += len(block.features)

    def arrays(self, storage: Storage) -> Block:
        """Returns the rows; they count as memory from now on."""
        return self._take_block(storage.adopt)

    def drain(self) -> Iterator[Block]:
        """Yields the rows in their order, in blocks of some megabytes, and keeps none."""
        yield from _split(self._take_block(_Pages.array))

    def _take_block(
        self, make_array: Callable[[_Pages, tuple[int, ...], np.dtype[Any]], Array]
    ) -> Block:
        """Returns the rows in arrays over the pages, which are no longer this buffer's."""
        all_pages, self._pages = self._pages, []
        arrays = []
        for pages, template, count in zip(all_pages, self._arrays, self._counts, strict=True):
            pages.shrink(count * _row_bytes(template))
            arrays.append(make_array(pages, (count, *template.shape[1:]), template.dtype))
        return _block_from(self._template, arrays)


def gather(
    batches: Iterable[pa.RecordBatch], spec: ColumnSpec, checker: RowChecker, budget: Budget
) -> Rows | Stream:
    """Takes in a partition: into memory, else to disk, else (what fits neither) as a stream.

    Args:
        batches: the partition's rows, one pass.
        spec: which columns, and what they are.
        checker: checks the rows.
        budget: of memory and disk.

    Raises:
        DataError: a column or a row is wrong.
        NotReadyError: the spool's folder cannot be written to.
    """
    storage = Storage(budget)
    blocks = _read_blocks(batches, spec, checker)
    first = next(blocks, None)
    if first is None:
        labels = None if spec.label is None else np.empty(0, np.int64)
        empty = np.empty((0, *spec.shape), spec.dtype) if spec.inputs is None else Inputs({}, 0)
        return Rows.of(empty, labels, scale=spec.scale, room=storage)
    buffer = _MemoryBuffer(first)
    incoming = chain((first,), blocks)
    del first  # each block is freed once it is copied
    overflow = _fill_buffer(buffer, incoming, storage)
    if overflow is None:
        return _index_rows(buffer.arrays(storage), spec, storage)
    spool = _Spool(storage, overflow)
    incoming = chain(buffer.drain(), (overflow,), blocks)
    del buffer, overflow
    for block in incoming:
        if not spool.add(block):
            return Stream(chain(spool.blocks(), (block,), incoming), spec.scale)
    return _index_rows(spool.arrays(), spec, storage)


def _fill_buffer(buffer: _MemoryBuffer, blocks: Iterator[Block], storage: Storage) -> Block | None:
    """Takes blocks while they fit; returns the first one that does not."""
    for block in blocks:
        if not buffer.fits(block, storage):
            return block
        buffer.add(block)
    return None


def _index_rows(rows: Block, spec: ColumnSpec, storage: Storage) -> Rows:
    storage.reserve_index(len(rows.features))
    return Rows.of(*rows, scale=spec.scale, room=storage)


def _read_blocks(
    batches: Iterable[pa.RecordBatch], spec: ColumnSpec, checker: RowChecker
) -> Iterator[Block]:
    for batch in batches:
        block: Block | None = arrays(batch, spec, checker)
        del batch
        if block is not None and len(block.features):
            yield block
        block = None  # the next one needs its memory


def _arrays_of(block: Block) -> list[Array]:
    """Returns all arrays of a block."""
    others = (part for part in block[1:] if part is not None)
    return [*parts_of(block.features), *others]


def _block_from(template: Block, arrays: Sequence[Array]) -> Block:
    """Returns a block like another one, made of arrays as `_arrays_of` returns them."""
    count = len(parts_of(template.features))
    remaining = iter(arrays[count:])
    others = (None if part is None else next(remaining) for part in template[1:])
    return Block(from_parts(template.features, arrays[:count]), *others)


def _block_bytes(block: Block) -> int:
    return sum(part.nbytes for part in _arrays_of(block))


def _row_bytes(template: Array) -> int:
    return math.prod(template.shape[1:]) * template.dtype.itemsize


def _split(block: Block) -> Iterator[Block]:
    """Yields rows in their order, in blocks of some megabytes."""
    count = len(block.features)
    rows = max(1, _BLOCK_BYTES * count // max(1, _block_bytes(block)))
    for start in range(0, count, rows):
        yield block.part(slice(start, start + rows))


class _Spool:
    """Rows on their way to disk: every array of a block in a file of its own."""

    def __init__(self, storage: Storage, first: Block) -> None:
        self._storage = storage
        self._template = first.part(slice(0, 0))
        self._arrays = [part[:0] for part in _arrays_of(first)]
        self._counts = [0] * len(self._arrays)
        self._files = [storage.file() for _ in self._arrays]
        self._available = storage.disk_left()

    def add(self, block: Block) -> bool:
        """Writes a block; False when it does not fit, and then nothing of it counts."""
        if _block_bytes(block) > self._available:
            return False
        parts = _arrays_of(block)
        try:
            for file, part in zip(self._files, parts, strict=True):
                unwritten = np.ascontiguousarray(part).reshape(-1).view(np.uint8).data
                while unwritten:  # a raw file may take a part of what it is given
                    unwritten = unwritten[file.write(unwritten) :]
        except OSError:  # the disk is fuller than it reported: earlier blocks are still valid
            return False
        self._available -= _block_bytes(block)
        self._counts = [n + len(part) for n, part in zip(self._counts, parts, strict=True)]
        return True

    def arrays(self) -> Block:
        """Maps what was written."""
        mapped = [
            self._storage.mapped(file, (count, *template.shape[1:]), template.dtype)
            for file, template, count in zip(self._files, self._arrays, self._counts, strict=True)
        ]
        for file in self._files:
            file.close()
        return _block_from(self._template, mapped)

    def blocks(self) -> Iterator[Block]:
        """Gives back what was written, in its order, in blocks of some megabytes."""
        yield from _split(self.arrays())
