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
    grams = Ngrams(shortest, longest, 1000).of(WORDS, first=50)
    for number, word in enumerate(WORDS):
        rows = grams.rows[grams.starts[number] : grams.starts[number + 1]]
        assert [row - 50 for row in rows] == list(ft_ngram_hashes(word, shortest, longest, 1000))


def test_a_vector_is_the_mean_of_a_words_row_and_its_n_grams():
    inputs = np.random.default_rng(0).random((len(WORDS) + 100, 7), np.float32)
    grams = Ngrams(3, 4, 100).of(WORDS, first=len(WORDS))
    vectors = compose_vectors(inputs, grams)
    for number, vector in enumerate(vectors):
        rows = grams.rows[grams.starts[number] : grams.starts[number + 1]]
        np.testing.assert_allclose(vector, inputs[[number, *rows]].mean(axis=0), rtol=1e-5)


@pytest.fixture(scope="module")
def gensim_vectors():
    sentences = [["sea", "seal", "shore"], ["sky", "skies", "cloud"]] * 20
    return FastText(sentences, vector_size=9, min_count=1, bucket=60, min_n=3, max_n=4, seed=1).wv


@pytest.fixture(scope="module")
def our_vectors(gensim_vectors):
    ngrams = Ngrams(3, 4, 60)
    grams = ngrams.of(gensim_vectors.index_to_key, first=len(gensim_vectors))
    inputs = np.concatenate([gensim_vectors.vectors_vocab, gensim_vectors.vectors_ngrams])
    subword_vectors = SubwordVectors(ngrams, gensim_vectors.vectors_ngrams)
    return WordVectors(
        gensim_vectors.index_to_key, compose_vectors(inputs, grams), subwords=subword_vectors
    )


@pytest.mark.parametrize("word", ["seal", "seashore", "Skylab", "ü"])
def test_seen_and_unseen_words_have_the_vectors_of_gensims_fasttext(
    word, our_vectors, gensim_vectors
):
    np.testing.assert_allclose(
        our_vectors.vector(word), gensim_vectors.get_vector(word), rtol=1e-4, atol=1e-7
    )


def test_the_neighbours_of_an_unseen_word_are_gensims(our_vectors, gensim_vectors):
    neighbours, gensim_neighbours = (
        our_vectors.most_similar(["seas"], ["clouds"]),
        gensim_vectors.most_similar(["seas"], ["clouds"]),
    )
    assert [word for word, _ in neighbours] == [word for word, _ in gensim_neighbours]
    np.testing.assert_allclose(
        [x for _, x in neighbours], [x for _, x in gensim_neighbours], rtol=1e-4
    )


def test_a_file_of_safetensors_keeps_what_unseen_words_need(our_vectors, tmp_path):
    our_vectors.save(tmp_path / "words.safetensors")
    loaded = WordVectors.load(tmp_path / "words.safetensors")
    assert loaded.subwords.ngrams == Ngrams(3, 4, 60)
    np.testing.assert_array_equal(loaded.vector("seashore"), our_vectors.vector("seashore"))
    our_vectors.save(tmp_path / "words.bin")
    with pytest.raises(UsageError, match="the word has no vector"):
        WordVectors.load(tmp_path / "words.bin").vector("seashore")


def test_a_word_without_an_n_gram_has_no_vector(our_vectors):
    with pytest.raises(UsageError, match="the word has no vector; got ''"):
        our_vectors.vector("")


@pytest.mark.parametrize("wrong", [(0, 3, 9), (4, 3, 9), (3, 6, 0)])
def test_impossible_n_grams_are_refused(wrong):
    with pytest.raises(UsageError, match=r"(subwords|buckets) must be"):
        Ngrams(*wrong)
