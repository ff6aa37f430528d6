"""Memory of which only touched pages are allocated, and that can be returned at once."""

from __future__ import annotations

import contextlib
import mmap
import sys

import numpy as np

from photinus.core.errors import NotReadyError
from photinus.core.parameters import Vector

_IS_LINUX = sys.platform == "linux"
_NO_RESERVE = 0x4000 if _IS_LINUX else 0
"""MAP_NORESERVE: what is not touched is not counted."""
_FREED_BYTES = 1 << 26


class Pages:
    """Zeros in pages of the system's own; a page takes memory once it is written or read.

    Args:
        size: how many numbers.
        dtype: of which type.

    Raises:
        NotReadyError: the system refuses so much memory.

    Example:
        >>> pages = Pages(3, "float32")
        >>> pages.vector[1] = 5
        >>> pages.forget()
        >>> pages.vector.tolist()
        [0.0, 0.0, 0.0]
    """

    def __init__(self, size: int, dtype: str) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        size_bytes = size * np.dtype(dtype).itemsize
        try:
            self._map = mmap.mmap(-1, max(1, size_bytes), flags=flags)
        except (OSError, OverflowError) as error:
            raise NotReadyError(
                "the system refuses so much memory", got=f"{size_bytes >> 20} MiB",
                do="use fewer numbers in a row, fewer rows, or more workers",
            ) from error  # fmt: skip
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without them
                self._map.madvise(mmap.MADV_NOHUGEPAGE)
        self.vector: Vector = np.frombuffer(self._map, dtype, size)

    def forget(self) -> None:
        """Makes all numbers 0, and gives their memory back."""
        if _IS_LINUX:
            self._map.madvise(mmap.MADV_DONTNEED)
        else:  # elsewhere the advice may leave them as they are
            self.vector[:] = 0


def map_of(array: object) -> mmap.mmap | None:
    """Returns the map that an array lies in; None of one in memory of the C library."""
    while isinstance(array, (np.ndarray, memoryview)):
        array = array.base if isinstance(array, np.ndarray) else array.obj
    return array if isinstance(array, mmap.mmap) else None


def read_at_random(array: Vector) -> None:
    """Has the system read of a mapped file only the pages that are touched.

    Else it reads up to some megabytes around each of them.
    """
    mapping = map_of(array)
    if mapping is not None and hasattr(mmap, "MADV_RANDOM"):
        mapping.madvise(mmap.MADV_RANDOM)


def release_pages(array: Vector) -> None:
    """Frees the memory and the disk of an array that lies in a file without a name; it is 0 then.

    Some pages at a time: other threads of its process run meanwhile.
    """
    mapping = map_of(array)
    if mapping is None or not hasattr(mmap, "MADV_REMOVE"):
        return
    with contextlib.suppress(OSError):  # it lies in memory, or its file system cannot
        for start in range(0, len(mapping), _FREED_BYTES):
            mapping.madvise(mmap.MADV_REMOVE, start, min(_FREED_BYTES, len(mapping) - start))
