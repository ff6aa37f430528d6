"""Checks blocks of rows; the first bad row is named."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from photinus.core.errors import DataError
from photinus.core.masks import NO_LABEL
from photinus.core.parameters import is_finite
from photinus.core.settings import FAR_LABEL, NUMBER_THE_CLASSES, Limit, validate, whole
from photinus.data.base import Array, Block
from photinus.data.inputs import SEQUENCE_LABELS, Column, Inputs, Ragged

_FLOAT32 = float(np.finfo(np.float32).max)

ColumnNames = tuple[str, str]
"""The names of the feature and the label column."""

_DEFAULT_ADVICE = "mend the row, or leave it out"
_LABEL_ADVICE = f"{_DEFAULT_ADVICE}; another loss may take such labels"


def _default_advice(_: int) -> str:
    return _DEFAULT_ADVICE


class InvalidValues(NamedTuple):
    """One kind of fault in one column of a block of rows."""

    column: str
    bad: NDArray[np.bool_]
    """[n]: which rows have it."""
    describe: Callable[[int], str]
    """Returns what is wrong with row i of the block."""
    cure: Callable[[int], str] = _default_advice
    """Returns what to do about it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowChecks:
    """What every row must be.

    Example:
        >>> checker = RowChecker(RowChecks(classes=10), partition=3)
        >>> checker.open(2)
        >>> checker.checked(Block(np.ones((2, 4)), np.array([1, 10])))
        Traceback (most recent call last):
        photinus.core.errors.DataError: partition 3 row 1 column label: label 10 outside 0..9; \
mend the row, or leave it out
    """

    shape: tuple[int, ...] | None = None
    """Of one row's features; None takes any."""
    classes: int | None = None
    """Labels must be whole numbers of 0..classes-1; None takes any number."""
    more_classes: str = ""
    """What to do where a label is too large for `classes`; {} stands for how many it needs."""
    shares: bool = False
    """Labels must lie in 0..1: one of a row, or each of several."""
    counts: bool = False
    """Labels must be at least 0, as under the loss `poisson`."""
    LIMITS = {"classes": Limit.optional(whole(1))}  # noqa: RUF012

    def __post_init__(self) -> None:
        validate(self)

    def under(self, loss: str) -> RowChecks:
        """Returns these checks, and what a loss by its name asks of labels."""
        return replace(self, counts=loss == "poisson", shares=loss == "binary_cross_entropy")

    def findings(
        self, features: Array, labels: Array | None, columns: ColumnNames
    ) -> Iterator[InvalidValues]:
        """Looks at the values of a block: features [n, ...] and labels [n, ...]."""
        for column, values in zip(columns, (features, labels), strict=True):
            if values is not None:
                yield from not_finite(column, values)
        if self.classes is not None and labels is not None and labels.ndim == 1:
            count, classes = self.classes, labels
            highest = count - 1
            good = (classes >= 0) & (classes <= highest) & (classes == np.floor(classes))
            # NaN compares false: it must land among the bad
            bad = np.logical_not(good)

            def describe(row: int) -> str:
                why = "" if classes[row] == np.floor(classes[row]) else " (no whole number)"
                return f"label {classes[row]:g} outside 0..{highest}{why}"

            def cure(row: int) -> str:
                label = classes[row]
                if highest < label < FAR_LABEL * count and label == np.floor(label):
                    hint = self.more_classes.format(int(label) + 1)
                    # one more class would fit, and be one that no row has
                    begins_at_1 = label == count and classes.min(initial=1) == 1
                    then = ", or subtract 1 where labels begin at 1" if begins_at_1 else ""
                    return f"{hint}, or mend the row{then}" if hint else _DEFAULT_ADVICE
                return f"{NUMBER_THE_CLASSES}, or mend the row"

            yield InvalidValues(columns[1], bad, describe, cure)
        if labels is not None:
            yield from self._outside(columns[1], labels)

    def _outside(self, column: str, labels: Array) -> Iterator[InvalidValues]:
        """Looks for labels that the loss does not take."""
        if self.shares:
            expected = (
                "1 where the row has the label and 0 elsewhere" if labels.ndim > 1 else "0..1"
            )
            yield _not_between(column, labels, 1, expected)
        if self.counts:
            yield _not_between(column, labels, np.inf, "at least 0, as poisson counts")


