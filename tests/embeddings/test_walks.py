"""Walks take each step with node2vec's exact probability."""

from collections import Counter, defaultdict

import numpy as np
import pytest

from photinus.embeddings.walks import END, Bias, graph_of, walks

EDGES = [(0, 1, 1), (0, 2, 3), (1, 2, 1), (2, 3, 2), (3, 4, 1), (4, 0, 0.5), (3, 3, 1)]


def graph_and_weights(directed, weighted):
    rows = EDGES if directed else [*EDGES, *[(b, a, w) for a, b, w in EDGES if a != b]]
    a, b, w = map(np.array, zip(*rows, strict=True))
    weights = defaultdict(dict)
    for source, target, weight in rows:
        weights[source][target] = weight if weighted else 1.0
    return graph_of(5, a, b, w if weighted else None), weights


def transition_probabilities(weights, t, v, p, q):
    """Probabilities of the step from v after t, as the paper's equation 2 has them."""
    unnormalized = {
        x: w * (1 / p if x == t else 1 if x in weights[t] else 1 / q) for x, w in weights[v].items()
    }
    return {x: w / sum(unnormalized.values()) for x, w in unnormalized.items()}


def check_shares(weights, paths, p, q):
    """Each step of the paths comes as often as its exact probability says; returns the steps."""
    steps = defaultdict(Counter)
    for path in paths.tolist():
        for t, v, x in zip(path, path[1:], path[2:], strict=False):
            steps[t, v][x] += 1
    for (t, v), counts in steps.items():
        expected, total = transition_probabilities(weights, t, v, p, q), counts.total()
        for x, share in expected.items():
            error = (share * (1 - share) / total) ** 0.5
            assert abs(counts[x] / total - share) < 5 * error + 1e-12
        assert set(counts) <= set(expected)
    return steps


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("p", "q"), [(1.0, 1.0), (0.25, 4.0), (4.0, 0.5)])
def test_steps_come_as_often_as_the_exact_second_order_probabilities_say(directed, weighted, p, q):
    graph, weights = graph_and_weights(directed, weighted)
    starts = np.arange(5).repeat(4_000)
    paths = walks(graph, starts, 12, Bias(1 / p, 1 / q), np.random.default_rng(1))
    steps = check_shares(weights, paths, p, q)
    assert len(steps) == sum(len(weights[v]) for v in weights)


@pytest.mark.parametrize("weighted", [False, True])
def test_so_do_steps_that_are_drawn_among_all_neighbours(weighted, monkeypatch):
    monkeypatch.setattr("photinus.embeddings.walks._LEAST_DRAWS", 1)
    graph, weights = graph_and_weights(False, weighted)
    starts = np.arange(5).repeat(400)
    check_shares(
        weights, walks(graph, starts, 12, Bias(4, 0.25), np.random.default_rng(1)), 0.25, 4
    )


@pytest.mark.parametrize(("p", "q"), [(1.0, 1e-300), (1e-300, 1.0), (1e300, 1e300)])
def test_biases_that_are_far_apart_end_no_walk_and_hold_none_up(p, q):
    graph, _ = graph_and_weights(False, True)
    starts = np.arange(5).repeat(20)
    paths = walks(graph, starts, 12, Bias(1 / p, 1 / q), np.random.default_rng(0))
    assert END not in paths


def test_the_neighbours_of_a_hub_are_not_gone_through_where_more_draws_are_quicker(monkeypatch):
    gone_through = []
    monkeypatch.setattr(
        "photinus.embeddings.walks._draw_among_all", lambda *_: gone_through.append(1) or 0
    )
    leaves = np.arange(1, 100_001)
    hub = np.zeros_like(leaves)
    graph = graph_of(100_001, np.append(hub, leaves), np.append(leaves, hub))
    paths = walks(graph, leaves[:1_000], 3, Bias(4.0, 0.25), np.random.default_rng(0))
    assert not gone_through
    assert paths[:, 2].all()


def test_the_first_step_goes_by_the_weights():
    graph, weights = graph_and_weights(False, True)
    paths = walks(graph, np.zeros(20_000, int), 2, Bias(4.0, 0.25), np.random.default_rng(0))
    counts, total = Counter(paths[:, 1].tolist()), sum(weights[0].values())
    for x, weight in weights[0].items():
        assert counts[x] / 20_000 == pytest.approx(weight / total, abs=0.02)


def test_a_walk_ends_where_no_edge_leads_on():
    graph = graph_of(4, np.array([0, 1]), np.array([1, 2]))
    paths = walks(graph, np.array([0, 3, 1]), 5, Bias(2.0, 0.5), np.random.default_rng(0))
    assert paths.tolist() == [
        [0, 1, 2, END, END],
        [3, END, END, END, END],
        [1, 2, END, END, END],
    ]


def test_equal_edges_become_one_with_the_sum_of_their_weights():
    twice = graph_of(3, np.array([0, 0, 0]), np.array([1, 1, 2]))
    once = graph_of(3, np.array([0, 0]), np.array([1, 2]), np.array([2.0, 1.0]))
    for one, other in zip(twice, once, strict=True):
        np.testing.assert_array_equal(one, other)
