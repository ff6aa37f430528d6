"""A table sharded over the workers, as the driver holds it: files of shards, never in memory."""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Callable, Mapping

import numpy as np

from photinus.checkpoint.mapped import Kind, MappedFile, PagedFile, ScratchFolder
from photinus.core.errors import RunFailedError
from photinus.core.parameters import Vector
from photinus.models.base import Model
from photinus.training.requests import Page
from photinus.training.shard_pages import AT, PAGE_NUMBERS

Shard = Mapping[str, Vector]
"""Arrays by name: "vector" [m · width], and the outer optimizer's state of it."""

RELEASE_SECONDS, _LOOK_SECONDS = 30.0, 0.5
"""How long workers that have ended may take to release what their shards took of a disk."""
_JOINED_NUMBERS = 1 << 22
"""Of each shard so many are joined at once."""
NO_MORE_WANTED = -1
"""Answers a page of which no more are wanted."""


class ShardFiles:
    """The shards that workers send in pages: each is written to a file as it arrives.

    Args:
        scratch: where the files lie.
        failed: gets the reason when a shard could not be written for a checkpoint.
    """

    def __init__(self, scratch: ScratchFolder, failed: Callable[[str], None]) -> None:
        self._scratch, self._on_failure = scratch, failed
        self._incoming: dict[int, tuple[int, PagedFile]] = {}
        self._whole: dict[int, tuple[int, MappedFile]] = {}

    def take(self, slot: int, page: Page) -> int:
        """Takes a page in; returns how many numbers of its array have arrived, or `NO_MORE_WANTED`.

        Raises:
            RunFailedError: there is no room for a shard that will not be sent again.
        """
        if self._whole.get(slot, (-1,))[0] == page.version:
            return NO_MORE_WANTED
        assert page.numbers is not None
        try:
            return self._write_page(slot, page, page.numbers)
        except OSError as error:
            self._incoming.pop(slot, None)
            reason = f"a shard could not be written: {error.strerror or error}"
            if page.is_last:
                raise RunFailedError(reason, do="free some space, and resume the run") from error
            self._on_failure(reason)
            return NO_MORE_WANTED

    def _write_page(self, slot: int, page: Page, numbers: Vector) -> int:
        version, file = self._incoming.get(slot, (-1, None))
        if file is None or version != page.version:
            file = self._scratch.paged(page.kinds)
            self._incoming[slot] = page.version, file
        arrived_count = file.write(page.name, page.start, numbers)
        if file.is_whole:
            del self._incoming[slot]
            self._whole[slot] = page.version, file.closed()
        return arrived_count

    def at(self, version: int) -> dict[int, MappedFile]:
        """Returns slot -> its shard, of those that have arrived whole at a version."""
        return {
            slot: file
            for slot, (own_version, file) in sorted(self._whole.items())
            if own_version == version
        }

    def drop(self) -> None:
        """Forgets all of it: the run continues from elsewhere."""
        self._incoming, self._whole = {}, {}


class Table:
    """A table of which all shards are known.

    Args:
        shards: of each worker, in slot order.
        width: numbers in a row.
        scratch: where it lies as a whole.
        start: returns a model of the table, of which only the first rows are asked for.
        seed: that they are drawn by.
    """

    def __init__(
        self,
        shards: Mapping[int, Shard],
        width: int,
        scratch: ScratchFolder,
        start: Callable[[], Model],
        seed: int = 0,
    ) -> None:
        self._shards, self._width, self._scratch = dict(shards), width, scratch
        self._start, self._seed = start, seed
        self._vector: Vector | None = None

    @classmethod
    def of(cls, vector: Vector) -> Table:
        """Returns the table that lies in a file already [n]."""
        table = object.__new__(cls)
        table._shards, table._vector = {}, vector
        return table

    @property
    def vector(self) -> Vector:
        """All rows in their order [n], in a file without a name; the shards are released.

        Raises:
            RunFailedError: there is no room for it.
        """
        if self._vector is None:
            self._vector = self._join()
            self._shards.clear()
        return self._vector

    def _join(self) -> Vector:
        model, shards = self._start(), [self._shards[slot] for slot in sorted(self._shards)]
        trained = model.parameters.trained
        joined = self._allocate(trained.size, str(trained.dtype))
        table = joined.reshape(-1, self._width)
        if any(AT in shard for shard in shards):
            model.first_rows(table, 0, self._seed, 1)
        rows = max(1, _JOINED_NUMBERS // self._width)
        for start in range(0, -(-len(table) // len(shards)), rows):
            for slot, shard in enumerate(shards):  # some rows of all: the file is gone through once
                slot_rows, chunk = table[slot :: len(shards)], slice(start, start + rows)
                if AT in shard:
                    stored = slice(*np.searchsorted(shard[AT].ravel(), (start, start + rows)))
                    slot_rows[shard[AT].ravel()[stored]] = shard["vector"][stored]
                else:
                    slot_rows[chunk] = shard["vector"].reshape(-1, self._width)[chunk]
        return joined

    def _allocate(self, size: int, dtype: str) -> Vector:
        """Returns room for the table: the shards of workers may be on the same disk for a while."""
        pause, deadline = threading.Event(), time.monotonic() + RELEASE_SECONDS
        while True:
            try:
                return self._scratch.array((size,), dtype)
            except OSError as error:
                if time.monotonic() >= deadline:
                    reason = f"the table could not be written: {error.strerror or error}"
                    do = "free some space, and resume the run"
                    raise RunFailedError(reason, do=do) from error
            pause.wait(_LOOK_SECONDS)

    @property
    def fingerprint(self) -> str:
        """16 hex digits of the shards' bytes."""
        digests = "".join(getattr(s, "sha256", "") for _, s in sorted(self._shards.items()))
        return hashlib.sha256(digests.encode()).hexdigest()[:16]


def kinds_of(shard: Shard) -> dict[str, Kind]:
    """Returns the types and shapes of a shard's arrays."""
    return {name: (str(array.dtype), array.shape) for name, array in shard.items()}


def page_in(rows: Vector, start: int) -> Vector:
    """Returns the numbers [n] of an array of rows, from one of them on.

    Args:
        rows: [m] or [m, width].
        start: the first number's place.
    """
    width = math.prod(rows.shape[1:])
    first = start // width
    page: Vector = np.ascontiguousarray(rows[first : first + max(1, PAGE_NUMBERS // width)])
    return page.reshape(-1)
