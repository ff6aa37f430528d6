"""Compares each worker's labels with those of all workers."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from photinus.data.base import Array

MOST_LABELS = 100
"""Labels of more values than that are taken for measurements, and not counted."""
_MIN_DISTANCE = 1 / 3


def label_counts(labels: Array | None) -> dict[str, int]:
    """Returns how often each label [n] occurs; nothing where they are no classes.

    Example:
        >>> label_counts(np.array([1, 0, 1]))
        {'0': 1, '1': 2}
    """
    if labels is None or labels.ndim != 1 or len(labels) == 0:
        return {}
    values, counts = np.unique(labels, return_counts=True)
    if len(values) > MOST_LABELS:
        return {}
    return {f"{label:g}": int(count) for label, count in zip(values, counts, strict=True)}


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
    labels = sorted({label for slot_counts in counts.values() for label in slot_counts})
    table = np.array(
        [[slot_counts.get(label, 0) for label in labels] for slot_counts in counts.values()]
    )
    if not labels:
        return {}
    global_shares = table.sum(axis=0) / table.sum()  # [C]
    skewed_slots: dict[int, float] = {}
    for slot, slot_counts in zip(counts, table, strict=True):
        rows = int(slot_counts.sum())
        if rows == 0:
            continue
        distance = 0.5 * float(np.abs(slot_counts / rows - global_shares).sum())
        chance = 0.5 * float(
            np.sqrt(2 * global_shares * (1 - global_shares) / (math.pi * rows)).sum()
        )
        if distance > max(_MIN_DISTANCE, 3 * chance):
            skewed_slots[slot] = distance
    return skewed_slots
