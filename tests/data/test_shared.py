import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from photinus.data.arrays import FeedOrder
from photinus.data.base import MappedFeed
from photinus.data.rows import Rows
from photinus.data.shared import SharedFeed
from photinus.testing import check_feed


def shared_feed(n, **order):
    return SharedFeed(Rows.of(np.arange(n)[:, None], np.arange(n)), FeedOrder(**order))


def batches_of(feed):
    return [batch.features[:, 0].tolist() for batch in feed]


def test_it_keeps_the_contract():
    def make(*, rows, seed, epochs):
        return shared_feed(rows, batch_size=8, seed=seed, epochs=epochs)

    check_feed(make)


@given(st.integers(1, 5), st.integers(1, 7), st.integers(1, 90))
def test_the_workers_together_see_the_batches_of_one_machine(workers, batch_size, rows):
    order = {"epochs": 1.0, "seed": 5}
    batch_size = max(batch_size, workers)
    batches = batches_of(shared_feed(rows, batch_size=batch_size, **order))
    slots = [
        batches_of(shared_feed(rows, batch_size=batch_size, slot=k, workers=workers, **order))
        for k in range(workers)
    ]
    for step, batch in enumerate(batches):
        parts = [share[step] for share in slots if step < len(share)]
        assert sorted(v for part in parts for v in part) == sorted(batch)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1 or len(batch) < workers
    assert max(map(len, slots)) == len(batches)


def test_with_whole_batches_it_is_so_over_all_epochs():
    order = {"epochs": 3.0, "seed": 5}
    batches = batches_of(shared_feed(24, batch_size=12, **order))
    slots = [
        batches_of(shared_feed(24, batch_size=12, slot=k, workers=3, **order)) for k in range(3)
    ]
    assert [a + b + c for a, b, c in zip(*slots, strict=True)] == batches


def test_the_slots_share_all_rows_and_each_batch_evenly():
    feeds = [shared_feed(23, batch_size=6, slot=k, workers=4, epochs=1.0) for k in range(4)]
    assert sum(feed.rows for feed in feeds) == 23
    assert max(feed.rows for feed in feeds) - min(feed.rows for feed in feeds) <= 2
    assert [[len(batch) for batch in batches_of(feed)][:3] for feed in feeds[:2]] == [
        [1, 2, 1],
        [2, 1, 2],
    ]


def test_with_more_workers_than_the_batch_size_each_takes_a_row_a_step():
    feeds = [shared_feed(10, batch_size=2, slot=k, workers=5, epochs=1.0) for k in range(5)]
    assert [[len(batch) for batch in batches_of(feed)] for feed in feeds] == [[1, 1]] * 5


def test_mapping_keeps_the_order():
    order = {"batch_size": 4, "epochs": 2.0, "workers": 2}
    plain = [[-v for v in batch] for batch in batches_of(shared_feed(21, **order))]
    assert batches_of(shared_feed(21, **order).mapped(np.negative)) == plain
    rows = Rows.of(np.arange(21)[:, None], np.arange(21), room=lambda shape, dtype: None)
    by_batch = SharedFeed(rows, FeedOrder(**order)).mapped(np.negative)
    assert isinstance(by_batch, MappedFeed)
    assert batches_of(by_batch) == plain


def test_a_seek_leads_to_the_same_step():
    whole = batches_of(shared_feed(21, batch_size=6, epochs=2.0, workers=2, slot=1))
    feed = shared_feed(21, batch_size=6, epochs=2.0, workers=2, slot=1)
    feed.seek(6)
    assert batches_of(feed) == whole[2:]


def test_an_examples_draws_are_its_own_whoever_reads_it():
    """They differ by epoch, seed and phase, and not by slot, workers or the order of arrival."""

    def draws_by_row(features, workers, seed=1, phase="train"):
        draws = {}
        for slot in range(workers):
            order = FeedOrder(
                batch_size=12,
                epochs=2,
                seed=seed,
                phase=phase,
                slot=slot,
                workers=workers,
            )
            feed = SharedFeed(Rows.of(features), order)
            for batch in feed:
                for row, number in zip(batch.features[:, 0], batch.draws, strict=True):
                    draws.setdefault(int(row), []).append(int(number))
        return {row: sorted(numbers) for row, numbers in draws.items()}

    features = np.arange(48)[:, None]
    expected = draws_by_row(features, 1)
    assert draws_by_row(features[::-1].copy(), 4) == expected
    assert len({number for pair in expected.values() for number in pair}) == 96
    assert not set(draws_by_row(features, 1, seed=2)[5]) & set(expected[5])
    assert not set(draws_by_row(features, 1, phase="other")[5]) & set(expected[5])
