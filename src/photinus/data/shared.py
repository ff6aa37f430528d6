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
        batch_rows = max(order.batch_size, order.workers)
        self._slices = [
            _slice(start, min(batch_rows, len(rows) - start), order)
            for start in range(0, len(rows), batch_rows)
        ]
        sizes = [batch_slice.stop - batch_slice.start for batch_slice in self._slices]
        self._batch_ends = np.cumsum(sizes, dtype=np.int64)
        super().__init__(rows, order, sum(sizes))

    def _with_rows(self, rows: Rows) -> Feed:
        return SharedFeed(rows, self._order)

    def _epoch_rows(self, epoch: int) -> NDArray[np.int64]:
        """This slot's share of the epoch's permutation, in the order of its steps."""
        order = self._order
        rng = generator(order.seed, "shared order", order.phase, epoch)
        permuted = self._group_by_length(self._rows.order[rng.permutation(len(self._rows))], epoch)
        return np.concatenate([permuted[batch_slice] for batch_slice in self._slices])

    def _batch_ends_of(self, rows: int) -> NDArray[np.int64]:
        batch_rows = max(self._order.batch_size, self._order.workers)
        return np.minimum(np.arange(batch_rows, rows + batch_rows, batch_rows), rows)

    def _batch_end(self, offset: int) -> int:
        return int(self._batch_ends[np.searchsorted(self._batch_ends, offset, side="right")])

    def _examples_after(self, fraction: float) -> int:
        batch_rows = max(self._order.batch_size, self._order.workers)
        steps = min(round(fraction * len(self._rows) / batch_rows), len(self._batch_ends))
        return int(self._batch_ends[steps - 1]) if steps else 0


def _slice(start: int, size: int, order: FeedOrder) -> slice:
    """Returns which rows of a batch are this slot's; larger slices rotate over the slots."""
    rotation = 0 if size % order.workers == 0 else start // size
    position = (order.slot + rotation) % order.workers
    first, last = (size * n // order.workers for n in (position, position + 1))
    return slice(start + first, start + last)
