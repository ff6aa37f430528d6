"""A worker's own step: the gradient of a batch, and the inner optimizer."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from photinus.core.parameters import Vector
from photinus.data.base import Batch
from photinus.models.optimizers import InPlaceOptimizer
from photinus.strategies.base import PARAMETERS
from photinus.training.phase_context import PhaseContext
from photinus.training.segments import EarlyGradient

_TAKEN: Vector = np.zeros(0, np.float32)
"""Stands for a gradient where the steps were taken in place."""
_NO_MEMORY = ("allocate memory", "out of memory")


def learn(
    context: PhaseContext, batch: Batch, progress: float, early: EarlyGradient | None = None
) -> tuple[Vector, Mapping[str, float]]:
    """Returns gradient and metrics of a batch; an error names the batch.

    Args:
        context: of the phase.
        batch: to learn from.
        progress: of the stage.
        early: takes each part of the gradient as soon as it is final, and in the end the rest.
    """
    position, model = context.feed.position, context.model
    try:
        if isinstance(context.inner, InPlaceOptimizer):
            return _TAKEN, context.inner.descend(model, batch, context.seed(position), progress)
        model.on_gradient = None if early is None else early.final
        is_local = context.strategy.site == PARAMETERS  # nobody else reads the gradient
        model.give_gradient = context.inner.take if is_local else None
        learned = model.learn(batch, context.seed(position))
        if early is not None:
            model.to_host(learned[0])
            early.rest(learned[0])
        return learned
    except Exception as error:
        first = position - batch.examples
        error.add_note(
            f"in {context.where}, in the batch of its examples {first} to {position - 1}"
        )
        text = str(error).lower()  # torch raises no MemoryError
        if isinstance(error, MemoryError) or any(words in text for words in _NO_MEMORY):
            error.add_note("memory ran out: use a smaller batch, or fewer workers")
        raise


def step(context: PhaseContext, gradient: Vector, progress: float) -> None:
    """Takes the inner step, and adds the gradient up where its sum is pushed."""
    if context.sums is not None:
        context.model.to_host(gradient)
        context.sums[:] += gradient
    if gradient is not _TAKEN:
        context.inner.step(context.model.parameters.trained, gradient, progress)
