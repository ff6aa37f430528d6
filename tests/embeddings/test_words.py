"""A vocabulary in a file does what a list of the same words does."""

import copy

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from photinus.checkpoint.mapped import is_mapped
from photinus.embeddings.vectors import WordVectors
from photinus.embeddings.words import collect_vocabulary, row_finder

texts = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), min_size=1)


def batches(words, counts, size=3):
    for start in range(0, len(words), size):
        array = pa.array(["left out", *words[start : start + size]], pa.string()).slice(1)
        yield array, counts[start : start + size]


def listed_and_mapped(words):
    counts = np.arange(len(words))[::-1].astype(np.int64)
    listed, _ = collect_vocabulary(batches(words, counts), len(words))
    mapped, mapped_counts = collect_vocabulary(batches(words, counts), 0)
    assert np.array_equal(mapped_counts, counts)
    return listed, mapped


@given(texts.map(lambda drawn: ["a", *dict.fromkeys(word for word in drawn if word != "a")]))
def test_words_in_a_file_are_found_and_cut_as_those_of_a_list(words):
    listed, mapped = listed_and_mapped(words)
    assert (listed, list(mapped), len(mapped)) == (words, words, len(words))
    assert [mapped[row] for row in range(-len(words), len(words))] == words + words
    for cut in (slice(1, 3), slice(None, None, -1), slice(5, 2), slice(2, 99)):
        assert mapped[cut] == words[cut]
    assert [mapped.rows[word] for word in words] == list(range(len(words)))
    assert list(mapped.rows) == words
    assert "of five" not in mapped.rows
    queries = [words[-1], "of five", None, words[0]]
    assert row_finder(mapped)(queries).tolist() == row_finder(listed)(queries).tolist()
    with pytest.raises(IndexError):
        mapped[len(words)]


def test_words_beyond_the_limit_lie_in_a_file_and_travel_without_it():
    _, mapped = listed_and_mapped(["king", "queen", "man", "woman"])
    assert is_mapped(mapped.letters)
    copied = copy.deepcopy(mapped)  # by what pickles it, too
    assert list(copied) == list(mapped)
    assert not is_mapped(copied.letters)
    assert copied.rows["man"] == 2


def test_vectors_of_words_in_a_file_answer_as_those_of_a_list(tmp_path):
    listed, mapped = listed_and_mapped(["king", "queen", "man", "woman", "k\u00f6nig"])
    numbers = np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32)
    listed_vectors, mapped_vectors = WordVectors(listed, numbers), WordVectors(mapped, numbers)
    for query in (["king"], ["k\u00f6nig", "woman"]):
        assert mapped_vectors.most_similar(query) == listed_vectors.most_similar(query)
    mapped_vectors.save(tmp_path / "v.safetensors")
    loaded = WordVectors.load(tmp_path / "v.safetensors")
    assert is_mapped(loaded.words.letters)
    assert list(loaded.words) == listed
    assert loaded.most_similar(["man"]) == listed_vectors.most_similar(["man"])
