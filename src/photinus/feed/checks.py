"""What a row must be, looked at for whole blocks of rows; a bad row is named, or skipped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from photinus.core.errors import DataError
from photinus.core.parameters import is_finite
from photinus.core.settings import Limit, between, one_of, validate, whole
from photinus.feed.base import Array

__all__ = ["Columns", "Finding", "RowChecks", "Sieve"]

Columns = tuple[str, str]
"""The names of the feature and the label column."""

_EARLY_ROWS = 10_000
"""Skipped rows are held against at least so many, until the partition has ended."""


class Finding(NamedTuple):
    """One kind of fault in one column of a block of rows."""

    column: str
    kind: str
    """In words, for the count of skipped rows: `null`, `length`."""
    bad: NDArray[np.bool_]
    """[n]: which rows have it."""
    describe: Callable[[int], str]
    """Says what is wrong with row i of the block."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowChecks:
    """What every row must be, and what happens to one that is not.

    Example:
        >>> sieve = Sieve(RowChecks(classes=10), partition=3)
        >>> sieve.open(2)
        >>> sieve.checked(np.ones((2, 4)), np.array([1, 10]))
        Traceback (most recent call last):
        photinus.core.errors.DataError: partition 3 row 1 column label: label 10 outside 0..9; \
mend the row, or leave it out
    """

    shape: tuple[int, ...] | None = None
    """Of one row's features; None takes any."""
    finite: bool = True
    """Refuses NaN and infinity."""
    classes: int | None = None
    """Labels must be whole numbers of 0..classes-1; None takes any number."""
    on_bad: str = "fail"
    """fail names the first bad row; skip leaves bad rows out and counts them."""
    most_skipped: float = 0.01
    """The part of a partition's rows that may be skipped before it fails after all."""

    LIMITS = {  # noqa: RUF012 - dataclass slots: a plain class attribute, never written
        "classes": Limit.optional(whole(1)),
        "on_bad": one_of("fail", "skip"),
        "most_skipped": between(0, 1),
    }

    def __post_init__(self) -> None:
        validate(self)

    def findings(
        self, features: Array, labels: Array | None, columns: Columns
    ) -> Iterator[Finding]:
        """Looks at the values of a block: features [n, ...] and labels [n, ...]."""
        for column, values in zip(columns, (features, labels), strict=True):
            if self.finite and values is not None:
                yield from _not_finite(column, values)
        if self.classes is not None and labels is not None:
            top, given = self.classes - 1, labels
            good = (given >= 0) & (given <= top) & (given == np.floor(given))
            # NaN compares false: it must land among the bad
            bad = np.logical_not(good)

            def describe(row: int) -> str:
                return f"label {given[row]:g} outside 0..{top}"

            yield Finding(columns[1], "label", bad, describe)


def _not_finite(column: str, values: Array) -> Iterator[Finding]:
    if is_finite(values.reshape(-1)):
        return
    good = np.isfinite(values.reshape(len(values), -1))  # [n, width]

    def describe(row: int) -> str:
        at = int(np.argmin(good[row]))
        place = f" at {at}" if good.shape[1] > 1 else ""
        return f"{values[row].reshape(-1)[at]}{place}, expected finite numbers"

    yield Finding(column, "not finite", np.asarray(~good.all(axis=1)), describe)


class Sieve:
    """Takes a partition's rows block by block, lets the good ones through and counts the rest.

    Args:
        checks: what a row must be.
        partition: its number, for messages.
    """

    def __init__(self, checks: RowChecks, partition: int = 0) -> None:
        self.checks = checks
        self.partition = partition
        self.seen = 0
        self.skipped: Counter[str] = Counter()
        """How many rows were left out, by column and kind of fault."""
        self._rows = np.empty(0, np.int64)

    def open(self, rows: int) -> None:
        """Begins a block of so many rows."""
        self._rows = np.arange(self.seen, self.seen + rows)
        self.seen += rows

    def sift(self, findings: Iterator[Finding]) -> NDArray[np.bool_] | None:
        """Returns which rows of the block to keep, [n]; None keeps all.

        Raises:
            DataError: a row is bad and bad rows fail, or too many were skipped.
        """
        keep: NDArray[np.bool_] | None = None
        for finding in findings:
            bad = finding.bad if keep is None else finding.bad & keep
            if not bad.any():
                continue
            if self.checks.on_bad == "fail":
                raise self._error(finding, int(np.argmax(bad)))
            self.skipped[f"{finding.column}: {finding.kind}"] += int(bad.sum())
            keep = ~bad if keep is None else keep & ~bad
        if keep is not None:
            self._rows = self._rows[keep]
            self._cap(max(self.seen, _EARLY_ROWS))
        return keep

    def checked(
        self, features: Array, labels: Array | None, columns: Columns = ("features", "label")
    ) -> tuple[Array, Array | None]:
        """Lets the good rows of the block through; class labels come out as int64.

        Args:
            features: [n, ...].
            labels: [n, ...] or None.
            columns: the names of both, for messages.

        Raises:
            DataError: as `sift`; or the shape or the type of a column is wrong.
        """
        self._check_kinds(features, labels, columns)
        keep = self.sift(self.checks.findings(features, labels, columns))
        if keep is not None:
            features, labels = features[keep], None if labels is None else labels[keep]
        if labels is not None and self.checks.classes is not None:
            labels = labels.astype(np.int64, copy=False)
        return features, labels

    def end(self) -> None:
        """Ends the partition.

        Raises:
            DataError: too many of its rows were skipped.
        """
        self._cap(self.seen)

    def _check_kinds(self, features: Array, labels: Array | None, columns: Columns) -> None:
        for column, values in zip(columns, (features, labels), strict=True):
            if values is not None and values.dtype.kind not in "fiub":
                where = f"partition {self.partition} column {column}"
                raise DataError(f"{where}: values of type {values.dtype}, expected numbers")
        shape = self.checks.shape
        if shape is not None and features.shape[1:] != shape and len(features):
            where = f"partition {self.partition} row {self._rows[0]} column {columns[0]}"
            raise DataError(f"{where}: shape {features.shape[1:]}, expected {shape}")

    def _error(self, finding: Finding, row: int) -> DataError:
        where = f"partition {self.partition} row {self._rows[row]} column {finding.column}"
        wrong = f"{where}: {finding.describe(row)}"
        return DataError(wrong, do="mend the row, or leave it out")

    def _cap(self, rows: int) -> None:
        skipped, most = self.skipped.total(), self.checks.most_skipped
        if skipped > most * rows:
            counts = ", ".join(f"{count} {kind}" for kind, count in self.skipped.most_common())
            raise DataError(
                f"partition {self.partition}: more than {most:.3g} of the rows are bad",
                got=f"{skipped} of {self.seen} ({counts})",
                do="mend the data, or raise most_skipped",
            )
