"""The interface of a feed: batches, a position, and `seek`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from numpy.typing import NDArray

Array = NDArray[Any]
Features = Any
"""An array [n, ...] of one input, or `Inputs`: several by their names."""

Transform = Callable[[Array], Array]
"""Turns features [B, ...] into features [B, ...], row by row."""


class Batch(NamedTuple):
    """The examples of one step, in arrays of their own.

    Example:
        >>> import numpy as np
        >>> Batch(np.zeros((32, 784), np.float32), np.zeros(32, np.int64)).examples
        32
    """

    features: Any
    """[B, ...]; of several inputs a dict of such arrays, by the names of forward's parameters"""
    labels: Array | None = None
    """[B], or [B, ...] for several labels"""
    weights: Array | None = None
    """[B]; None weighs every example the same"""
    draws: Array | None = None
    """uint64 [B]: other ones for every (seed, phase, epoch, row), whichever slot or batch it is
    in; to be mixed into random numbers, as for augmentation"""

    @property
    def examples(self) -> int:
        """How many examples the batch holds."""
        sized = self.draws if self.draws is not None else self.labels
        if not isinstance(self.features, Mapping):
            sized = self.features
        return len(next(iter(self.features.values())) if sized is None else sized)

    def part(self, some: slice) -> Batch:
        """Returns some of the examples, without a copy."""
        if isinstance(self.features, Mapping):
            features: Any = {name: array[some] for name, array in self.features.items()}
        else:
            features = self.features[some]
        return Batch(features, *(None if array is None else array[some] for array in self[1:]))


class Block(NamedTuple):
    """Some rows on their way: as they are stored, not as they are handed out."""

    features: Features
    """[m, ...]"""
    labels: Array | None = None
    """[m], or [m, L]"""
    weights: Array | None = None
    """[m], float32"""

    def part(self, some: Any) -> Block:  # noqa: ANN401 - a slice, numbers or truth values
        """Returns some of the rows."""
        return Block(*(None if part is None else part[some] for part in self))


class Feed(ABC):
    """Hands out batches, to the end of its share or endlessly; an iterator begins at `position`."""

    @property
    @abstractmethod
    def rows(self) -> int:
        """How many rows an epoch hands out to this slot."""

    @property
    @abstractmethod
    def position(self) -> int:
        """Examples handed out so far in this phase, by this slot."""

    @abstractmethod
    def __iter__(self) -> Iterator[Batch]: ...

    @abstractmethod
    def seek(self, position: int) -> None:
        """Continues after `position` examples as if they had been handed out here.

        Raises:
            UsageError: the position is negative, or lies behind a feed that gives rows once.
        """

    @abstractmethod
    def mapped(self, function: Transform) -> Feed:
        """Returns a feed over transformed features, at position 0, with the same order of rows."""

    @property
    def epochs(self) -> float:
        """Passes done: position / rows."""
        return self.position / self.rows if self.rows else 0.0


class MappedFeed(Feed):
    """Transforms every batch as it is handed out: for what cannot be kept transformed.

    Args:
        feed: yields the batches; its position is this feed's position.
        function: features [B, ...] to features [B, ...].
    """

    def __init__(self, feed: Feed, function: Transform) -> None:
        self._feed = feed
        self._function = function

    @property
    def rows(self) -> int:
        """How many rows the feed behind it holds."""
        return self._feed.rows

    @property
    def position(self) -> int:
        return self._feed.position

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._feed:
            yield batch._replace(features=self._function(batch.features))

    def seek(self, position: int) -> None:
        self._feed.seek(position)

    def mapped(self, function: Transform) -> MappedFeed:
        """Returns a feed that applies `function` after this one's."""
        return MappedFeed(self, function)
