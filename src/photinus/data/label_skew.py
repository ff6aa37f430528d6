"""Compares each worker's labels with those of all workers."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from photinus.data.base import Array

MOST_LABELS = 100
"""Labels of more values than that are taken for measurements, and not counted."""
_APART = 1 / 3


def label_counts(labels: Array | None) -> dict[str, int]:
    """Returns how often each label [n] occurs; nothing where they are no classes.

    Example:
        >>> label_counts(np.array([1, 0, 1]))
        {'0': 1, '1': 2}
    """
    if labels is None or labels.ndim != 1 or len(labels) == 0:
        return {}
    found, counts = np.unique(labels, return_counts=True)
    if len(found) > MOST_LABELS:
        return {}
    return {f"{label:g}": int(count) for label, count in zip(found, counts, strict=True)}


def skewed(counts: Mapping[int, Mapping[str, int]]) -> dict[int, float]:
    """Returns the slots whose labels are far from those of all rows, and how far: 0 to 1.

    dᵢ = ½ Σ_c |pᵢ(c) − p(c)| is the share of a slot's rows that would have other labels, had the
    rows been dealt at random. More than a third counts, where it is thrice what chance gives,
    ½ Σ_c √(2 p(c)(1 − p(c)) / (π nᵢ)).

    Args:
        counts: slot -> label -> how often.

    Example:
        >>> even = {"a": 50, "b": 50}
        >>> skewed({0: even, 1: even, 2: even, 3: {"a": 100}})
        {3: 0.375}
    """
    labels = sorted({label for mine in counts.values() for label in mine})
    table = np.array([[mine.get(label, 0) for label in labels] for mine in counts.values()])
    if not labels:
        return {}
    whole = table.sum(axis=0) / table.sum()  # [C]
    far: dict[int, float] = {}
    for slot, mine in zip(counts, table, strict=True):
        rows = int(mine.sum())
        if rows == 0:
            continue
        apart = 0.5 * float(np.abs(mine / rows - whole).sum())
        chance = 0.5 * float(np.sqrt(2 * whole * (1 - whole) / (math.pi * rows)).sum())
        if apart > max(_APART, 3 * chance):
            far[slot] = apart
    return far
