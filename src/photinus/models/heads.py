"""What a module's outputs stand for, and how many of them are wrong, whatever the loss."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from photinus.models.losses import CLASSES as CLASS_LOSSES
from photinus.models.losses import SEQUENCE_LOSS
from photinus.models.metrics import CLASS_METRICS, confusion_sums

BINARY, CLASSES, LABELS, LOGS, NUMBERS = "binary", "classes", "labels", "logs", "numbers"
TOKENS = "tokens"
"""A class for each token of a row."""
_OUTCOMES = ("right", "extra", "missed")


def head_under(loss: str, outputs: Tensor, labels: Tensor, metrics: Collection[str] = ()) -> str:
    """Returns what outputs [B, ...] stand for, if the loss or a metric shows that they are classes.

    Args:
        loss: its name. A user's own loss does not show it.
        outputs: before a softmax or sigmoid.
        labels: [B], the class's number; any other shape is that of no classes. Tokens are handed
            over as `labelled_tokens` returns them.
        metrics: the names that the user asks for. A metric of classes shows it where the loss does
            not.

    Example:
        >>> head_under("cross_entropy", torch.zeros(4, 3), torch.zeros(4))
        'classes'
        >>> head_under("mynets:focal", torch.zeros(4, 3), torch.zeros(4))
        ''
        >>> head_under("mynets:focal", torch.zeros(4, 3), torch.zeros(4), ("accuracy",))
        'classes'
    """
    if labels.ndim != 1:
        return ""
    if loss in (*CLASS_LOSSES, SEQUENCE_LOSS):
        return CLASSES
    is_own = ":" in loss and not CLASS_METRICS.isdisjoint(metrics)
    if outputs.numel() == len(labels):
        return BINARY if is_own or loss == "binary_cross_entropy" else ""
    return CLASSES if is_own and outputs.ndim == 2 else ""


def head_of(loss: str, outputs: Tensor, metrics: Collection[str] = ()) -> str:
    """Returns what outputs [B, ...] stand for where no labels are at hand.

    Args:
        loss: its name.
        outputs: before a softmax or sigmoid.
        metrics: the names that the user asks for.

    Example:
        >>> head_of("binary_cross_entropy", torch.zeros(4, 3)), head_of("mse", torch.zeros(4, 3))
        ('labels', 'numbers')
    """
    if loss == SEQUENCE_LOSS:
        return TOKENS
    head = head_under(loss, outputs, torch.zeros(len(outputs)), metrics)
    is_of_classes = outputs.ndim == 2 and outputs.shape[1] > 1  # one class is none to choose
    if head and (head != CLASSES or is_of_classes):
        return head
    return {"binary_cross_entropy": LABELS, "poisson": LOGS}.get(loss, NUMBERS)


def errors_of(head: str, outputs: Tensor, labels: Tensor) -> dict[str, float]:
    """Returns {"errors": how many examples were put into a wrong class}, or {} without classes."""
    if head not in (CLASSES, BINARY):
        return {}
    is_binary = head == BINARY
    wrong = (
        (outputs.reshape(-1) > 0) != (labels > 0.5) if is_binary else outputs.argmax(1) != labels
    )
    return {"errors": float(torch.count_nonzero(wrong))}


def evaluation_sums(head: str, outputs: Tensor, labels: Tensor) -> dict[str, float]:
    """Returns how often each class was predicted for each, or each label rightly or wrongly; or {}.

    Args:
        head: what outputs stand for.
        outputs: [B, ...], before a softmax or sigmoid.
        labels: [B], the class's number; or [B, L], zeros and ones.
    """
    if head in (CLASSES, BINARY):
        return confusion_sums(outputs, labels)
    if head != LABELS:
        return {}
    predicted, true = outputs.reshape(len(labels), -1) > 0, labels.reshape(len(labels), -1) > 0.5
    outcomes = zip(_OUTCOMES, (predicted & true, predicted & ~true, true & ~predicted), strict=True)
    counts = {name: hits.sum(0).tolist() for name, hits in outcomes}
    return {
        f"label:{k}:{name}": float(n)
        for name, counts_by_label in counts.items()
        for k, n in enumerate(counts_by_label)
    }


def label_counts(sums: Mapping[str, float]) -> list[list[int]]:
    """Returns true positives, false positives, false negatives and true negatives of each label.

    Example:
        >>> label_counts(
        ...     {"examples": 9.0, "label:0:right": 4.0, "label:0:extra": 2.0, "label:0:missed": 0.0}
        ... )
        [[4, 2, 0, 3]]
    """
    labels = sum(name.startswith("label:") for name in sums) // len(_OUTCOMES)
    counts = [[round(sums[f"label:{k}:{name}"]) for name in _OUTCOMES] for k in range(labels)]
    return [[*cases, round(sums["examples"]) - sum(cases)] for cases in counts]
