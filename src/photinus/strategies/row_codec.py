"""Deltas of rows as they travel to their owners: in int8 and int4 each row has its own scale.

Rows differ much in size, and an owner gets any of them. So a row of w numbers, of which the last k
stay exact, is a row of bytes: its float32 scale, the k as float32, then the others as they lie in a
block of `codecs`. In fp32 and bf16 numbers travel one by one, as always.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from photinus.core.errors import FrameError
from photinus.core.parameters import Vector, is_finite
from photinus.strategies import codecs
from photinus.strategies.codecs import codec

MAX_LEFT_OUT = 1 << 24
"""How many numbers a worker keeps of what a codec left out: 64 MB."""


def answer_codec(name: str) -> str:
    """Returns the codec in which owners send rows, where deltas are sent to them in codec `name`.

    int8 and int4 need error feedback, and the rows of an owner are no deltas: it would have to
    keep what it left out of each row for each worker.
    """
    return "bf16" if codec(name).has_feedback else name


class RowCodec(NamedTuple):
    """How rows of one width travel.

    Example:
        >>> by_row = RowCodec("int8", width=3)
        >>> rows = np.array([[1.0, -0.5, 0.0], [1e-4, 0.0, 5e-5]], np.float32)
        >>> sent = by_row.encode(rows)
        >>> sent.nbytes, bool(abs(by_row.decode(sent) - rows)[1].max() < 5e-7)
        (14, True)
    """

    name: str
    """Of the codec."""
    width: int
    """w"""
    exact: int = 0
    """k"""

    @property
    def size(self) -> int:
        """How many elements of the vector that travels are of one row."""
        scheme = codec(self.name)
        if not scheme.levels:
            return self.width
        return self._body + -(-(self.width - self.exact) * scheme.bits // 8)

    @property
    def _body(self) -> int:
        return 4 * (1 + self.exact)

    def encode(self, rows: Vector) -> Vector:
        """Returns rows [r, w] as they travel [r · size]."""
        scheme, scaled = codec(self.name), self.width - self.exact
        if not scheme.levels:
            return codecs.encode(self.name, rows.ravel())
        with np.errstate(over="ignore"):  # as of `codecs`
            numbers = np.ascontiguousarray(rows, np.float32)
        sent = np.empty((len(rows), self.size), np.uint8)
        floats = np.empty((len(rows), 1 + self.exact), np.float32)
        floats[:, 1:] = numbers[:, scaled:]
        work = np.empty((len(rows), scaled), np.float32)
        codecs.pack(scheme, numbers[:, :scaled], floats[:, 0], sent[:, self._body :], work)
        sent[:, : self._body] = floats.view(np.uint8)
        return sent.ravel()

    def decode(self, sent: Vector) -> Vector:
        """The inverse of `encode`: returns rows [r, w].

        Raises:
            FrameError: these bytes are no rows of that codec.
        """
        scheme, scaled = codec(self.name), self.width - self.exact
        if not scheme.levels:
            return codecs.decode(self.name, sent).reshape(-1, self.width)
        if sent.dtype != np.uint8 or sent.size % self.size:
            got = f"{sent.size} bytes"
            raise FrameError(f"rows in codec {self.name} take {self.size} bytes each", got=got)
        encoded = sent.reshape(-1, self.size)
        floats = np.ascontiguousarray(encoded[:, : self._body]).view(np.float32)
        rows = np.empty((len(encoded), self.width), np.float32)
        rows[:, scaled:] = floats[:, 1:]
        codecs.unpack(scheme, encoded[:, self._body :], floats[:, 0], rows[:, :scaled])
        return rows

    def is_sound(self, sent: Vector) -> bool:
        """Returns whether all numbers would be finite, were they decoded."""
        if codec(self.name).levels:
            return is_finite(self.decode(sent).ravel())
        return codecs.is_sound(self.name, sent)


class RowErrorFeedback(NamedTuple):
    """What a codec left out of a worker's deltas so far: error feedback by row."""

    rows: Vector
    """Which rows of the table [l], those of the latest push first."""
    numbers: Vector
    """Of each [l, w]."""

    def add_to(self, delta: Vector, rows: Vector) -> None:
        """Adds what was left out to the deltas [r, w] of rows [r] that are named once."""
        _, at, known = np.intersect1d(rows, self.rows, assume_unique=True, return_indices=True)
        delta[at] += self.numbers[known]

    def after(self, rows: Vector, left: Vector) -> RowErrorFeedback:
        """Returns what is left out after a push of rows [r], of which `left` [r, w] stayed here.

        Beyond `MAX_LEFT_OUT` numbers, that of the rows that were pushed longest ago is dropped.
        """
        is_left, is_older = left.any(axis=1), np.isin(self.rows, rows, invert=True)
        most = MAX_LEFT_OUT // left.shape[1]
        return RowErrorFeedback(
            np.concatenate([rows[is_left], self.rows[is_older]])[:most],
            np.concatenate([left[is_left], self.numbers[is_older]])[:most],
        )
