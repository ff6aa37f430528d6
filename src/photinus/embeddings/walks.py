"""Random walks over a graph, biased as node2vec's, by rejection: no table of second order."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from photinus.core.parameters import Vector

END = -1
"""Follows the last node of a walk that met no way on."""
_LEAST_DRAWS = 64
"""After so many draws in vain a step may be drawn among all neighbours: where 1/p and 1/q are far
apart, hardly any draw may be kept."""
_EDGES_A_DRAW = 64
"""So many neighbours can be looked at in the time of one draw, roughly."""


class Graph(NamedTuple):
    """V nodes, and E edges in the order of their sources."""

    starts: Vector
    """Where the edges of a node begin [V + 1] int64."""
    keys: Vector
    """Source · V + target of each edge, ascending [E] int64."""
    sums: Vector
    """Running sums of the weights, from 0 [E + 1] float64; empty where all weigh the same."""

    @property
    def nodes(self) -> int:
        """How many nodes there are: V."""
        return len(self.starts) - 1


class Bias(NamedTuple):
    """By what the weight of a step from v is multiplied, when the walk came from t."""

    back: float
    """The step returns to t: 1/p."""
    away: float
    """No edge leads from t to where the step leads: 1/q; else the factor is 1."""


def graph_of(nodes: int, sources: Vector, targets: Vector, weights: Vector | None = None) -> Graph:
    """Returns a graph of directed edges; equal edges become one with the sum of their weights.

    Args:
        nodes: V, how many.
        sources: numbers of nodes [E].
        targets: likewise.
        weights: above 0 [E]; None: 1 each.

    Example:
        >>> graph = graph_of(3, np.array([0, 2, 0]), np.array([1, 0, 2]))
        >>> graph.starts.tolist(), (graph.keys % 3).tolist()
        ([0, 2, 2, 3], [1, 2, 0])
    """
    edge_keys = sources.astype(np.int64) * nodes + targets
    keys, edge = np.unique(edge_keys, return_inverse=True)
    summed = np.bincount(edge, weights, minlength=len(keys)).astype(np.float64)
    starts = np.searchsorted(keys, np.arange(nodes + 1, dtype=np.int64) * nodes)
    is_uniform = not len(summed) or summed.min() == summed.max()
    sums = np.zeros(0) if is_uniform else np.concatenate([[0.0], np.cumsum(summed)])
    return Graph(starts, keys, sums)


def walks(graph: Graph, first: Vector, length: int, bias: Bias, rng: np.random.Generator) -> Vector:
    """Returns a walk from each of some nodes [B, length] int32, `END` after its last node.

    A step from v, after one from t, leads to x with a probability in proportion to w(v, x) · a,
    where a is 1/p for x = t, 1 where an edge leads from t to x, and 1/q else. x is drawn by its
    weight and kept with probability a / max(1, 1/p, 1/q), until one is kept. After 64 draws in
    vain, and at least a 64th as many as v has neighbours, x is drawn among all neighbours of v by
    the products.

    Args:
        graph: where they walk.
        first: numbers of nodes [B].
        length: nodes of a walk, at most.
        bias: of the steps.
        rng: draws the steps.

    Reference:
        Grover and Leskovec, node2vec: scalable feature learning for networks (2016).
    """
    paths = np.full((len(first), length), END, np.int32)
    paths[:, 0] = first
    active = np.flatnonzero(_has_edges(graph, first))
    for step in range(1, length):
        current = paths[active, step - 1].astype(np.int64)
        if step == 1 or bias == (1.0, 1.0):
            paths[active, step] = _draw_neighbours(graph, current, rng)
        else:
            previous = paths[active, step - 2].astype(np.int64)
            paths[active, step] = _draw_biased(graph, current, previous, bias, rng)
        active = active[_has_edges(graph, paths[active, step])]
    return paths


def _has_edges(graph: Graph, nodes: Vector) -> Vector:
    has_edges: Vector = graph.starts[nodes + 1] > graph.starts[nodes]
    return has_edges


def _draw_neighbours(graph: Graph, nodes: Vector, rng: np.random.Generator) -> Vector:
    """Returns a neighbour of each node [B], by the weights of its edges."""
    first, last = graph.starts[nodes], graph.starts[nodes + 1]
    share = rng.random(len(nodes))
    if not len(graph.sums):
        edge = first + (share * (last - first)).astype(np.int64)
    else:
        low, high = graph.sums[first], graph.sums[last]
        edge = np.searchsorted(graph.sums, low + share * (high - low), side="right") - 1
        edge = np.clip(edge, first, last - 1)  # a share of almost 1 may be rounded up
    neighbours: Vector = graph.keys[edge] - nodes * graph.nodes
    return neighbours


def _draw_biased(
    graph: Graph, nodes: Vector, previous: Vector, bias: Bias, rng: np.random.Generator
) -> Vector:
    neighbours, pending = np.empty(len(nodes), np.int64), np.arange(len(nodes))
    max_factor, draws = max(1.0, *bias), 0
    degrees = graph.starts[nodes + 1] - graph.starts[nodes]
    while len(pending):
        draws += 1
        candidates = _draw_neighbours(graph, nodes[pending], rng)
        factors = _factors(graph, previous[pending], candidates, bias)
        is_accepted = rng.random(len(pending)) * max_factor < factors
        neighbours[pending[is_accepted]] = candidates[is_accepted]
        pending = pending[~is_accepted]
        if draws >= _LEAST_DRAWS:
            is_short = degrees[pending] <= _EDGES_A_DRAW * draws
            for index in pending[is_short]:
                neighbours[index] = _draw_among_all(graph, nodes[index], previous[index], bias, rng)
            pending = pending[~is_short]
    return neighbours


def _factors(graph: Graph, origins: Vector, candidates: Vector, bias: Bias) -> Vector:
    """Returns by what the weights of steps to candidates [B] after origins [B] are multiplied."""
    keys = origins * graph.nodes + candidates
    positions = np.minimum(np.searchsorted(graph.keys, keys), len(graph.keys) - 1)
    factors = np.where(graph.keys[positions] == keys, 1.0, bias.away)
    factors[candidates == origins] = bias.back
    return factors


def _draw_among_all(
    graph: Graph, node: int, origin: int, bias: Bias, rng: np.random.Generator
) -> int:
    edges = slice(graph.starts[node], graph.starts[node + 1])
    candidates = graph.keys[edges] - node * graph.nodes  # [degree]
    factors = _factors(graph, np.full(len(candidates), origin), candidates, bias)
    weights = np.diff(graph.sums[edges.start : edges.stop + 1]) if len(graph.sums) else 1.0
    sums = np.cumsum(factors / factors.max() * weights)
    position = np.searchsorted(sums, rng.random() * sums[-1], side="right")
    return int(candidates[min(position, len(candidates) - 1)])
