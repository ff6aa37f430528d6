"""Shares rows with child processes in a file without a name.

Nothing is left in the temporary folder, however the parent ends: the system frees the file with
the last process that holds it.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np

from photinus.core.errors import NotReadyError
from photinus.data.base import Array, Block
from photinus.data.inputs import from_parts, parts_of

_ALIGNMENT = 64
_PIECE = 64 << 20


@dataclass(frozen=True, slots=True)
class StoredArray:
    """Where an array lies in the file."""

    offset: int
    shape: tuple[int, ...]
    dtype: str

    def mapped(self, descriptor: int) -> Array:
        """Returns the array, mapped into memory, read-only.

        Args:
            descriptor: of the file, as this process has it.
        """
        if 0 in self.shape:  # nothing can be mapped
            return np.empty(self.shape, self.dtype)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return np.memmap(file, self.dtype, "r", self.offset, self.shape)


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Where the arrays of a slot's rows lie in the file."""

    template: Block
    """No rows, but of the same types and shapes."""
    features: list[StoredArray]
    others: list[StoredArray]
    """Labels and weights, as far as there are any."""

    def mapped(self, descriptor: int) -> Block:
        """Returns the rows, mapped into memory."""
        features = from_parts(self.template.features, [s.mapped(descriptor) for s in self.features])
        mapped_others = (stored.mapped(descriptor) for stored in self.others)
        return Block(
            features, *(None if part is None else next(mapped_others) for part in self.template[1:])
        )


class RowsFile:
    """One file for all arrays: one descriptor, however many children there are.

    Example:
        >>> with RowsFile() as rows:
        ...     stored = rows.add(np.arange(3.0))
        ...     print(stored.mapped(rows.descriptor))
        [0. 1. 2.]
    """

    def __init__(self) -> None:
        self._end = 0
        try:
            self._file = tempfile.TemporaryFile(prefix="photinus-", buffering=0)  # noqa: SIM115
        except OSError as error:
            wrong = "the local engine finds no temporary folder to hand rows to its workers"
            raise NotReadyError(wrong, got=error.strerror, do=_ADVICE) from error
        self.descriptor = self._file.fileno()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add_rows(self, rows: Block) -> StoredRows:
        """Writes all arrays of some rows."""
        features = [self.add(part) for part in parts_of(rows.features)]
        others = [self.add(part) for part in rows[1:] if part is not None]
        return StoredRows(rows.part(slice(0)), features, others)

    def add(self, array: Array) -> StoredArray:
        """Writes an array behind those that are there.

        Raises:
            NotReadyError: the folder has no room for it.
        """
        offset = -(-self._end // _ALIGNMENT) * _ALIGNMENT
        stored = StoredArray(offset, array.shape, array.dtype.str)
        try:
            self._file.seek(offset)
            for piece in _pieces(array):
                unwritten = np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data
                while unwritten:
                    unwritten = unwritten[self._file.write(unwritten) :]
        except OSError as error:
            wrong = f"the temporary folder {tempfile.gettempdir()} cannot take the workers' rows"
            got = f"{error.strerror}, at {array.nbytes / 1e6:.0f} MB"
            raise NotReadyError(wrong, got=got, do=_ADVICE) from error
        self._end = offset + array.nbytes
        return stored


_ADVICE = "set TMPDIR to a folder with room for them"


def _pieces(array: Array) -> list[Array]:
    """Rows that are no block of memory are copied some at a time."""
    if not array.size:
        return []
    step = max(1, _PIECE * len(array) // array.nbytes)
    return [array[start : start + step] for start in range(0, len(array), step)]
