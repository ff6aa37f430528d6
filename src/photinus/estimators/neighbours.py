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

from photinus.core.parameters import Vector
from photinus.embeddings.neighbours import NeighbourIndex, exact
from photinus.embeddings.words import row_finder
from photinus.estimators.sentences import id_of, kind_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Held = tuple[Sequence[str], Vector, bytes | None]
"""Words, their vectors [V, D], and an index of these; without one the vectors have length 1."""


def asked_column(dataset: DataFrame, name: str) -> tuple[Column, bool]:
    """Returns a column of texts, or of arrays of numbers; and whether it is of arrays.

    Raises:
        UsageError: there is no such column, or it holds something else.
    """
    kind = kind_of(dataset, name)
    if isinstance(kind, VectorUDT):
        return vector_to_array(F.col(f"`{name}`"), "float32"), True
    if isinstance(kind, T.ArrayType) and isinstance(kind.elementType, T.FractionalType):
        return F.col(f"`{name}`").cast("array<float>"), True
    return id_of(dataset, name), False


def neighbours_udf(load: Callable[[], Held], count: int, *, is_vector: bool) -> Any:  # noqa: ANN401
    """Returns a function of a column: the nearest words and their cosines, two arrays.

    Args:
        load: gives the vectors in a task.
        count: how many; a word is none of itself.
        is_vector: the column holds vectors, not words.
    """

    def near(batches: Iterator[pd.Series]) -> Iterator[pd.DataFrame]:
        held = load()
        words, find = held[0], row_finder(held[0])
        index = None if held[2] is None else NeighbourIndex(held[2])
        for asked in batches:
            if is_vector:
                rows, own = asked.notna().to_numpy(), np.full(len(asked), -1)
                aims = [np.asarray(one, np.float32) for one in asked[rows]]
                aim = np.stack(aims) if aims else np.zeros((0, held[1].shape[1]), np.float32)
            else:
                own = find(asked)
                rows = own >= 0
                aim = held[1][own[rows]]
            yield _told(words, rows, _nearest(held[1], index, aim, own[rows], count))

    over: Any = pandas_udf  # its types do not cover iterators
    return over(near, "word array<string>, similarity array<double>")


def _nearest(
    vectors: Vector, index: NeighbourIndex | None, aims: Vector, own: Vector, count: int
) -> list[tuple[Vector, Vector]]:
    """Returns rows and cosines for each aim [n, D], without the row that it is itself [n]."""
    most = min(count + 1, len(vectors))
    if not len(aims):
        return []
    found = index.nearest(aims, most) if index is not None else exact(vectors, aims, most)
    made = []
    for rows, cosines, mine in zip(*found, own, strict=True):
        others = np.flatnonzero(rows != mine)[:count]
        made.append((rows[others], cosines[others].astype(np.float64)))
    return made


def _told(words: Sequence[str], known: Vector, found: list[tuple[Vector, Vector]]) -> pd.DataFrame:
    """Returns two columns, null in the rows that are not known [n]."""
    columns: dict[str, list[Any]] = {"word": [], "similarity": []}
    next_ = iter(found)
    for is_known in known:
        rows, cosines = next(next_) if is_known else (None, None)
        columns["word"].append(None if rows is None else [words[row] for row in rows])
        columns["similarity"].append(cosines)
    return pd.DataFrame(columns)
