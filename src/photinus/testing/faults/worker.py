"""Wraps a worker's loop and injects the planned faults, on every engine."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from photinus.core.errors import FencedError, UsageError
from photinus.core.parameters import Layout, Vector
from photinus.data.base import Array
from photinus.engine.hooks import Machine
from photinus.models.base import BatchLike, Model, ModelConfig
from photinus.models.optimizers import InnerOptimizer
from photinus.testing.faults.fault import (
    COPY,
    CUT,
    FREEZE,
    KILL,
    NAN,
    NO_MEMORY,
    SLOW,
    SLOW_LINK,
    Fault,
)
from photinus.training.plan import TrainingPlan
from photinus.training.requests import Close, Grant, Hello, StepDone, WorkerGenerator
from photinus.training.worker_loop import WorkerData, live

_STEP_KINDS = (NAN, NO_MEMORY)
_SPARE_BYTES, _REFUSED_BYTES = 16 << 20, 1 << 30
"""What other threads may still get, and what is refused."""


@dataclass(eq=False)
class FaultyWorker:
    """One worker's generator, with the faults that are planned for it.

    Args:
        planned: of its slot.
        happen: does a fault; of `slow`, after every step, with the seconds that the step took.
        later: calls `happen` with a fault after so many seconds.
    """

    planned: tuple[Fault, ...]
    happen: Callable[[Fault, float], None]
    later: Callable[[float, Fault], None]
    lease: int = field(default=0, init=False)
    steps: int = field(default=0, init=False)
    """Under the present lease."""

    def life(self, plan: TrainingPlan, slot: int, part: WorkerData) -> WorkerGenerator:
        """Returns the generator of `training.worker_loop.live`, in which the faults happen.

        Raises:
            UsageError: A fault of a gradient is planned where rows of tables are stepped in place.
        """
        if in_step := [fault.kind for fault in self.planned if fault.kind in _STEP_KINDS]:
            if any(phase.config.row_size for phase in plan.phases):
                wrong = "a fault of a gradient needs one of the whole model, not steps of rows"
                do = "use another fault, or a model without ShardedEmbedding tables"
                raise UsageError(wrong, got=in_step[0], do=do)
            phases = (replace(p, config=_SpoiledConfig(p.config, self)) for p in plan.phases)
            plan = replace(plan, phases=tuple(phases))
        life = live(plan, slot, part)
        return self._with_faults(life) if self.planned else life

    def inject_in_step(self, kind: str) -> bool:
        """Does the faults of a kind planned for this step; returns whether there are any."""
        moment = (self.lease, self.steps + 1)
        faults = [f for f in self.planned if f.kind == kind and (f.lease, f.step) == moment]
        for fault in faults:
            self.happen(fault, 0.0)
        return bool(faults)

    def _with_faults(self, life: WorkerGenerator) -> WorkerGenerator:
        began_at = time.perf_counter()
        try:
            request = next(life)
            while True:
                if isinstance(request, StepDone):
                    self.stepped(time.perf_counter() - began_at)
                try:
                    answer = yield request
                except FencedError as error:
                    request = life.throw(error)
                    continue
                if isinstance(answer, Grant) and isinstance(request, (Hello, Close)):
                    self._granted(answer)
                began_at = time.perf_counter()
                request = life.send(answer)
        except StopIteration:
            return

    def _granted(self, grant: Grant) -> None:
        if grant.lease == self.lease:  # another phase
            return
        self.lease, self.steps = grant.lease, 0
        for fault in self.planned:
            if fault.lease == self.lease and fault.at_seconds is not None:
                self.later(fault.at_seconds, fault)

    def stepped(self, seconds: float) -> None:
        """One step more is made, which took so long."""
        self.steps += 1
        moment = (self.lease, self.steps)
        for fault in self.planned:
            if fault.kind in _STEP_KINDS:
                continue
            planned_moment = (fault.lease, fault.step or 0)
            if (
                (moment >= planned_moment)
                if fault.kind in (SLOW, SLOW_LINK)
                else (moment == planned_moment)
            ):
                self.happen(fault, seconds)


def inject(machine: Machine, fault: Fault) -> None:
    """Does a fault to a worker of the simulator, unless that is dead already."""
    if machine.is_dead:
        return
    if fault.kind not in (SLOW, SLOW_LINK):
        machine.noted(fault)
    actions = {
        SLOW: lambda: machine.slow(fault.factor),
        SLOW_LINK: lambda: machine.slow_link(fault.amount),
        KILL: lambda: machine.kill(fault.seconds),
        FREEZE: lambda: machine.freeze(fault.seconds),
        CUT: lambda: machine.cut(fault.seconds, is_silent=fault.host),
        COPY: machine.copy,
    }
    if fault.kind in actions:
        actions[fault.kind]()


class _SpoiledConfig(ModelConfig):
    """A config whose models can spoil a gradient."""

    def __init__(self, config: ModelConfig, worker: FaultyWorker) -> None:
        self.name, self.epochs, self.batch_size = config.name, config.epochs, config.batch_size
        self.max_steps = config.max_steps
        self._config, self._worker = config, worker
        self.device = getattr(config, "device", "")

    def build(self, history: tuple[Vector, ...], seed: int) -> Model:
        return _SpoiledModel(self._config.build(history, seed), self._worker)

    def prepare(self, features: Array, history: tuple[Vector, ...]) -> Array:
        return self._config.prepare(features, history)

    @property
    def prepares(self) -> bool:
        return self._config.prepares

    def preload(self) -> None:
        self._config.preload()

    def agreed_until(self, share: float) -> ModelConfig:
        return _SpoiledConfig(self._config.agreed_until(share), self._worker)

    def inner(self, layout: Layout) -> InnerOptimizer:
        return self._config.inner(layout)


class _SpoiledModel(Model):
    """A model whose gradient is spoiled in the step of the fault."""

    def __init__(self, model: Model, worker: FaultyWorker) -> None:
        self.parameters, self._model, self._worker = model.parameters, model, worker

    def learn(self, batch: BatchLike, seed: int) -> tuple[Vector, Mapping[str, float]]:
        if self._worker.inject_in_step(NO_MEMORY):
            _allocate_in_vain()
        is_spoiled = self._worker.inject_in_step(NAN)
        gradient, metrics = self._model.learn(batch, seed)
        return np.full_like(gradient, np.nan) if is_spoiled else gradient, metrics

    def measure(self, batch: BatchLike) -> Mapping[str, float]:
        return self._model.measure(batch)

    def place(self, device: str, inner: InnerOptimizer) -> InnerOptimizer:
        moved = self._model.place(device, inner)
        self.parameters = self._model.parameters
        return moved

    def to_host(self, *vectors: Vector) -> None:
        self._model.to_host(*vectors)

    def to_device(self, *vectors: Vector) -> None:
        self._model.to_device(*vectors)


def _allocate_in_vain() -> None:
    """Asks for more memory than the system may give to this process for a moment.

    Raises:
        MemoryError: always, from the system's own refusal.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + _SPARE_BYTES, hard))
    try:
        np.ones(_REFUSED_BYTES, np.uint8)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
