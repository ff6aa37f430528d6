"""Nearest neighbours of many vectors: exact by matrix products, or approximate by usearch."""

from __future__ import annotations

import numpy as np

from photinus.core.errors import NotReadyError
from photinus.core.parameters import Vector

_CHUNK = 256
"""Vectors that are compared by one matrix product."""
_CANDIDATES = 16
"""For each neighbour asked for, so many candidates are kept while an index is searched."""


def build_index(vectors: Vector) -> bytes:
    """Returns an index of some vectors [V, D], as bytes: a graph in which neighbours are near.

    Raises:
        NotReadyError: usearch is missing.

    Reference:
        Malkov and Yashunin, Efficient and robust approximate nearest neighbor search using
        hierarchical navigable small world graphs (2016).
    """
    try:
        from usearch.index import Index
    except ImportError as error:
        do = 'pip install "photinus[neighbors]", or ask for exact ones'
        raise NotReadyError("approximate neighbours need usearch", got=str(error), do=do) from error
    index = Index(ndim=vectors.shape[1], metric="cos", dtype="f32")
    # one thread: the order in which vectors come decides the graph
    index.add(np.arange(len(vectors), dtype=np.uint64), vectors, threads=1)
    saved = index.save()
    assert saved is not None  # it was not asked to write a file
    return bytes(saved)


class NeighbourIndex:
    """Finds the rows nearest to some vectors, and their cosines, by an index.

    Args:
        saved: as of `build_index`; it is searched where it lies, without a copy.
    """

    def __init__(self, saved: bytes) -> None:
        from usearch.index import Index

        index = Index.restore(saved, view=True)
        assert index is not None  # it is one of ours
        self._index, self._saved = index, saved

    def nearest(self, queries: Vector, count: int) -> tuple[Vector, Vector]:
        """Returns rows [n, count] int64, and cosines [n, count], the nearest first.

        Args:
            queries: [n, D].
            count: how many for each, no more than the index holds.
        """
        self._index.expansion_search = max(64, _CANDIDATES * count)  # type: ignore[misc]
        matches = self._index.search(queries, count, threads=1)
        shape = (len(queries), count)
        return matches.keys.reshape(shape).astype(np.int64), 1 - matches.distances.reshape(shape)


def exact(unit: Vector, queries: Vector, count: int) -> tuple[Vector, Vector]:
    """Returns the rows nearest to some vectors, and their cosines, by products with all.

    Args:
        unit: vectors of length 1 [V, D].
        queries: [n, D].
        count: how many for each, no more than V.

    Returns:
        Rows [n, count] int64, and cosines [n, count], the nearest first.

    Example:
        >>> rows, _ = exact(np.eye(3), np.array([[0.0, 5.0, 1.0]]), 2)
        >>> rows.tolist()
        [[1, 2]]
    """
    rows, cosines = [np.zeros((0, count), np.int64)], [np.zeros((0, count), np.float32)]
    for start in range(0, len(queries), _CHUNK):
        chunk = queries[start : start + _CHUNK]
        similarities = chunk @ unit.T  # [n, V]
        similarities /= np.maximum(np.linalg.norm(chunk, axis=1, keepdims=True), 1e-12)
        best = np.argpartition(-similarities, count - 1, axis=1)[:, :count]
        order = np.argsort(-np.take_along_axis(similarities, best, 1), axis=1)
        rows.append(np.take_along_axis(best, order, 1))
        cosines.append(np.take_along_axis(similarities, rows[-1], 1))
    return np.concatenate(rows), np.concatenate(cosines)
