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
_WORD = 8
"""Bytes that are looked at together."""


def gather(vector: Vector) -> tuple[Vector, Vector] | None:
    """Returns the grains of a vector [n] that hold more than zeros, and a bit for each grain.

    −0 is not 0 here: no bit is lost. None where that would be longer than the vector.

    Example:
        >>> vector = np.zeros(1000, np.float32)
        >>> vector[300] = 7.0
        >>> some, kept = gather(vector)
        >>> some.nbytes, kept.nbytes
        (480, 7)
    """
    grain, words = _grain(vector)
    end = vector.size - vector.size % (8 * grain)
    body = np.ascontiguousarray(vector[:end])
    is_kept = (body.view(np.uint64) != 0).view(f"u{words}") != 0  # as many truth values as words
    kept = np.packbits(is_kept)
    if int(is_kept.sum()) * words * _WORD + kept.nbytes >= body.nbytes:
        return None
    return np.concatenate([body.reshape(-1, grain)[is_kept].ravel(), vector[end:]]), kept


def scatter(some: Vector, kept: Vector) -> Vector:
    """The inverse of `gather`: returns the whole vector [n].

    Raises:
        FrameError: these bits do not fit these numbers, or the vector would be too long.
    """
    grain, words = _grain(some)
    if kept.dtype != np.uint8:
        raise FrameError("the grains of a vector are told by bits", got=kept.dtype)
    if (length := 8 * kept.size * words * _WORD) > MOST_BYTES:
        raise FrameError(f"a sparse vector holds at most {MOST_BYTES} bytes", got=length)
    try:
        is_kept = np.unpackbits(kept).view(np.bool_)
        end, inside = is_kept.size * grain, int(is_kept.sum()) * grain
        if inside > some.size:
            got = f"{some.size} numbers"
            raise FrameError(f"{inside} numbers of a sparse vector must travel", got=got)
        vector = np.zeros(end + some.size - inside, some.dtype)
    except MemoryError as error:
        raise FrameError("no memory for a sparse vector", got=f"{kept.size} bytes") from error
    vector[:end].reshape(-1, grain)[is_kept] = some[:inside].reshape(-1, grain)
    vector[end:] = some[inside:]
    return vector


def _grain(vector: Vector) -> tuple[int, int]:
    """Returns how many numbers are a grain, and how many words; of float64 they are eight."""
    words = min(16 * vector.itemsize // _WORD, 8)
    return words * _WORD // vector.itemsize, words


def to_sparse(message: Message) -> Message:
    """Returns a message without the zeros of its vector, where that is shorter."""
    found = None if message.vector is None or message.rows is not None else gather(message.vector)
    return message if found is None else message._replace(vector=found[0], kept=found[1])


def to_dense(message: Message) -> Message:
    """The inverse of `to_sparse`.

    Raises:
        FrameError: as of `scatter`.
    """
    if message.kept is None or message.vector is None:
        return message
    return message._replace(vector=scatter(message.vector, message.kept), kept=None)
