"""Converts Arrow record batches to arrays without a Python object per row."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from photinus.core.errors import DataError
from photinus.core.settings import Limit, above, one_of, validate
from photinus.data.base import Array, Block, Features
from photinus.data.checks import InvalidValues, RowChecker, not_finite
from photinus.data.columns import (
    InputSpec,
    image_sizes,
    inputs_of,
    null_numbers,
    numpy_values,
    size_findings,
)
from photinus.data.inputs import SEQUENCE_LABELS

if TYPE_CHECKING:
    import pyarrow as pa


BINARY, LIST, NUMERIC, IMAGE = "binary", "list", "numeric", "image"


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnSpec:
    """Which columns hold the features and the label, and how the features are stored.

    Example:
        >>> ColumnSpec(features=("pixels",), kind="binary", dtype="uint8", shape=(28, 28)).width
        784
    """

    features: tuple[str, ...]
    """One column, or several of kind numeric that are stacked."""
    label: str | None = None
    """A column of numbers, or of arrays: several labels a row."""
    labels: tuple[str, ...] = ()
    """What the columns are called that were made one, the label, where these are several."""
    held: str | None = None
    """A column of truth values: these rows are set aside, to measure on."""
    weight: str | None = None
    """A column of numbers: how much each row counts."""
    inputs: InputSpec | None = None
    """What `forward` takes, where it takes several inputs; `features` are then their names."""
    kind: str = LIST
    """binary: equally many bytes a row; list: equally many numbers a row; numeric: a number a row
    and column; image: Spark's image structure (its bytes as they are: height, width, BGR)."""
    dtype: str = "float32"
    """In which the rows are kept; of kind binary: what the bytes are."""
    shape: tuple[int, ...] = ()
    """Of one row's features."""
    scale: float | None = None
    """Rows are handed out as float32(features) · scale; None hands them out as they are kept."""

    LIMITS = {  # noqa: RUF012 - dataclass slots: a plain class attribute, never written
        "features": Limit("one column name or more", lambda names: len(names) >= 1),
        "kind": one_of(BINARY, LIST, NUMERIC, IMAGE),
        "dtype": one_of("float32", "float64", "uint8", "int8", "int16", "int32", "int64"),
        "scale": Limit.optional(above(0)),
    }

    def __post_init__(self) -> None:
        validate(self)

    @property
    def width(self) -> int:
        """How many numbers one row's features are."""
        return math.prod(self.shape)


def unequal_rows_advice(column: str) -> str:
    """Returns what to do about a column whose rows have unequal lengths."""
    named = f"inputs={{'parameter of forward': '{column}'}}"
    pads = "where arrays of any length are padded, or go to a collate"
    return f"name it in {named}, {pads}; or cut its rows to one length, or leave the row out"


def arrays(batch: pa.RecordBatch, spec: ColumnSpec, checker: RowChecker) -> Block:
    """Returns a batch's rows.

    The features may share the batch's memory and be read-only.

    Raises:
        DataError: a column is missing or of the wrong type, or a row is bad (see `RowChecker`).
    """
    others = tuple(name for name in (spec.label, spec.weight) if name is not None)
    wanted = (*spec.features, *others)
    for name in wanted:
        if name not in batch.schema.names:
            raise DataError(f"no column {name}", got=", ".join(batch.schema.names))
    batch = batch.select(list(dict.fromkeys(wanted)))
    checker.open(batch.num_rows)
    features: Features
    if spec.inputs is not None:
        features = inputs_of(batch, spec.inputs, others, checker)
    else:
        checker.refuse(_findings(batch, spec))
        with np.errstate(over="ignore"):  # a number that becomes infinite is found below
            features = _features(batch, spec)
        if len(spec.features) > 1:
            checker.refuse(not_finite(spec.features, features))
    if spec.label is not None:
        checker.refuse(_label_findings(batch.column(spec.label), spec, checker))
    labels = None if spec.label is None else _labels(batch.column(spec.label), spec.label)
    if labels is not None and spec.labels:
        checker.refuse(not_finite(spec.labels, labels))
    label = spec.label or (spec.inputs and spec.inputs.columns.get(SEQUENCE_LABELS)) or "label"
    names = (", ".join(spec.features), label)
    block = Block(features, labels, _weights(batch, spec.weight))
    return checker.checked(block, names, spec.scale, spec.weight or "weight")


def _findings(batch: pa.RecordBatch, spec: ColumnSpec) -> Iterator[InvalidValues]:
    """Yields what is wrong with a batch whose buffers could then not be read as a matrix."""
    for name in batch.schema.names:
        column = batch.column(name)
        if column.null_count:
            yield InvalidValues(name, np.asarray(column.is_null()), lambda _: "null")
    if spec.kind == NUMERIC:
        return
    name, column = spec.features[0], batch.column(spec.features[0])
    if spec.kind == IMAGE:
        _require_type(_type_is(column, "struct"), column, name, "an image structure")
        yield from size_findings(image_sizes(column), name, spec.shape)
        column = column.field("data")
    yield from _unequal_lengths(column, name, spec)
    if spec.kind == LIST:
        yield from _null_inside(column, name)


def _unequal_lengths(column: pa.Array, name: str, spec: ColumnSpec) -> Iterator[InvalidValues]:
    expected, unit = spec.width, ""
    if spec.kind != LIST:
        expected, unit = expected * np.dtype(spec.dtype).itemsize, " bytes"
    widths = np.diff(_offsets(column, name, spec.kind))
    bad = widths != expected
    yield InvalidValues(
        name,
        bad,
        lambda row: f"length {widths[row]}{unit}, expected {expected}{unit}",
        lambda _: unequal_rows_advice(name),
    )


