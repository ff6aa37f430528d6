"""Puts a phase's model and inner optimizer on the worker's device."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping

from photinus.core.errors import NotReadyError, UsageError
from photinus.core.parameters import Vector
from photinus.data.base import Batch
from photinus.devices.discovery import check_memory, fastest, found, product_gflops, ready
from photinus.devices.names import AUTO, OPENCL, kind_of
from photinus.devices.opencl.offload import Offload
from photinus.devices.opencl.open_devices import engine
from photinus.models.base import BatchLike, Model, ModelConfig
from photinus.models.optimizers import InnerOptimizer, InPlaceOptimizer
from photinus.models.placement import CPU

_REPEATS = 5
"""Of one shape the fourth step at the latest is recorded; those after it are faster."""
_TRIED_SEED = 8
"""A seed at which a step on a device reads its loss, too."""

_log = logging.getLogger("photinus")


class Offloaded(Model):
    """A model in the host's memory that has an OpenCL device compute what its `learn` multiplies.

    Args:
        model: computes by PyTorch, in float32.
        device: an OpenCL device's name.
    """

    def __init__(self, model: Model, device: str) -> None:
        self.parameters, self._model = model.parameters, model
        self.offload, self._name = Offload(engine(device)), device
        """Its counts show what the device has computed."""

    def learn(self, batch: BatchLike, seed: int) -> tuple[Vector, Mapping[str, float]]:
        """As the model does, with every product, convolution and max-pool on the device.

        Raises:
            UsageError: the device cannot compute one of them, or the model has none.
        """
        is_first = not self.offload.counts
        with self.offload:
            learned = self._model.learn(batch, seed)
        if is_first:
            self._tell()
        return learned

    def _tell(self) -> None:
        counts = self.offload.counts
        if not counts:
            wrong = f"the model makes no product by PyTorch for {self._name} to compute"
            raise UsageError(wrong, got=type(self._model).__name__, do='device="cpu"')
        named = Counter[str]()
        for name, count in counts.items():
            named[name.split(".")[1]] += count
        products = ", ".join(f"{count} {name}" for name, count in sorted(named.items()))
        _log.warning(
            "device %s: a step computes %s there, and none of them here", self._name, products
        )

    def measure(self, batch: BatchLike) -> Mapping[str, float]:
        """As the model does, on the processor."""
        return self._model.measure(batch)


def fresh(
    config: ModelConfig, history: tuple[Vector, ...], seed: int, device: str
) -> tuple[Model, InnerOptimizer]:
    """Returns a config's model and inner optimizer, on a device that is ready.

    Raises:
        NotReadyError: the device's memory is too small.
        UsageError: the model computes on the processor only.
    """
    model = config.blank(history, seed)
    inner = config.inner(model.parameters.layout)
    if device == CPU:
        return model, inner
    if kind_of(device) == OPENCL:
        if isinstance(inner, InPlaceOptimizer):
            wrong = f"{type(inner).__name__} computes on the processor only"
            raise UsageError(wrong, got=device, do='device="cpu"')
        return Offloaded(model, device), inner
    check_memory(device, model.device_bytes)
    return model, model.place(device, inner)


def device_for(
    asked: str,
    make: Callable[[str], tuple[Model, InnerOptimizer]],
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
    if names is None:
        names = tuple(one.name for one in found() if one.name == CPU or not one.is_processor)
    batch = first() if len(names) > 1 else None
    if batch is None:
        return ready(_told(fastest(lambda name: 1 / product_gflops(name), names, "a product")))
    usable = tuple(name for name in names if _can(make, name))
    chosen = fastest(lambda name: _step_seconds(*make(ready(name)), batch), usable, "a step")
    return ready(_told(chosen))  # of several cards the last one tried is held else


def _told(chosen: tuple[str, str]) -> str:
    name, why = chosen
    _log.warning(why)
    return name


def _can(make: Callable[[str], tuple[Model, InnerOptimizer]], name: str) -> bool:
    try:
        make(ready(name))
    except UsageError:  # the processor's alone
        return False
    except NotReadyError as error:
        _log.warning(str(error))
        return False
    return True


def _step_seconds(model: Model, inner: InnerOptimizer, batch: Batch) -> float:
    """Returns the least of some steps, after one that is not counted."""
    trained, best = model.parameters.trained, float("inf")
    for repeat in range(_REPEATS + 1):
        start = time.perf_counter()
        if isinstance(inner, InPlaceOptimizer):
            inner.descend(model, batch, _TRIED_SEED, 0.0)
        else:
            gradient, _ = model.learn(batch, _TRIED_SEED)
            inner.step(trained, gradient, 0.0)
            model.to_host(trained)
        best = min(best, time.perf_counter() - start) if repeat else best
    return best
