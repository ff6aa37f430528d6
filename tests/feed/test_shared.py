import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from photinus.feed.arrays import FeedOrder
from photinus.feed.base import MappedFeed, check_feed
from photinus.feed.rows import Rows
from photinus.feed.shared import SharedFeed


def shared(n, **order):
    return SharedFeed(Rows.of(np.arange(n)[:, None], np.arange(n)), FeedOrder(**order))


def steps(feed):
    return [batch.features[:, 0].tolist() for batch in feed]


def test_it_keeps_the_contract():
    def make(*, rows, seed, epochs):
        return shared(rows, batch_size=8, seed=seed, epochs=epochs)

    check_feed(make)


@given(st.integers(1, 5), st.integers(1, 7), st.integers(1, 90), st.booleans())
def test_the_workers_together_see_the_batches_of_one_machine(workers, batch_size, rows, drop):
    order = {"epochs": 1.0, "seed": 5, "drop_ragged": drop}
    one = steps(shared(rows, batch_size=workers * batch_size, **order))
    slots = [
        steps(shared(rows, batch_size=batch_size, slot=k, workers=workers, **order))
        for k in range(workers)
    ]
    for step, batch in enumerate(one):
        parts = [share[step] for share in slots if step < len(share)]
        assert [v for part in parts for v in part] == batch
    assert max(map(len, slots)) == len(one)


def test_with_whole_batches_it_is_so_over_all_epochs():
    order = {"epochs": 3.0, "seed": 5}
    one = steps(shared(24, batch_size=12, **order))
    slots = [steps(shared(24, batch_size=4, slot=k, workers=3, **order)) for k in range(3)]
    assert [a + b + c for a, b, c in zip(*slots, strict=True)] == one


def test_the_slots_share_all_rows_evenly():
    rows = [shared(23, batch_size=4, slot=k, workers=3).rows for k in range(3)]
    assert sum(rows) == 23
    assert max(rows) - min(rows) <= 1


def test_mapping_keeps_the_order():
    order = {"batch_size": 4, "epochs": 2.0, "workers": 2}
    plain = [[-v for v in batch] for batch in steps(shared(21, **order))]
    assert steps(shared(21, **order).mapped(np.negative)) == plain
    rows = Rows.of(np.arange(21)[:, None], np.arange(21), room=lambda shape, dtype: None)
    by_batch = SharedFeed(rows, FeedOrder(**order)).mapped(np.negative)
    assert isinstance(by_batch, MappedFeed)
    assert steps(by_batch) == plain


def test_a_seek_leads_to_the_same_step():
    whole = steps(shared(21, batch_size=3, epochs=2.0, workers=2, slot=1))
    feed = shared(21, batch_size=3, epochs=2.0, workers=2, slot=1)
    feed.seek(6)
    assert steps(feed) == whole[2:]


def test_an_examples_draws_are_its_own_whoever_reads_it():
    """They differ by epoch, seed and phase, and not by slot, workers or the order of arrival."""

    def drawn(features, workers, seed=1, phase="train"):
        found = {}
        for slot in range(workers):
            order = FeedOrder(
                batch_size=12 // workers,
                epochs=2,
                seed=seed,
                phase=phase,
                slot=slot,
                workers=workers,
            )
            feed = SharedFeed(Rows.of(features), order)
            for batch in feed:
                for row, number in zip(batch.features[:, 0], batch.draws, strict=True):
                    found.setdefault(int(row), []).append(int(number))
        return {row: sorted(numbers) for row, numbers in found.items()}

    features = np.arange(48)[:, None]
    once = drawn(features, 1)
    assert drawn(features[::-1].copy(), 4) == once
    assert len({number for pair in once.values() for number in pair}) == 96
    assert not set(drawn(features, 1, seed=2)[5]) & set(once[5])
    assert not set(drawn(features, 1, phase="other")[5]) & set(once[5])
