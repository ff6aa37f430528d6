"""A worker's shard of a table in pages: on its way to the driver, and from there."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping

import numpy as np

from photinus.core.errors import NotReadyError
from photinus.core.parameters import Vector
from photinus.data.rows import Room
from photinus.strategies.shards import ShardState
from photinus.training.asks import Page

PAGE_NUMBERS = 1 << 20
"""The most numbers in a page, except for a row that holds more."""
_KEPT_NUMBERS = 1 << 22
"""For each so many numbers that are kept aside, one more page is sent at once."""
_VECTOR = "vector"


class ShardCopy:
    """A shard as it was at one version, sent page by page while its worker trains on.

    Rows that move before their page is sent are kept aside as they were: no copy of the shard is
    made, and no worker waits for its last page.

    Args:
        held: the shard and its optimizer's state.
        is_last: it is sent because the worker's share is done.
    """

    def __init__(self, held: ShardState, *, is_last: bool = False) -> None:
        self._version, self._is_last = held.version, is_last
        count = len(held.own)
        self._arrays: dict[str, Vector] = {_VECTOR: held.own}
        for n, outer in enumerate(held.outer):
            self._arrays[f"outer.{n}"] = outer.reshape(count, outer.size // max(1, count))
        self._told = dict.fromkeys(self._arrays, 0)
        """Array -> how many of its rows were sent."""
        self._aside: dict[str, list[tuple[Vector, Vector]]] = {n: [] for n in self._arrays}
        """Array -> rows that have moved since, and what they were."""
        self._is_aside = np.zeros(count, np.bool_)
        self._kept = 0
        self.is_over = False

    def moving(self, at: Vector) -> None:
        """Keeps rows [r] of the shard aside that are about to move."""
        rows = at[~self._is_aside[at]]
        self._is_aside[rows] = True
        for name, array in self._arrays.items():
            late = rows[rows >= self._told[name]]
            self._aside[name].append((late, array[late]))
            self._kept += late.size * array.shape[1]

    def pages(self, most: int = 0) -> Generator[Page, Page, None]:
        """Sends the next pages.

        Args:
            most: so many of them, and more where much is kept aside; 0: all.
        """
        left = most + self._kept // _KEPT_NUMBERS
        while not self.is_over and (left > 0 or not most):
            left -= 1
            name = next((n for n, a in self._arrays.items() if self._told[n] < len(a)), _VECTOR)
            page, rows = self._page(name)
            answer = yield page
            self._told[name] += rows
            self.is_over = answer.start < 0 or all(
                self._told[n] == len(a) for n, a in self._arrays.items()
            )

    def _page(self, name: str) -> tuple[Page, int]:
        """Returns the next page of an array as it was, and how many rows are in it."""
        array, start = self._arrays[name], self._told[name]
        width = array.shape[1]
        stop = min(len(array), start + max(1, PAGE_NUMBERS // max(1, width)))
        rows = array[start:stop].copy()
        for at, were in self._aside[name]:
            here = slice(*np.searchsorted(at, (start, stop)))
            rows[at[here] - start] = were[here]
        kinds = {n: (str(a.dtype), (a.size,)) for n, a in self._arrays.items()}
        at_number = start * width
        page = Page(self._version, name, at_number, rows.ravel(), kinds, self._is_last)
        return page, stop - start


def fetched(
    kinds: Mapping[str, tuple[str, tuple[int, ...]]], version: int, room: Room
) -> Generator[Page, Page, dict[str, Vector]]:
    """Asks for the arrays of a shard page by page; returns them where there was room for them.

    Raises:
        NotReadyError: there is none.
    """
    arrays = {name: laid(math.prod(shape), dtype, room) for name, (dtype, shape) in kinds.items()}
    for name, array in arrays.items():
        start = 0
        while start < array.size:
            answer = yield Page(version, name, start)
            assert answer.numbers is not None
            array[start : start + answer.numbers.size] = answer.numbers
            start += answer.numbers.size
    return arrays


def laid(size: int, dtype: str, room: Room) -> Vector:
    """Returns an array [size] where there is room for it.

    Raises:
        NotReadyError: there is none.
    """
    found: Vector | None = room((size,), np.dtype(dtype))
    if found is None:
        wrong = "a worker's shard of the table fits neither in memory nor on disk"
        do = "use more workers, or a larger budget"
        raise NotReadyError(wrong, got=f"{size * np.dtype(dtype).itemsize >> 20} MiB", do=do)
    return found
