"""Supervised losses by name, and what an evaluation sums up."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from photinus.core.settings import unknown_name
from photinus.models.factories import imported

__all__ = ["LOSSES", "Loss", "count_errors", "loss_named", "target_for"]

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs [B, ...], targets) → the batch's mean loss []."""

LOSSES: Mapping[str, Callable[..., Tensor]] = {
    "binary_cross_entropy": functional.binary_cross_entropy_with_logits,
    "cross_entropy": functional.cross_entropy,
    "huber": functional.huber_loss,
    "l1": functional.l1_loss,
    "mse": functional.mse_loss,
    "multi_margin": functional.multi_margin_loss,
    "poisson": functional.poisson_nll_loss,
    "reconstruction_cross_entropy": lambda z, t: (
        functional.binary_cross_entropy_with_logits(z, t, reduction="sum") / len(z)
    ),
    "reconstruction_mse": lambda z, t: (
        functional.mse_loss(torch.sigmoid(z), t, reduction="sum") / len(z)
    ),
}
"""All read outputs before any softmax or sigmoid. The two reconstructions are sums over an
example's units, as in Hinton and Salakhutdinov (2006)."""

_CLASSES = ("cross_entropy", "multi_margin")


def loss_named(name: str, label_smoothing: float = 0.0) -> Loss:
    """Returns one of `LOSSES`, or the user's own "package.module:function".

    Args:
        name: its name.
        label_smoothing: share of a label given to all classes alike; cross_entropy only.

    Raises:
        UsageError: there is no such loss.
    """
    if ":" in name:
        return imported(name, "loss")
    if name not in LOSSES:
        raise unknown_name("loss", name, LOSSES)
    if name == "cross_entropy" and label_smoothing:
        return lambda z, t: functional.cross_entropy(z, t, label_smoothing=label_smoothing)
    return LOSSES[name]


def target_for(name: str, outputs: Tensor, labels: Tensor) -> Tensor:
    """Returns labels in the type and shape that the loss compares with outputs [B, ...]."""
    if name in _CLASSES or ":" in name:
        return labels.long() if name in _CLASSES and labels.ndim == 1 else labels
    return labels.to(outputs.dtype).reshape(outputs.shape)


def count_errors(name: str, outputs: Tensor, labels: Tensor) -> dict[str, float]:
    """Returns {"errors": how many examples were put into a wrong class}, or {} without classes."""
    if name in _CLASSES and labels.ndim == 1:
        return {"errors": float((outputs.argmax(1) != labels).sum())}
    if name == "binary_cross_entropy" and labels.ndim == 1 and outputs.numel() == len(labels):
        wrong = (outputs.reshape(-1) > 0) != (labels > 0.5)
        return {"errors": float(torch.count_nonzero(wrong))}
    return {}
