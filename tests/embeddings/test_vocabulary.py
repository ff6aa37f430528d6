"""From counts to what is drawn."""

from itertools import pairwise

import numpy as np
import pytest
from gensim.models import Word2Vec

from photinus.core.errors import DataError
from photinus.embeddings.draws import (
    Subwords,
    draw_negatives,
    draw_window,
    huffman_path,
    sample_sentence,
)
from photinus.embeddings.vocabulary import alias_table, draw_tables, gains, huffman, keep_shares

COUNTS = np.array([900, 300, 100, 30, 10, 3])


def test_negatives_are_drawn_in_proportion_to_their_counts_to_the_power_of_three_quarters():
    chances, state, hits = draw_tables(COUNTS, 0, 1), 11, np.zeros(6)
    outputs, labels = np.zeros(2, np.int64), np.zeros(2)
    for _ in range(20_000):
        state = draw_negatives(0, chances.accept, chances.alias, state, outputs, labels)
        hits[outputs[1]] += 1
        assert (labels[1] == 0) == (outputs[1] != 0)
    expected = COUNTS**0.75 / (COUNTS**0.75).sum()
    assert abs(hits / hits.sum() - expected).max() < 0.015


def test_an_alias_table_holds_each_weight_whole():
    weights = np.random.default_rng(0).uniform(0.1, 9, 50)
    accept, alias = alias_table(weights.copy())
    totals = accept.astype(float)
    np.add.at(totals, alias, 1.0 - accept)
    np.testing.assert_allclose(totals / 50, weights / weights.sum(), atol=1e-6)


def test_the_kernel_pairs_the_columns_to_the_same_bits():
    kernel = pytest.importorskip("photinus.embeddings.kernel")
    weights = np.random.default_rng(1).pareto(1.0, 3000) + 0.01
    by_python, by_kernel = (
        alias_table(weights.copy(), pair) for pair in (None, kernel.fill_alias_table)
    )
    for one, other in zip(by_python, by_kernel, strict=True):
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)


def test_frequent_words_are_left_out_as_often_as_their_share_says():
    keep, text, sampled = (
        keep_shares(COUNTS, 0.01),
        np.zeros(20_000, np.int64),
        np.zeros(20_000, int),
    )
    count, end, _ = sample_sentence(text, 0, keep, 5, sampled)
    assert end == 20_000
    assert count / 20_000 == pytest.approx(keep[0], abs=0.01)
    assert keep[-1] == 1


def test_windows_are_equally_often_of_each_size():
    sides, state = [], 3
    for _ in range(5000):
        side, state = draw_window(5, state)
        sides.append(side)
    assert sorted(set(sides)) == [1, 2, 3, 4, 5]
    assert abs(np.bincount(sides)[1:] / 5000 - 0.2).max() < 0.02


def test_the_codes_of_words_are_prefix_free_and_the_shortest_on_average():
    starts, nodes, codes = huffman(COUNTS)
    words = ["".join(str(int(c)) for c in codes[a:b]) for a, b in pairwise(starts)]
    assert all(not b.startswith(a) for a in words for b in words if a is not b)
    lengths = np.diff(starts)
    assert (lengths * COUNTS).sum() == 900 + 2 * 300 + 3 * 100 + 4 * 30 + 5 * 13
    outputs, labels = np.zeros(5, np.int64), np.zeros(5)
    assert huffman_path(5, starts, nodes, codes, outputs, labels) == lengths[5]
    assert outputs[0] == nodes[starts[0]]  # the root is on every way


def test_codes_are_as_long_as_gensims_on_average():
    counts = np.maximum(1, 5000 // np.arange(1, 200))
    gensim_model = Word2Vec(hs=1, negative=0, min_count=1, vector_size=1)
    gensim_model.build_vocab_from_freq({str(n): int(count) for n, count in enumerate(counts)})
    codes = [len(gensim_model.wv.get_vecattr(str(n), "code")) for n in range(len(counts))]
    assert (np.diff(huffman(counts)[0]) * counts).sum() == (np.array(codes) * counts).sum()


def test_a_rare_row_moves_as_often_as_there_are_workers_and_a_frequent_one_once():
    counts = np.array([10**7, 10**4, 10, 1])
    inputs, outputs = gains(counts, np.ones(4), 4, 1e5, 5)
    assert inputs[0] == pytest.approx(1)
    assert inputs[-1] == pytest.approx(4, rel=0.02)
    assert (np.diff(inputs) >= 0).all()
    assert (np.diff(outputs) >= 0).all()
    assert gains(counts, np.ones(4), 1, 1e5, 5)[0].tolist() == [1, 1, 1, 1]


def test_beyond_eight_workers_words_of_middling_count_have_smaller_gains():
    counts = np.array([10**7, 10**4, 10, 1])
    eight, nine = (gains(counts, np.ones(4), k, 1e5, 5)[0] for k in (8, 9))
    assert 1 < nine[1] < 0.6 * eight[1]
    assert nine[-1] == pytest.approx(9, rel=0.02)


def test_a_row_of_n_grams_has_the_gain_of_all_its_words_together():
    counts = np.array([10**7, 10**4, 10, 1])
    shared, of_the_rarest = 4, 6  # rows 4 to 6; nobody uses row 5
    grams = Subwords(np.array([0, 1, 2, 3, 5]), np.array([shared] * 4 + [of_the_rarest]))
    plain, outputs = gains(counts, np.ones(4), 4, 1e5, 5)
    inputs, others = gains(counts, np.ones(4), 4, 1e5, 5, grams)
    np.testing.assert_array_equal(inputs[:4], plain)
    np.testing.assert_array_equal(others, outputs)
    assert inputs[shared] == pytest.approx(1)
    assert inputs[of_the_rarest] == plain[-1]
    assert np.isfinite(inputs).all()


def test_missing_counts_are_refused():
    with pytest.raises(DataError, match="need the count of every word"):
        draw_tables(np.zeros(4, np.int64), 0, 5)
