"""A slot's rows in memory or memory-mapped, indexed independently of their order of arrival.

Spark promises the same set of rows to a retry, not the same order. The rows are therefore sorted
by a 64-bit hash of their content; a seed permutes that index, so a retry sees the same epochs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from photinus.core.errors import UsageError
from photinus.core.seeds import generator
from photinus.data.base import Array, Batch, Block, Features, Transform
from photinus.data.inputs import Inputs, Ragged

_CHUNK_ROWS = 4096
_CHUNK_VALUES = 1 << 18
_SPAN_ROWS = 1000
_CACHE_BYTES = 1 << 18
"""Rows are hashed in chunks that stay in the processor's cache: about 3 GB/s on one core."""


class Allocator(Protocol):
    """Where arrays lie that may be too large for memory."""

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype[Any], of: int = 0) -> Array | None:
        """Returns an array of zeros, or None where there is no room for it.

        Args:
            shape: of the array.
            dtype: likewise.
            of: the bytes that it is a part of: where they do not fit into memory, no part does.
        """


def memory(shape: tuple[int, ...], dtype: np.dtype[Any], of: int = 0) -> Array:  # noqa: ARG001
    """Room without a limit: a new array in memory."""
    return np.zeros(shape, dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """All rows of a slot: `features` [n, ...], `labels` [n, ...] and `weights` [n] or None.

    Example:
        >>> one = Rows.of(np.array([[1.0], [2.0], [3.0]]))
        >>> two = Rows.of(np.array([[3.0], [1.0], [2.0]]))
        >>> bool((one.features[one.order] == two.features[two.order]).all())
        True
    """

    features: Features
    labels: Array | None
    order: NDArray[np.int64]
    """[n], or fewer of a part: the rows sorted by the hash of their content."""
    keys: NDArray[np.uint64]
    """[m] of all m rows, in the order of arrival: that hash."""
    scale: float | None = None
    """Features are stored as they are and handed out as float32(features) · scale."""
    room: Allocator = memory
    """Where transformed features may lie."""
    weights: Array | None = None

    @classmethod
    def of(
        cls,
        features: Features,
        labels: Array | None = None,
        weights: Array | None = None,
        *,
        scale: float | None = None,
        room: Allocator = memory,
    ) -> Rows:
        """Indexes rows by their content.

        Raises:
            UsageError: features and labels differ in length.
        """
        if labels is not None and len(labels) != len(features):
            got = f"{len(features)} and {len(labels)}"
            raise UsageError("features and labels must be equally many", got=got)
        if not isinstance(features, Inputs):
            # a memmap's own class would come back from every batch and slow it down
            features = np.asarray(features)
        labels = None if labels is None else np.asarray(labels)
        index = _sort_by_content(Block(features, labels, weights))
        return cls(features, labels, *index, scale, room, weights)

    def __len__(self) -> int:
        return len(self.order)

    @property
    def is_weightless(self) -> bool:
        """Whether there are weights, and all of them are 0."""
        return self.weights is not None and not self.weights[self.order].any()

    def parted(self, share: float) -> tuple[Rows, Rows]:
        """Returns the rows to train on, and a share set aside by their content's hash.

        Equal rows are on one side, whichever worker holds them; nothing is copied.

        Args:
            share: of all rows, from 0 to 1.
        """
        count = int(np.sum(self.keys < np.uint64(share * 2.0**64)))
        return replace(self, order=self.order[count:]), replace(self, order=self.order[:count])

    def batch(self, index: NDArray[np.int64], seed: int = 0) -> Batch:
        """Gathers the rows of `index` [B] into fresh arrays; `seed` decides their random draws."""
        labels = None if self.labels is None else np.take(self.labels, index, axis=0)
        weights = None if self.weights is None else np.take(self.weights, index)
        if isinstance(self.features, Inputs):
            features: Any = self.features.batch(index)
            labels = self.features.token_labels(index) if labels is None else labels
        else:
            features = scaled(np.take(self.features, index, axis=0), self.scale)
        return Batch(features, labels, weights, np.take(self.keys, index) ^ np.uint64(seed))

    def mapped(self, function: Transform) -> Rows | None:
        """Returns the rows with transformed features and the same order; None without room for it.

        They are transformed in the order of their content: a row's last bits depend on the rows
        that a matrix product takes together.

        Args:
            function: features [m, ...] as they are handed out, to features [m, ...].

        Raises:
            UsageError: the function does not keep the number of rows, or there are several inputs.
        """
        if isinstance(self.features, Inputs):
            raise UsageError("only one array of features can be transformed", got="several inputs")
        if not len(self):
            return self
        out: Array | None = None
        order = np.argsort(self.keys, kind="stable")
        for start in range(0, len(order), _CHUNK_ROWS):
            index = order[start : start + _CHUNK_ROWS]
            chunk = scaled(np.take(self.features, index, axis=0), self.scale)
            result = np.asarray(function(chunk))
            if len(result) != len(chunk):
                wrong = f"a transform of {len(chunk)} rows must give as many"
                raise UsageError(wrong, got=len(result))
            if (
                out is None
                and (out := self.room((len(self.features), *result.shape[1:]), result.dtype))
                is None
            ):
                return None
            out[index] = result
        assert out is not None
        return replace(self, features=out, scale=None)

    def digest(self) -> str:
        """Returns 64 bits that follow from the rows' content, in whatever order they are."""
        if len(self.order) == len(self.keys):
            return f"{int(self.keys.sum(dtype=np.uint64)):016x}"
        chunks = range(0, len(self.order), _CHUNK_ROWS)
        sums = (self.keys[self.order[at : at + _CHUNK_ROWS]].sum(dtype=np.uint64) for at in chunks)
        return f"{sum(map(int, sums)) % 2**64:016x}"

    def lengths(self) -> NDArray[np.integer[Any]] | None:
        """Returns how long each row is, [n]; None where all are equally long."""
        return self.features.lengths() if isinstance(self.features, Inputs) else None


def scaled(features: Array, scale: float | None) -> Array:
    """Returns float32(features) · scale; writes into its argument where that is float32."""
    if scale is None:
        return features
    floats = features.astype(np.float32, copy=False)
    floats *= np.float32(scale)
    return floats


def value_range(features: Features, scale: float | None) -> tuple[float, float] | None:
    """Returns the lowest and the highest number of the first rows, scaled; None without any.

    Example:
        >>> value_range(np.array([[0, 51], [255, 102]]), 1 / 51)
        (0.0, 5.0)
    """
    if isinstance(features, Inputs):
        return None
    first = features[:_SPAN_ROWS]
    if not first.size:
        return None
    low, high = scaled(np.array([first.min(), first.max()]), scale)
    return float(low), float(high)


def content_hash(
    features: Features, labels: Array | None = None, weights: Array | None = None
) -> NDArray[np.uint64]:
    """Returns a hash of 64 bits for every row, [n]: mixed words, Σⱼ aⱼ mix(xⱼ), mixed again.

    The same bytes give the same hash on every machine of the same byte order.

    Reference:
        Multilinear hashing: Carter and Wegman (1979); the mixing is that of SplitMix64:
        Steele, Lea and Flood (2014).
    """
    if isinstance(features, Inputs):
        hashes = np.zeros(len(features), np.uint64)
        for name, column in features.columns.items():
            if isinstance(column, Ragged):
                hashes += _ragged_sums(column, f"input {name}")
            else:
                hashes += _row_sums(column, f"input {name}")
    else:
        hashes = _row_sums(features, "features")
    for name, values in (("labels", labels), ("weights", weights)):
        if values is not None:
            hashes += _row_sums(values, name)
    return _mix_bits(hashes)


def _mix_bits(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mixes 64 bits, in place."""
    scratch = np.empty_like(hashes)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        _mix_round(hashes, scratch, shift, factor)
    return hashes


def _ragged_sums(column: Ragged, name: str) -> NDArray[np.uint64]:
    """Σⱼ mix(hash(xⱼ) + j·φ) over the values of every row, and its length, modulo 2^64."""
    sums = np.asarray(column.lengths).astype(np.uint64) * np.uint64(0xD1342543DE82EF95)
    rows = max(1, _CHUNK_VALUES * len(column) // max(1, len(column.values)))
    for start in range(0, len(column), rows):
        part = column[start : start + rows]
        value_hashes = _row_sums(part.values, name)
        value_hashes += part.positions_in_row().astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        sums[start : start + rows] += part.sums(_mix_bits(value_hashes))
    return sums


def _row_sums(values: Array, column: str) -> NDArray[np.uint64]:
    """Σⱼ aⱼ mix(xⱼ) over the 64-bit words of every row, modulo 2^64."""
    rows = len(values)
    width = math.prod(values.shape[1:]) * values.dtype.itemsize
    words = max(1, -(-width // 8))
    factors = generator(0, "row hash", column).integers(0, 2**63, words, dtype=np.uint64) * 2 + 1
    sums = np.empty(rows, np.uint64)
    chunk = max(1, _CACHE_BYTES // (8 * words))
    buffer = np.zeros((chunk, words), np.uint64)
    scratch = np.empty_like(buffer)
    for start in range(0, rows, chunk):
        block = np.ascontiguousarray(values[start : start + chunk])
        mixed, shifted = buffer[: len(block)], scratch[: len(block)]
        if width % 8:
            mixed[:, -1] = 0
        mixed.view(np.uint8)[:, :width] = block.reshape(len(block), -1).view(np.uint8)
        _mix_round(mixed, shifted, 32, 0x9E3779B97F4A7C15)
        np.einsum("ij,j->i", mixed, factors, out=sums[start : start + len(block)])
    return sums


def _mix_round(
    words: NDArray[np.uint64], scratch: NDArray[np.uint64], shift: int, factor: int
) -> None:
    np.right_shift(words, np.uint64(shift), out=scratch)
    np.bitwise_xor(words, scratch, out=words)
    np.multiply(words, np.uint64(factor), out=words)
    np.right_shift(words, np.uint64(29), out=scratch)
    np.bitwise_xor(words, scratch, out=words)


def _sort_by_content(rows: Block) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    hashes = content_hash(*rows)
    order = np.argsort(hashes, kind="stable").astype(np.int64, copy=False)
    ordered = hashes[order]
    ties = np.flatnonzero(ordered[1:] == ordered[:-1])  # position i ties with i + 1
    if ties.size and not _all_equal(rows, order, ties):
        _untie(rows, order, ties)
    return order, hashes


def _all_equal(rows: Block, order: NDArray[np.int64], ties: NDArray[np.int64]) -> bool:
    """Returns whether rows of the same hash are the same rows: their order then does not matter."""
    if isinstance(rows.features, Inputs):
        return all(_content(rows, order[t]) == _content(rows, order[t + 1]) for t in ties)
    for start in range(0, len(ties), _CHUNK_ROWS):
        chunk = ties[start : start + _CHUNK_ROWS]
        for values in rows:
            if values is None:
                continue
            first_bytes = np.ascontiguousarray(values[order[chunk]]).view(np.uint8)
            if not np.array_equal(
                first_bytes, np.ascontiguousarray(values[order[chunk + 1]]).view(np.uint8)
            ):
                return False
    return True


def _content(rows: Block, row: int) -> tuple[bytes, ...]:
    features, labels, weights = rows
    content = features.bytes_of(row) if isinstance(features, Inputs) else features[row].tobytes()
    return (content, *(b"" if part is None else part[row].tobytes() for part in (labels, weights)))


def _untie(rows: Block, order: NDArray[np.int64], ties: NDArray[np.int64]) -> None:
    """Sorts, in place, each group of rows of one hash by their bytes."""
    breaks = np.flatnonzero(np.diff(ties) > 1) + 1
    for group in np.split(ties, breaks):
        span = slice(int(group[0]), int(group[-1]) + 2)
        order[span] = sorted(order[span].tolist(), key=lambda row: _content(rows, row))
