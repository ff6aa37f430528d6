"""Injects faults into the rows of a slot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from photinus.core.errors import UsageError
from photinus.data.base import Block
from photinus.data.inputs import Inputs
from photinus.engine.base import ArrayData
from photinus.training.plan import TrainingPlan

if TYPE_CHECKING:
    import pyarrow as pa

    from photinus.testing.faults.plan import Faults


def dealt(data: ArrayData, plan: TrainingPlan, faults: Faults) -> list[Block]:
    """Returns the rows of each slot that pass their checks; once, where all share them.

    Raises:
        DataError: a row is wrong, by its number in `features`.
        UsageError: rows that all share cannot be fewer for one slot; bytes cannot be wrong.
    """
    whole = _spoiled(data, plan, faults).checked(plan)
    slots = range(1 if plan.is_shared else plan.workers)
    parts = [whole.part(plan, slot) for slot in slots]
    rows_left = [faults.rows_left(slot) for slot in range(plan.workers)]
    if plan.is_shared and any(rows is not None for rows in rows_left):
        raise UsageError("few_rows takes rows from a partition", got="rows that all workers share")
    return [part.part(slice(rows)) for part, rows in zip(parts, rows_left, strict=False)]


def _spoiled(data: ArrayData, plan: TrainingPlan, faults: Faults) -> ArrayData:
    features, labels = data.features, data.labels
    for slot in range(plan.workers):
        for row in faults.bad_rows(slot):
            row_numbers = data.numbers(plan, slot)[: faults.rows_left(slot)]
            _check(row, len(row_numbers))
            if not isinstance(features, Inputs) and features.dtype.kind == "f":
                features = features.copy()
                features[row_numbers[row]] = np.nan
            elif labels is not None and labels.dtype.kind in "if":
                labels = labels.copy()
                labels[row_numbers[row]] = -1
            else:
                wrong, do = "there is no wrong value for a row", "use floats, or labels"
                got = f"features of {getattr(features, 'dtype', 'several inputs')}"
                raise UsageError(wrong, got=got, do=do)
    return replace(data, features=features, labels=labels)


def faulty_batches(
    batches: Iterable[pa.RecordBatch], faults: Faults, slot: int
) -> Iterable[pa.RecordBatch]:
    """Returns a partition's rows as they come to its slot: fewer, and with nulls in bad ones."""
    max_rows, bad_rows = faults.rows_left(slot), faults.bad_rows(slot)
    return batches if max_rows is None and not bad_rows else _faulty(batches, max_rows, bad_rows)


def _faulty(
    batches: Iterable[pa.RecordBatch], max_rows: int | None, bad_rows: list[int]
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    first_row = 0
    for batch in batches:
        rows = batch.slice(0, None if max_rows is None else max(0, max_rows - first_row))
        for row in (row - first_row for row in bad_rows if 0 <= row - first_row < rows.num_rows):
            cells, field = rows.column(0), rows.schema.field(0).with_nullable(nullable=True)
            parts = [cells.slice(0, row), pa.nulls(1, cells.type), cells.slice(row + 1)]
            rows = rows.set_column(0, field, pa.concat_arrays(parts))
        first_row += batch.num_rows
        yield rows
    for row in bad_rows:
        _check(row, first_row if max_rows is None else min(first_row, max_rows))


def _check(row: int, rows: int) -> None:
    if row >= rows:
        raise UsageError("a bad row is one of its slot's", got=f"row {row} of {rows}")
