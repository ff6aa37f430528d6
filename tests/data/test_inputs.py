"""Rows of several inputs: stored, hashed, spooled, shared out by length, and handed out."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from photinus.core.errors import DataError
from photinus.data.arrays import FeedOrder, PartitionFeed
from photinus.data.arrow import ColumnSpec
from photinus.data.base import Block
from photinus.data.checks import RowChecker, RowChecks
from photinus.data.columns import InputSpec
from photinus.data.inputs import SEQUENCE_LABELS, SPARSE, Inputs, Ragged, joined
from photinus.data.rows import Rows
from photinus.data.shared import SharedFeed
from photinus.data.spool import Budget, gather
from photinus.data.stream import Stream, StreamFeed
from photinus.testing import check_feed


def ragged(rows, dtype=np.int32):
    lengths = np.array([len(row) for row in rows], np.int32)
    return Ragged(lengths, np.concatenate([np.array(row, dtype) for row in rows] or [[]]))


def texts(rows, seed=0, most=60):
    """Rows whose lengths are spread as those of texts are: a few are very long."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(2.5, 0.8, rows), 1, most).astype(np.int32)
    values = rng.integers(1, 1000, lengths.sum()).astype(np.int32)
    numbers = np.arange(rows, dtype=np.float32)
    return Inputs({"tokens": Ragged(lengths, values), "number": numbers}, rows)


@given(st.lists(st.lists(st.integers(0, 99), max_size=6), min_size=1, max_size=9), st.data())
def test_any_part_of_ragged_rows_is_those_rows(rows, data):
    column = ragged(rows)
    index = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=9))
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(rows))] * 2)))
    for indices, expected in ((np.array(index, int), [rows[i] for i in index]),):
        assert [column[indices].row(i).tolist() for i in range(len(indices))] == expected
    part = column[start:stop]
    assert [part.row(i).tolist() for i in range(len(part))] == rows[start:stop]


def test_a_ragged_column_is_padded_to_the_longest_row_of_its_batch():
    inputs = Inputs({"x": ragged([[1, 2, 3], [4], [], [5, 6]])}, 4)
    batch = inputs.batch(np.array([3, 1, 2]))
    assert batch["x"].tolist() == [[5, 6], [4, 0], [0, 0]]
    assert batch["x"].dtype == np.int64
    assert batch["x_mask"].tolist() == [[True, True], [True, False], [False, False]]
    assert inputs.batch(np.array([2]))["x"].shape == (1, 1), "no module takes length 0"


def labelled_tokens():
    words, labels = ragged([[1, 2, 3], [4], [5, 6]]), ragged([[0, 1, 0], [2], [1, 1]], np.int8)
    return Inputs({"x": words, SEQUENCE_LABELS: labels}, 3)


def test_labels_of_tokens_are_no_input_and_padded_by_what_is_no_label():
    inputs = labelled_tokens()
    rows = np.array([1, 2])
    assert set(inputs.batch(rows)) == {"x", "x_mask"}
    labels = inputs.token_labels(rows)
    assert labels.tolist() == [[2, -100], [1, 1]]
    assert labels.dtype == np.int64
    assert texts(3).token_labels(rows) is None


def test_rows_and_streams_hand_out_labels_of_tokens_beside_their_words():
    inputs = labelled_tokens()
    batch = Rows.of(inputs).batch(np.array([0, 1]))
    assert batch.labels.tolist() == [[0, 1, 0], [2, -100, -100]]
    stream = Stream(iter([Block(inputs)]))
    (streamed,) = StreamFeed(stream, FeedOrder(batch_size=3, epochs=1.0))
    assert streamed.labels.tolist() == [[0, 1, 0], [2, -100, -100], [1, 1, -100]]
    assert streamed.features["x"].tolist() == [[1, 2, 3], [4, 0, 0], [5, 6, 0]]


