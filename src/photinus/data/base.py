"""The interface of a feed: batches, a position, and `seek`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from photinus.core.masks import mask_of

__all__ = [
    "Array",
    "Batch",
    "Block",
    "Features",
    "Feed",
    "MakesFeed",
    "MappedFeed",
    "Transform",
    "check_feed",
]

Array = NDArray[Any]
Features = Any
"""An array [n, ...] of one input, or `Inputs`: several by their names."""

Transform = Callable[[Array], Array]
"""Turns features [B, ...] into features [B, ...], row by row."""


class Batch(NamedTuple):
    """The examples of one step, in arrays of their own.

    Example:
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
        known = self.draws if self.draws is not None else self.labels
        if not isinstance(self.features, Mapping):
            known = self.features
        return len(next(iter(self.features.values())) if known is None else known)

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
    """Hands out batches, to the end of its share or endlessly; iterating goes on at `position`."""

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
        """Goes on after `position` examples as if they had been handed out here.

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
        feed: where the batches come from; its position is this feed's position.
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
        """Examples handed out so far."""
        return self._feed.position

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._feed:
            yield batch._replace(features=self._function(batch.features))

    def seek(self, position: int) -> None:
        """Goes on after `position` examples."""
        self._feed.seek(position)

    def mapped(self, function: Transform) -> MappedFeed:
        """Returns a feed that applies `function` after this one's."""
        return MappedFeed(self, function)


class MakesFeed(Protocol):
    """Makes the feed that `check_feed` looks at; all its rows must differ."""

    def __call__(self, *, rows: int, seed: int, epochs: float | None) -> Feed:
        """Returns a feed over `rows` rows at position 0; `epochs` None means endless."""


def check_feed(make_feed: MakesFeed, *, rows: int = 53) -> None:
    """Checks that a feed keeps the contract of `Feed`; an AssertionError names what it breaks.

    Args:
        make_feed: makes a fresh feed, e.g. over `np.arange(rows)`.
        rows: how many rows the feeds under test hold.

    Example:
        >>> from photinus.data.arrays import FeedOrder, PartitionFeed
        >>> from photinus.data.rows import Rows
        >>> def make(*, rows, seed, epochs):
        ...     order = FeedOrder(batch_size=8, seed=seed, epochs=epochs)
        ...     return PartitionFeed(Rows.of(np.arange(rows)[:, None]), order)
        >>> check_feed(make)
    """
    _check_passes(make_feed, rows)
    _check_seed(make_feed, rows)
    _check_seek(make_feed, rows)
    _check_share(make_feed, rows)
    assert list(make_feed(rows=0, seed=1, epochs=None)) == [], "a feed of no rows gives nothing"
    assert make_feed(rows=0, seed=1, epochs=3.0).epochs == 0.0, "no rows are no epochs"


def _check_passes(make_feed: MakesFeed, rows: int) -> None:
    feed = make_feed(rows=rows, seed=1, epochs=2.0)
    first: _Keys = []
    second: _Keys = []
    seen = 0
    for batch in feed:
        assert batch.examples > 0, "no batch is empty"
        seen += batch.examples
        assert feed.position == seen, "position counts the examples handed out"
        (first if seen <= feed.rows else second).extend(_keys(batch))
    assert len(first) == len(second) == feed.rows, "no batch crosses the border of an epoch"
    assert len(set(first)) == feed.rows, "every row is handed out once an epoch"
    assert set(first) == set(second), "all epochs hold the same rows"
    assert first != second, "epochs differ in their order"
    assert feed.epochs == 2.0, "epochs are position / rows"


def _check_seed(make_feed: MakesFeed, rows: int) -> None:
    once, again, other = (
        [_keys(b) for b in make_feed(rows=rows, seed=seed, epochs=2.0)] for seed in (1, 1, 2)
    )
    assert once == again, "the same seed gives the same batches"
    assert once != other, "another seed gives another order"


def _check_seek(make_feed: MakesFeed, rows: int) -> None:
    whole = make_feed(rows=rows, seed=1, epochs=2.5)
    reached, batches = [0], []
    for batch in whole:
        reached.append(whole.position)
        batches.append(_keys(batch))
    for done, position in enumerate(reached):
        resumed = make_feed(rows=rows, seed=1, epochs=2.5)
        resumed.seek(position)
        assert [_keys(b) for b in resumed] == batches[done:], "seek goes on as if never stopped"
        assert resumed.position == whole.position, "a resumed feed ends where the whole one does"


def _check_share(make_feed: MakesFeed, rows: int) -> None:
    feed = make_feed(rows=rows, seed=1, epochs=1.5)
    handed_out = sum(batch.examples for batch in feed)
    assert handed_out == feed.position == round(1.5 * feed.rows), "the share is epochs * rows"
    assert list(feed) == [], "after its share a feed gives nothing"
    endless = make_feed(rows=rows, seed=1, epochs=None)
    list(islice(endless, 3 * rows))
    assert endless.epochs > 2, "without a share a feed goes on"


_Keys = list[tuple[bytes, bytes]]


def _keys(batch: Batch) -> _Keys:
    """The batch as plain values: (features, label) of every row."""
    labels = batch.labels if batch.labels is not None else np.zeros(batch.examples)
    return [(_content(batch.features, i), y.tobytes()) for i, y in enumerate(labels)]


def _content(features: Any, row: int) -> bytes:  # noqa: ANN401 - an array, or a dict of them
    """Returns a row without its padding, which the other rows of its batch decide."""
    if not isinstance(features, Mapping):
        return bytes(features[row].tobytes())
    masks = {name: features[mask_of(name)][row] for name in features if mask_of(name) in features}
    return b"".join(
        (array[row][masks[name]] if name in masks else array[row]).tobytes()
        for name, array in features.items()
        if not any(name == mask_of(masked) for masked in masks)
    )
