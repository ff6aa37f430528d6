"""Scores of rows in their order, and as columns of Arrow."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from photinus.data.base import Array, Features
from photinus.data.inputs import Inputs

if TYPE_CHECKING:
    import pyarrow as pa


def scores_in_order(
    features: Features, batch_size: int, predict: Callable[[Any], dict[str, Array]]
) -> dict[str, Array]:
    """Returns the scores of rows by their names.

    Of `Inputs` rows of similar length are scored together, so that little is padded.

    Args:
        features: arrays [n, ...], or `Inputs`; at least one row.
        batch_size: rows that are scored at once.
        predict: scores a batch, an array or a dict of arrays by input.
    """
    if not isinstance(features, Inputs):
        parts = [
            predict(features[start : start + batch_size])
            for start in range(0, len(features), batch_size)
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    row_groups = features.by_length(batch_size)
    parts = [predict(features.batch(rows)) for rows in row_groups]
    original_order = np.argsort(np.concatenate(row_groups))
    return {
        name: np.concatenate([part[name] for part in parts])[original_order] for name in parts[0]
    }


def arrow_column(scores: Array) -> pa.Array:
    """Returns rows [n] or [n, ...] as an Arrow array, of which a row is a number or a flat list.

    Args:
        scores: numbers, or an array of numbers for each row, as objects.
    """
    import pyarrow as pa

    if scores.dtype == object:  # rows of unequal length
        return pa.array(list(scores), pa.list_(pa.float64()))
    values = pa.array(scores.reshape(-1))
    if scores.ndim == 1:
        return values
    rows, width = len(scores), math.prod(scores.shape[1:])
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(width)
    return pa.ListArray.from_arrays(pa.array(offsets), values)