def test_sparse_vectors_stay_sparse_until_they_are_handed_out():
    values = np.array([(1, 5.0), (99_999, 2.0), (0, 1.0)], SPARSE)
    inputs = Inputs({"v": Ragged(np.array([2, 0, 1], np.int32), values, 100_000)}, 3)
    assert inputs.nbytes < 100
    batch = inputs.batch(np.array([0, 1]))
    assert list(batch) == ["v"], "a vector has no mask"
    assert batch["v"].shape == (2, 100_000)
    assert batch["v"][0, [1, 99_999]].tolist() == [5.0, 2.0]
    assert batch["v"].sum() == 7.0
    assert inputs.lengths() is None, "and its numbers are no length"


def test_rows_are_indexed_by_content_whatever_order_they_arrive_in():
    inputs = texts(300)
    arrival = np.random.default_rng(1).permutation(300)
    in_order, shuffled = Rows.of(inputs), Rows.of(inputs[arrival])
    for a, b in zip(in_order.order, shuffled.order, strict=True):
        assert a == arrival[b]


def test_rows_that_differ_only_in_where_values_stand_have_other_hashes():
    rows = [[1, 2], [2, 1], [1, 2, 0], [1], [2], [], [0], [0, 0]]
    assert len(np.unique(Rows.of(Inputs({"x": ragged(rows)}, len(rows))).keys)) == len(rows)
    two = Inputs({"x": ragged([[1], [2]]), "y": ragged([[2], [1]])}, 2)
    assert len(np.unique(Rows.of(two).keys)) == 2, "the same numbers in other inputs"
    weighed = Rows.of(Inputs({"x": ragged([[1], [1]])}, 2), None, np.array([1, 2], np.float32))
    assert len(np.unique(weighed.keys)) == 2


def test_equal_hashes_of_other_rows_are_told_apart(monkeypatch):
    from photinus.data import rows as rows_module

    monkeypatch.setattr(rows_module, "content_hash", lambda f, y, w: np.zeros(len(f), np.uint64))
    inputs = Inputs({"x": ragged([[3], [1, 1], [1], [2]])}, 4)
    indexed = [Rows.of(part) for part in (inputs, inputs[np.array([2, 3, 0, 1])])]
    expected, shuffled = ([r.features.bytes_of(i) for i in r.order] for r in indexed)
    assert expected == shuffled


@pytest.mark.parametrize("kind", [PartitionFeed, SharedFeed])
def test_a_feed_of_ragged_rows_keeps_the_contract_of_a_feed(kind):
    def make(*, rows, seed, epochs):
        rng = np.random.default_rng(7)
        column = ragged([rng.integers(0, 9, 1 + i % 7) for i in range(rows)])
        inputs = Inputs({"x": column, "i": np.arange(rows)}, rows)
        order = FeedOrder(batch_size=8, seed=seed, epochs=epochs)
        feed = kind(Rows.of(inputs, np.arange(rows)), order)
        return feed

    check_feed(make)


@pytest.mark.parametrize("workers", [1, 4])
def test_of_texts_less_than_a_tenth_of_the_tokens_is_padding(workers):
    inputs = texts(4000)
    whole = padded = 0
    for slot in range(workers):
        rows = Rows.of(inputs[np.arange(slot, 4000, workers)])
        order = FeedOrder(
            batch_size=32 * workers,
            epochs=1.0,
            slot=slot,
            workers=workers,
            share=(len(rows), 4000),
        )
        numbers = []
        for batch in PartitionFeed(rows, order):
            mask = batch.features["tokens_mask"]
            padded, whole = padded + int((~mask).sum()), whole + mask.size
            numbers += batch.features["number"].tolist()
        assert sorted(numbers) == list(range(slot, 4000, workers)), "each row once"
    assert padded / whole < 0.1


def test_the_order_of_rows_of_one_length_is_that_of_any_others():
    even = Inputs({"x": ragged([[i, i] for i in range(50)])}, 50)
    order = FeedOrder(batch_size=8, epochs=1.0, seed=3)
    rows = Rows.of(even)
    handed_out = [b.features["x"][:, 0] for b in PartitionFeed(rows, order)]
    feed = PartitionFeed(rows, order)
    plain = np.arange(50)[feed._epoch_rows(0)]
    assert np.concatenate(handed_out).tolist() == plain.tolist()


