"""Metrics by name against scikit-learn, however the rows are cut into batches."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn import metrics as oracle

from photinus.core.errors import UsageError
from photinus.models.metrics import (
    METRICS,
    check_metrics,
    confusion,
    confusion_sums,
    counted,
    finished,
)

ROWS, CLASSES = 61, 7
CASES = ("accuracy", "precision", "recall", "f1")


def chance(seed=0):
    return np.random.default_rng(seed)


def measured(names, outputs, labels, parts=4):
    """What workers' sums come to."""
    sums = {"examples": float(len(labels))}
    for index in np.array_split(np.arange(len(labels)), parts):
        batch = counted(names, torch.tensor(outputs[index]), torch.tensor(labels[index]))
        for name, value in batch.items():
            sums[name] = sums.get(name, 0.0) + value
    return finished(names, sums)


def cases_of(labels, predictions):
    how = {"average": "macro", "zero_division": 0}
    return {
        "accuracy": oracle.accuracy_score(labels, predictions),
        "precision": oracle.precision_score(labels, predictions, **how),
        "recall": oracle.recall_score(labels, predictions, **how),
        "f1": oracle.f1_score(labels, predictions, **how),
    }


def test_metrics_of_classes_are_scikit_learns():
    outputs, labels = chance().normal(size=(ROWS, CLASSES)), chance(1).integers(0, 5, ROWS)
    outputs[:, 6] = -9  # a class that is neither said nor true
    expected = cases_of(labels, outputs.argmax(1))
    expected["top5"] = oracle.top_k_accuracy_score(labels, outputs, k=5, labels=range(CLASSES))
    assert measured((*CASES, "top5"), outputs, labels) == pytest.approx(expected, rel=1e-12)


def test_one_logit_tells_two_classes_apart():
    outputs, labels = chance().normal(size=(ROWS, 1)), chance(1).integers(0, 2, ROWS)
    assert measured(CASES, outputs, labels) == pytest.approx(cases_of(labels, outputs[:, 0] > 0))


def test_metrics_of_several_labels_are_scikit_learns():
    outputs, labels = chance().normal(size=(ROWS, 4)), chance(1).integers(0, 2, (ROWS, 4))
    outputs[:, 3], labels[:, 3] = -1, 0  # a label that nobody has counts as 0
    assert measured(CASES, outputs, labels) == pytest.approx(cases_of(labels, outputs > 0))


@pytest.mark.parametrize("width", [1, 3])
def test_metrics_of_numbers_are_scikit_learns(width):
    labels = 5 + chance(1).normal(size=(ROWS, width))
    outputs = labels + 0.5 * chance().normal(size=(ROWS, width))
    expected = {
        "rmse": oracle.mean_squared_error(labels, outputs) ** 0.5,
        "mae": oracle.mean_absolute_error(labels, outputs),
        "r2": oracle.r2_score(labels, outputs),
    }
    names = ("rmse", "mae", "r2")
    flat = labels if width > 1 else labels[:, 0]
    assert measured(names, outputs, flat) == pytest.approx(expected, rel=1e-9)


def halves(outputs, labels):
    """One's own metric."""
    return (outputs.reshape(-1) - labels).abs() < 0.5


def test_ones_own_metric_is_a_mean_over_the_rows(monkeypatch):
    outputs, labels = chance().normal(size=ROWS), chance(1).normal(size=ROWS)
    monkeypatch.setitem(sys.modules, "mymetrics", SimpleNamespace(halves=halves))
    expected = np.mean(np.abs(outputs - labels) < 0.5)
    metrics = measured(("mymetrics:halves",), outputs, labels)
    assert metrics == {"mymetrics:halves": pytest.approx(expected)}


def test_a_table_is_scikit_learns_confusion_matrix():
    outputs, labels = chance().normal(size=(ROWS, CLASSES)), chance(1).integers(0, CLASSES, ROWS)
    sums = confusion_sums(torch.tensor(outputs), torch.tensor(labels))
    expected = oracle.confusion_matrix(labels, outputs.argmax(1), labels=range(CLASSES))
    assert confusion(sums) == expected.tolist()
    assert confusion({"examples": 3.0}) == []


def raises(outputs, labels):
    """One's own metric, with a fault in it."""
    return outputs.view(-1, 1000)


OTHERS = {
    "raises": (raises, "got RuntimeError: shape .*test_metrics.py, line"),
    "mean": (lambda outputs, labels: (outputs - labels).mean(), r"got a tensor of shape \[\];"),
    "kind": (lambda outputs, labels, task: None, "got TypeError: .*argument: 'task';"),
    "plain": (lambda outputs, labels: 0.5, "got float;"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_metric_that_is_no_number_for_each_row_is_told_what_it_must_be(monkeypatch, name):
    each, got = OTHERS[name]
    monkeypatch.setitem(sys.modules, "mymetrics", SimpleNamespace(**{name: each}))
    wrong = f"the metric mymetrics:{name} must take outputs .* and return a number for each row.*"
    with pytest.raises(UsageError, match=rf"{wrong}{got}") as caught:
        counted([f"mymetrics:{name}"], torch.zeros(4), torch.zeros(4))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["classification:BinaryAUROC", "functional:accuracy"])
def test_what_torchmetrics_makes_is_refused_in_one_sentence(name):
    pytest.importorskip("torchmetrics")
    with pytest.raises(UsageError, match=r"must take outputs .*; wrap it in a function") as caught:
        counted([f"torchmetrics.{name}"], torch.zeros(4), torch.zeros(4))
    assert "\n" not in str(caught.value)


def test_a_far_name_is_not_suggested():
    with pytest.raises(UsageError, match="unknown metric; got 'auroc'; known: accuracy, f1, mae"):
        check_metrics(["auroc"])


def test_an_unknown_metric_is_named():
    check_metrics([*METRICS, "mine:metric"])
    with pytest.raises(UsageError, match="unknown metric; got 'acuracy'; did you mean 'accuracy'"):
        check_metrics(["acuracy"])
