"""Rows that a fault spoils or holds back, before anybody has looked at them."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from photinus.core.errors import DataError, UsageError
from photinus.engine.base import ArrayData
from photinus.testing import Faults
from photinus.testing.faults.data import dealt, faulty_batches


def lengths(parts):
    return [len(part.features) for part in parts]


def test_without_such_faults_rows_are_dealt_as_ever(tiny):
    plan = tiny.plan(workers=4)
    parts = dealt(tiny.data, plan, Faults().kill(slot=1, step=1))
    for slot, (features, labels, _) in enumerate(parts):
        plain = tiny.data.part(plan, slot)
        assert np.array_equal(features, plain[0])
        assert np.array_equal(labels, plain[1])


def test_few_rows_come_to_a_slot_and_all_to_the_others(tiny):
    faults = Faults().few_rows(slot=1).few_rows(slot=2, rows=3).few_rows(slot=3, rows=99)
    assert lengths(dealt(tiny.data, tiny.plan(workers=4), faults)) == [23, 0, 3, 22]


def test_a_bad_row_is_found_by_its_number_and_the_users_rows_stay_as_they_are(tiny):
    plan, before = tiny.plan(workers=2), tiny.features.copy()
    [number] = tiny.data.numbers(plan, 1)[[7]]
    says = f"row {number} column features: nan at 0, expected finite numbers"
    with pytest.raises(DataError, match=says):
        dealt(tiny.data, plan, Faults().bad_row(slot=1, row=7))
    assert np.array_equal(tiny.features, before)


def test_a_row_of_bytes_is_bad_by_its_label(tiny):
    pixels = ArrayData(np.ones((90, 6), np.uint8), tiny.labels, checks=tiny.data.checks)
    with pytest.raises(DataError, match=r"column label: label -1 outside 0\.\.2"):
        dealt(pixels, tiny.plan(), Faults().bad_row(slot=0, row=0))
    with pytest.raises(UsageError, match="no wrong value for a row; got features of uint8"):
        dealt(replace(pixels, labels=None), tiny.plan(), Faults().bad_row(slot=0, row=0))


def test_what_no_slot_has_is_refused(tiny):
    with pytest.raises(UsageError, match="a bad row is one of its slot's; got row 45 of 45"):
        dealt(tiny.data, tiny.plan(), Faults().bad_row(slot=0, row=45))
    shared = replace(tiny.plan(), is_shared=True)
    with pytest.raises(UsageError, match="few_rows takes rows from a partition; got rows that all"):
        dealt(tiny.data, shared, Faults().few_rows(slot=0))


def test_a_partition_of_batches_is_cut_short_and_its_bad_rows_are_null():
    batches = [
        pa.RecordBatch.from_pydict({"features": [[1.0], [2.0], [3.0]], "label": [1, 2, 3]}),
        pa.RecordBatch.from_pydict({"features": [[4.0], [5.0], [6.0]], "label": [4, 5, 6]}),
    ]
    faults = Faults().few_rows(slot=2, rows=5).bad_row(slot=2, row=1).bad_row(slot=2, row=4)
    rows = [row for batch in faulty_batches(batches, faults, 2) for row in batch.to_pylist()]
    assert [row["features"] for row in rows] == [[1.0], None, [3.0], [4.0], None]
    assert [row["label"] for row in rows] == [1, 2, 3, 4, 5]
    assert faulty_batches(batches, faults, 1) is batches
    with pytest.raises(UsageError, match="a bad row is one of its slot's; got row 6 of 5"):
        list(faulty_batches(batches, faults.bad_row(slot=2, row=6), 2))
