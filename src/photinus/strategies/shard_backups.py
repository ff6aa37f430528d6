"""A worker's backup of another's shard of a table, so that a lost worker sets no other one back.

The next worker keeps the backup: the rows of the shard that have moved, as they were last agreed
on, and the state that only the owner has. All other rows are as in the last checkpoint, or as at
the start.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from photinus.core.pages import read_at_random
from photinus.core.parameters import Vector
from photinus.strategies.base import ShardMove
from photinus.strategies.outer import OuterOptimizer

PAGE_NUMBERS = 1 << 20
"""How many numbers a lost worker's successor asks for at once."""
BACKLOG_NUMBERS = 1 << 23
"""How many numbers are sent with each round to a backup that begins anew."""
_BLOCK_NUMBERS = 1 << 24
"""How many numbers of rows that moved a backup has room for at once."""
_PREFIX, _OUTER, _INNER, DENSE = "backup.", "outer.", "inner.", "dense."


class ShardBackup:
    """Rows that moved of another worker's shard, in blocks: it takes room for these rows only.

    Args:
        count: how many rows the other shard has.
        like: no rows [0, width], of the table's type.
        outer: the optimizer of the shard.
        allocate: returns where a block may lie, given a shape, a type and the bytes of all blocks;
            None for nowhere.
    """

    def __init__(
        self,
        count: int,
        like: Vector,
        outer: OuterOptimizer,
        allocate: Callable[..., Vector | None],
    ) -> None:
        self._like = like, *(outer.init(like) if outer.is_by_row else ())
        self._allocate = allocate
        self._places = np.full(count, -1, np.int32)
        """Row of the shard -> which of the rows here it is [m]; -1: it has not moved."""
        self._row_count = 0
        self._block_rows = max(1, min(count, _BLOCK_NUMBERS // max(1, like.shape[1])))
        """How many rows lie in a block."""
        self._blocks: list[tuple[Vector, ...]] = []
        """Of each the rows [b, width], and of the outer optimizer, each [b, numbers]."""
        self._inner: dict[str, Vector] = {}
        """The state of the lost worker's inner optimizer."""
        self._dense_outer: tuple[Vector, ...] = ()
        """The outer optimizer's state of the dense layers in the shard."""

    def take(self, move: ShardMove) -> bool:
        """Takes in what a round did to the shard; False where there was no room for it."""
        new = move.at[self._places[move.at] < 0]
        if not self._has_room(self._row_count + new.size):
            return False
        self._places[new] = np.arange(self._row_count, self._row_count + new.size)
        self._row_count += new.size
        for block, at, selected in self._split(move.at):
            for array, moved in zip(block, (move.rows, *move.outer), strict=True):
                array[at] = moved[selected]
        self._inner, self._dense_outer = dict(move.inner), move.dense_outer
        return True

    def page(self, start: int) -> tuple[ShardMove, int]:
        """Returns the next rows that moved, from row `start` on, and where the page after begins.

        The states that are not by row are in the last page, after which the next one begins at
        row m.
        """
        most = PAGE_NUMBERS // max(1, self._like[0].shape[1])
        rows, after = next_moved(self._places >= 0, start, most)
        arrays = [np.empty((rows.size, *like.shape[1:]), like.dtype) for like in self._like]
        for block, at, selected in self._split(rows):
            for array, target in zip(block, arrays, strict=True):
                target[selected] = array[at]
        is_last = after == len(self._places)
        move = ShardMove(rows, arrays[0], tuple(arrays[1:]))
        if is_last:
            move = move._replace(inner=self._inner, dense_outer=self._dense_outer)
        return move, after

    def _has_room(self, rows: int) -> bool:
        """Returns whether so many rows fit, in further blocks too."""
        while len(self._blocks) * self._block_rows < rows:
            shapes = [(self._block_rows, *like.shape[1:]) for like in self._like]
            numbers = sum(math.prod(shape[1:]) for shape in shapes)
            total_bytes = len(self._places) * numbers * self._like[0].itemsize
            arrays = [
                self._allocate(shape, like.dtype, total_bytes)
                for shape, like in zip(shapes, self._like, strict=True)
            ]
            block = tuple(array for array in arrays if array is not None)
            if len(block) < len(arrays):
                return False
            for array in block:
                read_at_random(array)
            self._blocks.append(block)
        return True

    def _split(self, rows: Vector) -> Iterator[tuple[tuple[Vector, ...], Vector, Vector]]:
        """Returns each block that holds some of these rows [r], where in it, and which of them."""
        places = self._places[rows]
        block_numbers = places // self._block_rows
        for number in np.unique(block_numbers):
            selected = np.flatnonzero(block_numbers == number)
            yield self._blocks[number], places[selected] - number * self._block_rows, selected


def next_moved(moved: Vector, start: int, most: int) -> tuple[Vector, int]:
    """Returns the next of the rows that moved, at least one, and the row to continue from.

    Args:
        moved: which rows did [m].
        start: the first row to look at.
        most: how many are wanted.

    Example:
        >>> next_moved(np.array([True, False, True, True]), 1, 1)
        (array([2]), 3)
    """
    at = start + np.flatnonzero(moved[start:])[: max(1, most)]
    return at, int(at[-1]) + 1 if at.size >= max(1, most) else len(moved)


def write(
    move: ShardMove, rows: Vector, outer: tuple[Vector, ...], moved: Vector, version: int
) -> None:
    """Writes the rows that moved into a shard [m, width] and its outer state.

    Args:
        move: the rows.
        rows: of the shard [m, width].
        outer: its outer state.
        moved: in which version each row moved last [m].
        version: this one.
    """
    if not move.at.size:
        return
    rows[move.at], moved[move.at] = move.rows, version
    for array, values in zip(outer, move.outer, strict=True):
        array[move.at] = values


def to_arrays(move: ShardMove) -> dict[str, Vector]:
    """Returns a move as arrays by name, as it travels."""
    arrays = {"at": move.at, "rows": move.rows.ravel()}
    arrays |= {f"{_OUTER}{n}": array.ravel() for n, array in enumerate(move.outer)}
    arrays |= {f"{_INNER}{name}": array for name, array in move.inner.items()}
    arrays |= {f"{DENSE}{n}": array for n, array in enumerate(move.dense_outer)}
    return {f"{_PREFIX}{name}": array for name, array in arrays.items()}


def from_arrays(arrays: Mapping[str, Vector]) -> ShardMove | None:
    """The inverse of `to_arrays`; None where the arrays hold no move."""
    named = {n.removeprefix(_PREFIX): v for n, v in arrays.items() if n.startswith(_PREFIX)}
    if not named:
        return None
    count = len(named["at"])
    outer = (named[name] for name in sorted(named) if name.startswith(_OUTER))
    inner = {n.removeprefix(_INNER): v for n, v in named.items() if n.startswith(_INNER)}
    by_row = [
        array.reshape(count, array.size // max(1, count)) for array in (named["rows"], *outer)
    ]
    dense_outer = tuple(named[name] for name in sorted(named) if name.startswith(DENSE))
    return ShardMove(named["at"], by_row[0], tuple(by_row[1:]), inner, dense_outer)
