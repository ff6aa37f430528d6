from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from photinus.core.errors import UsageError
from photinus.data.arrays import FeedOrder, PartitionFeed
from photinus.data.base import Block
from photinus.data.rows import Rows
from photinus.data.stream import Stream, StreamFeed


def stream(sizes):
    borders = np.cumsum([0, *sizes])
    values = np.arange(borders[-1])
    for start, stop in pairwise(borders):
        yield Block(values[start:stop, None], values[start:stop])


def feed(sizes, batch_size=4, rows=0, at=0, **order):
    feed_order = FeedOrder(batch_size=batch_size, **order)
    stream_feed = StreamFeed(Stream(stream(sizes)), feed_order, rows=rows)
    stream_feed.seek(at)
    return stream_feed


def values_of(batches):
    return [batch.features[:, 0].tolist() for batch in batches]


@given(st.lists(st.integers(0, 9), max_size=6), st.integers(1, 7))
def test_blocks_of_any_size_become_batches_of_one(sizes, batch_size):
    n = sum(sizes)
    whole_feed = feed(sizes, batch_size)
    values = list(range(n))
    expected = [values[i : i + batch_size] for i in range(0, n, batch_size)]
    assert values_of(whole_feed) == expected
    assert whole_feed.position == whole_feed.rows == n


@given(st.lists(st.integers(0, 9), max_size=6), st.integers(1, 7), st.data())
def test_a_seek_skips_rows_and_keeps_the_later_batches(sizes, batch_size, data):
    position = data.draw(st.integers(0, sum(sizes)))
    resumed = feed(sizes, batch_size)
    resumed.seek(position)
    assert resumed.position == position
    rest = values_of(resumed)
    assert [v for batch in rest for v in batch] == list(range(position, sum(sizes)))
    whole = values_of(feed(sizes, batch_size))
    assert rest[1:] == whole[len(whole) - len(rest) :][1:]


def test_a_second_pass_needs_a_new_feed():
    first = feed([5, 5], epochs=2.0)
    values_of(first)
    assert first.needs_pass
    with pytest.raises(UsageError, match=r"a stream gives its rows once; .* seek 10 in a feed"):
        values_of(first)
    second = feed([5, 5], epochs=2.0, rows=10, at=10)
    assert len(values_of(second)) == 3
    assert (second.position, second.epochs, second.needs_pass) == (20, 2.0, False)
    assert values_of(second) == []


def test_a_known_number_of_rows_ends_the_share_inside_a_pass():
    last = feed([5, 5], epochs=1.5, rows=10, at=10)
    assert values_of(last) == [[0, 1, 2, 3], [4]]
    assert not last.needs_pass


def test_a_seek_of_counted_rows_finds_its_place_in_a_later_pass():
    assert values_of(feed([5, 5], rows=10, at=26, epochs=3.0)) == [[6, 7], [8, 9]]


def test_an_endless_share_always_needs_another_pass():
    endless = feed([3])
    values_of(endless)
    assert endless.needs_pass


def test_a_pass_of_no_rows_is_done():
    empty = feed([], epochs=3.0)
    assert values_of(empty) == values_of(empty) == []
    assert empty.epochs == 0.0


def test_it_does_not_go_back_nor_beyond_its_end():
    whole_feed = feed([5])
    next(iter(whole_feed))
    with pytest.raises(UsageError, match="a stream at position 4 does not go back; got 3"):
        whole_feed.seek(3)
    with pytest.raises(UsageError, match="this pass ends at position 5; got 6"):
        whole_feed.seek(6)


def test_batches_are_fresh_and_scaled():
    stored = np.full((2, 2), 51, np.uint8)
    stored.setflags(write=False)
    scaled = StreamFeed(Stream(iter([Block(stored)]), 1 / 255), FeedOrder())
    (batch,) = scaled
    assert batch.features.dtype == np.float32
    assert np.allclose(batch.features, 0.2)
    assert batch.labels is None


def test_it_is_mapped_batch_by_batch():
    mapped = feed([5, 5]).mapped(np.negative)
    assert values_of(mapped) == [[-v for v in batch] for batch in values_of(feed([5, 5]))]
    assert mapped.position == 10


def test_a_streams_draws_are_those_of_the_same_rows_in_memory():
    features, labels = np.arange(30).reshape(10, 3), np.arange(10)

    def draws_by_row(feed):
        return {
            batch.features[i].tobytes(): int(batch.draws[i])
            for batch in feed
            for i in range(batch.examples)
        }

    order = FeedOrder(batch_size=4, epochs=1.0, seed=3)
    in_memory = PartitionFeed(Rows.of(features, labels), order)
    assert draws_by_row(StreamFeed(Stream(iter([Block(features, labels)])), order)) == draws_by_row(
        in_memory
    )
    order = FeedOrder(batch_size=4, epochs=2.0, seed=3)
    in_memory = PartitionFeed(Rows.of(features, labels), order)
    in_memory.seek(10)
    second = StreamFeed(Stream(iter([Block(features, labels)])), order, rows=10)
    second.seek(10)
    assert draws_by_row(second) == draws_by_row(in_memory)
