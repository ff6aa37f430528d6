"""The nearest words of every row of a DataFrame, found in the tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql import types as T  # noqa: N812 - as everybody calls it
from pyspark.sql.pandas.functions import pandas_udf

from photinus.core.errors import user_message
from photinus.core.parameters import Vector
from photinus.data.spark import quoted
from photinus.embeddings.neighbours import NeighbourIndex, exact
from photinus.embeddings.words import row_finder
from photinus.estimators.sentences import column_type, id_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SearchData = tuple[Sequence[str], Vector, bytes | None]
"""Words, their vectors [V, D], and an index of these; without one the vectors have length 1."""


def query_column(dataset: DataFrame, name: str, dims: int) -> tuple[Column, bool]:
    """Returns a column of texts, or of arrays of numbers; and whether it is of arrays.

    Spark refuses an array that is no vector of so many finite numbers, where it reads its row.

    Args:
        dataset: rows.
        name: of the column.
        dims: D, numbers of a vector.

    Raises:
        UsageError: there is no such column, or it holds something else.
    """
    data_type = column_type(dataset, name)
    if isinstance(data_type, VectorUDT):
        vector = quoted(name)
        # Spark makes no array of a null
        array = F.when(vector.isNotNull(), vector_to_array(vector, "float32"))
        return _checked(array, name, dims), True
    if isinstance(data_type, T.ArrayType) and isinstance(data_type.elementType, T.FractionalType):
        return _checked(quoted(name).cast("array<float>"), name, dims), True
    return id_of(dataset, name), False


def _checked(vectors: Column, name: str, dims: int) -> Column:
    """Returns the arrays of a column; Spark ends the query at a wrong one, in one sentence."""
    wrong = f"column {name} must hold vectors of {dims} finite numbers, or nulls"
    infinity = F.lit(float("inf"))
    is_finite = F.forall(vectors, lambda x: x.isNotNull() & ~F.isnan(x) & (F.abs(x) < infinity))
    error = F.raise_error(user_message(wrong, do="ask with vectors of this model"))
    is_right = vectors.isNull() | ((F.size(vectors) == dims) & is_finite)
    return F.when(is_right, vectors).otherwise(error)


def neighbours_udf(
    load: Callable[[], SearchData],
    count: int,
    *,
    is_vector: bool,
) -> Any:  # noqa: ANN401 - what pandas_udf returns
    """Returns a function of a column: the nearest words and their cosines, two arrays.

    Args:
        load: gives the vectors in a task.
        count: how many; a word is not its own neighbour.
        is_vector: the column holds vectors, not words.
    """

    def find_neighbours(batches: Iterator[pd.Series]) -> Iterator[pd.DataFrame]:
        data = load()
        words, find_rows = data[0], row_finder(data[0])
        index = None if data[2] is None else NeighbourIndex(data[2])
        for queries in batches:
            if is_vector:
                is_known, own_rows = queries.notna().to_numpy(), np.full(len(queries), -1)
                arrays = [np.asarray(vector, np.float32) for vector in queries[is_known]]
                targets = (
                    np.stack(arrays) if arrays else np.zeros((0, data[1].shape[1]), np.float32)
                )
            else:
                own_rows = find_rows(queries)
                is_known = own_rows >= 0
                targets = data[1][own_rows[is_known]]
            # a vector of zeros has no direction, so nothing is near to it
            has_direction = targets.any(axis=1)
            is_known[is_known] = has_direction
            targets = targets[has_direction]
            yield _neighbour_columns(
                words, is_known, _nearest_others(data[1], index, targets, own_rows[is_known], count)
            )

    udf: Any = pandas_udf  # its types do not cover iterators
    return udf(find_neighbours, "word array<string>, similarity array<double>")


def _nearest_others(
    vectors: Vector, index: NeighbourIndex | None, targets: Vector, own_rows: Vector, count: int
) -> list[tuple[Vector, Vector]]:
    """Returns the nearest rows and cosines for each target [n, D], without its own row [n]."""
    limit = min(count + 1, len(vectors))
    if not len(targets):
        return []
    nearest = index.nearest(targets, limit) if index is not None else exact(vectors, targets, limit)
    neighbours = []
    for rows, cosines, own_row in zip(*nearest, own_rows, strict=True):
        others = np.flatnonzero(rows != own_row)[:count]
        neighbours.append((rows[others], cosines[others].astype(np.float64)))
    return neighbours


def _neighbour_columns(
    words: Sequence[str], is_known: Vector, neighbours: list[tuple[Vector, Vector]]
) -> pd.DataFrame:
    """Returns two columns, null in the rows that are not known [n]."""
    columns: dict[str, list[Any]] = {"word": [], "similarity": []}
    remaining = iter(neighbours)
    for is_known_row in is_known:
        rows, cosines = next(remaining) if is_known_row else (None, None)
        columns["word"].append(None if rows is None else [words[row] for row in rows])
        columns["similarity"].append(cosines)
    return pd.DataFrame(columns)
