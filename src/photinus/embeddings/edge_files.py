"""Sorts the edges of a graph in files: no more than some of them are in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from photinus.core.parameters import Vector
from photinus.embeddings.walks import Graph
from photinus.embeddings.words import map_file, open_unnamed

_BLOCK = 1 << 20
"""So many edges are in memory at once, or those of one node."""
_EDGE = np.dtype([("source", "<i4"), ("target", "<i4"), ("weight", "<f8")])


def sorted_graph(
    nodes: int, batches: Iterable[tuple[Vector, Vector, Vector]], *, is_directed: bool
) -> Graph:
    """Returns what `graph_of` returns, with edges that are mapped from files without a name.

    Args:
        nodes: V, how many.
        batches: numbers of sources and of targets, and weights above 0 [n] each; not all are empty.
        is_directed: edges have one direction; else they have both.

    Example:
        >>> edges = np.array([0, 2]), np.array([1, 0]), np.ones(2)
        >>> graph = sorted_graph(3, [edges], is_directed=False)
        >>> graph.starts.tolist(), (graph.keys % 3).tolist()
        ([0, 2, 3, 4], [1, 2, 0, 0])
    """
    with open_unnamed() as file:
        for sources, targets, weights in batches:
            records = np.empty(len(sources), _EDGE)
            records["source"], records["target"], records["weight"] = sources, targets, weights
            file.write(records.tobytes())
        edges = map_file(file, _EDGE)
    degrees = np.zeros(nodes, np.int64)
    for sources, _, _ in _directed_edges(edges, is_directed=is_directed):
        degrees += np.bincount(sources, minlength=nodes)
    starts = np.append(0, np.cumsum(degrees))
    return _merge_equal_edges(
        starts, *_sort_by_source(starts, _directed_edges(edges, is_directed=is_directed))
    )


def _directed_edges(edges: Vector, *, is_directed: bool) -> Iterator[tuple[Vector, Vector, Vector]]:
    """Yields sources, targets and weights [n] of some edges at a time, in each direction."""
    for start in range(0, len(edges), _BLOCK):
        sources, targets, weights = (
            edges[start : start + _BLOCK][name] for name in _EDGE.names or ()
        )
        yield sources, targets, weights
        if not is_directed:
            is_not_loop = sources != targets
            yield targets[is_not_loop], sources[is_not_loop], weights[is_not_loop]


def _sort_by_source(
    starts: Vector, edges: Iterable[tuple[Vector, Vector, Vector]]
) -> tuple[Vector, Vector]:
    """Returns keys and weights, each edge among those of its source [E], in files."""
    nodes = len(starts) - 1
    keys, weights = _zeros_in_file(int(starts[-1]), "i8"), _zeros_in_file(int(starts[-1]), "f8")
    next_free = starts[:-1].copy()
    for sources, targets, edge_weights in edges:
        order = np.argsort(sources, kind="stable")
        sources = sources[order].astype(np.int64)
        distinct, first, counts = np.unique(sources, return_index=True, return_counts=True)
        positions = next_free[sources] + np.arange(len(sources)) - np.repeat(first, counts)
        keys[positions] = sources * nodes + targets[order]
        weights[positions] = edge_weights[order]
        next_free[distinct] += counts
    return keys, weights


def _merge_equal_edges(starts: Vector, keys: Vector, weights: Vector) -> Graph:
    """Returns the graph whose equal edges are one; it is written over the same files."""
    nodes, counts = len(starts) - 1, np.zeros(len(starts), np.int64)
    sums, distinct_weights, end = _zeros_in_file(len(keys) + 1, "f8"), set[float](), 0
    first = 0
    while first < nodes:
        last = int(np.searchsorted(starts, starts[first] + _BLOCK, side="right")) - 1
        last = max(last, first + 1)
        span = slice(int(starts[first]), int(starts[last]))
        span_keys, span_weights = np.asarray(keys[span]), np.asarray(weights[span])
        order = np.lexsort((span_weights, span_keys))  # equal edges, too, add up in one order
        distinct, edge = np.unique(span_keys[order], return_inverse=True)
        summed = np.bincount(edge, span_weights[order], minlength=len(distinct))
        stop = end + len(distinct)
        keys[end:stop] = distinct
        sums[end : stop + 1] = np.cumsum(np.append(sums[end], summed))
        counts[first + 1 : last + 1] = np.bincount(
            distinct // nodes - first, minlength=last - first
        )
        if len(summed) and len(distinct_weights) < 2:
            distinct_weights |= {float(summed.min()), float(summed.max())}
        first, end = last, stop
    return Graph(
        np.cumsum(counts), keys[:end], sums[: end + 1] if len(distinct_weights) > 1 else np.zeros(0)
    )


def _zeros_in_file(size: int, kind: str) -> Vector:
    """Returns zeros in a file without a name [size]."""
    with open_unnamed() as file:
        return np.memmap(file, kind, "w+", shape=(size,))
