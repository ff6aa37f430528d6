"""Rows of a table that are drawn without those between them."""

import numpy as np
import pytest

spaced = pytest.importorskip("photinus.embeddings.random_rows")

ROWS = 37


@pytest.mark.parametrize("width", [2, 8, 100])
@pytest.mark.parametrize("spacing", [1, 3, 40])
def test_they_are_those_of_the_whole_table_and_the_generator_stays_where_it_is(spacing, width):
    whole = np.random.default_rng(5).random((ROWS, width), np.float32)
    rng = np.random.default_rng(5)
    for first in range(min(spacing, ROWS)):
        rows = np.zeros((len(range(first, ROWS, spacing)), width), np.float32)
        assert spaced.draw_spaced(rows, rng, first, spacing)
        assert np.array_equal(rows, whole[first::spacing])


@pytest.mark.parametrize("kind", [np.random.Philox, np.random.PCG64DXSM])
def test_of_generators_of_another_kind_none_is_drawn(kind):
    assert not spaced.draw_spaced(np.zeros((1, 2), np.float32), np.random.Generator(kind(5)), 0, 1)


def test_none_is_drawn_where_two_rows_share_64_bits():
    rng = np.random.default_rng(5)
    assert not spaced.draw_spaced(np.zeros((1, 3), np.float32), rng, 0, 1)
    rng.random(1, np.float32)
    assert not spaced.draw_spaced(np.zeros((1, 2), np.float32), rng, 0, 1)
