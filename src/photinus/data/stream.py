"""Feeds a slot from rows that fit neither memory nor disk: one pass, in order of arrival."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from photinus.core.errors import UsageError
from photinus.data.arrays import FeedOrder, draws_seed
from photinus.data.base import Batch, Block, Feed, MappedFeed, Transform
from photinus.data.inputs import Inputs, joined
from photinus.data.rows import content_hash, scaled


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """One pass over a slot's rows."""

    blocks: Iterator[Block]
    scale: float | None = None
    """As in `Rows`."""


class StreamFeed(Feed):
    """Feeds a slot from one pass over its rows; every further pass needs a feed of its own.

    The rows come in their order of arrival, so a resumed pass sees the batches of the first one
    only when they arrive in the same order: streams resume at the pass.

    Args:
        stream: the pass; it is used up.
        order: batch size and share; the seed does not change the order.
        rows: how many rows an earlier pass counted; 0 where this is the first. With them a first
            `seek` finds out which pass this is: the one that holds the position.

    Example:
        >>> blocks = iter([Block(np.arange(5)[:, None]), Block(np.arange(5, 8)[:, None])])
        >>> feed = StreamFeed(Stream(blocks), FeedOrder(batch_size=4, epochs=2.0))
        >>> [batch.features[:, 0].tolist() for batch in feed], feed.needs_pass
        ([[0, 1, 2, 3], [4, 5, 6, 7]], True)
    """

    def __init__(self, stream: Stream, order: FeedOrder, *, rows: int = 0) -> None:
        self._stream = stream
        self._order = order
        self._rows_per_pass = rows
        self._pending: Block | None = None
        self._pass_start = self._position = 0
        self._is_fresh, self._is_exhausted = True, False

    @property
    def rows(self) -> int:
        """How many rows a pass hands out: as counted by an earlier pass, or at this one's end."""
        return self._rows_per_pass or (
            self._position - self._pass_start if self._is_exhausted else 0
        )

    @property
    def position(self) -> int:
        return self._position

    @property
    def needs_pass(self) -> bool:
        """True when this pass is over and the share is not done: make a feed over a new pass."""
        return self._is_exhausted and not self._is_done

    @property
    def _seed(self) -> int:
        epoch = self._pass_start // self._rows_per_pass if self._rows_per_pass else 0
        return draws_seed(self._order, epoch)

    @property
    def _is_done(self) -> bool:
        epochs = self._order.epochs
        return (
            epochs is not None
            and bool(self.rows or self._is_exhausted)
            and (self._position >= round(epochs * self.rows))
        )

    def __iter__(self) -> Iterator[Batch]:
        """Continues with the pass.

        Raises:
            UsageError: the pass is over and the share is not done.
        """
        if self.needs_pass:
            do = f"seek {self._position} in a feed over a new pass"
            raise UsageError("a stream gives its rows once", got="a second pass", do=do)
        while not self._is_done and (block := self._next_batch()) is not None:
            draws = content_hash(*block) ^ np.uint64(self._seed)
            self._position += len(block.features)
            yield self._batch(block, draws)

    def _batch(self, block: Block, draws: NDArray[np.uint64]) -> Batch:
        features, labels, weights = block
        labels = None if labels is None else labels.copy()
        # the blocks may lie in memory that is not ours to write
        if isinstance(features, Inputs):
            every = np.arange(len(features))
            labels = features.token_labels(every) if labels is None else labels
            features = features.batch(every)
        else:
            features = scaled(features.copy(), self._stream.scale)
        return Batch(features, labels, None if weights is None else weights.copy(), draws)

    def seek(self, position: int) -> None:
        """Continues after `position` examples; the rows up to it pass by.

        Raises:
            UsageError: the position lies behind, or beyond the end of this pass.
        """
        if self._is_fresh and self._rows_per_pass:
            self._pass_start = self._position = position - position % self._rows_per_pass
        if position < self._position:
            do = "make a feed over a new pass"
            wrong = f"a stream at position {self._position} does not go back"
            raise UsageError(wrong, got=position, do=do)
        remaining = position - self._position
        while remaining:
            block = self._next_block()
            if block is None:
                wrong = f"this pass ends at position {self._position}"
                do = "make a feed over a new pass"
                raise UsageError(wrong, got=position, do=do)
            skipped = min(remaining, len(block.features))
            self._put_back(block.part(slice(skipped, None)))
            self._position += skipped
            remaining -= skipped

    def mapped(self, function: Transform) -> MappedFeed:
        """Returns a feed that transforms every batch of this pass."""
        return MappedFeed(self, function)

    def _next_batch(self) -> Block | None:
        """Returns the next batch's rows: to the end of a batch, the share or the pass."""
        offset = self._position - self._pass_start
        batch_rows = self._order.batch_end(offset) - offset
        if self._order.epochs is not None and self._rows_per_pass:
            batch_rows = min(
                batch_rows, round(self._order.epochs * self._rows_per_pass) - self._position
            )
        parts: list[Block] = []
        missing = batch_rows
        while missing and (block := self._next_block()) is not None:
            parts.append(block.part(slice(missing)))
            self._put_back(block.part(slice(missing, None)))
            missing -= len(parts[-1].features)
        if missing:
            self._is_exhausted = True
            if not parts:
                return None
        return parts[0] if len(parts) == 1 else _concatenate(parts)

    def _next_block(self) -> Block | None:
        """Returns the next rows, one or more; None at the end of the pass."""
        block, self._pending, self._is_fresh = self._pending, None, False
        while block is None or not len(block.features):
            block = next(self._stream.blocks, None)
            if block is None:
                self._is_exhausted = True
                return None
        return block

    def _put_back(self, block: Block) -> None:
        self._pending = block if len(block.features) else None


def _concatenate(parts: list[Block]) -> Block:
    columns = (None if column[0] is None else joined(column) for column in zip(*parts, strict=True))
    return Block(*columns)
