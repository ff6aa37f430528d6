"""Edges that are sorted in files make the graph of the same edges in memory."""

import numpy as np
import pytest

from photinus.embeddings import edge_files
from photinus.embeddings.edge_files import sorted_graph
from photinus.embeddings.walks import graph_of

NODES = 40


def edges(weighted):
    """Edges in any order; some come several times, some are loops, and one node has very many."""
    rng = np.random.default_rng(0)
    ends = rng.integers(0, NODES - 3, (2, 500))
    ends[0, :150] = 7
    return *ends, rng.random(500) if weighted else np.full(500, 0.5)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("block", [1, 60, 1000])
def test_they_make_the_graph_of_the_same_edges_in_memory(directed, weighted, block, monkeypatch):
    monkeypatch.setattr(edge_files, "_BLOCK", block)
    a, b, w = edges(weighted)
    pieces = [[column[at : at + 77] for column in (a, b, w)] for at in range(0, 500, 77)]
    graph = sorted_graph(NODES, [*pieces, [a[:0], b[:0], w[:0]]], is_directed=directed)
    no_loop = a != b
    if not directed:
        a, b = np.append(a, b[no_loop]), np.append(b, a[no_loop])
        w = np.append(w, w[no_loop])
    expected = graph_of(NODES, a, b, w)
    assert np.array_equal(graph.starts, expected.starts)
    assert np.array_equal(graph.keys, expected.keys)
    np.testing.assert_allclose(graph.sums, expected.sums, rtol=1e-12)
    assert isinstance(graph.keys, np.memmap)


def test_their_order_changes_no_bit():
    edge_columns, permutation = edges(weighted=True), np.random.default_rng(1).permutation(500)
    graph = sorted_graph(NODES, [edge_columns], is_directed=True)
    shuffled_graph = sorted_graph(
        NODES, [[column[permutation] for column in edge_columns]], is_directed=True
    )
    assert np.array_equal(graph.sums, shuffled_graph.sums)


def test_equal_weights_are_not_kept():
    ends = np.array([0, 5, 0]), np.array([1, 0, 2])
    graph = sorted_graph(NODES, [(*ends, np.full(3, 2.0))], is_directed=True)
    assert graph.starts.tolist() == [0, *[2] * 5, *[3] * 35]
    assert not len(graph.sums)


def test_an_error_in_the_middle_leaves_no_file_open():
    def broken():
        yield np.zeros(1, int), np.zeros(1, int), np.ones(1)
        raise ValueError("lost")

    with pytest.raises(ValueError, match="lost"):
        sorted_graph(NODES, broken(), is_directed=True)
