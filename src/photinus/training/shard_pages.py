"""A worker's shard of a table in pages: on its way to the driver, and from there."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping

import numpy as np

from photinus.core.errors import NotReadyError, UsageError
from photinus.core.parameters import Vector
from photinus.data.rows import Allocator, memory
from photinus.strategies.base import ShardMove
from photinus.strategies.shard_backups import DENSE
from photinus.strategies.shards import ShardState
from photinus.training.requests import Page

PAGE_NUMBERS = 1 << 20
"""The most numbers in a page, except for a row that holds more."""
_KEPT_NUMBERS = 1 << 22
"""For each so many numbers that are kept aside, one more page is sent at once."""
_VECTOR = "vector"
AT, FIRST = "at", "first"
"""Arrays of a shard that began at the start: which of its rows have moved [r], whose numbers are in
the others [r, width]; and some rows as they were at the start [s, width]."""
_FIRST_ROWS = 64


class ShardCopy:
    """A shard as it was at one version, sent page by page while its worker trains on.

    Of one that began at the start only the rows that have moved are sent. Rows that move before
    their page is sent are kept aside as they were: no copy of the shard is made, and no worker
    waits for its last page.

    Args:
        state: of the strategy, with the shard and its optimizer's state.
        is_last: it is sent because the worker's share is done.
    """

    def __init__(self, state: ShardState, *, is_last: bool = False) -> None:
        self._version, self._is_last = state.version, is_last
        count = len(state.own)
        shard: dict[str, Vector] = {_VECTOR: state.own}
        for n, outer in enumerate(state.outer):
            shard[f"outer.{n}"] = outer.reshape(count, outer.size // max(1, count))
        dense = {f"{DENSE}{n}": array[:, None] for n, array in enumerate(state.dense_outer)}
        self._arrays, self._sizes = {**shard, **dense}, dict.fromkeys(shard, count)
        """Array -> how many of its rows are sent."""
        self._at: Vector | None = None
        if state.first is not None:
            self._at = at = np.flatnonzero(state.moved)
            self._arrays = {AT: at[:, None], FIRST: state.first, **self._arrays}
            self._sizes = {AT: at.size, FIRST: len(state.first), **dict.fromkeys(shard, at.size)}
        self._sizes |= {name: len(array) for name, array in dense.items()}
        self._kinds = {
            name: (str(array.dtype), (self._sizes[name], array.shape[1]))
            for name, array in self._arrays.items()
        }
        self._sent = dict.fromkeys(self._arrays, 0)
        """Array -> how many of its rows were sent."""
        self._aside: dict[str, list[tuple[Vector, Vector]]] = {n: [] for n in shard}
        """Array -> rows that have moved since, and what they were."""
        self._is_aside = np.zeros(self._sizes[_VECTOR], np.bool_)
        self._aside_numbers = 0
        self.is_over = False

    def moving(self, at: Vector) -> None:
        """Keeps rows [r] of the shard aside that are about to move."""
        rows = at if self._at is None else np.flatnonzero(np.isin(self._at, at, assume_unique=True))
        rows = rows[~self._is_aside[rows]]
        self._is_aside[rows] = True
        for name, aside in self._aside.items():
            unsent = rows[rows >= self._sent[name]]
            aside.append((unsent, self._arrays[name][self._places(unsent)]))
            self._aside_numbers += unsent.size * self._arrays[name].shape[1]

    def _places(self, rows: Vector) -> Vector:
        """Returns where rows that are sent lie in the shard."""
        return rows if self._at is None else self._at[rows]

    def pages(self, most: int = 0) -> Generator[Page, Page, None]:
        """Sends the next pages.

        Args:
            most: so many of them, and more where much is kept aside; 0: all.
        """
        allowed = most + self._aside_numbers // _KEPT_NUMBERS
        while not self.is_over and (allowed > 0 or not most):
            allowed -= 1
            name = next((n for n, size in self._sizes.items() if self._sent[n] < size), _VECTOR)
            page, rows = self._page(name)
            answer = yield page
            self._sent[name] += rows
            self.is_over = answer.start < 0 or all(
                self._sent[n] == size for n, size in self._sizes.items()
            )

    def _page(self, name: str) -> tuple[Page, int]:
        """Returns the next page of an array as it was, and how many rows are in it."""
        array, start = self._arrays[name], self._sent[name]
        width = array.shape[1]
        stop = min(self._sizes[name], start + max(1, PAGE_NUMBERS // max(1, width)))
        span = slice(start, stop)
        at = self._at if name in self._aside else None
        rows = array[span].copy() if at is None else array[at[span]]
        for at, before in self._aside.get(name, ()):
            within = slice(*np.searchsorted(at, (start, stop)))
            rows[at[within] - start] = before[within]
        at_number = start * width
        page = Page(self._version, name, at_number, rows.ravel(), self._kinds, self._is_last)
        return page, stop - start


def fetched_shard(
    kinds: Mapping[str, tuple[str, tuple[int, ...]]], version: int, allocate: Allocator
) -> Generator[Page, Page, dict[str, Vector]]:
    """Asks for the arrays of a shard page by page; returns them where there was room for them.

    Raises:
        NotReadyError: there is none.
    """
    arrays = {
        name: allocated(math.prod(shape), dtype, allocate) for name, (dtype, shape) in kinds.items()
    }
    for name, array in arrays.items():
        start = 0
        while start < array.size:
            answer = yield Page(version, name, start)
            assert answer.numbers is not None
            array[start : start + answer.numbers.size] = answer.numbers
            start += answer.numbers.size
    return arrays


def fetched_moved(
    kinds: Mapping[str, tuple[str, tuple[int, ...]]], version: int, shard: Mapping[str, Vector]
) -> Generator[Page, Page, ShardMove]:
    """Asks for the rows that have moved since the start, and writes them into a shard.

    Args:
        kinds: of what is asked for.
        version: of the shard.
        shard: its arrays [m, width] by name, as they are at the start.

    Returns:
        Which rows these are, and some rows of the start.

    Raises:
        UsageError: the start is another one than that of the checkpoint.
    """
    sample = yield from fetched_shard({name: kinds[name] for name in (AT, FIRST)}, version, memory)
    at, first = sample[AT], sample[FIRST].reshape(kinds[FIRST][1])
    if not np.array_equal(first, sample_of(shard[_VECTOR])):
        wrong = "the first numbers of the table are drawn otherwise than for the checkpoint"
        raise UsageError(wrong, do="resume with the libraries and the code that the run began with")
    for name, array in shard.items():
        start, width = 0, array.shape[1]
        while start < at.size * width:
            answer = yield Page(version, name, start)
            assert answer.numbers is not None
            rows = answer.numbers.reshape(-1, width)
            array[at[start // width :][: len(rows)]] = rows
            start += answer.numbers.size
    return ShardMove(at, first, ())


def sample_of(shard: Vector) -> Vector:
    """Returns some rows of a shard [m, width], by which its start is known again."""
    return shard[:: max(1, len(shard) // _FIRST_ROWS)].copy()


def allocated(size: int, dtype: str, allocate: Allocator) -> Vector:
    """Returns an array [size] where there is room for it.

    Raises:
        NotReadyError: there is none.
    """
    array: Vector | None = allocate((size,), np.dtype(dtype))
    if array is None:
        wrong = "a worker's shard of the table fits neither in memory nor on disk"
        do = "use more workers, or a larger budget"
        raise NotReadyError(wrong, got=f"{size * np.dtype(dtype).itemsize >> 20} MiB", do=do)
    return array
