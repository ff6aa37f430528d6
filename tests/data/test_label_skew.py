"""Labels that are spread unevenly are told apart from those that chance deals."""

import numpy as np
import pytest

from photinus.data.label_skew import MOST_LABELS, label_counts, skewed


def counts_by_slot(labels, workers):
    return {s: label_counts(part) for s, part in enumerate(np.array_split(labels, workers))}


@pytest.mark.parametrize("workers", [2, 8, 64])
@pytest.mark.parametrize("classes", [2, 10, 90])
@pytest.mark.parametrize("rows", [100, 20_000])
def test_rows_that_chance_deals_are_not_skewed(rows, classes, workers):
    labels = np.random.default_rng(workers).integers(0, classes, rows)
    assert skewed(counts_by_slot(labels, workers)) == {}


@pytest.mark.parametrize("workers", [2, 8])
def test_rows_sorted_by_label_are(workers):
    labels = np.sort(np.random.default_rng(0).integers(0, 10, 20_000)).astype(float)
    skews = skewed(counts_by_slot(labels, workers))
    assert set(skews) == set(range(workers))
    assert all(skew > 0.45 for skew in skews.values())


def test_the_slot_that_is_apart_is_named():
    even = np.tile(np.arange(10), 100)
    counts = {0: label_counts(even), 1: label_counts(even), 3: label_counts(np.full(1000, 7))}
    assert set(skewed(counts)) == {3}


def test_no_labels_measurements_and_empty_parts_are_no_skew():
    assert label_counts(None) == label_counts(np.zeros(0)) == label_counts(np.zeros((3, 2))) == {}
    assert label_counts(np.arange(MOST_LABELS + 1.0)) == {}
    assert skewed({}) == skewed({0: {}, 1: {}}) == {}
    assert skewed({0: {"a": 9}, 1: {}}) == {}
