"""Several inputs in estimators: what the module is tried on, and what its model scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.ml.functions import vector_to_array
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from photinus.core.errors import DataError, UsageError
from photinus.data.arrow import LIST
from photinus.data.base import Array
from photinus.data.checks import RowChecker, RowChecks
from photinus.data.columns import InputSpec, inputs_from, inputs_of
from photinus.data.spark import first_rows, input_column, quoted, selected, shape_of
from photinus.engine.spark.job import run_query
from photinus.estimators.scores import scores_in_order

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from photinus.data.arrow import ColumnSpec


_COMPARED_ROWS = 1000
"""Rows whose lengths are compared."""


def spec_and_example(
    rows: DataFrame, spec: ColumnSpec, scale: float | None
) -> tuple[ColumnSpec, dict[str, Array] | Array]:
    """Returns the spec with its shape, and two rows as a module reads them; reads the first.

    Args:
        rows: as `selected` returned them.
        spec: likewise.
        scale: of the job.

    Raises:
        DataError: there are no rows, or one of them is bad.
    """
    if spec.inputs is not None:
        inputs = first_rows(rows, spec).features
        return spec, inputs.batch(np.arange(len(inputs)))
    shape = shape_of(rows, spec)
    is_byte = spec.dtype == "uint8" and scale is None
    return replace(spec, shape=shape), np.zeros((2, *shape), np.uint8 if is_byte else np.float32)


def is_ragged(rows: DataFrame, spec: ColumnSpec) -> bool:
    """Returns whether the first rows of a column of arrays differ in length; runs a Spark job."""
    if spec.kind != LIST or spec.inputs is not None:
        return False
    size = F.size(quoted(spec.features[0]))
    sizes = rows.where(size >= 0).limit(_COMPARED_ROWS).agg(F.min(size), F.max(size))
    shortest, longest = run_query(rows.sparkSession, sizes.collect)[0]
    return bool(shortest != longest)


def first_length(rows: DataFrame, column: str) -> int:
    """Returns how long the first array of a column is; runs a Spark job."""
    size = F.size(quoted(column))
    first_row = run_query(rows.sparkSession, rows.where(size >= 0).select(size).first)
    if first_row is None:
        raise DataError(f"column {column}: there are no rows, or nulls only")
    return int(first_row[0])


def input_columns(df: DataFrame, spec: InputSpec) -> Column:
    """Returns all inputs as one column: a structure.

    Raises:
        UsageError: a column is unknown.
        DataError: it has a type that a model cannot learn from.
    """
    selected(df, [], inputs=spec)
    columns = []
    for name, column in spec.columns.items():
        expression = input_column(df, spec, name)
        is_single_column = isinstance(column, str) and name not in spec.encoders
        is_vector = is_single_column and type(df.schema[column].dataType).__name__ == "VectorUDT"
        if is_vector and not hasattr(F, "arrow_udf"):  # pandas would make objects of them
            expression = vector_to_array(expression, "float32")
        columns.append(expression.alias(name))
    return F.struct(*columns)


def partition_id() -> int:
    """Returns which partition this task reads."""
    task = TaskContext.get()
    return task.partitionId() if task else 0


def score_inputs(
    columns: Iterator[pa.Array],
    spec: InputSpec,
    batch_size: int,
    open_predictor: Callable[[], Callable[[Any], dict[str, Array]]],
) -> Iterator[dict[str, Array]]:
    """Yields the scores of each column of structures, by their names.

    Rows of similar length are scored together, so that little is padded.

    Args:
        columns: structures with a field for each input; of one input the column itself, too.
        spec: the inputs.
        batch_size: rows that are scored at once.
        open_predictor: returns what scores a batch, a dict of arrays by input.

    Raises:
        DataError: a row is bad; its number counts the partition's rows that are scored.
    """
    checker = RowChecker(RowChecks(), partition_id())
    for column in filter(len, columns):
        # before the inputs are read: it brings code that was sent by value
        predict = open_predictor()
        rows = pa.RecordBatch.from_struct_array(_as_struct(column, spec))
        checker.open(rows.num_rows)
        yield scores_in_order(inputs_of(rows, spec, (), checker), batch_size, predict)


def _as_struct(column: pa.Array, spec: InputSpec) -> pa.Array:
    """Returns a structure with a field for each input; one column stands for one input.

    Raises:
        DataError: a function of SQL was given something else.
    """
    names = list(spec.columns)
    if isinstance(column, tuple):  # the function was given several arguments
        got = f"{len(column)} arguments"
    elif pa.types.is_struct(column.type) and set(names) <= {field.name for field in column.type}:
        return column
    elif len(names) == 1:
        return pa.StructArray.from_arrays([column], names)
    else:
        got = f"type {column.type}"
    struct_arguments = ", ".join(f"'{name}', {spec.column(name)}" for name in names)
    wrong = f"the function takes a structure of {', '.join(names)}"
    raise DataError(wrong, got=got, do=f"named_struct({struct_arguments}) makes one")


def one_row(value: Any, inputs: InputSpec | None) -> Any:  # noqa: ANN401 - as of `predict`
    """Returns a row's features as a batch of one: [1, ...], or a dict of such arrays by input.

    Raises:
        UsageError: the model has several inputs, and other ones were given.
    """
    if inputs is None:
        return _numbers(value)[None]
    names = list(inputs.columns)
    is_one = len(names) == 1 and not isinstance(value, Mapping)
    values = {names[0]: value} if is_one else value
    if not isinstance(values, Mapping) or set(values) != set(names):
        got = ", ".join(map(str, value)) if isinstance(value, Mapping) else type(value).__name__
        do = f"predict({{{', '.join(f'{name!r}: ...' for name in names)}}})"
        raise UsageError("predict takes a dict of the model's inputs", got=got, do=do)
    columns: dict[str, Any] = {}
    for name, one in values.items():
        has_numbers = hasattr(one, "toArray") or not isinstance(inputs.columns[name], str)
        columns[name] = _numbers(one)[None] if has_numbers else [one]
    return inputs_from(columns, inputs).batch(np.arange(1))


def _numbers(value: Any) -> Array:  # noqa: ANN401 - a vector or an array
    return np.asarray(value.toArray() if hasattr(value, "toArray") else value, np.float32)