def _label_findings(
    column: pa.Array, spec: ColumnSpec, checker: RowChecker
) -> Iterator[InvalidValues]:
    """Yields rows of several labels of which one is missing; it is named where it has a column."""
    if not _is_list(column):
        return
    if spec.labels:
        yield from null_numbers(column, spec.labels)
        return
    yield from _unequal_labels(column, str(spec.label), checker)
    yield from _null_inside(column, str(spec.label))


def _unequal_labels(column: pa.Array, name: str, checker: RowChecker) -> Iterator[InvalidValues]:
    """Yields rows whose array of labels is longer or shorter than that of the partition's first."""
    if not len(column):
        return
    # only the sum of the lengths shows in the numbers: one row would get those of another
    widths = np.diff(_offsets(column, name, LIST))
    expected = checker.label_width = int(
        widths[0] if checker.label_width is None else checker.label_width
    )
    yield InvalidValues(
        name,
        widths != expected,
        lambda row: f"{widths[row]} labels, expected {expected} as in the first row",
    )


def _null_inside(column: pa.Array, name: str) -> Iterator[InvalidValues]:
    offsets = _offsets(column, name, LIST)
    numbers = column.values.slice(offsets[0], offsets[-1] - offsets[0])
    if not numbers.null_count:
        return
    nulls = np.flatnonzero(np.asarray(numbers.is_null())) + offsets[0]
    rows = np.searchsorted(offsets, nulls, side="right") - 1
    bad = np.zeros(len(column), np.bool_)
    bad[rows] = True
    positions = {int(row): int(null - offsets[row]) for row, null in zip(rows, nulls, strict=True)}
    yield InvalidValues(name, bad, lambda row: f"null at {positions[row]}")


def _type_is(column: pa.Array, *kinds: str) -> bool:
    import pyarrow.types as types

    return any(getattr(types, f"is_{kind}")(column.type) for kind in kinds)


def _is_list(column: pa.Array) -> bool:
    return _type_is(column, "list", "large_list", "fixed_size_list")


def _require_type(has_type: bool, column: pa.Array, name: str, expected: str) -> None:
    if not has_type:
        do = "change its type, or name another column"
        raise DataError(f"column {name} must hold {expected}", got=f"type {column.type}", do=do)


def _offsets(column: pa.Array, name: str, kind: str) -> NDArray[np.int64]:
    """Where each row begins in the column's bytes or numbers, and the end: [n + 1]."""
    fixed, plain, large = (
        ("fixed_size_list", "list", "large_list")
        if kind == LIST
        else ("fixed_size_binary", "binary", "large_binary")
    )
    expected = "lists of numbers" if kind == LIST else "bytes"
    _require_type(_type_is(column, fixed, plain, large), column, name, expected)
    n = len(column)
    if _type_is(column, fixed):
        width = column.type.list_size if kind == LIST else column.type.byte_width
        offsets: NDArray[np.int64] = np.arange(column.offset, column.offset + n + 1) * width
        return offsets
    if not n:
        return np.zeros(1, np.int64)
    dtype = np.dtype(np.int64 if _type_is(column, large) else np.int32)
    start = column.offset * dtype.itemsize
    return np.frombuffer(column.buffers()[1], dtype, n + 1, start)


def _features(batch: pa.RecordBatch, spec: ColumnSpec) -> Array:
    """Returns [n, ...]; every row is whole by now."""
    shape = (batch.num_rows, *spec.shape)
    if spec.kind == NUMERIC:
        stacked = np.empty((batch.num_rows, len(spec.features)), spec.dtype)
        for i, name in enumerate(spec.features):
            stacked[:, i] = _numbers(batch.column(name), name)
        return stacked.reshape(shape)
    name, column = spec.features[0], batch.column(spec.features[0])
    if not batch.num_rows:
        return np.empty(shape, spec.dtype)
    if spec.kind == IMAGE:
        column = column.field("data")
    offsets = _offsets(column, name, spec.kind)
    if spec.kind == LIST:
        numbers = column.values.slice(offsets[0], offsets[-1] - offsets[0])
        return _numbers(numbers, name).astype(spec.dtype, copy=False).reshape(shape)
    data = column.buffers()[1 if _type_is(column, "fixed_size_binary") else 2]
    count = spec.width * batch.num_rows
    return np.frombuffer(data, spec.dtype, count, int(offsets[0])).reshape(shape)


def _labels(column: pa.Array, name: str) -> Array:
    """Returns [n] or [n, L], as int64 where they are whole numbers or truth values."""
    if _is_list(column):
        offsets = _offsets(column, name, LIST)
        numbers = column.values.slice(offsets[0], offsets[-1] - offsets[0])
        return _labels(numbers, name).reshape(len(column), -1)
    labels = _numbers(column, name)
    return labels if labels.dtype.kind == "f" else labels.astype(np.int64, copy=False)


def _weights(batch: pa.RecordBatch, name: str | None) -> Array | None:
    """Returns [n]."""
    return None if name is None else _numbers(batch.column(name), name).astype(np.float32)


def _numbers(column: pa.Array, name: str) -> Array:
    """Returns the numbers of a column without nulls, sharing its memory where that is possible."""
    _require_type(_type_is(column, "integer", "floating", "boolean"), column, name, "numbers")
    return numpy_values(column)
