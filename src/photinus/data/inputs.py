"""Rows of several inputs by name, of which some have rows of unequal length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from photinus.core.errors import DataError, UsageError
from photinus.core.factories import resolve_user_code
from photinus.core.masks import NO_LABEL, mask_of
from photinus.data.base import Array

SPARSE = np.dtype([("place", np.int32), ("number", np.float32)])
"""A number of a sparse vector, and where in the vector it stands."""
SEQUENCE_LABELS = "labels of tokens"
"""The name of an input that is no parameter of `forward`: a label for each token of a row."""
_Index = NDArray[np.int64]
_MIN_BATCH_ROWS = 16
"""Of a batch that is cut by length."""


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """Rows of unequal length, one behind the other.

    Example:
        >>> ragged = Ragged(np.array([2, 1]), np.array([7, 8, 9]))
        >>> padded, mask = ragged.padded(np.array([0, 1]))
        >>> padded.tolist(), mask.tolist()
        ([[7, 8], [9, 0]], [[True, True], [True, False]])
    """

    lengths: NDArray[np.integer[Any]]
    """[n]"""
    values: Array
    """[sum of lengths, ...]; of sparse vectors of type `SPARSE`"""
    width: int = 0
    """Of sparse vectors: how many numbers a whole one has."""
    starts: _Index = field(init=False)
    """[n]: where each row begins in the values."""

    def __post_init__(self) -> None:
        starts = np.cumsum(self.lengths, dtype=np.int64)
        starts -= self.lengths
        object.__setattr__(self, "starts", starts)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, selection: Any) -> Ragged:  # noqa: ANN401 - a slice, numbers or truth values
        if isinstance(selection, slice) and selection.step in (None, 1):
            lengths = self.lengths[selection]
            start = int(self.starts[selection][0]) if len(lengths) else 0
            return Ragged(lengths, self.values[start : start + int(lengths.sum())], self.width)
        index = np.arange(len(self))[selection]
        lengths, positions = self._value_positions(index)
        return Ragged(lengths, np.take(self.values, positions, axis=0), self.width)

    @property
    def is_sparse(self) -> bool:
        """True of sparse vectors, which are handed out whole."""
        return self.values.dtype == SPARSE

    def padded(self, index: _Index) -> tuple[Array, NDArray[np.bool_]]:
        """Returns rows, padded by zeros to the longest, and which places are theirs.

        Args:
            index: their numbers [B].

        Returns:
            [B, T, ...] and [B, T].
        """
        lengths, positions = self._value_positions(index)
        longest = max(1, int(lengths.max(initial=0)))  # no module takes sequences of length 0
        mask = np.arange(longest) < lengths[:, None]  # [B, T]
        values = np.take(self.values, positions, axis=0)
        if mask.all():
            return values.reshape(*mask.shape, *values.shape[1:]), mask
        out = np.zeros((*mask.shape, *values.shape[1:]), values.dtype)
        out[mask] = values
        return out, mask

    def dense(self, index: _Index) -> Array:
        """Returns sparse vectors as whole ones.

        Args:
            index: their numbers [B].

        Returns:
            float32 [B, width].
        """
        lengths, positions = self._value_positions(index)
        values = np.take(self.values, positions)
        out = np.zeros((len(index), self.width), np.float32)
        out[np.repeat(np.arange(len(index)), lengths), values["place"]] = values["number"]
        return out

    def row(self, number: int) -> Array:
        """Returns one row's values."""
        start = self.starts[number]
        row: Array = self.values[start : start + self.lengths[number]]
        return row

    def sums(self, of_values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Returns the sum over each row's values, [n], modulo 2^64."""
        total = np.zeros(len(of_values) + 1, np.uint64)
        np.cumsum(of_values, out=total[1:])
        return np.asarray(total[self.starts + self.lengths] - total[self.starts])

    def positions_in_row(self) -> _Index:
        """Returns where in its row each value stands, [sum of lengths]."""
        return np.arange(len(self.values)) - np.repeat(self.starts, self.lengths)

    def owners(self) -> _Index:
        """Returns each value's row, [sum of lengths]."""
        return np.repeat(np.arange(len(self)), self.lengths)

    def _value_positions(self, index: _Index) -> tuple[_Index, _Index]:
        """Returns the lengths of rows, and where their values lie."""
        lengths = self.lengths[index].astype(np.int64, copy=False)
        ends = np.cumsum(lengths)
        shifts = self.starts[index] - (ends - lengths)
        return lengths, np.arange(int(lengths.sum())) + np.repeat(shifts, lengths)


Column = Array | Ragged
"""Of one input: an array [n, ...], or rows of unequal length."""


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """Rows of several inputs, each by the name of a parameter of the module's `forward`.

    Example:
        >>> rows = Inputs({"price": np.array([1.5, 2.5], np.float32)}, 2)
        >>> rows.batch(np.array([1]))["price"].tolist()
        [2.5]
    """

    columns: Mapping[str, Column]
    rows: int
    collate: str = ""
    """"package.module:function" of a list of rows, each a dict of arrays by name; it returns the
    batch as such a dict."""

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, selection: Any) -> Inputs:  # noqa: ANN401 - a slice, numbers or truth values
        rows = len(range(self.rows)[selection]) if isinstance(selection, slice) else None
        columns = {name: column[selection] for name, column in self.columns.items()}
        if rows is None:
            rows = len(np.arange(self.rows)[selection])
        return Inputs(columns, rows, self.collate)

    @property
    def nbytes(self) -> int:
        """Of all arrays."""
        return sum(part.nbytes for part in self.parts())

    def parts(self) -> list[Array]:
        """Returns the arrays that all of it consists of."""
        arrays: list[Array] = []
        for column in self.columns.values():
            arrays += [column.lengths, column.values] if isinstance(column, Ragged) else [column]
        return arrays

    def with_parts(self, parts: Sequence[Array]) -> Inputs:
        """Returns other rows of the same inputs, made of arrays as `parts` returns them."""
        remaining: Iterator[Array] = iter(parts)
        columns: dict[str, Column] = {}
        for name, column in self.columns.items():
            first = np.asarray(next(remaining))  # a memmap's own class would slow every batch down
            if isinstance(column, Ragged):  # a file does not know the names of a structure
                values = np.asarray(next(remaining)).view(column.values.dtype)
                columns[name] = Ragged(first, values, column.width)
            else:
                columns[name] = first
        rows = len(next(iter(columns.values()))) if columns else 0
        return Inputs(columns, rows, self.collate)

    def batch(self, index: _Index) -> dict[str, Array]:
        """Returns rows as `forward` takes them, in arrays of their own.

        Sequences are padded by zeros to the longest of these rows. Their mask lies beside them, as
        `NAME_mask`. Integers become int64, but for bytes.

        Args:
            index: their numbers [B].

        Raises:
            DataError: one's own `collate` does not return a dict of arrays.
        """
        if self.collate:
            return self._collate(index)
        batch: dict[str, Array] = {}
        for name, column in self._features.items():
            if not isinstance(column, Ragged):
                batch[name] = _widen(np.take(column, index, axis=0))
            elif column.is_sparse:
                batch[name] = column.dense(index)
            else:
                padded, batch[mask_of(name)] = column.padded(index)
                batch[name] = _widen(padded)
        return batch

    def token_labels(self, index: _Index) -> Array | None:
        """Returns a label for each token of rows, int64 [B, T] with -100 in padding; None of none.

        Args:
            index: their numbers [B].
        """
        column = self.columns.get(SEQUENCE_LABELS)
        if not isinstance(column, Ragged):
            return None if column is None else np.take(column, index, axis=0)
        labels, mask = column.padded(index)
        if labels.dtype.kind != "f":
            labels = labels.astype(np.int64, copy=False)
        labels[~mask] = NO_LABEL
        return labels

    @property
    def _features(self) -> dict[str, Column]:
        return {name: column for name, column in self.columns.items() if name != SEQUENCE_LABELS}

    def lengths(self) -> NDArray[np.integer[Any]] | None:
        """Returns how long each row's longest sequence is, [n]; None where all are equally long."""
        longest: NDArray[np.integer[Any]] | None = None
        for column in self.columns.values():
            if isinstance(column, Ragged) and not column.is_sparse:
                lengths = column.lengths
                longest = lengths if longest is None else np.maximum(longest, lengths)
        is_uniform = longest is None or not len(longest) or longest.min() == longest.max()
        return None if is_uniform else longest

    def by_length(self, max_rows: int) -> list[_Index]:
        """Returns the rows' numbers in batches of rows of like length, so that little is padded.

        Args:
            max_rows: the most rows of a batch.
        """
        lengths = self.lengths()
        if lengths is None:
            lengths = np.ones(self.rows, np.int64)
        order = np.argsort(lengths, kind="stable")
        return np.split(order, cut_by_length(lengths[order], max_rows)[:-1])

    def bytes_of(self, row: int) -> bytes:
        """Returns one row's content."""
        return b"\0".join(
            (column.row(row) if isinstance(column, Ragged) else column[row]).tobytes()
            for column in self.columns.values()
        )

    def _collate(self, index: _Index) -> dict[str, Array]:
        function: Callable[..., Any] = resolve_user_code(self.collate, "collate")
        rows = [{name: _row(column, i) for name, column in self._features.items()} for i in index]
        try:
            batch = function(rows)
        except Exception as error:  # whatever the user's function raises
            got = f"{type(error).__name__}: {error}"
            raise DataError(f"collate {self.collate!r} failed", got=got) from error
        if not isinstance(batch, Mapping):
            wrong = f"collate {self.collate!r} must return a dict of arrays by name"
            raise DataError(wrong, got=type(batch).__name__)
        return {str(name): _widen(np.array(array)) for name, array in batch.items()}


