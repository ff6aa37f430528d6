"""The index finds what products with all vectors find."""

import sys

import numpy as np
import pytest

from photinus.core.errors import NotReadyError
from photinus.embeddings.neighbours import NeighbourIndex, build_index, exact
from photinus.embeddings.vectors import WordVectors

V, D = 4000, 40


@pytest.fixture(scope="module", params=["topics", "noise"])
def vectors(request):
    """Vectors around topics, as words are; and such as have nothing in common, the hardest."""
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((V, D)).astype(np.float32)
    if request.param == "noise":
        return noise
    return noise + 2 * rng.standard_normal((100, D))[rng.integers(0, 100, V)].astype("f4")


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_the_index_finds_nineteen_of_twenty_nearest_neighbours(vectors):
    rows, cosines = NeighbourIndex(build_index(vectors)).nearest(vectors[:500], 10)
    expected, _ = exact(unit(vectors), vectors[:500], 10)
    recall = np.mean([len(set(a) & set(b)) for a, b in zip(rows, expected, strict=True)]) / 10
    assert recall >= 0.95
    true_cosines = np.take_along_axis(unit(vectors)[:500] @ unit(vectors).T, rows, 1)
    np.testing.assert_allclose(cosines, true_cosines, atol=1e-5)
    assert (np.diff(cosines) <= 0).all()


def test_exact_neighbours_are_those_of_most_similar(vectors):
    word_vectors = WordVectors([str(n) for n in range(V)], vectors)
    rows, cosines = exact(word_vectors.unit, vectors[:3], 6)
    for n in range(3):
        neighbours = word_vectors.most_similar([str(n)], count=5)
        assert [int(word) for word, _ in neighbours] == rows[n, 1:].tolist()
        np.testing.assert_allclose([x for _, x in neighbours], cosines[n, 1:], rtol=1e-5)


def test_a_question_may_be_answered_by_an_index_that_is_made_once(vectors, monkeypatch):
    word_vectors = WordVectors([str(n) for n in range(V)], vectors)
    questions = [([str(n), str(n + 1)], [str(n + 2)]) for n in range(100)]
    expected = [dict(word_vectors.most_similar(*question)) for question in questions]
    builds = []
    monkeypatch.setattr(
        "photinus.embeddings.vectors.build_index", lambda v: builds.append(1) or build_index(v)
    )
    answers = [
        dict(word_vectors.most_similar(*question, approximate=True)) for question in questions
    ]
    assert builds == [1]
    for (plus, minus), answer, expected_answer in zip(questions, answers, expected, strict=True):
        assert len(answer) == 10
        assert not {*plus, *minus} & answer.keys()
        assert list(answer.values()) == sorted(answer.values(), reverse=True)
        common = answer.keys() & expected_answer.keys()
        assert [answer[word] for word in common] == pytest.approx(
            [expected_answer[w] for w in common], abs=1e-5
        )
    recall = sum(len(a.keys() & b.keys()) for a, b in zip(answers, expected, strict=True)) / 1000
    assert recall >= 0.95


def test_an_index_of_few_words_has_all_but_those_of_the_question():
    word_vectors = WordVectors(["a", "b", "c"], np.eye(3, dtype=np.float32) + 0.1)
    assert len(word_vectors.most_similar(["a"], approximate=True)) == 2


def test_the_same_vectors_give_the_same_index():
    points = np.random.default_rng(1).standard_normal((500, 16)).astype(np.float32)
    rows = [NeighbourIndex(build_index(points)).nearest(points, 5)[0] for _ in range(2)]
    np.testing.assert_array_equal(*rows)


def test_missing_usearch_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "usearch.index", None)
    with pytest.raises(
        NotReadyError, match=r'pip install "photinus\[neighbors\]", or ask for exact ones'
    ):
        build_index(np.eye(3, dtype=np.float32))
