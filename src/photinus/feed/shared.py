"""Feeds all slots from rows that every worker can read: together they see one machine's batches."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from photinus.core.seeds import generator
from photinus.feed.arrays import FeedOrder, RowsFeed
from photinus.feed.base import Feed
from photinus.feed.rows import Rows

__all__ = ["SharedFeed"]


class SharedFeed(RowsFeed):
    """Feeds a slot its share of one global permutation an epoch, drawn for (seed, phase, epoch).

    With K workers and batches of B, step s takes the global batch s of K·B rows, and slot k its
    k-th slice: the slices of all slots, one behind the other, are the batch of one machine with
    batches of K·B. An epoch's last, short batch is split evenly; where it holds fewer rows than
    there are workers, some slots have no share in it and go on with the next epoch
    (`drop_ragged` leaves it out for all).

    Example:
        >>> rows = Rows.of(np.arange(12)[:, None])
        >>> def first(slot, workers, batch_size):
        ...     order = FeedOrder(slot=slot, workers=workers, batch_size=batch_size)
        ...     return next(iter(SharedFeed(rows, order))).features[:, 0].tolist()
        >>> first(0, 2, 3) + first(1, 2, 3) == first(0, 1, 6)
        True
    """

    def __init__(self, rows: Rows, order: FeedOrder) -> None:
        self._full, ragged = divmod(len(rows), order.workers * order.batch_size)
        start, stop = (ragged * slot // order.workers for slot in (order.slot, order.slot + 1))
        self._slice = slice(start, stop)
        whole = self._full * order.batch_size
        held = whole if order.drop_ragged and whole else whole + stop - start
        super().__init__(rows, order, held)

    def _over(self, rows: Rows) -> Feed:
        return SharedFeed(rows, self._order)

    def _epoch_rows(self, epoch: int) -> NDArray[np.int64]:
        """This slot's share of the epoch's permutation, in the order of its steps."""
        order = self._order
        drawn = generator(order.seed, "shared order", order.phase, epoch)
        permuted = self._rows.order[drawn.permutation(len(self._rows))]
        border = self._full * order.workers * order.batch_size
        steps = permuted[:border].reshape(self._full, order.workers, order.batch_size)  # [F, K, B]
        return np.concatenate((steps[:, order.slot].ravel(), permuted[border:][self._slice]))
