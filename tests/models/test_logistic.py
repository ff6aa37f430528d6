"""Softmax regression refuses what it cannot read, in the words of the other models."""

from types import SimpleNamespace

import numpy as np
import pytest

from photinus.core.errors import DataError
from photinus.models.logistic import LogisticModel

pytestmark = pytest.mark.numerics

MODEL = LogisticModel(features=6, classes=3)


@pytest.mark.parametrize("ask", [lambda b: MODEL.learn(b, 0), MODEL.measure])
@pytest.mark.parametrize(
    ("features", "labels", "said"),
    [
        (np.ones((4, 5), "f4"), np.zeros(4, int), r"rows of 6 numbers; got \[4, 5\]"),
        (np.ones((4, 6), "f4"), None, "the batch has no labels"),
    ],
)
def test_rows_of_another_width_and_rows_without_labels_are_refused(ask, features, labels, said):
    with pytest.raises(DataError, match=said):
        ask(SimpleNamespace(features=features, labels=labels))


def test_pictures_are_read_as_rows():
    labels = np.array([0, 1])
    flat = SimpleNamespace(features=np.arange(12, dtype="f4").reshape(2, 6), labels=labels)
    square = SimpleNamespace(features=flat.features.reshape(2, 2, 3), labels=labels)
    assert np.array_equal(MODEL.learn(flat, 0)[0].copy(), MODEL.learn(square, 0)[0])
