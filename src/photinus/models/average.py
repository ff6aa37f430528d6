"""A moving average of the weights, used for measuring and scoring."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from photinus.core.parameters import FLOATS, INTEGERS

_Entries = list[tuple[str, tuple[int, ...], str]]


def average_layout(trained: _Entries) -> _Entries:
    """Returns what an average of trained tensors needs of the layout, to lie behind all else.

    It is made of buffers, float and integer, so that it is agreed on, saved and resumed as they
    are: workers take the mean of their averages.
    """
    shadows: _Entries = [(f"average.{name}", shape, FLOATS) for name, shape, _ in trained]
    return [*shadows, ("average.steps", (1,), INTEGERS)]


class Average:
    """Follows the trained parameters: s ← d s + (1 − d) w, d = min(decay, (1 + n) / (10 + n)).

    n counts the steps; what the last step gave is taken in at the next one.

    Args:
        trained: the parameters [n].
        floats: of the layout, with the entries of `average_layout` at their end.
        integers: likewise.
        decay: d, once there have been many steps.

    Reference:
        Polyak and Juditsky, Acceleration of stochastic approximation by averaging (1992), in the
        form of TensorFlow's `ExponentialMovingAverage` with `num_updates`.
    """

    def __init__(self, trained: Tensor, floats: Tensor, integers: Tensor, decay: float) -> None:
        self._trained = trained
        self._shadow = floats[len(floats) - len(trained) :]
        self._steps = integers[-1:]
        self._decay = decay
        self._shadow.copy_(self._trained)

    def step(self) -> None:
        """Takes in what the last step gave, before the next one."""
        if self._shadow.device.type != "cpu":
            self._step_on_device()
            return
        n = int(self._steps[0])
        if n:
            decay = min(self._decay, (1 + n) / (10 + n))
            self._shadow.lerp_(self._trained.to(self._shadow.dtype), 1 - decay)
        self._steps[0] = n + 1

    def _step_on_device(self) -> None:
        """Does the same without a number of the host's, for which a device had to be waited for."""
        n = self._steps.double()  # [1]
        decay = ((1 + n) / (10 + n)).clamp(max=self._decay)
        weight = torch.where(n > 0, 1 - decay, 0.0).to(self._shadow.dtype)
        self._shadow.lerp_(self._trained.to(self._shadow.dtype), weight)
        self._steps.add_(1)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Has the average in the trained parameters' place for a while."""
        saved = self._trained.clone()
        self._trained.copy_(self._shadow)
        try:
            yield
        finally:
            self._trained.copy_(saved)