def _token_findings(
    labels: Column | None, checks: RowChecks, column: str
) -> Iterator[InvalidValues]:
    """Yields rows in which the label of a token is no class."""
    if labels is None or checks.classes is None:
        return
    count = checks.classes
    values = (labels.values if isinstance(labels, Ragged) else labels).reshape(-1)
    width = len(values) // max(1, len(labels))
    owners = (
        labels.owners() if isinstance(labels, Ragged) else np.repeat(np.arange(len(labels)), width)
    )
    is_class = (values >= 0) & (values < count) & (values == np.floor(values))
    is_wrong = np.logical_not(is_class | (values == NO_LABEL))
    bad = np.zeros(len(labels), np.bool_)
    bad[owners[is_wrong]] = True

    def first_wrong(row: int) -> float:
        return float(values[is_wrong & (owners == row)][0])

    def cure(row: int) -> str:
        label, hint = first_wrong(row), checks.more_classes
        is_next = bool(hint) and count <= label < FAR_LABEL * count and label.is_integer()
        do = hint.format(int(label) + 1) if is_next else NUMBER_THE_CLASSES
        return f"{do}, or mend the row"

    yield InvalidValues(
        column, bad, lambda row: f"label {first_wrong(row):g} outside 0..{count - 1}", cure
    )


def _not_between(column: str, labels: Array, highest: float, expected: str) -> InvalidValues:
    """Finds rows [n, ...] with a label below 0 or above the highest."""
    values = labels.reshape(len(labels), -1)  # [n, L]
    wrong = np.logical_not((values >= 0) & (values <= highest))

    def describe(row: int) -> str:
        i = int(np.argmax(wrong[row]))
        where = f" at {i}" if labels.ndim > 1 else ""
        return f"{values[row, i]:g}{where}, expected {expected}"

    return InvalidValues(column, np.asarray(wrong.any(axis=1)), describe, lambda _: _LABEL_ADVICE)


def not_finite(column: str | Sequence[str], values: Array) -> Iterator[InvalidValues]:
    """Finds rows [n, ...] with NaN or infinity; of several columns it names the one that has it."""
    if is_finite(values.reshape(-1)):
        return
    if not isinstance(column, str):
        by_column = values.reshape(len(values), -1).T  # [columns, n]
        for name, numbers in zip(column, by_column, strict=True):
            yield from not_finite(name, numbers)
        return
    good = np.isfinite(values.reshape(len(values), -1))  # [n, width]

    def describe(row: int) -> str:
        i = int(np.argmin(good[row]))
        where = f" at {i}" if good.shape[1] > 1 else ""
        number = values[row].reshape(-1)[i]
        # a larger one may have become infinite when Spark made it a float32
        may_be_rounded = values.dtype == np.float32 and not np.isnan(number)
        limit = f" in float32, up to {_FLOAT32:.2g}" if may_be_rounded else ""
        return f"{number}{where}, expected finite numbers{limit}"

    yield InvalidValues(column, np.asarray(~good.all(axis=1)), describe)


def _too_large(
    column: str, values: Array, factor: float, training_dtype: Callable[[], str]
) -> Iterator[InvalidValues]:
    """Yields numbers that are finite, and infinite in the type that is trained on."""
    is_narrow = values.dtype.itemsize <= np.dtype(np.float32).itemsize
    if values.dtype.kind != "f" or not values.size or (is_narrow and factor == 1):
        return
    # `max` of both signs, and no copy of the rows: only a wrong row costs more
    largest = max(abs(float(values.min())), abs(float(values.max())))
    if largest <= _FLOAT32 and largest * factor <= _FLOAT32:
        return
    dtype = np.dtype(training_dtype() if factor == 1 else np.float32)
    rows = values.reshape(len(values), -1)  # [n, width]
    with np.errstate(over="ignore", invalid="ignore"):
        overflows = np.isfinite(rows) & ~np.isfinite(rows.astype(dtype) * dtype.type(factor))

    def describe(row: int) -> str:
        i = int(np.argmax(overflows[row]))
        where = f" at {i}" if rows.shape[1] > 1 else ""
        scaled = f" times {factor:g}" if factor != 1 else ""
        return f"{rows[row, i]:g}{where}{scaled} is infinite in {dtype}, in which it is trained on"

    yield InvalidValues(column, np.asarray(overflows.any(axis=1)), describe)


