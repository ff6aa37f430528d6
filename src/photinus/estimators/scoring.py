"""Scores in Spark's Python workers: feature columns in, result columns out."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.ml.functions import predict_batch_udf
from pyspark.ml.model_cache import ModelCache
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql import types as T  # noqa: N812 - as everybody calls it

from photinus.data.base import Array

__all__ = ["scorer"]


def scorer(
    make: Callable[[], Callable[[Array], dict[str, Array]]],
    fields: T.StructType,
    batch: int,
    shape: list[int] | None,
) -> Callable[..., Any]:
    """Returns the function from a column of features to a column of `fields`.

    Args:
        make: on a worker, returns what scores a batch there, by the fields' names.
        fields: arrays or numbers of float64.
        batch: rows that are scored at once.
        shape: of a row that is an array; None for bytes.
    """
    if not hasattr(F, "arrow_udf"):  # Spark before 4.1 turns each row into a list of Python's
        shapes: list[list[int] | None] | None = None if shape is None else [shape]
        return predict_batch_udf(
            make, return_type=fields, batch_size=batch, input_tensor_shapes=shapes
        )
    key = uuid.uuid4()

    def score(columns: Iterator[pa.Array]) -> Iterator[pa.Array]:
        predict = ModelCache.get(key)
        if predict is None:
            predict = make()
            ModelCache.add(key, predict)
        for column in columns:
            for start in range(0, len(column), batch):
                scores = predict(_features(column[start : start + batch], shape))
                arrays = [_arrow(scores[name]) for name in fields.names]
                yield pa.StructArray.from_arrays(arrays, fields.names)

    made: Callable[..., Any] = F.arrow_udf(score, fields)
    return made


def _features(column: pa.Array, shape: list[int] | None) -> Array:
    """Returns [n, *shape], or the bytes of each row [n]."""
    numbers = column if shape is None else column.flatten()
    features: Array = numbers.to_numpy(zero_copy_only=False)
    return features if shape is None else features.reshape(-1, *shape)


def _arrow(scores: Array) -> pa.Array:
    """Returns rows [n] or [n, m] as an Arrow array, of which a row is a number or a list."""
    values = pa.array(scores.reshape(-1))
    if scores.ndim == 1:
        return values
    rows, width = scores.shape
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(width)
    return pa.ListArray.from_arrays(pa.array(offsets), values)
