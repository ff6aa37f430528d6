"""Notes in which version each row of a tree's arrays moved last: a receiver gets what it lacks."""

from __future__ import annotations

import numpy as np

from photinus.core.parameters import Vector
from photinus.protocol.serialization import Place, arrays_in, bits_by_row, pays


class RowVersions:
    """Compares a tree with its last version, bit by bit; holds a copy of its arrays.

    Example:
        >>> seen, table = RowVersions(), np.zeros((100, 4))
        >>> seen.take([table])
        1
        >>> table[7] += 1
        >>> seen.take([table])
        2
        >>> seen.since(1)
        {(0,): array([7])}
    """

    def __init__(self) -> None:
        self.version = 0
        """Of the tree that was taken last; 0 before the first."""
        self._arrays: dict[Place, tuple[Vector, Vector]] = {}
        """Each array's copy [n, ...], and in which version its rows moved last [n]."""

    def take(self, tree: object) -> int:
        """Takes the tree's next version in; returns its number."""
        self.version += 1
        found = {place: array for place, array in arrays_in(tree) if array.size and array.ndim}
        before, self._arrays = self._arrays, {}
        for place, array in found.items():
            known = before.get(place)
            if known is None or (known[0].dtype, known[0].shape) != (array.dtype, array.shape):
                self._arrays[place] = array.copy(), np.full(len(array), self.version)
                continue
            copy, moved = known
            rows = (bits_by_row(copy) != bits_by_row(array)).any(axis=1)
            copy[rows], moved[rows] = array[rows], self.version
            self._arrays[place] = known
        return self.version

    def since(self, version: int) -> dict[Place, Vector]:
        """Returns the rows [r] that moved after a version, of each array where that pays.

        Args:
            version: the receiver's; 0 if it has none.
        """
        if not version:
            return {}
        moved = {place: np.flatnonzero(last > version) for place, (_, last) in self._arrays.items()}
        return {place: rows for place, rows in moved.items() if pays(rows, self._arrays[place][0])}
