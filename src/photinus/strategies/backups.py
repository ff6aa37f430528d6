"""A worker's backup of another's shard of a table, so that a lost worker sets no other one back.

The next worker keeps the backup: the rows of the shard that have moved, as they were last agreed
on, and the state that only the owner has. All other rows are as in the last checkpoint, or as at
the start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from photinus.core.parameters import Vector
from photinus.strategies.base import ShardMove
from photinus.strategies.outer import Outer

PAGE_NUMBERS = 1 << 20
"""How many numbers a lost worker's successor asks for at once."""
BACKLOG_NUMBERS = 1 << 22
"""How many numbers are sent with each round to a backup that begins anew."""
_PREFIX, _OUTER, _INNER = "backup.", "outer.", "inner."


class Backup(NamedTuple):
    """Rows that moved of another worker's shard; `take` writes into it, as its own shard is."""

    rows: Vector
    """[m, width]; only those that moved are valid."""
    outer: tuple[Vector, ...]
    """Of the outer optimizer, each [m, numbers]; likewise."""
    moved: Vector
    """Which rows have moved [m]."""
    inner: dict[str, Vector]
    """The state of the lost worker's inner optimizer."""

    @classmethod
    def laid(
        cls, count: int, like: Vector, outer: Outer, room: Callable[..., Vector | None]
    ) -> Backup | None:
        """Returns a backup without a row in it; None where there is no room for it.

        Args:
            count: how many rows the other shard has.
            like: no rows [0, width], of the table's type.
            outer: the optimizer of the shard.
            room: where the rows may lie.
        """
        found = [room((count, *held.shape[1:]), held.dtype) for held in (like, *outer.init(like))]
        arrays = [held for held in found if held is not None]
        if len(arrays) < len(found):
            return None
        return cls(arrays[0], tuple(arrays[1:]), np.zeros(count, np.bool_), {})

    def take(self, move: ShardMove) -> None:
        """Takes in what a round did to the shard."""
        write(move, self.rows, self.outer, self.moved)
        self.inner.clear()
        self.inner.update(move.inner)

    def page(self, start: int) -> tuple[ShardMove, int]:
        """Returns the next rows that moved, from row `start` on, and where the page after begins.

        The optimizer's state is in the last page, after which the next one begins at row m.
        """
        at, after = next_moved(self.moved, start, PAGE_NUMBERS // max(1, self.rows.shape[1]))
        is_last = after == len(self.moved)
        move = ShardMove(at, self.rows[at], tuple(held[at] for held in self.outer))
        return move._replace(inner=dict(self.inner) if is_last else {}), after


def next_moved(moved: Vector, start: int, most: int) -> tuple[Vector, int]:
    """Returns the next of the rows that moved [m], at least one, and the row to continue from.

    Example:
        >>> next_moved(np.array([True, False, True, True]), 1, 1)
        (array([2]), 3)
    """
    at = start + np.flatnonzero(moved[start:])[: max(1, most)]
    return at, int(at[-1]) + 1 if at.size >= max(1, most) else len(moved)


def write(move: ShardMove, rows: Vector, outer: tuple[Vector, ...], moved: Vector) -> None:
    """Writes the rows that moved into a shard [m, width], its outer state and its marks [m]."""
    if not move.at.size:
        return
    rows[move.at], moved[move.at] = move.rows, True
    for held, some in zip(outer, move.outer, strict=True):
        held[move.at] = some


def to_arrays(move: ShardMove) -> dict[str, Vector]:
    """Returns a move as arrays by name, as it travels."""
    arrays = {"at": move.at, "rows": move.rows.ravel()}
    arrays |= {f"{_OUTER}{n}": held.ravel() for n, held in enumerate(move.outer)}
    arrays |= {f"{_INNER}{name}": held for name, held in move.inner.items()}
    return {f"{_PREFIX}{name}": held for name, held in arrays.items()}


def from_arrays(arrays: Mapping[str, Vector]) -> ShardMove | None:
    """The inverse of `to_arrays`; None where the arrays hold no move."""
    told = {n.removeprefix(_PREFIX): v for n, v in arrays.items() if n.startswith(_PREFIX)}
    if not told:
        return None
    count = len(told["at"])
    outer = (told[name] for name in sorted(told) if name.startswith(_OUTER))
    inner = {n.removeprefix(_INNER): v for n, v in told.items() if n.startswith(_INNER)}
    by_row = [held.reshape(count, held.size // max(1, count)) for held in (told["rows"], *outer)]
    return ShardMove(told["at"], by_row[0], tuple(by_row[1:]), inner)
