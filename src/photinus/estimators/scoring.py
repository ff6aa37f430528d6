"""Scores in Spark's Python workers: feature columns in, result columns out."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.ml.functions import predict_batch_udf
from pyspark.ml.model_cache import ModelCache
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql import types as T  # noqa: N812 - as everybody calls it
from pyspark.sql.pandas.functions import pandas_udf

from photinus.data.base import Array
from photinus.data.columns import InputSpec
from photinus.estimators.inputs import scored_inputs

__all__ = ["scorer"]


def scorer(
    make: Callable[[], Callable[[Array], dict[str, Array]]],
    fields: T.StructType,
    batch: int,
    shape: list[int] | InputSpec | None,
) -> Callable[..., Any]:
    """Returns the function from a column of features to a column of `fields`.

    Args:
        make: on a worker, returns what scores a batch there, by the fields' names.
        fields: arrays or numbers of float64.
        batch: rows that are scored at once.
        shape: of a row that is an array; None for bytes; an InputSpec for structures of inputs.
    """
    if isinstance(shape, InputSpec):
        return _of_inputs(make, fields, batch, shape)
    if not hasattr(F, "arrow_udf"):  # Spark before 4.1 turns each row into a list of Python's
        shapes: list[list[int] | None] | None = None if shape is None else [shape]
        return predict_batch_udf(
            make, return_type=fields, batch_size=batch, input_tensor_shapes=shapes
        )
    cached = _cached(make)

    def score(columns: Iterator[pa.Array]) -> Iterator[pa.Array]:
        predict = cached()
        for column in columns:
            for start in range(0, len(column), batch):
                scores = predict(_features(column[start : start + batch], shape))
                yield _structure(scores, fields.names)

    made: Callable[..., Any] = F.arrow_udf(score, fields)
    return made


def _cached(make: Callable[[], Any]) -> Callable[[], Any]:
    """Returns the function that makes something once in each worker."""
    key = uuid.uuid4()

    def made() -> Any:  # noqa: ANN401 - whatever it makes
        found = ModelCache.get(key)
        if found is None:
            found = make()
            ModelCache.add(key, found)
        return found

    return made


def _of_inputs(
    make: Callable[[], Callable[[Any], dict[str, Array]]],
    fields: T.StructType,
    batch: int,
    inputs: InputSpec,
) -> Callable[..., Any]:
    cached = _cached(make)

    def score(columns: Iterator[pa.Array]) -> Iterator[pa.Array]:
        for scores in scored_inputs(columns, inputs, batch, cached()):
            yield _structure(scores, fields.names)

    def score_frames(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        structures = (
            pa.RecordBatch.from_pandas(frame, preserve_index=False).to_struct_array()
            for frame in frames
        )
        for scores in scored_inputs(structures, inputs, batch, cached()):
            yield pd.DataFrame({name: list(scores[name]) for name in fields.names})

    if hasattr(F, "arrow_udf"):
        made: Callable[..., Any] = F.arrow_udf(score, fields)
        return made
    over: Any = pandas_udf  # its types tell no iterators of frames
    frames: Callable[..., Any] = over(score_frames, fields)
    return frames


def _features(column: pa.Array, shape: list[int] | None) -> Array:
    """Returns [n, *shape], or the bytes of each row [n]."""
    numbers = column if shape is None else column.flatten()
    features: Array = numbers.to_numpy(zero_copy_only=False)
    return features if shape is None else features.reshape(-1, *shape)


def _structure(scores: dict[str, Array], names: list[str]) -> pa.Array:
    return pa.StructArray.from_arrays([_arrow(scores[name]) for name in names], names)


def _arrow(scores: Array) -> pa.Array:
    """Returns rows [n] or [n, m] as an Arrow array, of which a row is a number or a list."""
    values = pa.array(scores.reshape(-1))
    if scores.ndim == 1:
        return values
    rows, width = scores.shape
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(width)
    return pa.ListArray.from_arrays(pa.array(offsets), values)
