"""A feed that is read ahead hands out the same batches, and stands where it was trained up to."""

import itertools
import threading

import numpy as np
import pytest

from photinus.core.errors import DataError
from photinus.data.arrays import FeedOrder, PartitionFeed
from photinus.data.rows import Rows
from photinus.training.ahead import LEAST_BYTES, AheadFeed, LookaheadFeed


def feed(rows=20):
    order = FeedOrder(batch_size=3, seed=1, epochs=2.0)
    return PartitionFeed(Rows.of(np.arange(float(rows))[:, None]), order)


def numbers(batch):
    return batch.features[:, 0].astype(np.int64)


def ahead(steps, calls=None):
    calls = [] if calls is None else calls

    def rows(batch, position):
        calls.append((position, numbers(batch).tolist()))
        return np.sort(numbers(batch))

    return LookaheadFeed(feed(), steps, rows)


def test_it_hands_out_what_was_asked_for_and_nothing_more():
    plain, calls = feed(), []
    every, reached = [], []
    for batch in plain:
        every.append(numbers(batch).tolist())
        reached.append(plain.position)
    one, batches = ahead(4, calls), []
    while (rows := one.asks()).size:
        some = [numbers(batch).tolist() for batch in one]
        assert rows.tolist() == sorted({number for batch in some for number in batch})
        batches += some
        assert one.position == reached[len(batches) - 1]
    assert batches == every
    assert calls == list(zip(reached, every, strict=True))
    assert (one.rows, one.epochs) == (20, 2.0)


def test_a_round_of_one_batch_asks_for_what_that_reads_as_it_is():
    read = np.array([2, 5, 7])
    one = LookaheadFeed(feed(), 1, lambda _, __: read)
    assert one.asks() is read, "to look for duplicates in many rows takes milliseconds"


def test_it_tells_how_many_batches_read_a_row_since_it_was_asked_last():
    batches = [[1, 5], [5], [2, 5]]
    one = LookaheadFeed(feed(), 3, lambda _, at: np.array(batches[(at - 1) // 3 % 3]))
    one.asks()
    steps = iter(one)
    next(steps), next(steps)
    assert one.reads(np.array([1, 2, 5, 9])).tolist() == [1, 0, 2, 0]
    next(steps)
    assert one.reads(np.array([1, 2, 5])).tolist() == [0, 1, 1]
    assert one.reads(np.array([], np.int64)).tolist() == []


def test_what_was_read_ahead_is_not_done():
    one = ahead(4)
    one.asks()
    assert one.position == 0
    next(iter(one))
    assert one.position == 3


def test_it_tells_the_rows_of_the_round_after_the_next_one():
    one, plain = ahead(2), [numbers(batch).tolist() for batch in feed()]
    assert one.asks().tolist() == sorted(plain[0] + plain[1])
    assert one.asks(1).tolist() == sorted(plain[2] + plain[3])
    list(zip(range(2), one, strict=False))
    assert one.asks().tolist() == sorted(plain[2] + plain[3])


def test_it_continues_from_a_position():
    one, plain = ahead(4), feed()
    one.asks()
    for either in (one, plain):
        either.seek(9)
    wanted = numbers(next(iter(plain))).tolist()
    one.asks()
    assert (one.position, numbers(next(iter(one))).tolist()) == (9, wanted)
    assert one.position == 12


@pytest.fixture
def always(monkeypatch):
    """Has batches of any size sent ahead."""
    monkeypatch.setattr("photinus.training.ahead.LEAST_BYTES", 0)


def test_a_feed_that_sends_ahead_stands_where_it_was_trained_up_to(always):
    plain, sent = feed(), []
    one = AheadFeed(feed(), lambda batch: sent.append(numbers(batch).tolist()) or batch)
    every = [(numbers(batch).tolist(), plain.position) for batch in plain]
    assert [(numbers(batch).tolist(), one.position) for batch in one] == every
    assert sorted(sent) == sorted(batch for batch, _ in every[1:]), "the first one is there already"
    assert (one.rows, one.epochs) == (20, 2.0)
    one.seek(9)
    assert next(iter(one)).features[0, 0] == every[3][0][0]


def test_the_next_batch_is_sent_while_the_last_one_is_trained_on(always):
    is_sent = threading.Event()
    batches = iter(AheadFeed(feed(), lambda batch: is_sent.set() or batch))
    next(batches)
    assert is_sent.wait(60)
    batches.close()


def test_two_batches_are_sent_at_once_and_handed_out_in_their_order(always):
    second_is_sent, count, waited = threading.Event(), itertools.count(), []

    def send(batch):
        if next(count):
            second_is_sent.set()
        else:
            waited.append(second_is_sent.wait(60))
        return batch

    batches = [numbers(batch).tolist() for batch in AheadFeed(feed(), send)]
    assert batches == [numbers(batch).tolist() for batch in feed()]
    assert waited == [True]


def test_small_batches_are_not_sent_ahead():
    assert feed().rows * 8 < LEAST_BYTES
    assert len(list(AheadFeed(feed(), pytest.fail))) == 14


def test_a_batch_that_cannot_be_sent_is_handed_out_as_it_is(always):
    def refuse(batch):
        raise DataError("it has no labels")

    batches = list(AheadFeed(feed(), refuse))
    assert [numbers(batch).tolist() for batch in batches] == [numbers(b).tolist() for b in feed()]


def test_an_error_of_the_feed_reaches_who_trains(always):
    class Broken:
        rows = position = 0

        def __iter__(self):
            yield from list(feed())[:2]
            raise OSError("the spool is gone")

    with pytest.raises(OSError, match="the spool is gone"):
        list(AheadFeed(Broken(), lambda batch: batch))


def test_a_feed_without_a_row_ends_at_once(always):
    assert not list(AheadFeed(feed(rows=0), pytest.fail))


def test_after_a_small_batch_the_large_ones_are_sent(monkeypatch):
    monkeypatch.setattr("photinus.training.ahead.LEAST_BYTES", 3 * 8)
    sent, whole = [], feed()
    whole.seek(18)  # two rows are left of the first epoch
    one = AheadFeed(whole, lambda batch: sent.append(batch.examples) or batch)
    assert [batch.examples for batch in one] == [2, 3, 3, 3, 3, 3, 3, 2]
    assert sorted(sent) == [2, 3, 3, 3, 3, 3], "all behind the first large one"


def test_a_mapped_feed_sends_what_was_mapped(always):
    sent = []
    one = AheadFeed(feed(), lambda batch: sent.append(batch.features.max()) or batch)
    list(one.mapped(np.negative))
    assert max(sent) <= 0
