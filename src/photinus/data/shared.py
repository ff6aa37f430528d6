"""Feeds all slots from rows that every worker can read; together they see one batch order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from photinus.core.seeds import generator
from photinus.data.arrays import FeedOrder, RowsFeed
from photinus.data.base import Feed
from photinus.data.rows import Rows


class SharedFeed(RowsFeed):
    """Feeds a slot its share of one global permutation an epoch, drawn for (seed, phase, epoch).

    Step s of one machine takes the s-th batch of B rows of the permutation, and each slot a slice
    of it: the slices of all slots are the whole batch, and differ by at most one row. With more
    workers than B, a step takes a row of each worker.

    Example:
        >>> rows = Rows.of(np.arange(12)[:, None])
        >>> def first(slot, workers):
        ...     order = FeedOrder(slot=slot, workers=workers, batch_size=6)
        ...     return next(iter(SharedFeed(rows, order))).features[:, 0].tolist()
        >>> first(0, 2) + first(1, 2) == first(0, 1)
        True
    """

    def __init__(self, rows: Rows, order: FeedOrder) -> None:
        batch = max(order.batch_size, order.workers)
        self._slices = [
            _slice(start, min(batch, len(rows) - start), order)
            for start in range(0, len(rows), batch)
        ]
        sizes = [piece.stop - piece.start for piece in self._slices]
        self._borders = np.cumsum(sizes, dtype=np.int64)
        super().__init__(rows, order, sum(sizes))

    def _over(self, rows: Rows) -> Feed:
        return SharedFeed(rows, self._order)

    def _epoch_rows(self, epoch: int) -> NDArray[np.int64]:
        """This slot's share of the epoch's permutation, in the order of its steps."""
        order = self._order
        drawn = generator(order.seed, "shared order", order.phase, epoch)
        permuted = self._alike(self._rows.order[drawn.permutation(len(self._rows))], epoch)
        return np.concatenate([permuted[piece] for piece in self._slices])

    def _borders_of(self, rows: int) -> NDArray[np.int64]:
        batch = max(self._order.batch_size, self._order.workers)
        return np.minimum(np.arange(batch, rows + batch, batch), rows)

    def _border(self, done: int) -> int:
        return int(self._borders[np.searchsorted(self._borders, done, side="right")])

    def _after(self, part: float) -> int:
        batch = max(self._order.batch_size, self._order.workers)
        steps = min(round(part * len(self._rows) / batch), len(self._borders))
        return int(self._borders[steps - 1]) if steps else 0


def _slice(start: int, size: int, order: FeedOrder) -> slice:
    """Returns which rows of a batch are this slot's; larger slices rotate over the slots."""
    turn = 0 if size % order.workers == 0 else start // size
    place = (order.slot + turn) % order.workers
    first, last = (size * n // order.workers for n in (place, place + 1))
    return slice(start + first, start + last)
