"""Puts a phase's model and inner optimizer on the worker's device."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from photinus.core.errors import UsageError
from photinus.core.parameters import Vector
from photinus.data.base import Batch
from photinus.devices.found import check_memory, fastest, found, product_gflops, ready
from photinus.devices.names import AUTO
from photinus.models.base import Model, Stage
from photinus.models.optimizers import Inner
from photinus.models.placement import CPU

__all__ = ["device_for", "fresh", "moved"]

_REPEATS = 3
_TRIED_SEED = 8
"""A seed at which a step on a device reads its loss, too."""

_log = logging.getLogger("photinus")


def moved(model: Model, inner: Inner, device: str) -> Inner:
    """Moves a model to a device that is ready; returns the inner optimizer, moved too.

    Raises:
        NotReadyError: the device's memory is too small.
        UsageError: the model computes on the processor only.
    """
    if device == CPU:
        return inner
    check_memory(device, model.parameters.trained.nbytes)
    return model.place(device, inner)


def fresh(stage: Stage, history: tuple[Vector, ...], seed: int, device: str) -> tuple[Model, Inner]:
    """Returns a stage's model and inner optimizer, on a device that is ready."""
    model = stage.build(history, seed)
    return model, moved(model, stage.inner(model.parameters.layout), device)


def device_for(
    asked: str,
    make: Callable[[str], tuple[Model, Inner]],
    first: Callable[[], Batch | None],
    names: tuple[str, ...] | None = None,
) -> str:
    """Returns the whole name of the device that was asked for, or of the fastest one.

    Args:
        asked: a device's name, or "auto".
        make: returns a model and its inner optimizer on a device.
        first: returns a batch to measure on; None where rows are read once: then a product of
            matrices is measured instead.
        names: of which "auto" chooses; without them, all of this machine.

    Raises:
        NotReadyError: the device is not there, or its memory is too small.
    """
    if asked != AUTO:
        return ready(asked)
    names = tuple(device.name for device in found()) if names is None else names
    batch = first() if len(names) > 1 else None
    if batch is None:
        return _told(fastest(lambda name: 1 / product_gflops(name), names, "a product"))
    usable = tuple(name for name in names if _can(make, name))
    return _told(fastest(lambda name: _step_seconds(*make(ready(name)), batch), usable, "a step"))


def _told(chosen: tuple[str, str]) -> str:
    name, why = chosen
    _log.warning(why)
    return name


def _can(make: Callable[[str], tuple[Model, Inner]], name: str) -> bool:
    try:
        make(ready(name))
    except UsageError:  # the processor's alone
        return False
    return True


def _step_seconds(model: Model, inner: Inner, batch: Batch) -> float:
    """Returns the least of some steps, after one that is not counted."""
    trained, best = model.parameters.trained, float("inf")
    for repeat in range(_REPEATS + 1):
        start = time.perf_counter()
        gradient, _ = model.learn(batch, _TRIED_SEED)
        inner.step(trained, gradient, 0.0)
        model.to_host(trained)
        best = min(best, time.perf_counter() - start) if repeat else best
    return best
