"""Finds rows on which workers train badly together: unevenly many, other labels, other numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from photinus.core.errors import DataError
from photinus.data.label_skew import skewed

_LARGE_FACTOR = 1.5
"""A worker with more than so many times its share of the rows keeps the others waiting."""

_REPARTITION = "repartition the data, or use fewer workers"

Finding = tuple[str, str, str]
"""What is wrong, what was got, what to do."""


def no_rows(*, sets_aside: bool) -> DataError:
    """Returns the error for a run whose workers hold no rows.

    Args:
        sets_aside: whether some rows are set aside to measure on.

    Example:
        >>> str(no_rows(sets_aside=False))
        'there are no rows to train on; look at where the data is read and filtered'
    """
    do = "look at where the data is read and filtered"
    if sets_aside:
        do += ", and at which rows validation or validationIndicatorCol sets aside"
    return DataError("there are no rows to train on", do=do)


def no_weights() -> DataError:
    """Returns the error for a run whose rows all have the weight 0: nothing would be learned.

    Example:
        >>> str(no_weights())
        'the weights of all rows are 0; look at the column of weights, or train without it'
    """
    do = "look at the column of weights, or train without it"
    return DataError("the weights of all rows are 0", do=do)


def uneven(rows: Sequence[int]) -> list[Finding]:
    """Returns what is wrong with how many rows each worker holds.

    Example:
        >>> [wrong for wrong, got, do in uneven([90, 10, 0])]
        ['1 of 3 partitions are empty', 'worker 0 holds 90% of the rows']
    """
    empty_count, largest, total = rows.count(0), max(rows), sum(rows)
    wrong = f"{empty_count} of {len(rows)} partitions are empty"
    if 0 < total < len(rows):  # however they are divided
        got = f"{total} row{'s' * (total > 1)} for {len(rows)} workers"
        return [(wrong, got, "use fewer workers")]
    findings = [(wrong, "", _REPARTITION)] if empty_count else []
    # beside empty partitions the others hold more, which is said already
    if largest * (len(rows) - empty_count) > _LARGE_FACTOR * total and total:
        wrong = f"worker {rows.index(largest)} holds {largest / total:.0%} of the rows"
        findings.append((wrong, f"{len(rows)} workers", _REPARTITION))
    return findings


def soon_used_up(rows: Sequence[int], batch_size: int) -> list[Finding]:
    """Returns which workers have used their rows long before the others, who then go on alone.

    A worker takes a row of a step at least. One that holds less than that, and less than half of
    what the others do, is at its end early: what only its rows show is then forgotten.

    Args:
        rows: of each worker.
        batch_size: rows of one step of all workers together; 0 where they take none together.

    Example:
        >>> [wrong for wrong, got, do in soon_used_up([490, 490, 20], batch_size=32)]
        ['the rows of workers 2 are used up early: less than one for each step']
    """
    held = {slot: count for slot, count in enumerate(rows) if count}
    total, most = sum(rows), max(batch_size, 2 * len(held))
    few = {slot: count for slot, count in held.items() if batch_size and count * most < total}
    if not few:
        return []
    slots = ", ".join(str(slot) for slot in few)
    wrong = f"the rows of workers {slots} are used up early: less than one for each step"
    got = f"{min(few.values())} of {total} rows, and steps of {batch_size}"
    return [(wrong, got, _REPARTITION)]


def other_labels(labels: Mapping[int, Mapping[str, int]]) -> list[Finding]:
    """Returns which slots' labels are distributed otherwise than those of all workers."""
    skews = skewed(labels)
    if not skews:
        return []
    slots = ", ".join(str(slot) for slot in skews)
    wrong = f"the rows of workers {slots} have a different distribution of labels from all rows"
    do = "shuffle the rows before training, or agree after every step"
    return [(wrong, f"up to {max(skews.values()):.0%} of a worker's rows", do)]


def no_probabilities(phase: str, spans: Iterable[tuple[float, ...]]) -> list[Finding]:
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
