"""`check_feed`: checks that a feed keeps the contract."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, Protocol

import numpy as np

from photinus.core.masks import mask_of
from photinus.data.base import Batch, Feed


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
    examples = 0
    for batch in feed:
        assert batch.examples > 0, "no batch is empty"
        examples += batch.examples
        assert feed.position == examples, "position counts the examples handed out"
        (first if examples <= feed.rows else second).extend(_keys(batch))
    assert len(first) == len(second) == feed.rows, "no batch crosses the border of an epoch"
    assert len(set(first)) == feed.rows, "every row is handed out once an epoch"
    assert set(first) == set(second), "all epochs hold the same rows"
    assert first != second, "epochs differ in their order"
    assert feed.epochs == 2.0, "epochs are position / rows"


def _check_seed(make_feed: MakesFeed, rows: int) -> None:
    batches, same_seed, other_seed = (
        [_keys(b) for b in make_feed(rows=rows, seed=seed, epochs=2.0)] for seed in (1, 1, 2)
    )
    assert batches == same_seed, "the same seed gives the same batches"
    assert batches != other_seed, "another seed gives another order"


def _check_seek(make_feed: MakesFeed, rows: int) -> None:
    whole = make_feed(rows=rows, seed=1, epochs=2.5)
    positions, batches = [0], []
    for batch in whole:
        positions.append(whole.position)
        batches.append(_keys(batch))
    for count, position in enumerate(positions):
        resumed = make_feed(rows=rows, seed=1, epochs=2.5)
        resumed.seek(position)
        assert [_keys(b) for b in resumed] == batches[count:], "seek continues as if never stopped"
        assert resumed.position == whole.position, "a resumed feed ends where the whole one does"


def _check_share(make_feed: MakesFeed, rows: int) -> None:
    feed = make_feed(rows=rows, seed=1, epochs=1.5)
    examples = sum(batch.examples for batch in feed)
    assert examples == feed.position == round(1.5 * feed.rows), "the share is epochs * rows"
    assert list(feed) == [], "after its share a feed gives nothing"
    endless = make_feed(rows=rows, seed=1, epochs=None)
    list(islice(endless, 3 * rows))
    assert endless.epochs > 2, "without a share a feed has no end"


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
        if not any(name == mask_of(masked_name) for masked_name in masks)
    )
