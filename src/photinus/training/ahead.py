"""Reads a feed's next batches before they are trained on: for their rows, or for a device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

import numpy as np

from photinus.core.parameters import Vector
from photinus.data.base import Batch, Feed, MappedFeed, Transform
from photinus.strategies.rows import union

LEAST_BYTES = 1 << 20
"""Of a batch's features: a smaller one is there sooner than a thread is asked for it."""
_AHEAD = 2
"""Batches that are read and sent before they are asked for."""


class _Ahead(Feed):
    """A feed that reads further in another one than it has handed out."""

    def __init__(self, feed: Feed) -> None:
        self._feed, self._position = feed, feed.position

    @property
    def rows(self) -> int:
        """As of the feed behind it."""
        return self._feed.rows

    @property
    def position(self) -> int:
        """Examples handed out so far; not those that were read ahead."""
        return self._position


class AheadFeed(_Ahead):
    """A feed whose next batches are read, and sent to a device, while the last one is trained on.

    A thread copies some 10 GB/s into pinned memory, which is slower than a card: two threads copy.

    Args:
        feed: yields the batches; they can be read again.
        send: returns a batch on its way to the device.
    """

    def __init__(self, feed: Feed, send: Callable[[Batch], Batch]) -> None:
        super().__init__(feed)
        self._send = send

    def __iter__(self) -> Iterator[Batch]:
        source = iter(self._feed)
        first = None
        for batch in source:
            self._position = self._feed.position
            if _bytes(batch) >= LEAST_BYTES:
                first = batch
                break
            yield batch
        if first is None:
            return

        def read() -> tuple[Future[Batch], int] | None:
            batch = next(source, None)
            if batch is None:
                return None
            return senders.submit(self._sent, batch), self._feed.position

        with (
            ThreadPoolExecutor(_AHEAD, "photinus-sending") as senders,
            ThreadPoolExecutor(1, "photinus-reading") as reader,
        ):
            ahead = deque(reader.submit(read) for _ in range(_AHEAD))
            yield first
            while (found := ahead.popleft().result()) is not None:
                sent, position = found
                batch = sent.result()
                ahead.append(reader.submit(read))
                self._position = position
                yield batch

    def _sent(self, batch: Batch) -> Batch:
        try:
            return self._send(batch)
        except Exception:
            return batch  # `learn` sends it again, and an error then names its rows

    def seek(self, position: int) -> None:
        """Continues after `position` examples, where nobody iterates."""
        self._feed.seek(position)
        self._position = position

    def mapped(self, function: Transform) -> Feed:
        """Returns a feed over transformed features."""
        return AheadFeed(self._feed.mapped(function), self._send)


def _bytes(batch: Batch) -> int:
    x = batch.features
    return sum(a.nbytes for a in (x.values() if isinstance(x, Mapping) else (x,)))


class LookaheadFeed(_Ahead):
    """A feed that knows which rows of a table its next batches read.

    Args:
        feed: yields the batches, from the position to continue from.
        steps: how many batches there are between two rounds; it is read twice as far ahead.
        rows: returns the rows [r] that a batch reads, in order and once each, given the feed's
            position behind it.
    """

    def __init__(self, feed: Feed, steps: int, rows: Callable[[Batch, int], Vector]) -> None:
        super().__init__(feed)
        self._steps, self._rows_of = steps, rows
        self._source: Iterator[Batch] | None = None
        self._queue: deque[tuple[Batch, int, Vector]] = deque()
        self._read: list[Vector] = []
        """The rows of each batch handed out since `reads` was asked for."""
        self.counted = feed.position
        """The position when it was asked for."""

    def asks(self, rounds: int = 0) -> Vector:
        """Returns which rows [r] the batches after so many rounds read, in order and once each."""
        self._source = iter(self._feed) if self._source is None else self._source
        start = rounds * self._steps
        while len(self._queue) < start + self._steps:
            batch = next(self._source, None)
            if batch is None:
                break
            position = self._feed.position
            self._queue.append((batch, position, self._rows_of(batch, position)))
        rows = [rows for _, _, rows in islice(self._queue, start, start + self._steps)]
        if len(rows) == 1:  # a round in every step: to look for duplicates would take milliseconds
            return rows[0]
        return union(rows)

    def __iter__(self) -> Iterator[Batch]:
        """Hands out what was read ahead: only the rows of these batches are here."""
        while self._queue:
            batch, self._position, rows = self._queue.popleft()
            self._read.append(rows)
            yield batch

    def reads(self, rows: Vector) -> Vector:
        """Returns how many batches read each of some rows [r], in order, since the last call."""
        reads = np.zeros(rows.size, np.uint16)
        for batch_rows in self._read if rows.size else ():
            at = np.searchsorted(rows, batch_rows)
            at[at == rows.size] = 0
            reads[at[rows[at] == batch_rows]] += 1
        self._read.clear()
        self.counted = self._position
        return reads

    def seek(self, position: int) -> None:
        """Continues after `position` examples; what was read ahead is dropped."""
        self._feed.seek(position)
        self._source, self._position, self.counted = None, position, position
        self._queue.clear()
        self._read.clear()

    def mapped(self, function: Transform) -> Feed:
        """Returns a feed over transformed features."""
        return MappedFeed(self, function)