def batches(rows, size=64):
    rng = np.random.default_rng(0)
    columns = {
        "tokens": pa.array([rng.integers(0, 9, 1 + i % 5).tolist() for i in range(rows)]),
        "number": pa.array(np.arange(rows, dtype=np.float32)),
        "y": pa.array(np.arange(rows) % 3),
        "w": pa.array(np.ones(rows)),
    }
    table = pa.table(columns)
    return table.to_batches(max_chunksize=size)


SPEC = ColumnSpec(
    features=("tokens", "number"),
    inputs=InputSpec(columns={"tokens": "tokens", "number": "number"}),
    label="y",
    weight="w",
)


def handed_out(feed):
    return [
        (batch.features["tokens"].tolist(), batch.labels.tolist(), batch.weights.tolist())
        for batch in feed
    ]


def test_rows_in_memory_on_disk_and_from_a_stream_are_the_same(tmp_path):
    order = FeedOrder(batch_size=16, epochs=1.0)
    memory = gather(batches(500), SPEC, RowChecker(RowChecks()), Budget())
    disk = gather(
        batches(500), SPEC, RowChecker(RowChecks()), Budget(memory_bytes=0, folder=str(tmp_path))
    )
    assert memory.weights.tolist() == [1.0] * 500
    assert handed_out(PartitionFeed(memory, order)) == handed_out(PartitionFeed(disk, order))
    half = gather(
        batches(500),
        SPEC,
        RowChecker(RowChecks()),
        Budget(memory_bytes=1 << 13, folder=str(tmp_path)),
    )
    assert handed_out(PartitionFeed(memory, order)) == handed_out(PartitionFeed(half, order))
    nothing = Budget(memory_bytes=0, disk_bytes=0)
    stream = gather(batches(500), SPEC, RowChecker(RowChecks()), nothing)
    assert isinstance(stream, Stream)
    streamed = [b for b in StreamFeed(stream, order)]
    assert np.concatenate([b.features["number"] for b in streamed]).tolist() == list(range(500))
    assert all(b.features["tokens"].shape == b.features["tokens_mask"].shape for b in streamed)


def test_a_partition_without_rows_has_none():
    rows = gather([], SPEC, RowChecker(RowChecks()), Budget())
    assert len(rows) == 0
    assert list(PartitionFeed(rows, FeedOrder())) == []


def test_blocks_are_joined_in_their_order():
    inputs = texts(20)
    rejoined = joined([inputs[:7], inputs[7:7], inputs[7:]])
    assert [rejoined.bytes_of(i) for i in range(20)] == [inputs.bytes_of(i) for i in range(20)]
    assert Block(inputs).part(slice(3, 5)).features.bytes_of(1) == inputs.bytes_of(4)


def doubled(rows):
    return {"total": np.array([2 * row["x"].sum() for row in rows])}


def broken(rows):
    return [row["x"] for row in rows]


def test_ones_own_collate_makes_the_batch(monkeypatch):
    from photinus.data import inputs as module

    functions = {"mine:doubled": doubled, "mine:broken": broken}
    monkeypatch.setattr(module, "resolve_user_code", lambda name, kind: functions[name])
    inputs = Inputs({"x": ragged([[1], [2, 3]])}, 2, "mine:doubled")
    rows = Rows.of(inputs, np.array([0, 1]))
    (batch,) = PartitionFeed(rows, FeedOrder(epochs=1.0))
    assert sorted(batch.features["total"].tolist()) == [2, 10]
    assert batch.examples == 2
    wrong = Inputs(inputs.columns, 2, "mine:broken")
    with pytest.raises(DataError, match="'mine:broken' must return a dict of arrays by name"):
        wrong.batch(np.array([0]))


def test_by_length_every_row_stands_once_and_an_eighth_of_the_places_is_padding_at_most():
    rows = texts(3_000)
    parts = rows.by_length(64)
    assert sorted(np.concatenate(parts)) == list(range(3_000))
    assert max(map(len, parts)) == 64
    masks = [rows.batch(part)["tokens_mask"] for part in parts]
    assert all(mask.mean() >= 7 / 8 for mask in masks if len(mask) > 16)


def test_rows_of_one_length_stay_in_their_order():
    even = Inputs({"number": np.arange(5.0)}, 5)
    assert [part.tolist() for part in even.by_length(2)] == [[0, 1], [2, 3], [4]]
