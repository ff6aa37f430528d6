import numpy as np
import torch
from sklearn.metrics import multilabel_confusion_matrix

from photinus.models.heads import (
    BINARY,
    CLASSES,
    LABELS,
    NUMBERS,
    errors_of,
    evaluation_sums,
    head_under,
    label_counts,
)

OUTPUTS = torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, 0.0]])
NAUGHTS = torch.tensor([0, 0, 0])


def test_errors_are_counted_where_there_are_classes():
    assert errors_of(CLASSES, OUTPUTS, NAUGHTS) == {"errors": 1.0}
    assert errors_of(BINARY, OUTPUTS[:, :1], NAUGHTS) == {"errors": 2.0}
    assert errors_of(NUMBERS, OUTPUTS, NAUGHTS) == errors_of(LABELS, OUTPUTS, OUTPUTS) == {}


def test_a_loss_tells_of_classes_only_where_its_labels_are_their_numbers():
    assert head_under("cross_entropy", OUTPUTS, NAUGHTS) == CLASSES
    assert head_under("binary_cross_entropy", OUTPUTS[:, :1], NAUGHTS) == BINARY
    soft = torch.softmax(OUTPUTS, 1)
    others = [("cross_entropy", soft), ("binary_cross_entropy", soft), ("mynets:focal", NAUGHTS)]
    assert [head_under(loss, OUTPUTS, labels) for loss, labels in others] == ["", "", ""]


def test_the_counts_of_labels_are_scikit_learns_however_the_rows_are_cut():
    rng = np.random.default_rng(0)
    outputs, labels = rng.normal(size=(61, 3)), rng.integers(0, 2, (61, 3))
    sums = {"examples": 61.0}
    for some in np.array_split(np.arange(61), 4):
        batch = evaluation_sums(LABELS, torch.tensor(outputs[some]), torch.tensor(labels[some]))
        sums |= {name: sums.get(name, 0.0) + n for name, n in batch.items()}
    tables = multilabel_confusion_matrix(labels, outputs > 0)  # [L, 2, 2]
    expected = [[t[1, 1], t[0, 1], t[1, 0], t[0, 0]] for t in tables]
    assert label_counts(sums) == expected
    assert label_counts({"examples": 61.0}) == []
