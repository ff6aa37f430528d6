"""Feeds a slot from its own rows; the seed gives each epoch a permutation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import starmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from photinus.core.errors import UsageError
from photinus.core.seeds import derive, generator
from photinus.core.settings import Limit, at_least, validate, whole
from photinus.data.base import Batch, Feed, MappedFeed, Transform
from photinus.data.rows import Rows

_WINDOW_BATCHES = 100
"""How many batches share out their rows by length: among more, batches would be less random."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FeedOrder:
    """All that a feed's order depends on, beside the rows."""

    batch_size: int = 32
    """Examples of one step of all workers together."""
    share: tuple[int, int] = (1, 1)
    """This slot's rows, and those of all slots: a step takes so much of the batch from here."""
    epochs: float | None = None
    """The feed ends after epochs · rows examples; None is endless."""
    whole_steps: bool = False
    """The feed ends at the end of a batch that is nearest to its epochs: after the same step as
    all others'."""
    seed: int = 0
    phase: int | str = 0
    slot: int = 0
    workers: int = 1

    LIMITS = {  # noqa: RUF012 - dataclass slots: a plain class attribute, never written
        "batch_size": whole(1),
        "epochs": Limit.optional(at_least(0)),
        "seed": whole(0),
        "slot": whole(0),
        "workers": whole(1),
    }

    def __post_init__(self) -> None:
        validate(self)
        if self.slot >= self.workers:
            wrong = f"slot of FeedOrder must be below workers, {self.workers}"
            raise UsageError(wrong, got=self.slot)

    def batch_end(self, offset: int) -> int:
        """Returns where the batch ends that begins after `offset` examples of an epoch.

        Step s ends at ⌊s·B·r/N⌋ with B the batch size, r the rows here and N those of all: all
        slots need the same number of steps for their rows, however many each of them holds.

        Example:
            >>> order = FeedOrder(batch_size=10, share=(25, 100))
            >>> order.batch_end(0), order.batch_end(2), order.batch_end(5)
            (2, 5, 7)
        """
        rows, total = self.share
        return self.examples_after(-(-(offset + 1) * total // (self.batch_size * rows)))

    def examples_after(self, steps: int) -> int:
        """Returns how many examples of an epoch so many steps take from here."""
        rows, total = self.share
        return steps * self.batch_size * rows // total


def draws_seed(order: FeedOrder, epoch: int) -> int:
    """Returns a seed that is different for each epoch's draws, and the same for all slots."""
    return derive(order.seed, "draws", order.phase, epoch)


class RowCursor:
    """Goes through the rows batch by batch and epoch by epoch, and knows how far it is.

    Args:
        order: the epochs, and the seed of their draws.
        rows: handed out in an epoch.
        epoch_rows: returns the rows of one epoch in their order, [rows] or more.
        batch_end: returns where the batch ends that begins at an offset of the epoch.
        end: the number of examples after which the cursor stops; None is endless.
    """

    def __init__(
        self,
        order: FeedOrder,
        rows: int,
        epoch_rows: Callable[[int], NDArray[np.int64]],
        batch_end: Callable[[int], int],
        end: int | None,
    ) -> None:
        self.rows = rows
        self.position = 0
        self._order = order
        self._batch_end = batch_end
        self._epoch_rows = epoch_rows
        self._end_position = end

    def __iter__(self) -> Iterator[tuple[NDArray[np.int64], int]]:
        """Yields the rows of each batch, and the seed of its epoch's draws."""
        epoch, index, seed = -1, np.empty(0, np.int64), 0
        while self.rows and (self._end_position is None or self.position < self._end_position):
            new_epoch, offset = divmod(self.position, self.rows)
            if new_epoch != epoch:
                epoch, index = new_epoch, self._epoch_rows(new_epoch)[: self.rows]
                seed = draws_seed(self._order, epoch)
            # up to the next end of a batch: after a seek into a batch the later ones are equal
            stop = min(self._batch_end(offset), self.rows)
            if self._end_position is not None:
                stop = min(stop, offset + self._end_position - self.position)
            self.position += stop - offset
            yield index[offset:stop], seed

    def seek(self, position: int) -> None:
        """Continues after `position` examples.

        Raises:
            UsageError: the position is negative.
        """
        if position < 0:
            raise UsageError("a feed's position must be at least 0", got=position)
        self.position = position


class RowsFeed(Feed):
    """Feeds a slot from rows that it can read in any order; subclasses say how many, and which.

    Args:
        rows: the rows.
        order: how they are walked through.
        rows_per_epoch: how many of them an epoch hands out to this slot.
    """

    def __init__(self, rows: Rows, order: FeedOrder, rows_per_epoch: int) -> None:
        self._rows = rows
        self._order = order
        self._lengths = rows.lengths()
        self._cursor = RowCursor(
            order,
            rows_per_epoch,
            self._epoch_rows,
            self._batch_end,
            self._end_position(rows_per_epoch),
        )

    @property
    def rows(self) -> int:
        return self._cursor.rows

    @property
    def position(self) -> int:
        return self._cursor.position

    def __iter__(self) -> Iterator[Batch]:
        return starmap(self._rows.batch, self._cursor)

    def seek(self, position: int) -> None:
        self._cursor.seek(position)

    def mapped(self, function: Transform) -> Feed:
        """Returns a feed over transformed features: kept where there is room, else by the batch."""
        rows = self._rows.mapped(function)
        if rows is None:
            return MappedFeed(self._with_rows(self._rows), function)
        return self._with_rows(rows)

    @abstractmethod
    def _with_rows(self, rows: Rows) -> Feed:
        """Returns a feed of the same kind and order over other rows."""

    @abstractmethod
    def _epoch_rows(self, epoch: int) -> NDArray[np.int64]:
        """Returns what this slot reads in an epoch, in its order."""

    def _group_by_length(self, index: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        """Returns the rows of an epoch with rows of similar length in one batch."""
        if self._lengths is None:
            return index
        # all slots draw alike: in one step the batches of all are of similar length
        rng = generator(self._order.seed, "lengths", self._order.phase, epoch)
        return by_length(index, self._lengths, self._batch_ends_of(len(index)), rng)

    def _batch_ends_of(self, rows: int) -> NDArray[np.int64]:
        """Returns where the batches of an epoch end."""
        ends = [0]
        while ends[-1] < rows:
            ends.append(min(rows, self._order.batch_end(ends[-1])))
        return np.array(ends[1:], np.int64)

    def _batch_end(self, offset: int) -> int:
        """Returns where the batch ends that begins after `offset` examples of an epoch."""
        return self._order.batch_end(offset)

    def _examples_after(self, fraction: float) -> int:
        """Returns how many examples this slot has after the steps of a part of an epoch."""
        return self._order.examples_after(
            round(fraction * self._order.share[1] / self._order.batch_size)
        )

    def _end_position(self, rows_per_epoch: int) -> int | None:
        order = self._order
        if order.epochs is None or not order.whole_steps:
            return None if order.epochs is None else round(order.epochs * rows_per_epoch)
        full_epochs, fraction = divmod(order.epochs + 1e-9, 1.0)
        return int(full_epochs) * rows_per_epoch + min(
            rows_per_epoch, self._examples_after(fraction)
        )


class PartitionFeed(RowsFeed):
    """Feeds a slot from the rows of its own partition.

    Epoch e's order is a permutation of the content-sorted rows, drawn for
    (seed, phase, slot, e): nothing to save, and the same on whichever host a retry runs.

    Example:
        >>> rows = Rows.of(np.arange(10)[:, None])
        >>> feed = PartitionFeed(rows, FeedOrder(batch_size=4, epochs=1.0))
        >>> [batch.examples for batch in feed]
        [4, 4, 2]
    """

    def __init__(self, rows: Rows, order: FeedOrder) -> None:
        super().__init__(rows, order, len(rows))

    def _with_rows(self, rows: Rows) -> Feed:
        return PartitionFeed(rows, self._order)

    def _epoch_rows(self, epoch: int) -> NDArray[np.int64]:
        order = self._order
        rng = generator(order.seed, "order", order.phase, order.slot, epoch)
        return self._group_by_length(self._rows.order[rng.permutation(len(self._rows))], epoch)


def by_length(
    index: NDArray[np.int64],
    lengths: NDArray[np.integer[Any]],
    ends: NDArray[np.int64],
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Returns the rows of an epoch in another order: rows of similar length share a batch.

    So less is padded. Only rows of 100 batches in succession change places, and these batches are
    not ordered by length.

    Args:
        index: rows in the order of the epoch [n].
        lengths: of every row that there is.
        ends: where the batches end, the last one at n.
        rng: decides the order of the batches.

    Example:
        >>> lengths, rng = np.array([1, 9, 1, 9]), np.random.default_rng(0)
        >>> rows = by_length(np.arange(4), lengths, np.array([2, 4]), rng)
        >>> lengths[rows].tolist()
        [1, 1, 9, 9]
    """
    reordered, starts = np.empty_like(index), np.concatenate([[0], ends[:-1]])
    for first in range(0, len(ends), _WINDOW_BATCHES):
        window = range(first, min(first + _WINDOW_BATCHES, len(ends)))
        rows = index[starts[first] : ends[window[-1]]]
        rows = rows[np.argsort(lengths[rows], kind="stable")]
        offset = 0
        for batch in rng.permutation(len(window)) + first:
            size = ends[batch] - starts[batch]
            reordered[starts[batch] : ends[batch]] = rows[offset : offset + size]
            offset += size
    return reordered
