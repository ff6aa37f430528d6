"""A worker's own step: the gradient of a batch, and the inner optimizer."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from photinus.core.parameters import Vector
from photinus.data.base import Batch
from photinus.models.optimizers import InPlace
from photinus.training.phase_context import PhaseContext

_TAKEN: Vector = np.zeros(0, np.float32)
"""Stands for a gradient where the steps were taken in place."""
_NO_MEMORY = ("allocate memory", "out of memory")


def learn(
    context: PhaseContext, batch: Batch, progress: float
) -> tuple[Vector, Mapping[str, float]]:
    """Returns gradient and metrics of a batch; an error names the batch."""
    at = context.feed.position
    try:
        if isinstance(context.inner, InPlace):
            return _TAKEN, context.inner.descend(context.model, batch, context.seed(at), progress)
        return context.model.learn(batch, context.seed(at))
    except Exception as error:
        first = at - batch.examples
        error.add_note(f"in {context.where}, in the batch of its examples {first} to {at - 1}")
        said = str(error).lower()  # torch raises no MemoryError
        if isinstance(error, MemoryError) or any(words in said for words in _NO_MEMORY):
            error.add_note("memory ran out: use a smaller batch, or fewer workers")
        raise


def step(context: PhaseContext, gradient: Vector, progress: float) -> None:
    """Takes the inner step, and adds the gradient up where its sum is pushed."""
    if context.sums is not None:
        context.model.to_host(gradient)
        context.sums[:] += gradient
    if gradient is not _TAKEN:
        context.inner.step(context.model.parameters.trained, gradient, progress)
