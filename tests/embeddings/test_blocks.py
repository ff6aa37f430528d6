"""Sentences become rows of one length."""

import numpy as np
import pyarrow as pa
import pytest

from photinus.embeddings.blocks import (
    blocks,
    encoded,
    rows_read,
    tokens_in_block,
    usual_passes,
    words_in_round,
    words_in_sharded_round,
)
from photinus.embeddings.kernel import mark
from photinus.embeddings.reference import Rule
from photinus.embeddings.vocabulary import draw_tables


def test_words_become_numbers_and_unknown_ones_are_left_out():
    lists = pa.array([["a", "x", "b"], None, [], ["x"], ["b", None, "a"]])
    assert encoded(lists, pa.array(["a", "b"])).tolist() == [0, 1, -1, -1, -1, 1, 0, -1]


@pytest.mark.parametrize(
    ("words", "workers", "each"),
    [
        (22e6, 1, 2_200_000),
        (22e7, 1, 5_000_000),
        (22e6, 2, 800_000),
        (22e6, 3, 533_333),
        (22e6, 8, 200_000),
        (22e6, 9, 42_666),
        (22e6, 16, 24_000),
        (16e5, 16, 1e4),
    ],
)
def test_many_workers_read_less_between_two_rounds_and_nobody_more_than_a_tenth(
    words, workers, each
):
    assert words_in_round(int(words), workers) == each


@pytest.mark.parametrize(
    ("occurrences", "passes"), [(1, 20), (60, 20), (80, 15), (200, 6), (240, 5), (10**6, 5)]
)
def test_where_words_occur_seldom_a_text_is_read_more_often(occurrences, passes):
    counts = np.arange(1, 2 * occurrences)  # few are frequent, and many are not
    assert usual_passes(counts) == passes


@pytest.mark.parametrize(("words", "passes"), [(400_000, 15), (1_000_000, 6), (10**9, 5)])
def test_a_long_text_of_rare_words_is_not_read_for_hours(words, passes):
    counts = np.broadcast_to(np.int64(20), words)
    assert usual_passes(counts) == passes


@pytest.mark.parametrize("words", [2_000, 50_000])
@pytest.mark.parametrize("power", [0.0, 1.0])
def test_as_many_rows_are_read_as_is_expected(words, power):
    counts = (1e6 / np.arange(1, 20_001) ** power).astype(np.int64)
    rng, shares = np.random.default_rng(0), counts / counts.sum()
    text = rng.choice(len(counts), (1, words), p=shares).astype(np.int32)
    inputs, outputs = np.zeros((2, len(counts)), np.bool_)
    states = np.zeros(1, np.int64)
    mark(text, draw_tables(counts, 0.0, 5), Rule(5, 5, cbow=False), states, inputs, outputs)
    uses, alike = np.unique(counts, return_counts=True)
    expected = rows_read(words, uses.astype(float), alike.astype(float), 5)
    assert inputs.sum() + outputs.sum() == pytest.approx(expected, rel=0.02)


ONCE, FREQUENT = np.full(11_000_000, 2), np.full(1000, 10**5)
ZIPF = (1e9 / np.arange(1, 400_001)).astype(np.int64)


@pytest.mark.parametrize(
    ("counts", "dims", "least", "most"),
    [
        (FREQUENT, 300, 200_000, 200_000),  # all rows are there in every round
        (ONCE, 200, 11_000, 13_000),  # 64 MB: shorter rounds send no more
        (ONCE, 900, 2_500, 3_000),
        (ZIPF, 300, 80_000, 100_000),  # 256 MB: frequent words would come and go
        (ZIPF[:50_000], 100, 200_000, 200_000),
    ],
)
def test_a_round_of_sharded_tables_is_as_long_as_its_rows_have_room(counts, dims, least, most):
    for negatives in (5, 15):
        words = words_in_sharded_round(200_000, counts, negatives, 4 * dims)
        assert words <= most
        assert negatives == 15 or words >= least


def test_a_round_of_sharded_tables_has_a_word_whatever_is_asked():
    assert words_in_sharded_round(0, np.array([5, 4]), 0, 8) == 1
    assert 1 <= words_in_sharded_round(10, ONCE, 0, 1 << 20) <= 10


def test_a_slice_of_a_column_is_read_from_its_own_beginning():
    lists = pa.array([["a"], ["b"], ["a", "b"]]).slice(1)
    assert encoded(lists, pa.array(["a", "b"])).tolist() == [1, -1, 0, 1, -1]


@pytest.mark.parametrize("cuts", [[7], [1, 2, 3, 50], []])
def test_rows_hold_the_text_whole_however_it_comes(cuts):
    text = np.arange(101, dtype=np.int32)
    rows = np.concatenate(list(blocks(iter(np.split(text, cuts)), 10)))
    assert rows.shape == (11, 10)
    assert rows.ravel()[:101].tolist() == text.tolist()
    assert (rows.ravel()[101:] == -1).all()


def test_no_text_gives_no_row():
    assert list(blocks(iter([np.array([-1, -1], np.int32)]), 10)) == []


def test_a_worker_has_rows_enough_to_agree_several_times():
    assert [tokens_in_block(words, 4) for words in (10, 50_000, 10**9)] == [64, 195, 1000]
