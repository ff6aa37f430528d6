"""Codecs: how a vector travels. Up and down apart; what all hold is what all decoded."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from photinus.core.errors import UsageError
from photinus.core.parameters import Vector
from photinus.core.settings import unknown_name

__all__ = ["CODECS", "Codec", "codec", "decode", "encode", "round_trip"]


class Codec(NamedTuple):
    """A name and how many bytes a float32 number takes on the way."""

    name: str
    bytes_per_number: float


CODECS = {c.name: c for c in (Codec("fp32", 4.0), Codec("bf16", 2.0))}


def codec(name: str) -> Codec:
    """Returns the codec of that name.

    Raises:
        UsageError: there is none.
    """
    if name not in CODECS:
        raise unknown_name("codec", name, CODECS)
    return CODECS[name]


def encode(name: str, vector: Vector) -> Vector:
    """Returns a float vector [n] as the codec sends it: float as it is, or bfloat16 in uint16 [n].

    bfloat16 rounds to the nearest even; float64 vectors travel as they are under `fp32`.
    """
    if name == "fp32":
        return vector
    _refuse_integers(name, vector)
    import torch  # here, so that planning and simulating need no torch

    narrow = torch.from_numpy(np.ascontiguousarray(vector)).to(torch.bfloat16)
    sent: Vector = narrow.view(torch.uint16).numpy()
    return sent


def decode(name: str, sent: Vector) -> Vector:
    """The inverse of `encode`: returns float [n]."""
    if name == "fp32":
        return sent
    wide: Vector = np.left_shift(sent, 16, dtype=np.uint32).view(np.float32)
    return wide


def round_trip(name: str, vector: Vector) -> Vector:
    """Returns what the other side will hold: decode(encode(vector)), in the vector's precision."""
    if name == "fp32":
        return vector
    return decode(name, encode(name, vector)).astype(vector.dtype, copy=False)


def _refuse_integers(name: str, vector: Vector) -> None:
    if vector.dtype.kind != "f":
        raise UsageError(f"codec {name} takes floating-point vectors", got=str(vector.dtype))
