"""Scores and measures in Spark's Python workers."""

from __future__ import annotations

import functools
import json
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Union

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.ml.functions import predict_batch_udf
from pyspark.ml.model_cache import ModelCache
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql import types as T  # noqa: N812 - as everybody calls it
from pyspark.sql.pandas.functions import pandas_udf

from photinus.core.errors import DataError
from photinus.core.settings import from_dict
from photinus.core.threads import use_threads
from photinus.data.arrow import arrays
from photinus.data.base import Array, Batch
from photinus.data.checks import RowChecker, RowChecks, not_finite
from photinus.data.columns import InputSpec
from photinus.data.inputs import Inputs
from photinus.engine.spark.archives import keep_archives
from photinus.estimators.inputs import partition_id, score_inputs
from photinus.estimators.network import HEADS
from photinus.estimators.scores import arrow_column
from photinus.estimators.thresholds import sums_by_thresholds
from photinus.models.tensors import tensor_of
from photinus.run.evaluate import sums_over
from photinus.run.job import MODELS

if TYPE_CHECKING:
    from photinus.data.arrow import ColumnSpec
    from photinus.estimators.network import Network


_MEASURED_ROWS = 1000
_NUMBERS = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_boolean,
)
_PandasInput = Union[pd.DataFrame, pd.Series]  # noqa: UP007 - Spark knows no other form of it


def scorer(
    make_predictor: Callable[[], Callable[[Array], dict[str, Array]]],
    fields: T.StructType,
    batch_size: int,
    width: int | InputSpec | None,
    name: str | Sequence[str] = "features",
) -> Callable[..., Any]:
    """Returns the function from a column of features to a column of `fields`.

    It ends with a DataError at a row that is NaN or infinite: its scores would be of no use.

    Args:
        make_predictor: on a worker, returns what scores a batch there, by the fields' names.
        fields: arrays or numbers of float64.
        batch_size: rows that are scored at once.
        width: numbers of a row that is an array; None for bytes; an InputSpec for inputs.
        name: of the column, or of several, for messages; inputs have their own names.
    """
    if isinstance(width, InputSpec):
        return _inputs_scorer(make_predictor, fields, batch_size, width)
    if not hasattr(F, "arrow_udf"):  # Spark before 4.1 turns each row into a list of Python's
        shapes: list[list[int] | None] | None = None if width is None else [[width]]
        return predict_batch_udf(
            _refuse_not_finite(make_predictor, name),
            return_type=fields,
            batch_size=batch_size,
            input_tensor_shapes=shapes,
        )
    cached_predictor = _once_per_worker(make_predictor)

    def score(columns: Iterator[pa.Array]) -> Iterator[pa.Array]:
        # a task keeps what its worker may forget
        open_predictor = functools.cache(cached_predictor)
        checker = RowChecker(RowChecks(), partition_id())
        for column in columns:
            if isinstance(column, tuple):
                raise _not_features(f"{len(column)} arguments")
            predict = open_predictor()  # here: a partition without rows loads nothing
            for start in range(0, len(column), batch_size):
                features = _features(column[start : start + batch_size], width)
                checker.open(len(features))
                checker.refuse(not_finite(name, features))
                yield _structure(predict(features), fields.names)

    score_udf: Callable[..., Any] = F.arrow_udf(score, fields)
    return score_udf


def _refuse_not_finite(
    make_predictor: Callable[[], Callable[[Array], dict[str, Array]]], name: str | Sequence[str]
) -> Callable[[], Callable[[Array], dict[str, Array]]]:
    """Returns what makes a predictor that refuses rows with NaN or infinity.

    It cannot say which row of the partition that is: it gets the rows without their numbers.
    """

    def make_checked() -> Callable[[Array], dict[str, Array]]:
        predict = make_predictor()

        def checked_predict(features: Array) -> dict[str, Array]:
            for finding in not_finite(name, features):
                row = int(np.argmax(finding.bad))
                raise DataError(
                    f"column {finding.column}: {finding.describe(row)}", do=finding.cure(row)
                )
            return predict(features)

        return checked_predict

    return make_checked


def _once_per_worker(make: Callable[[], Any]) -> Callable[[], Any]:
    """Returns the function that makes something once in each worker."""
    key = uuid.uuid4()

    def get() -> Any:  # noqa: ANN401 - whatever it makes
        value = ModelCache.get(key)
        if value is None:
            keep_archives()  # the daemon of a session of the user's own has not done so
            value = make()
            ModelCache.add(key, value)
        return value

    return get


def _inputs_scorer(
    make_predictor: Callable[[], Callable[[Any], dict[str, Array]]],
    fields: T.StructType,
    batch_size: int,
    inputs: InputSpec,
) -> Callable[..., Any]:
    cached_predictor = _once_per_worker(make_predictor)

    def score(columns: Iterator[pa.Array]) -> Iterator[pa.Array]:
        for scores in score_inputs(columns, inputs, batch_size, functools.cache(cached_predictor)):
            yield _structure(scores, fields.names)

    def score_frames(frames: Iterator[_PandasInput]) -> Iterator[pd.DataFrame]:
        structures = map(_of_pandas, frames)
        for scores in score_inputs(
            structures, inputs, batch_size, functools.cache(cached_predictor)
        ):
            yield pd.DataFrame({name: list(scores[name]) for name in fields.names})

    if hasattr(F, "arrow_udf"):
        score_udf: Callable[..., Any] = F.arrow_udf(score, fields)
        return score_udf
    udf: Any = pandas_udf  # its types do not cover iterators of frames
    frames: Callable[..., Any] = udf(score_frames, fields)
    return frames


