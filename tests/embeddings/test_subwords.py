"""n-grams of words: their hashes and vectors are gensim's and fastText's."""

import numpy as np
import pytest
from gensim.models import FastText
from gensim.models.fasttext import ft_ngram_hashes

from photinus.core.errors import UsageError
from photinus.embeddings.subwords import Ngrams, SubwordVectors, compose_vectors
from photinus.embeddings.vectors import WordVectors

WORDS = ["a", "cat", "cats", "Straße", "日本語", "naïve", "é", "antidisestablishmentarianism"]


@pytest.mark.parametrize(("shortest", "longest"), [(1, 4), (3, 6), (5, 5), (9, 12)])
def test_the_rows_of_n_grams_are_gensims_in_the_same_order(shortest, longest):
    found = Ngrams(shortest, longest, 1000).of(WORDS, first=50)
    for number, word in enumerate(WORDS):
        rows = found.rows[found.starts[number] : found.starts[number + 1]]
        assert [row - 50 for row in rows] == list(ft_ngram_hashes(word, shortest, longest, 1000))


def test_a_vector_is_the_mean_of_a_words_row_and_its_n_grams():
    inputs = np.random.default_rng(0).random((len(WORDS) + 100, 7), np.float32)
    grams = Ngrams(3, 4, 100).of(WORDS, first=len(WORDS))
    made = compose_vectors(inputs, grams)
    for number, vector in enumerate(made):
        rows = grams.rows[grams.starts[number] : grams.starts[number + 1]]
        np.testing.assert_allclose(vector, inputs[[number, *rows]].mean(axis=0), rtol=1e-5)


@pytest.fixture(scope="module")
def theirs():
    sentences = [["sea", "seal", "shore"], ["sky", "skies", "cloud"]] * 20
    return FastText(sentences, vector_size=9, min_count=1, bucket=60, min_n=3, max_n=4, seed=1).wv


@pytest.fixture(scope="module")
def ours(theirs):
    ngrams = Ngrams(3, 4, 60)
    grams = ngrams.of(theirs.index_to_key, first=len(theirs))
    inputs = np.concatenate([theirs.vectors_vocab, theirs.vectors_ngrams])
    held = SubwordVectors(ngrams, theirs.vectors_ngrams)
    return WordVectors(theirs.index_to_key, compose_vectors(inputs, grams), subwords=held)


@pytest.mark.parametrize("word", ["seal", "seashore", "Skylab", "ü"])
def test_seen_and_unseen_words_have_the_vectors_of_gensims_fasttext(word, ours, theirs):
    np.testing.assert_allclose(ours.vector(word), theirs.get_vector(word), rtol=1e-4, atol=1e-7)


def test_the_neighbours_of_an_unseen_word_are_gensims(ours, theirs):
    found, same = ours.most_similar(["seas"], ["clouds"]), theirs.most_similar(["seas"], ["clouds"])
    assert [word for word, _ in found] == [word for word, _ in same]
    np.testing.assert_allclose([x for _, x in found], [x for _, x in same], rtol=1e-4)


def test_a_file_of_safetensors_keeps_what_unseen_words_need(ours, tmp_path):
    ours.save(tmp_path / "words.safetensors")
    again = WordVectors.load(tmp_path / "words.safetensors")
    assert again.subwords.ngrams == Ngrams(3, 4, 60)
    np.testing.assert_array_equal(again.vector("seashore"), ours.vector("seashore"))
    ours.save(tmp_path / "words.bin")
    with pytest.raises(UsageError, match="the word has no vector"):
        WordVectors.load(tmp_path / "words.bin").vector("seashore")


def test_a_word_without_an_n_gram_has_no_vector(ours):
    with pytest.raises(UsageError, match="the word has no vector; got ''"):
        ours.vector("")


@pytest.mark.parametrize("wrong", [(0, 3, 9), (4, 3, 9), (3, 6, 0)])
def test_impossible_n_grams_are_refused(wrong):
    with pytest.raises(UsageError, match=r"(subwords|buckets) must be"):
        Ngrams(*wrong)
