"""Stands for a user's own training loop inside a worker.

The worker is like any other: `worker_loop.live` around `loop.work`. Its model computes nothing
and its feed holds no rows: the user's loop takes each step before the worker reports it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor, from_numpy, nn

from photinus.core.errors import UsageError
from photinus.core.parameters import Layout, Vector
from photinus.data.base import Batch, Feed, Transform
from photinus.models.base import Model, ModelConfig
from photinus.models.module_model import ModuleModel
from photinus.models.optimizers import InnerOptimizer
from photinus.nn import ShardedEmbedding
from photinus.strategies.base import PARAMETERS, StrategyPair
from photinus.strategies.custom import CustomStrategy
from photinus.strategies.single_worker import SingleWorker
from photinus.strategies.spec import StrategySpec
from photinus.training.plan import Phase, TrainingPlan
from photinus.training.worker_loop import WorkerData

_NAME = "loop"
_ONE = Batch(np.zeros((1, 0), np.float32))


class OwnLoop(Model):
    """A module that the user's own loop trains; its tensors are views of the flat buffer.

    If the user moves them elsewhere, to a GPU say, they are copied from and to it.

    Args:
        module: what is trained: its parameters with `requires_grad`.

    Raises:
        UsageError: it is no module, no parameter requires a gradient, types are mixed, or tables
            are sharded.
    """

    def __init__(self, module: nn.Module) -> None:
        if not isinstance(module, nn.Module):
            wrong, do = "agree takes a torch.nn.Module", "agree(model)"
            raise UsageError(wrong, got=type(module).__name__, do=do)
        if any(isinstance(layer, ShardedEmbedding) for layer in module.modules()):
            wrong, do = "a loop of one's own holds whole tables", "use nn.Embedding(sparse=True)"
            raise UsageError(wrong, got="ShardedEmbedding", do=do)
        self.parameters = ModuleModel(module, "mse").parameters  # its loss is asked for nothing
        self.metrics: dict[str, float] = {}
        """Of the step that was taken last."""
        self.steps = 0
        """How many steps were taken in this phase, by all attempts in the slot."""
        views = {name: from_numpy(view) for name, view in self.parameters.tensors().items()}
        self._trained = [(p, views[n]) for n, p in module.named_parameters() if p.requires_grad]
        self._buffers = [
            (module.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2], views[name])
            for name, _ in module.named_buffers()
            if name in views
        ]

    def gather(self) -> None:
        """Copies the tensors that lie elsewhere into the flat buffer."""
        for tensor, view in self._elsewhere():
            view.copy_(tensor)

    def scatter(self) -> None:
        """Copies the flat buffer into the tensors that lie elsewhere."""
        for tensor, view in self._elsewhere():
            tensor.copy_(view)

    def _elsewhere(self) -> Iterator[tuple[Tensor, Tensor]]:
        tensors = [(p.data, view) for p, view in self._trained]
        tensors += [(layer.get_buffer(name), view) for layer, name, view in self._buffers]
        return ((t, v) for t, v in tensors if t.numel() and t.data_ptr() != v.data_ptr())

    def learn(self, batch: Batch, seed: int) -> tuple[Vector, Mapping[str, float]]:  # type: ignore[override]  # noqa: ARG002
        """Returns no gradient: the step is the user's, with what was measured in it."""
        return self.parameters.trained[:0], self.metrics

    def measure(self, batch: Batch) -> Mapping[str, float]:  # type: ignore[override]  # noqa: ARG002
        """Measures nothing."""
        return {}


class _Steps(Feed):
    """One example a step, for as long as the user's loop takes them."""

    def __init__(self, loop: OwnLoop, rows: int) -> None:
        self._loop, self._rows = loop, rows

    @property
    def rows(self) -> int:
        return self._rows

    @property
    def position(self) -> int:
        return self._loop.steps

    def __iter__(self) -> Iterator[Batch]:
        while True:
            yield _ONE

    def seek(self, position: int) -> None:
        self._loop.steps = position

    def mapped(self, function: Transform) -> Feed:  # noqa: ARG002
        return self


class _NoOptimizer(InnerOptimizer):
    """The user's optimizer has stepped."""

    def step(self, trained: Vector, gradient: Vector, progress: float) -> None:
        pass

    def state(self) -> dict[str, Vector]:
        return {}

    def load(self, state: Mapping[str, Vector]) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class _LoopConfig(ModelConfig):
    batch_size: int
    loop: OwnLoop | None = field(default=None, compare=False)
    name: str = _NAME
    epochs: float = 1.0

    def build(self, history: tuple[Vector, ...], seed: int) -> Model:  # noqa: ARG002
        assert self.loop is not None, "only a worker has the user's model"
        return self.loop

    def inner(self, layout: Layout) -> InnerOptimizer:  # noqa: ARG002
        return _NoOptimizer()


def plan_of(
    strategy: StrategyPair,
    workers: int,
    *,
    is_counted: bool,
    loop: OwnLoop | None = None,
    start: tuple[Vector, ...] = (),
) -> TrainingPlan:
    """Returns the plan of a loop of the user's own: one phase.

    Args:
        strategy: as `strategy_pair` returned it.
        workers: how many.
        is_counted: whether each worker's number of steps is known: a recipe then follows it.
        loop: of a worker.
        start: trained [n], floats and integers to start from, for the driver.
    """
    config = _LoopConfig(batch_size=workers, loop=loop)
    optimizer = "adamw" if is_counted and isinstance(strategy, StrategySpec) else None
    phase = Phase(config=config, strategy=strategy, optimizer=optimizer)
    return TrainingPlan(phases=(phase,), workers=workers, start={_NAME: start} if start else {})


def loop_data(loop: OwnLoop, steps: int | None) -> WorkerData:
    """Returns a worker's part: its steps, as far as their number is known."""
    rows = steps or 1
    return WorkerData(rows, lambda order: _Steps(loop, rows))  # noqa: ARG005


def strategy_pair(strategy: Any, workers: int) -> StrategyPair:  # noqa: ANN401 - what a user may give
    """Returns how workers agree whose steps are the user's own.

    Raises:
        UsageError: the strategy acts on gradients, inside of a step, or counts rows.
    """
    if not isinstance(strategy, (StrategySpec, CustomStrategy)):
        do = "e.g. photinus.averaging(every=photinus.Steps(20))"
        raise UsageError("strategy must be made by a recipe", got=repr(strategy), do=do)
    if isinstance(strategy, StrategySpec):
        strategy = strategy.without_start
    if strategy.worker().site != PARAMETERS or getattr(strategy, "gradients_until", 0.0):
        raise UsageError(
            "a loop of one's own agrees on parameters after its steps, not on gradients in them",
            got=strategy.recipe,
            do="use averaging, diloco, streaming, downpour, elastic, publish or gossip; "
            "gradients_until=0 leaves a start by gradients out",
        )
    every = getattr(strategy.worker(), "every", None)
    if isinstance(strategy, StrategySpec):
        if every is not None and (every.epochs or every.examples):
            wrong = "a loop of one's own is counted in steps and seconds, not in rows"
            raise UsageError(wrong, got=f"every {every}", do="e.g. every=photinus.Steps(50)")
        strategy.check_workers(workers)
    return SingleWorker(every=every) if workers == 1 and every is not None else strategy
