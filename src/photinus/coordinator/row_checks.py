"""Finds rows on which workers train badly together: unevenly many, other labels, other numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from photinus.data.label_skew import skewed

_LARGE = 1.5
"""A worker with more than so many times its share of the rows keeps the others waiting."""

Found = tuple[str, str, str]
"""What is wrong, what was got, what to do."""


def uneven(rows: Sequence[int]) -> list[Found]:
    """Returns what is wrong with how many rows each worker holds.

    Example:
        >>> [wrong for wrong, got, do in uneven([90, 10, 0])]
        ['1 of 3 partitions are empty', 'worker 0 holds 90% of the rows']
    """
    empty, most, total = rows.count(0), max(rows), sum(rows)
    do = "repartition the data, or use fewer workers"
    found = [(f"{empty} of {len(rows)} partitions are empty", "", do)] if empty else []
    if most * len(rows) > _LARGE * total and total:
        wrong = f"worker {rows.index(most)} holds {most / total:.0%} of the rows"
        found.append((wrong, f"{len(rows)} workers", do))
    return found


def other_labels(labels: Mapping[int, Mapping[str, int]]) -> list[Found]:
    """Returns which slots' labels are distributed otherwise than those of all workers."""
    far = skewed(labels)
    if not far:
        return []
    slots = ", ".join(str(slot) for slot in far)
    wrong = f"the rows of workers {slots} have a different distribution of labels from all rows"
    do = "shuffle the rows before training, or agree after every step"
    return [(wrong, f"up to {max(far.values()):.0%} of a worker's rows", do)]


def no_probabilities(phase: str, spans: Iterable[tuple[float, ...]]) -> list[Found]:
    """Returns whether the workers' (lowest, highest) numbers leave 0..1.

    Means of units are in 0..1: on other inputs training raises no error, but is useless.
    """
    numbers = [number for span in spans for number in span]
    low, high = min(numbers, default=0.0), max(numbers, default=0.0)
    if not (low < 0 or high > 1):
        return []
    wrong = f"{phase} takes its inputs for probabilities, from 0 to 1"
    do = 'set data.scale, to 1/255 for bytes; or visible="gaussian", standardised'
    return [(wrong, f"numbers from {low:g} to {high:g}", do)]