def parts_of(features: Any) -> list[Array]:  # noqa: ANN401 - features
    """Returns the arrays that features consist of: an array itself, or those of inputs."""
    parts: list[Array] = features.parts() if isinstance(features, Inputs) else [features]
    return parts


def from_parts(template: Any, parts: Sequence[Array]) -> Any:  # noqa: ANN401 - features
    """Returns features of the same kind, made of arrays as `parts_of` returns them."""
    return template.with_parts(parts) if isinstance(template, Inputs) else parts[0]


def joined(blocks: Sequence[Any]) -> Any:  # noqa: ANN401 - features
    """Returns the features of all blocks, in their order.

    Raises:
        UsageError: there are none.
    """
    if not blocks:
        raise UsageError("there are no rows to join")
    groups = zip(*(parts_of(block) for block in blocks), strict=True)
    return from_parts(blocks[0], [np.concatenate(group) for group in groups])


def _row(column: Column, row: int) -> Array:
    if not isinstance(column, Ragged):
        return _widen(np.array(column[row]))
    if column.is_sparse:
        dense: Array = column.dense(np.array([row]))[0]
        return dense
    return _widen(column.row(row).copy())


def _widen(array: Array) -> Array:
    """Returns whole numbers as int64, which is what torch counts in; bytes as they are."""
    if array.dtype.kind in "iu" and array.dtype != np.uint8:
        return array.astype(np.int64, copy=False)
    return array.astype(np.float32, copy=False) if array.dtype.kind == "f" else array


def cut_by_length(lengths: NDArray[np.integer[Any]], batch: int) -> list[int]:
    """Returns where batches of sorted rows end: of their places at most an eighth is padding.

    Only a batch of 16 rows may have more: smaller ones would cost more than they save.

    Args:
        lengths: of the rows, [n], rising.
        batch: the most rows of a batch.

    Example:
        >>> cut_by_length(np.repeat([8, 9, 90], 40), 64)
        [64, 80, 120]
    """
    sums = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    ends = [0]
    while (start := ends[-1]) < len(lengths):
        stops = np.arange(start + 1, min(start + batch, len(lengths)) + 1)
        slots = lengths[stops - 1] * (stops - start)
        value_counts = sums[stops] - sums[start]
        dense_enough = stops[8 * value_counts >= 7 * slots]  # a row alone always is
        ends.append(int(max(dense_enough[-1], stops[:_MIN_BATCH_ROWS][-1])))
    return ends[1:]