def _of_pandas(data: pd.DataFrame | pd.Series[Any]) -> pa.Array:
    """Returns a structure, which pandas has as a frame, or any other column."""
    if isinstance(data, pd.DataFrame):
        return pa.RecordBatch.from_pandas(data, preserve_index=False).to_struct_array()
    return pa.Array.from_pandas(data)


def _features(column: pa.Array, width: int | None) -> Array:
    """Returns a column's numbers as float32, or its bytes, [n, ...].

    Raises:
        DataError: they are neither, or rows have another size: a function of SQL meets such ones.
    """
    if pa.types.is_struct(column.type):  # an ML vector
        column = _dense_vectors(column)
    if pa.types.is_large_binary(column.type):  # by spark.sql.execution.arrow.useLargeVarTypes
        column = column.cast(pa.binary())
    is_binary = pa.types.is_binary(column.type)
    _check_sizes(column, width, is_binary=is_binary)
    if is_binary:
        offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset :][: len(column) + 1]
        flat: Array = np.frombuffer(column.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
    else:
        numbers = column.flatten()
        # a literal such as 0.5 is a decimal in SQL, of which NumPy makes objects
        is_decimal = pa.types.is_decimal(numbers.type)
        numbers = numbers.cast(pa.float64()) if is_decimal else numbers
        with np.errstate(over="ignore"):  # a number that becomes infinite is refused by its row
            flat = numbers.to_numpy(zero_copy_only=False).astype(np.float32, copy=False)
    return flat.reshape(len(column), -1)


def _dense_vectors(column: pa.Array) -> pa.Array:
    """Returns ML vectors as arrays; those that are stored sparse get their zeros.

    Raises:
        DataError: the structures are no vectors.
    """
    if {"type", "values"} - {field.name for field in column.type}:
        raise _not_features(f"type {column.type}")
    if pc.all(pc.equal(column.field("type"), 1)).as_py() is not False:
        return column.field("values")
    rows = [None if row is None else _dense_row(row) for row in column.to_pylist()]
    return pa.array(rows, pa.list_(pa.float64()))


def _dense_row(vector: dict[str, Any]) -> Array:
    if vector["type"] == 1:
        return np.asarray(vector["values"])
    dense = np.zeros(vector["size"])
    dense[vector["indices"]] = vector["values"]
    return dense


def _check_sizes(column: pa.Array, width: int | None, *, is_binary: bool) -> None:
    """Refuses what is neither arrays of numbers nor bytes, and rows of unequal or wrong sizes.

    Raises:
        DataError: there is such a one.
    """
    if not is_binary and not (
        pa.types.is_list(column.type)
        and any(is_number(column.type.value_type) for is_number in _NUMBERS)
    ):
        raise _not_features(f"type {column.type}")
    sizes = (pc.binary_length if is_binary else pc.list_value_length)(column)
    shortest, longest = (size.as_py() for size in pc.min_max(sizes).values())
    if column.null_count or shortest != longest or width not in (None, longest):
        span = f"{shortest} to {longest}" if shortest != longest else longest or 0
        got = f"{span} numbers a row, {column.null_count} nulls"
        raise DataError(f"a row must hold {longest if width is None else width} numbers", got=got)


def _not_features(got: str) -> DataError:
    wrong = "the function takes arrays of numbers, ML vectors or bytes"
    return DataError(wrong, got=got, do="array(a, b) makes one of several columns")


def _structure(scores: dict[str, Array], names: list[str]) -> pa.Array:
    return pa.StructArray.from_arrays([arrow_column(scores[name]) for name in names], names)


def measurer(
    load: Callable[[], Network],
    threads: int,
    spec: ColumnSpec,
    checks: RowChecks,
    metrics: Collection[str],
    thresholds: Sequence[float] | None = None,
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns what a task does with its rows: it measures them, and gives back their sums as JSON.

    Args:
        load: on a worker, returns the network.
        threads: with which one task computes.
        spec: what the columns are.
        checks: what every row must be.
        metrics: beside those that belong to the loss.
        thresholds: of the classes, one for each; None: the likeliest counts.
    """

    def measure(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        use_threads(threads)
        network = load()
        settings: Any = from_dict(MODELS[network.kind], network.settings)
        model: Any = network.model()
        sums: dict[str, float] = {}
        counted_metrics = {*metrics, *getattr(settings, "metrics", ())}
        checker = RowChecker(checks, partition_id())
        for block in (arrays(batch, spec, checker) for batch in batches if batch.num_rows):
            for start in range(0, len(block.features), _MEASURED_ROWS):
                part = block.part(slice(start, start + _MEASURED_ROWS))
                x, y = part.features, part.labels
                if isinstance(x, Inputs):
                    every = np.arange(len(x))
                    y = x.token_labels(every) if y is None else y
                    x = x.batch(every)
                else:
                    x = network.rows(x)
                batch = Batch(x, y, part.weights)
                part_sums = sums_over(settings, model, batch, metrics, network.head)
                if thresholds is not None and hasattr(model, "outputs"):
                    probability = HEADS[network.head]["probability"](model.outputs(x))
                    labels = tensor_of(np.asarray(y))
                    part_sums = sums_by_thresholds(
                        part_sums, probability, labels, thresholds, counted_metrics
                    )
                for name, value in part_sums.items():
                    sums[name] = sums.get(name, 0.0) + value
        yield pa.RecordBatch.from_arrays([pa.array([json.dumps(sums)])], ["sums"])

    return measure
