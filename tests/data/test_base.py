import numpy as np
import pytest

from photinus.data.arrays import FeedOrder, PartitionFeed
from photinus.data.base import Batch, Feed, MappedFeed
from photinus.data.rows import Rows
from photinus.testing import check_feed


def partition(rows, seed, epochs, **order):
    order = FeedOrder(batch_size=8, seed=seed, epochs=epochs, **order)
    return PartitionFeed(Rows.of(np.arange(rows)[:, None]), order)


class Wrapped(Feed):
    """A feed that does what another one does; each fault overrides one thing."""

    def __init__(self, feed):
        self.feed = feed

    rows = property(lambda self: self.feed.rows)
    position = property(lambda self: self.feed.position)

    def __iter__(self):
        return iter(self.feed)

    def seek(self, position):
        self.feed.seek(position)

    def mapped(self, function):
        return MappedFeed(self, function)


class SeeksNowhere(Wrapped):
    def seek(self, position):
        pass


class LosesARow(Wrapped):
    def __iter__(self):
        return (Batch(np.maximum(batch.features, 1)) for batch in self.feed)


class CountsAhead(Wrapped):
    position = property(lambda self: self.feed.position + 1)


class Empty(Wrapped):
    def __iter__(self):
        yield Batch(np.zeros((0, 1)))


class Repeats(Wrapped):
    def __iter__(self):
        values = np.arange(self.rows)[:, None]
        for _ in range(2):
            self.feed.seek(self.feed.position + self.rows)
            yield Batch(values)


def test_a_sound_feed_passes():
    check_feed(lambda *, rows, seed, epochs: Wrapped(partition(rows, seed, epochs)))


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (SeeksNowhere, "seek continues as if never stopped"),
        (LosesARow, "every row is handed out once an epoch"),
        (CountsAhead, "position counts the examples handed out"),
        (Empty, "no batch is empty"),
        (Repeats, "epochs differ in their order"),
    ],
)
def test_a_fault_is_named(fault, said):
    with pytest.raises(AssertionError, match=said):
        check_feed(lambda *, rows, seed, epochs: fault(partition(rows, seed, epochs)))


def test_a_feed_that_ignores_its_seed_is_named():
    with pytest.raises(AssertionError, match="another seed gives another order"):
        check_feed(lambda *, rows, seed, epochs: partition(rows, 0, epochs))


def test_a_feed_that_ignores_its_share_is_named():
    with pytest.raises(AssertionError, match="the share is epochs"):
        check_feed(
            lambda *, rows, seed, epochs: partition(rows, seed, 2.0 if epochs == 1.5 else epochs)
        )


def test_maps_are_applied_one_after_the_other():
    feed = MappedFeed(partition(4, 0, 1.0), lambda x: x + 1).mapped(lambda x: x * 10)
    assert sorted(v for batch in feed for v in batch.features[:, 0]) == [10, 20, 30, 40]


def test_no_rows_are_no_epochs():
    assert partition(0, 0, 1.0).epochs == 0.0
