from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from photinus.core.errors import UsageError
from photinus.data.arrays import FeedOrder, PartitionFeed
from photinus.data.base import MappedFeed
from photinus.data.rows import Rows
from photinus.testing import check_feed


def numbers(n, **order):
    return PartitionFeed(Rows.of(np.arange(n)[:, None], np.arange(n)), FeedOrder(**order))


def handed_out(feed, batches=None):
    return [batch.features[:, 0].tolist() for batch in islice(feed, batches)]


def test_it_keeps_the_contract():
    def make(*, rows, seed, epochs):
        return numbers(rows, batch_size=8, seed=seed, epochs=epochs)

    check_feed(make)


def test_a_mapped_feed_keeps_the_contract():
    def make(*, rows, seed, epochs):
        return MappedFeed(numbers(rows, batch_size=8, seed=seed, epochs=epochs), np.negative)

    check_feed(make)


def test_labels_stay_with_their_rows():
    for batch in numbers(50, batch_size=7, epochs=2.0):
        assert (batch.features[:, 0] == batch.labels).all()


@given(st.permutations(range(20)))
def test_the_order_of_arrival_does_not_matter(arrival):
    values = np.arange(20)[:, None]
    order = FeedOrder(batch_size=6, epochs=2.0, seed=3)
    assert handed_out(PartitionFeed(Rows.of(values), order)) == handed_out(
        PartitionFeed(Rows.of(values[arrival]), order)
    )


@pytest.mark.parametrize("changed", [{"seed": 1}, {"phase": "fine"}, {"slot": 1}])
def test_every_purpose_has_an_order_of_its_own(changed):
    order = {"batch_size": 40, "epochs": 1.0, "workers": 2}
    assert handed_out(numbers(40, **order)) != handed_out(numbers(40, **order | changed))


@given(st.lists(st.integers(0, 60), min_size=1, max_size=5), st.integers(1, 40))
def test_slots_of_any_size_need_the_same_steps_for_their_rows(sizes, batch_size):
    """No slot takes more than its share of a batch, rounded up; all end within a step."""
    total = sum(sizes)
    for slot, size in enumerate(sizes):
        share = {"share": (size, total), "slot": slot, "workers": len(sizes), "epochs": 1.0}
        batches = [len(b) for b in handed_out(numbers(size, batch_size=batch_size, **share))]
        assert sum(batches) == size
        if size:
            assert max(batches) <= -(-batch_size * size // total)
            assert len(batches) == min(size, -(-total // batch_size))


@given(st.integers(1, 30), st.integers(1, 9), st.integers(0, 70))
def test_after_a_seek_into_a_batch_the_later_batches_are_the_same(rows, batch_size, position):
    whole = numbers(rows, batch_size=batch_size, epochs=3.0)
    values = [v for batch in handed_out(whole) for v in batch]
    resumed = numbers(rows, batch_size=batch_size, epochs=3.0)
    resumed.seek(position)
    rest = handed_out(resumed)
    assert [v for batch in rest for v in batch] == values[position:]
    whole.seek(0)
    assert rest[1:] == (handed_out(whole)[-len(rest[1:]) :] if rest[1:] else [])


def test_a_position_is_never_negative():
    with pytest.raises(UsageError, match="position must be at least 0; got -1"):
        numbers(3).seek(-1)


def test_a_slot_is_below_the_number_of_workers():
    with pytest.raises(UsageError, match="slot of FeedOrder must be below workers, 2; got 2"):
        FeedOrder(slot=2, workers=2)


def test_stored_bytes_are_handed_out_as_scaled_floats():
    stored = np.arange(256, dtype=np.uint8).reshape(-1, 4)
    rows = Rows.of(stored, scale=1 / 255)
    (batch,) = PartitionFeed(rows, FeedOrder(batch_size=64, epochs=1.0))
    assert batch.features.dtype == np.float32
    assert np.array_equal(
        np.unique(batch.features), np.arange(256, dtype="f4") * np.float32(1 / 255)
    )


def test_batches_are_fresh_arrays():
    feed = numbers(6, batch_size=6, epochs=2.0)
    batches = iter(feed)
    next(batches).features[:] = -1
    assert sorted(next(batches).features[:, 0]) == list(range(6))


def test_a_mapped_feed_is_computed_once_and_keeps_the_original_order():
    calls = []

    def negative(features):
        calls.append(len(features))
        return -features

    plain = numbers(30, batch_size=7, epochs=2.0)
    mapped = numbers(30, batch_size=7, epochs=2.0).mapped(negative)
    assert handed_out(mapped) == [[-v for v in batch] for batch in handed_out(plain)]
    assert calls == [30]


def test_without_room_a_feed_is_mapped_batch_by_batch():
    rows = Rows.of(np.arange(30)[:, None], np.arange(30), room=lambda shape, dtype: None)
    order = FeedOrder(batch_size=7, epochs=2.0)
    by_batch = PartitionFeed(rows, order).mapped(np.negative)
    assert isinstance(by_batch, MappedFeed)
    assert handed_out(by_batch) == handed_out(
        numbers(30, batch_size=7, epochs=2.0).mapped(np.negative)
    )
