"""The index finds what products with all vectors find."""

import sys

import numpy as np
import pytest

from photinus.core.errors import NotReadyError
from photinus.embeddings.neighbours import approximate, exact, index_of
from photinus.embeddings.vectors import WordVectors

V, D = 4000, 40


@pytest.fixture(scope="module", params=["topics", "noise"])
def vectors(request):
    """Vectors around topics, as words are; and such as have nothing in common, the hardest."""
    chance = np.random.default_rng(0)
    noise = chance.standard_normal((V, D)).astype(np.float32)
    if request.param == "noise":
        return noise
    return noise + 2 * chance.standard_normal((100, D))[chance.integers(0, 100, V)].astype("f4")


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_the_index_finds_nineteen_of_twenty_nearest_neighbours(vectors):
    rows, cosines = approximate(index_of(vectors), vectors[:500], 10)
    wanted, _ = exact(unit(vectors), vectors[:500], 10)
    recall = np.mean([len(set(a) & set(b)) for a, b in zip(rows, wanted, strict=True)]) / 10
    assert recall >= 0.95
    true = np.take_along_axis(unit(vectors)[:500] @ unit(vectors).T, rows, 1)
    np.testing.assert_allclose(cosines, true, atol=1e-5)
    assert (np.diff(cosines) <= 0).all()


def test_exact_neighbours_are_those_of_most_similar(vectors):
    held = WordVectors([str(n) for n in range(V)], vectors)
    rows, cosines = exact(held.unit, vectors[:3], 6)
    for n in range(3):
        found = held.most_similar([str(n)], count=5)
        assert [int(word) for word, _ in found] == rows[n, 1:].tolist()
        np.testing.assert_allclose([x for _, x in found], cosines[n, 1:], rtol=1e-5)


def test_the_same_vectors_give_the_same_index():
    some = np.random.default_rng(1).standard_normal((500, 16)).astype(np.float32)
    found = [approximate(index_of(some), some, 5)[0] for _ in range(2)]
    np.testing.assert_array_equal(*found)


def test_missing_usearch_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "usearch.index", None)
    with pytest.raises(NotReadyError, match=r'pip install "photinus\[neighbors\]", or ask with'):
        index_of(np.eye(3, dtype=np.float32))
