"""Vectors of which most numbers are 0, as they travel: without the zeros, and to the same bits.

A vector is cut into grains of 16 numbers. A bit for each grain says whether it travels; what lies
behind the last eight grains always does. So strategies and codecs need no changes: a delta or a
gradient of tables of which few rows changed is short.
"""

from __future__ import annotations

import numpy as np

from photinus.core.errors import FrameError
from photinus.core.parameters import Vector
from photinus.strategies.base import Message

MOST_BYTES = 4 << 30
"""Of a whole vector: as many as a frame may hold."""
_WORD_BYTES = 8
"""Bytes that are compared with 0 together."""


def without_zeros(vector: Vector) -> tuple[Vector, Vector] | None:
    """Returns the grains of a vector [n] that hold more than zeros, and a bit for each grain.

    −0 is not 0 here: no bit is lost. None where that would be longer than the vector.

    Example:
        >>> vector = np.zeros(1000, np.float32)
        >>> vector[300] = 7.0
        >>> values, mask = without_zeros(vector)
        >>> values.nbytes, mask.nbytes
        (480, 7)
    """
    grain, words = _grain_size(vector)
    body_size = vector.size - vector.size % (8 * grain)
    body = np.ascontiguousarray(vector[:body_size])
    has_values = (body.view(np.uint64) != 0).view(f"u{words}") != 0  # as many truth values as words
    mask = np.packbits(has_values)
    if int(has_values.sum()) * words * _WORD_BYTES + mask.nbytes >= body.nbytes:
        return None
    return np.concatenate([body.reshape(-1, grain)[has_values].ravel(), vector[body_size:]]), mask


def with_zeros(values: Vector, mask: Vector) -> Vector:
    """The inverse of `without_zeros`: returns the whole vector [n].

    Raises:
        FrameError: these bits do not fit these numbers, or the vector would be too long.
    """
    grain, words = _grain_size(values)
    if mask.dtype != np.uint8:
        raise FrameError("the grains of a vector are told by bits", got=mask.dtype)
    if (length := 8 * mask.size * words * _WORD_BYTES) > MOST_BYTES:
        raise FrameError(f"a sparse vector holds at most {MOST_BYTES} bytes", got=length)
    try:
        has_values = np.unpackbits(mask).view(np.bool_)
        body_size, grains_size = has_values.size * grain, int(has_values.sum()) * grain
        if grains_size > values.size:
            got = f"{values.size} numbers"
            raise FrameError(f"{grains_size} numbers of a sparse vector must travel", got=got)
        vector = np.zeros(body_size + values.size - grains_size, values.dtype)
    except MemoryError as error:
        raise FrameError("no memory for a sparse vector", got=f"{mask.size} bytes") from error
    vector[:body_size].reshape(-1, grain)[has_values] = values[:grains_size].reshape(-1, grain)
    vector[body_size:] = values[grains_size:]
    return vector


def _grain_size(vector: Vector) -> tuple[int, int]:
    """Returns how many numbers are a grain, and how many words; of float64 they are eight."""
    words = min(16 * vector.itemsize // _WORD_BYTES, 8)
    return words * _WORD_BYTES // vector.itemsize, words


def to_sparse(message: Message) -> Message:
    """Returns a message without the zeros of its vector, where that is shorter."""
    sparse = (
        None
        if message.vector is None or message.rows is not None
        else without_zeros(message.vector)
    )
    return message if sparse is None else message._replace(vector=sparse[0], kept=sparse[1])


def to_dense(message: Message) -> Message:
    """The inverse of `to_sparse`.

    Raises:
        FrameError: as of `with_zeros`.
    """
    if message.kept is None or message.vector is None:
        return message
    return message._replace(vector=with_zeros(message.vector, message.kept), kept=None)
