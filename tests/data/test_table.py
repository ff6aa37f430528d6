"""Rows of any columns as a map-style data set."""

import pyarrow as pa
import pytest

from photinus.data.table import TableRows

SCHEMA = pa.schema({"text": pa.string(), "ids": pa.list_(pa.int64())})
PARTS = (range(4), range(4, 4), range(4, 9))
COLUMNS = [([f"row {n}" for n in part], [[n] * (n % 3) for n in part]) for part in PARTS]
BATCHES = [pa.record_batch({"text": text, "ids": ids}, SCHEMA) for text, ids in COLUMNS]


def test_each_row_of_each_batch_is_there_in_order():
    rows = TableRows(BATCHES)
    assert len(rows) == 9
    assert [rows[n] for n in range(9)] == list(rows)
    assert rows[5] == {"text": "row 5", "ids": [5, 5]}
    assert rows[-1] == rows[8]


def test_a_row_that_is_not_there_ends_an_iteration_as_of_a_list():
    with pytest.raises(IndexError, match="row 9 of 9"):
        TableRows(BATCHES)[9]


def test_no_batches_are_no_rows():
    assert len(TableRows([])) == 0
    assert list(TableRows([])) == []
