"""Sentences become rows of one length."""

import numpy as np
import pyarrow as pa
import pytest

from photinus.embeddings.blocks import blocks, encoded, tokens_in_block, words_in_round


def test_words_become_numbers_and_unknown_ones_are_left_out():
    lists = pa.array([["a", "x", "b"], None, [], ["x"], ["b", None, "a"]])
    assert encoded(lists, pa.array(["a", "b"])).tolist() == [0, 1, -1, -1, -1, 1, 0, -1]


@pytest.mark.parametrize(
    ("words", "workers", "each"),
    [
        (22e6, 1, 200_000),
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