def _weight_findings(weights: Array | None, column: str) -> Iterator[InvalidValues]:
    if weights is None:
        return
    yield from not_finite(column, weights)
    describe = "weight {:g}, expected at least 0".format
    yield InvalidValues(column, weights < 0, lambda row: describe(weights[row]))


def _in_float64() -> str:
    return "float64"


class RowChecker:
    """Checks a partition's rows block by block, and counts them.

    Args:
        checks: what a row must be.
        partition: its number, for messages.
        training_dtype: returns the type of number that is trained on; asked only where it matters.
    """

    def __init__(
        self,
        checks: RowChecks,
        partition: int = 0,
        training_dtype: Callable[[], str] = _in_float64,
    ) -> None:
        self.checks = checks
        self.partition = partition
        self._training_dtype = training_dtype
        self.rows_seen = 0
        self.templates: dict[str, Column] = {}
        """Input -> its column without rows: the type and the shape that its first rows had."""
        self.label_width: int | None = None
        """How many labels the first row had, where they are arrays."""
        self._block_start = 0

    def open(self, rows: int) -> None:
        """Begins a block of so many rows."""
        self._block_start = self.rows_seen
        self.rows_seen += rows

    def refuse(self, findings: Iterable[InvalidValues]) -> None:
        """Refuses the block if any of its rows is bad.

        Raises:
            DataError: names the first bad row of the first finding.
        """
        for finding in findings:
            if finding.bad.any():
                raise self.error(finding)

    def error(self, finding: InvalidValues) -> DataError:
        """Returns the error that names the first bad row of a finding."""
        row = int(np.argmax(finding.bad))
        where = f"partition {self.partition} row {self._block_start + row} column {finding.column}"
        return DataError(f"{where}: {finding.describe(row)}", do=finding.cure(row))

    def checked(
        self,
        block: Block,
        columns: ColumnNames = ("features", "label"),
        scale: float | None = None,
        weight: str = "weight",
    ) -> Block:
        """Returns the block; class labels come out as int64. Its inputs are checked already.

        Args:
            block: features [n, ...], labels [n, ...] or None, and weights.
            columns: the names of features and labels, for messages.
            scale: features are trained on as float32(features) · scale.
            weight: the name of the column of weights, likewise.

        Raises:
            DataError: as `refuse`; or the shape or the type of a column is wrong.
        """
        inputs = block.features if isinstance(block.features, Inputs) else None
        features = np.empty((len(block.features), 0)) if inputs is not None else block.features
        self._check_kinds(features, block.labels, columns)
        findings = self._findings(features, block.labels, columns, scale)
        tokens = inputs.columns.get(SEQUENCE_LABELS) if inputs is not None else None
        token_findings = _token_findings(tokens, self.checks, columns[1])
        self.refuse(chain(findings, token_findings, _weight_findings(block.weights, weight)))
        labels = block.labels
        if labels is not None and labels.ndim == 1 and self.checks.classes is not None:
            block = block._replace(labels=labels.astype(np.int64, copy=False))
        return block

    def _findings(
        self, features: Array, labels: Array | None, columns: ColumnNames, scale: float | None
    ) -> Iterator[InvalidValues]:
        yield from self.checks.findings(features, labels, columns)
        factor = 1.0 if scale is None else float(scale)
        for column, values, multiplier in zip(
            columns, (features, labels), (factor, 1.0), strict=True
        ):
            if values is not None:
                yield from _too_large(column, values, multiplier, self._training_dtype)

    def _check_kinds(self, features: Array, labels: Array | None, columns: ColumnNames) -> None:
        for column, values in zip(columns, (features, labels), strict=True):
            if values is not None and values.dtype.kind not in "fiub":
                where = f"partition {self.partition} column {column}"
                raise DataError(f"{where}: values of type {values.dtype}, expected numbers")
        shape = self.checks.shape
        if shape is not None and features.shape[1:] != shape and len(features):
            where = f"partition {self.partition} row {self._block_start} column {columns[0]}"
            raise DataError(f"{where}: shape {features.shape[1:]}, expected {shape}")
