"""Selected rows of a flat vector, for models of which few rows change at a time.

A vector [n] is read as rows of `width` numbers, the last one maybe shorter. Where the tables lie in
it is no matter: with the width of its word vectors, a network's other layers are rows as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from photinus.core.errors import FrameError
from photinus.core.parameters import Vector

_MARKS_PER_ROW = 256
"""Where a table has more rows for each row that is named, sorting is faster."""


def changed(vector: Vector, width: int) -> Vector:
    """Returns the rows [r] in which a number of `vector` [n] is not 0, in order.

    Example:
        >>> changed(np.array([0.0, 0.0, 1.0, 0.0, 2.0]), 2).tolist()
        [1, 2]
    """
    if not vector.size:
        return np.empty(0, np.int64)
    starts = np.arange(0, vector.size, width)
    return np.flatnonzero(np.logical_or.reduceat(vector != 0, starts)).astype(np.int64, copy=False)


def numbers_of(rows: Vector, width: int, size: int) -> Vector:
    """Returns where in a vector [size] the numbers of some rows [r] lie: [m], in order.

    Raises:
        FrameError: these are no rows of it, or one is named twice.

    Example:
        >>> numbers_of(np.array([1, 2]), 2, 5).tolist()
        [2, 3, 4]
    """
    is_whole = rows.dtype.kind == "i" and rows.ndim == 1 and width > 0
    if not is_whole or (rows.size and (rows[0] < 0 or rows[-1] * width >= size)):
        raise FrameError(f"rows must lie within the {size} numbers", got=f"{rows.size} rows")
    if (np.diff(rows) <= 0).any():
        raise FrameError("rows must be named once, in order", got=f"{rows.size} rows")
    numbers: Vector = (rows[:, None] * width + np.arange(width)).ravel()
    return numbers[: np.searchsorted(numbers, size)]


def union(lists: Sequence[Vector]) -> Vector:
    """Returns the rows [r] that some lists name, in order and once each.

    Args:
        lists: rows, each in any order.

    Example:
        >>> union([np.array([4, 7]), np.array([], np.int64), np.array([1, 7])]).tolist()
        [1, 4, 7]
    """
    count = sum(rows.size for rows in lists)
    first = min((int(rows.min()) for rows in lists if rows.size), default=0)
    end = max((int(rows.max()) for rows in lists if rows.size), default=-1) + 1
    if first < 0 or end > _MARKS_PER_ROW * count:
        return np.unique(np.concatenate([np.empty(0, np.int64), *lists]))
    marks = np.zeros(end, bool)  # many times as fast as to sort millions of rows
    for rows in lists:
        marks[rows] = True
    return np.flatnonzero(marks)


def shares_of_reads(rows: Vector, reads_by_worker: Iterable[tuple[Vector, Vector]]) -> Vector:
    """Returns what the sum of the workers' deltas of each row is multiplied by [r].

    Worker i read a row in the share pᵢ of its steps. One process with the batches of all would have
    read it in the share 1 − Π(1 − pᵢ), and they took Σpᵢ together: the quotient is 1 for a row that
    few steps read, so that the deltas add up, and 1/K for one that all steps read: their mean.

    Args:
        rows: in order [r].
        reads_by_worker: of each worker which rows it read, in order, and their shares pᵢ.

    Example:
        >>> one, two = (np.array([4, 7]), np.array([0.01, 1.0])), (np.array([7]), np.array([1.0]))
        >>> shares_of_reads(np.array([4, 7]), [one, two]).round(3).tolist()
        [1.0, 0.5]
    """
    unread, sums = np.ones(rows.size), np.zeros(rows.size)
    for read_rows, shares in reads_by_worker if rows.size else ():
        positions = np.searchsorted(rows, read_rows)
        positions[positions == rows.size] = 0
        is_named = rows[positions] == read_rows
        positions, shares = positions[is_named], shares[is_named]
        unread[positions] *= 1 - shares
        sums[positions] += shares
    return np.divide(1 - unread, sums, out=np.zeros(rows.size), where=sums > 0)
