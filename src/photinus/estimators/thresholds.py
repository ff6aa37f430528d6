"""Thresholds of classes, as Spark ML has them: the largest probability / threshold wins."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from photinus.core.errors import UsageError
from photinus.data.base import Array
from photinus.models.heads import BINARY, CLASSES, LABELS, TOKENS, errors_of, evaluation_sums
from photinus.models.metrics import CLASS_METRICS, counted

_COUNTS = ("errors", "exact:", "extra:", "missed:", "right:", "said:")
"""Begin the names of sums that count predicted classes."""


def to_thresholds(value: Any) -> list[float]:  # noqa: ANN401 - what a user may give
    """Returns a number for each class, as Spark ML takes them.

    Example:
        >>> to_thresholds((1, 0.25))
        [1.0, 0.25]
    """
    try:
        thresholds = [float(number) for number in value]
    except (TypeError, ValueError):
        thresholds = []
    is_valid = all(0 <= number < math.inf for number in thresholds)
    if not (is_valid and sum(thresholds) > 0 and thresholds.count(0.0) <= 1):
        wrong = "thresholds must be a number of at least 0 for each class, at most one of them 0"
        raise UsageError(wrong, got=repr(value), do="e.g. [0.9, 0.1], where class 1 is rare")
    return thresholds


def check_thresholds(thresholds: Sequence[float] | None, head: str, outputs: int) -> None:
    """Refuses thresholds that are not one for each class.

    Args:
        thresholds: as of `to_thresholds`; None for none.
        head: what a network's outputs stand for.
        outputs: that it returns for a row.

    Raises:
        UsageError: they are more or fewer, or a row has several labels.
    """
    if thresholds is None:
        return
    if head in (LABELS, TOKENS):
        wrong, do = "thresholds choose one class for each row", "compare probability with your own"
        do = do if head == LABELS else "leave them out"
        raise UsageError(wrong, got="several labels a row", do=do)
    classes = 2 if head == BINARY else outputs
    if len(thresholds) != classes:
        wrong = "thresholds must hold a number for each class"
        raise UsageError(wrong, got=f"{len(thresholds)} for {classes} classes")


def chosen_classes(probability: Array, thresholds: Sequence[float]) -> Array:
    """Returns the class with the largest probability / threshold, the first of several [B].

    A class whose threshold is 0 is chosen unless its probability is 0, too.

    Args:
        probability: [B, classes].
        thresholds: as of `to_thresholds`, one for each class.

    Example:
        >>> chosen_classes(np.array([[0.8, 0.2], [0.95, 0.05]]), [0.9, 0.1])
        array([1, 0])
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = probability.astype(np.float64) / np.asarray(thresholds)
    classes: Array = np.where(np.isnan(scaled), -np.inf, scaled).argmax(1)
    return classes


def sums_by_thresholds(
    sums: Mapping[str, float],
    probability: Array,
    labels: Tensor,
    thresholds: Sequence[float],
    metrics: Collection[str],
) -> dict[str, float]:
    """Returns a batch's sums, in which the classes count that thresholds choose.

    The loss and other sums of outputs, as of `top5`, stay what they are.

    Args:
        sums: as of `sums_over`.
        probability: [B, classes].
        labels: [B], the class's number.
        thresholds: as of `to_thresholds`, one for each class.
        metrics: names of `METRICS`, or of the user's own.
    """
    chosen = torch.from_numpy(chosen_classes(probability, thresholds))
    outputs = one_hot(chosen, len(thresholds)).float()  # whose largest is that class
    counts = {*metrics} & CLASS_METRICS - {"top5"}
    return {
        **{name: value for name, value in sums.items() if not name.startswith(_COUNTS)},
        **errors_of(CLASSES, outputs, labels),
        **evaluation_sums(CLASSES, outputs, labels),
        **counted(counts, outputs, labels),
    }
