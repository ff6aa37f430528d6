"""safetensors files that are written in pages and read through a memory map.

Neither the writer nor a reader of such a file holds its arrays in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import mmap
import os
import secrets
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import RawIOBase
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from photinus.core.errors import CheckpointError, UsageError
from photinus.core.pages import map_of
from photinus.core.parameters import Vector, is_finite

Kind = tuple[str, tuple[int, ...]]
"""Type and shape of an array: "float32", (3, 2)."""

_DIGEST = "sha256"
_PAGE_BYTES = 8 << 20
_MAX_HEAD_BYTES = 100_000_000
"""As safetensors itself has it."""
_METADATA = "__metadata__"
_SAFETENSORS_TYPES = {
    **{f"float{bits}": f"F{bits}" for bits in (64, 32, 16)},
    **{f"int{bits}": f"I{bits}" for bits in (64, 32, 16, 8)},
    **{f"uint{bits}": f"U{bits}" for bits in (64, 32, 16, 8)},
    "bool": "BOOL",
}
_NUMPY_TYPES = {name: dtype for dtype, name in _SAFETENSORS_TYPES.items()}


class MappedFile(Mapping[str, Vector]):
    """The arrays of one safetensors file, read-only: what is not touched takes no memory.

    Args:
        path: of the file.
        sha256: of its bytes, once all of them have been read or written.
        is_finite: whether no number in it is NaN or infinite.
        is_ours: it is removed with the last of those who read it.

    Raises:
        CheckpointError: it is no safetensors file of numpy's kinds of numbers.
    """

    def __init__(
        self, path: Path, sha256: str = "", *, is_finite: bool = True, is_ours: bool = False
    ) -> None:
        self.path, self.sha256, self.is_finite = path, sha256, is_finite
        if is_ours:
            weakref.finalize(self, _remove, path)
        try:
            with path.open("rb") as file:
                self.bytes = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            self.metadata, self._arrays = _parse(self.bytes)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            wrong = f"{path.name} is no safetensors file that can be read"
            raise CheckpointError(wrong) from error

    def __getitem__(self, name: str) -> Vector:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    @property
    def size(self) -> int:
        """Of the file, in bytes."""
        return len(self.bytes)


class PagedFile:
    """A safetensors file that is being written: its arrays one after the other, in pages.

    Args:
        path: of the file, which must be new.
        kinds: type and shape of each array, in order.

    Example:
        >>> path = Path(tempfile.mkdtemp()) / "table.safetensors"
        >>> file = PagedFile(path, {"rows": ("float32", (4,))})
        >>> file.write("rows", 0, np.ones(3, np.float32)), file.is_whole
        (3, False)
        >>> file.write("rows", 3, np.zeros(1, np.float32)), file.is_whole
        (4, True)
        >>> file.closed()["rows"].tolist()
        [1.0, 1.0, 1.0, 0.0]
    """

    def __init__(self, path: Path, kinds: Mapping[str, Kind]) -> None:
        self.path, self._kinds = path, dict(kinds)
        self._digest, self._is_finite = hashlib.sha256(), True
        self._offset, self._remaining = 0, [*self._kinds]
        """How many numbers of the present array are written, and which arrays are not whole."""
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        self._file = os.fdopen(descriptor, "wb", buffering=0)
        self._finalizer = weakref.finalize(self, _discard, self._file, path)
        self._append(memoryview(_head(self._kinds)))
        self._skip_empty()

    @property
    def is_whole(self) -> bool:
        """True when all pages are written."""
        return not self._remaining

    def write(self, name: str, start: int, page: Vector) -> int:
        """Writes the next page [n]; returns how many numbers of its array are written.

        A page that is written already is ignored.

        Raises:
            CheckpointError: it is not the next one, or of another type.
            OSError: the disk is full.
        """
        if name not in self._remaining or (name == self._remaining[0] and start < self._offset):
            return self._offset
        dtype, shape = self._kinds[name]
        size = math.prod(shape)
        if name != self._remaining[0] or start != self._offset or start + page.size > size:
            raise CheckpointError(f"not the next page of {name}", got=f"{start} + {page.size}")
        if page.dtype != np.dtype(dtype):
            raise CheckpointError(f"a page of {name} must be of {dtype}", got=page.dtype)
        self._is_finite = self._is_finite and is_finite(page)
        self._append(np.ascontiguousarray(page).view(np.uint8).data)
        self._offset = written = self._offset + page.size
        if self._offset == size:
            self._offset = 0
            self._remaining.pop(0)
            self._skip_empty()
        return written

    def closed(self) -> MappedFile:
        """Returns what was written, once it is whole; the file exists as long as the result."""
        assert self.is_whole
        self._file.close()
        self._finalizer.detach()
        sha256 = self._digest.hexdigest()
        return MappedFile(self.path, sha256, is_finite=self._is_finite, is_ours=True)

    def _skip_empty(self) -> None:
        while self._remaining and not math.prod(self._kinds[self._remaining[0]][1]):
            self._remaining.pop(0)

    def _append(self, data: memoryview) -> None:
        self._digest.update(data)
        while data:
            data = data[self._file.write(data) :]


@dataclass(frozen=True, slots=True)
class ScratchFolder:
    """Where the files lie that a run writes in pages.

    Args:
        folder: made when it is needed; None: the system's folder for temporary files.
    """

    folder: Path | None = None

    def paged(self, kinds: Mapping[str, Kind]) -> PagedFile:
        """Returns a new file for arrays of these kinds."""
        return PagedFile(self._new_path(), kinds)

    def array(self, shape: tuple[int, ...], dtype: str) -> Vector:
        """Returns an array of zeros in a file without a name; it takes memory of the disk only.

        Raises:
            OSError: the disk is full.
        """
        path = self._new_path()
        size = max(1, math.prod(shape) * np.dtype(dtype).itemsize)
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            path.unlink()
            _reserve(descriptor, size)
            mapping = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        array: Vector = np.frombuffer(mapping, dtype, math.prod(shape)).reshape(shape)
        return array

    def clear(self) -> None:
        """Removes what an earlier run left."""
        if self.folder is not None:
            for path in self.folder.glob("*.pages"):
                _remove(path)

    def _new_path(self) -> Path:
        folder = Path(tempfile.gettempdir()) if self.folder is None else self.folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder / f"photinus-{secrets.token_hex(8)}.pages"


def is_mapped(array: object) -> bool:
    """Returns whether an array lies in a file."""
    return map_of(array) is not None


def write_arrays(
    path: Path,
    arrays: Mapping[str, Vector],
    mode: int = 0o666,
    metadata: Mapping[str, str] | None = None,
) -> tuple[int, str]:
    """Writes a safetensors file page by page, and syncs it; returns its size and its sha256.

    Args:
        path: of the file, which must be new.
        arrays: [any shape] by name.
        mode: of the file.
        metadata: texts by name, for its head.

    Raises:
        UsageError: an array is of no kind that such files have, or the head is too long.
        OSError: the disk is full, or the file is there already.
    """
    digest = hashlib.sha256()
    pages = _pages(arrays, metadata)
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
    with os.fdopen(descriptor, "wb") as file:
        for page in pages:
            digest.update(page)
            file.write(page)
        file.flush()
        os.fsync(file.fileno())
        return file.tell(), digest.hexdigest()


def digest_of(arrays: Mapping[str, Vector]) -> str:
    """Returns the sha256 of the file that `write_arrays` writes.

    Raises:
        UsageError: an array is of no kind that such files have.
    """
    digest = hashlib.sha256()
    for page in _pages(arrays):
        digest.update(page)
    return digest.hexdigest()


def _pages(
    arrays: Mapping[str, Vector], metadata: Mapping[str, str] | None = None
) -> Iterator[memoryview]:
    """Returns the bytes of a file of arrays, page by page."""
    # as safetensors itself: the widest numbers first, so that all lie at multiples of their size
    names = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))
    kinds = {name: (arrays[name].dtype.name, arrays[name].shape) for name in names}
    head = memoryview(_head(kinds, metadata))
    parts = chain([head], *(_blocks(arrays[name]) for name in names))
    return (
        part[start : start + _PAGE_BYTES]
        for part in parts
        for start in range(0, len(part), _PAGE_BYTES)
    )


def _blocks(array: Vector) -> Iterator[memoryview]:
    """Returns an array's bytes; of one whose rows lie apart, some rows at a time."""
    rows = max(1, _PAGE_BYTES // max(1, math.prod(array.shape[1:]) * array.itemsize))
    is_strided = array.ndim > 1 and not array.flags.c_contiguous
    starts = range(0, len(array), rows) if is_strided else ()
    for block in (array[start : start + rows] for start in starts) if is_strided else [array]:
        plain = np.asarray(block, block.dtype.newbyteorder("<"), order="C")
        yield plain.reshape(-1).view(np.uint8).data


def _head(kinds: Mapping[str, Kind], metadata: Mapping[str, str] | None = None) -> bytes:
    head, offset = dict[str, Any](), 0
    if metadata:
        head[_METADATA] = dict(metadata)
    for name, (dtype, shape) in kinds.items():
        if dtype not in _SAFETENSORS_TYPES:
            raise UsageError("these arrays cannot be saved", got=dtype)
        end = offset + math.prod(shape) * np.dtype(dtype).itemsize
        head[name] = {
            "dtype": _SAFETENSORS_TYPES[dtype],
            "shape": list(shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > _MAX_HEAD_BYTES:
        wrong = "the head of a safetensors file holds at most 100 MB"
        raise UsageError(wrong, got=f"{len(text)} bytes", do="name another format")
    return len(text).to_bytes(8, "little") + text


def _parse(data: memoryview) -> tuple[dict[str, str], dict[str, Vector]]:
    """Returns the metadata of a file, and its arrays as views."""
    length = int.from_bytes(data[:8], "little")
    if length > min(_MAX_HEAD_BYTES, len(data) - 8):
        raise ValueError(length)
    head, body = json.loads(bytes(data[8 : 8 + length])), data[8 + length :]
    metadata, arrays = dict(head.pop(_METADATA, {})), dict[str, Vector]()
    for name, entry in head.items():
        start, end = entry["data_offsets"]
        arrays[name] = np.frombuffer(body[start:end], _NUMPY_TYPES[entry["dtype"]]).reshape(
            entry["shape"]
        )
    return metadata, arrays


def _reserve(descriptor: int, size: int) -> None:
    """Takes the room at once: a write through a map for which there is none kills the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.ftruncate(descriptor, size)


def _discard(file: RawIOBase, path: Path) -> None:
    file.close()
    _remove(path)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
