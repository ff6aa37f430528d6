"""Cheap random bits: 16 a draw, from SFC64; twenty times cheaper than torch's Bernoulli."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from photinus.models.tensors import Rooms

__all__ = ["Bits"]


class Bits:
    """A stream of chance for one step, decided by its seed alone.

    Reference: Doty-Humphrey, PractRand's sfc64 (2010), as numpy has it.
    """

    def __init__(self, seed: int, rooms: Rooms | None = None) -> None:
        """Seeds the source.

        Args:
            seed: decides all that is drawn.
            rooms: for what is in between; the caller's, to be used again at the next step.
        """
        self._source = np.random.SFC64(seed)
        self._rooms = rooms or Rooms()

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """Returns whole numbers from −32768 to 32767, all equally likely, int16."""
        count = int(np.prod(shape))
        raw = np.asarray(self._source.random_raw((count + 3) // 4))
        return torch.from_numpy(raw.view(np.int16)[:count].reshape(tuple(shape)))

    def draw(self, probabilities: Tensor, out: Tensor) -> Tensor:
        """Writes 1 with the probability given, else 0, to within 2⁻¹⁶.

        Args:
            probabilities: float32 or bfloat16, any shape.
            out: the same shape, its own type; may be `probabilities` itself.
        """
        chance = self._rooms.get("chance", out.shape).copy_(self.uniform(out.shape))
        threshold = self._rooms.get("threshold", out.shape).copy_(probabilities)
        return torch.gt(threshold.mul_(65536).sub_(32768), chance, out=out)

    def keep(self, share: float, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Returns a dropout mask: 1/share with the probability `share`, else 0."""
        # comparing floats in place is five times faster than making a bool tensor of shorts
        chance = self._rooms.get("chance", shape).copy_(self.uniform(shape))
        return chance.lt_(share * 65536 - 32768).mul_(1 / share).to(dtype)

    def normal(self, shape: Sequence[int]) -> Tensor:
        """Returns standard normal numbers, float32."""
        drawn = np.random.Generator(self._source).standard_normal(tuple(shape), np.float32)
        return torch.from_numpy(drawn)
