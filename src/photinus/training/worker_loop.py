"""A worker's phases, one after the other, around the training loop."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from photinus.core.errors import FencedError
from photinus.core.pages import read_at_random, release_pages
from photinus.core.parameters import Vector
from photinus.core.seeds import derive
from photinus.data.arrays import FeedOrder
from photinus.data.base import Array, Batch, Feed, Transform
from photinus.data.rows import Allocator, Rows, memory
from photinus.models.base import Model
from photinus.models.optimizers import InnerOptimizer
from photinus.models.owner_steps import OwnerSteps
from photinus.models.row_steps import RowSteps
from photinus.models.sharded import ShardedModel
from photinus.strategies.base import (
    GRADIENT_SUM,
    ROW_GRADIENTS,
    Message,
    RowExchange,
    ShardMove,
    Strategy,
    is_held_by_workers,
)
from photinus.strategies.shard_backups import DENSE, ShardBackup
from photinus.training.ahead import AheadFeed, LookaheadFeed
from photinus.training.loop import work
from photinus.training.phase_context import PhaseContext, PhaseProgress
from photinus.training.placement import device_for, fresh
from photinus.training.plan import REST, START, TrainingPlan
from photinus.training.requests import Close, Grant, Hello, Request, WorkerGenerator, WorkerSnapshot
from photinus.training.shard_pages import (
    AT,
    ShardCopy,
    allocated,
    fetched_moved,
    fetched_shard,
    sample_of,
)
from photinus.training.strategy_state import position_of, split_state

CHUNK_ROWS = 1000
"""With `full_gradient`, and to measure, how many rows one forward pass takes."""


@dataclass(frozen=True, slots=True)
class WorkerData:
    """A worker's own data: how many rows, and a feed over them for each phase."""

    rows: int
    open: Callable[[FeedOrder], Feed]
    passes: int | None = None
    """How many passes over the rows an attempt has: None for no limit; 1 where rows of any worker
    stream; 0 where they had to be counted first, and that used the pass up."""
    labels: Mapping[str, int] = field(default_factory=dict)
    """How often each label occurs, where they are classes and every row is here."""
    held: Rows | None = None
    """Rows that were set aside, to measure on."""
    span: tuple[float, float] | None = None
    """The lowest and the highest number of its first rows, where the model asks for 0..1."""
    digest: str = ""
    """64 bits that follow from the rows' content; empty where rows stream."""
    is_weightless: bool = False
    """The weights of all its rows are 0."""
    room: Allocator = memory
    """Where the worker's shard of a table lies: in memory, or in a mapped file."""

    def held_batches(self, slots: tuple[int, int], prepare: Transform) -> Iterator[Batch]:
        """Yields the rows set aside, in batches.

        Args:
            slots: of rows that all can read, which slot's share and of how many; else 0 of 1.
            prepare: from the job's features to the model's.
        """
        rows = self.held
        order = np.empty(0, np.int64) if rows is None else rows.order[slots[0] :: slots[1]]
        for start in range(0, order.size, CHUNK_ROWS):
            assert rows is not None
            batch = rows.batch(order[start : start + CHUNK_ROWS])
            yield batch._replace(features=prepare(batch.features))


class _PreviousPhase(NamedTuple):
    """What the first phase of a stage hands to the second."""

    model: Model
    inner: InnerOptimizer


def live(plan: TrainingPlan, slot: int, data: WorkerData) -> WorkerGenerator:
    """Yields a worker's requests until the plan is over.

    `Hello` and `Close` are answered by a `Grant` or None, all others by `StepReply`. The driver
    of the generator throws `FencedError` in when the seat was lost: what was not acknowledged is
    dropped, and the worker says hello again.
    """
    history: list[Vector] = []
    previous: _PreviousPhase | None = None
    is_used = data.passes == 0
    grant: Grant | None = yield _hello(data)
    while grant is not None:
        history += grant.history
        try:
            if is_used:
                grant = yield Close(grant.position, is_unfinished=not grant.is_idle)
                continue
            is_used = data.passes is not None
            grants, grant = [grant], None  # its vectors are released once they are used
            close, previous = yield from _train_share(
                plan, slot, data, grants, tuple(history), previous
            )
            grant = yield close
        except FencedError:
            previous = None
            grant = yield _hello(data)._replace(has=len(history))


def _hello(data: WorkerData) -> Hello:
    return Hello(data.rows, 0, data.passes, data.labels, data.span, data.digest, data.is_weightless)


def _train_share(
    plan: TrainingPlan,
    slot: int,
    data: WorkerData,
    grants: list[Grant],
    history: tuple[Vector, ...],
    previous: _PreviousPhase | None,
) -> Generator[Request, Any, tuple[Close, _PreviousPhase]]:
    """Trains until the share is done; its prepared rows make room for those of the next one."""
    grant = grants.pop()
    context = _phase_context(plan, slot, data, grant, history, previous)
    if _is_sharded(context.strategy):
        context.heal[:] = [(yield from _with_shard(plan, slot, data, grant, context))]
    grant = grant.used()
    snapshot = None if grant.is_idle else (yield from work(context))
    if snapshot is None and _is_sharded(context.strategy):
        state = context.strategy.accept(context.model.parameters.trained, context.heal[0], None)
        yield from ShardCopy(state, is_last=True).pages()
        release_pages(state.own)
    close = _closing(plan, grant, data, context, snapshot)
    return close, _PreviousPhase(context.model, context.inner)


def _closing(
    plan: TrainingPlan,
    grant: Grant,
    data: WorkerData,
    context: PhaseContext,
    snapshot: WorkerSnapshot | None,
) -> Close:
    """Returns the close of a share, or, where rows stream, at least of the pass."""
    at = context.feed.position
    # a shard was sent in pages
    parameters = context.model.parameters if is_held_by_workers(context.strategy) else None
    phase = plan.phases[grant.phase]
    # after a start all hold the same state: one of them sends it, for joiners and checkpoints;
    # each owner of a sharded table holds that of its own rows, and the rest begins without
    is_told = phase.part == START and grant.sends_inner and not _is_sharded(context.strategy)
    inner = snapshot.inner if snapshot and is_told else {}
    if data.passes is None or snapshot is None:
        return Close(at, parameters, inner=inner)
    is_border = data.rows > 0 and at % data.rows == 0
    end = round(grant.span[1] * phase.config.passes(grant.rows) * data.rows)
    is_done = plan.is_fixed(grant.phase) and at >= end
    return Close(at, parameters, is_border and not is_done, inner if is_done else snapshot.inner)


def _phase_context(
    plan: TrainingPlan,
    slot: int,
    data: WorkerData,
    grant: Grant,
    history: tuple[Vector, ...],
    previous: _PreviousPhase | None,
) -> PhaseContext:
    phase = plan.phases[grant.phase]
    settled, _ = phase.settled(grant.rows, plan.workers, grant.span)
    config, strategy = phase.config_for(plan.workers, grant.span), settled.worker()
    is_whole = bool(getattr(strategy, "whole_part", False))
    order = FeedOrder(
        batch_size=max(1, data.rows) if is_whole else config.batch_size,
        share=(1, 1) if is_whole or not data.rows else (data.rows, max(data.rows, grant.rows)),
        epochs=_epochs(plan, data, grant),
        whole_steps=config.max_steps > 0 or (phase.part == START and grant.span[1] < 1.0),
        seed=plan.seed,
        phase=config.name,
        slot=slot,
        workers=plan.workers,
    )
    shared = (slot, plan.workers) if plan.is_shared else (0, 1)

    def prepare(features: Array) -> Array:
        return config.prepare(features, history)

    feed = data.open(order)
    if config.prepares:
        feed = feed.mapped(prepare)
    inner_state, strategy_state = split_state(grant.inner)
    feed.seek(position_of(strategy_state, grant.position))
    seed = partial(derive, plan.seed, config.name, slot)

    def make(device: str) -> tuple[Model, InnerOptimizer]:
        return fresh(config, history, plan.seed, device)

    def first() -> Batch | None:
        return next(iter(data.open(order).mapped(prepare)), None) if data.passes is None else None

    continues = previous is not None and phase.part == REST and grant.is_fresh and not grant.inner
    if previous and continues and not _is_sharded(strategy):
        model, inner = previous
    else:
        model, inner = make(device_for(plan.device(grant.phase, slot), make, first))
    heal = grant.heal
    if is_table := _is_sharded(strategy):
        assert heal.integers is not None
        np.copyto(model.parameters.integers, heal.integers)
        model.to_device(model.parameters.integers)
        steps = strategy.every.steps  # type: ignore[attr-defined]
        feed = LookaheadFeed(feed, steps, lambda batch, at: model.rows(batch, seed(at)))
        inner = _steps_of_owner(strategy, model, inner, slot, plan.workers)
    else:
        assert heal.vector is not None
        model.load(heal.vector, heal.floats, heal.integers)
    feed = feed if is_whole else _sent_ahead(feed, data, model)
    if inner_state:
        inner.load(inner_state)
    trained = model.parameters.trained
    per_example = grant.rows / max(1, data.rows) / max(1, grant.budget)
    return PhaseContext(
        model=_WholeData(model) if is_whole else model,
        inner=inner,
        feed=feed,
        strategy=strategy,
        phase_progress=PhaseProgress(grant.progress, 0, per_example, grant.span),
        seed=seed,
        heal=[heal] if is_table or not grant.is_fresh else [],
        kept=strategy_state,
        sums=np.zeros_like(trained) if strategy.site == GRADIENT_SUM else None,
        held=lambda: data.held_batches(shared, prepare),
        early=grant.early if getattr(strategy, "is_early", False) else None,
        where=f"phase {phase.name}, partition {slot}",
    )


def _steps_of_owner(
    strategy: Strategy, model: Model, inner: InnerOptimizer, slot: int, workers: int
) -> InnerOptimizer:
    """Returns what steps the rows of a worker, where the owners take the steps; else as it is."""
    if strategy.site != ROW_GRADIENTS:
        return inner
    assert isinstance(model, ShardedModel)
    assert isinstance(inner, RowSteps)
    return OwnerSteps(model, inner, slot, workers)


def _sent_ahead(feed: Feed, data: WorkerData, model: Model) -> Feed:
    """Returns a feed that sends batches ahead, where there is a device and rows stay."""
    can_repeat = data.passes is None  # of a stream a batch that was read and not trained on is lost
    return feed if model.send is None or not can_repeat else AheadFeed(feed, model.send)


def _with_shard(
    plan: TrainingPlan, slot: int, data: WorkerData, grant: Grant, context: PhaseContext
) -> Generator[Request, Any, Message]:
    """Returns the point to begin from with the worker's shard in it: made here, or asked for."""
    config, trained = plan.phases[grant.phase].config, context.model.parameters.trained
    width, dtype = config.row_size, trained.dtype
    heal, moved = grant.heal._replace(slot=slot), None
    optimizer = context.strategy.outer  # type: ignore[attr-defined]
    if grant.shard and AT not in grant.shard:
        arrays = yield from fetched_shard(grant.shard, heal.version, data.room)
        outer, dense_outer = _named(arrays, "outer."), _named(arrays, DENSE)
        if optimizer.is_by_row and not outer:  # a start by gradients has none
            shard = arrays["vector"].reshape(-1, width)
            outer = tuple(array.ravel() for array in optimizer.init(shard))
        heal = heal._replace(vector=arrays["vector"], outer=outer)
    else:
        rows = len(range(slot, trained.size // width, plan.workers))
        shard = allocated(rows * width, str(dtype), data.room).reshape(rows, width)
        context.model.first_rows(shard, slot, plan.seed, plan.workers)
        read_at_random(shard)
        moved = ShardMove(np.zeros(0, np.int64), sample_of(shard), ())
        outer, dense_outer = (optimizer.init(shard) if optimizer.is_by_row else ()), ()
        if grant.shard:
            named = {"vector": shard, **{f"outer.{n}": array for n, array in enumerate(outer)}}
            named = {name: array for name, array in named.items() if name in grant.shard}
            moved = yield from fetched_moved(grant.shard, heal.version, named)
            kinds = {name: kind for name, kind in grant.shard.items() if name.startswith(DENSE)}
            dense_outer = tuple((yield from fetched_shard(kinds, heal.version, memory)).values())
        outer = tuple(array.ravel() for array in outer)
        heal = heal._replace(vector=shard.ravel(), outer=outer)
    if not (optimizer.is_by_row or dense_outer):  # before the first round
        assert heal.vector is not None
        dense_count = len(range(slot, context.model.dense_rows, plan.workers))
        dense_outer = optimizer.init(heal.vector[: dense_count * width])
    backup = None
    if plan.workers > 1:
        count = len(range((slot - 1) % plan.workers, trained.size // width, plan.workers))
        backup = ShardBackup(count, np.empty((0, width), dtype), optimizer, data.room)
    table = RowExchange(
        moved=moved,
        backup=backup,
        is_behind=grant.is_behind,
        dense_rows=context.model.dense_rows,
        dense_outer=dense_outer,
    )
    return heal._replace(table=table)


def _named(arrays: Mapping[str, Vector], prefix: str) -> tuple[Vector, ...]:
    return tuple(array for name, array in arrays.items() if name.startswith(prefix))


def _is_sharded(strategy: Strategy) -> bool:
    """Returns whether each worker owns a part of the parameters that no other worker has."""
    return bool(getattr(strategy, "is_sharded", False))


def _epochs(plan: TrainingPlan, data: WorkerData, grant: Grant) -> float | None:
    """Returns after how many passes over the worker's rows the feed ends; None for endless."""
    end = grant.span[1] * plan.phases[grant.phase].config.passes(grant.rows)
    epochs = end if plan.is_fixed(grant.phase) else None
    if data.passes is None or not data.rows:
        return epochs
    this = grant.position // data.rows + 1.0
    return this if epochs is None else min(epochs, this)


class _WholeData(Model):
    """Learns from all rows of a worker at once, in chunks that fit the memory."""

    def __init__(self, model: Model) -> None:
        self.parameters, self._model = model.parameters, model

    def learn(self, batch: Batch, seed: int) -> tuple[Vector, Mapping[str, float]]:  # type: ignore[override]
        """Returns the mean gradient over all chunks, weighted by their rows."""
        total, sums = np.zeros_like(self.parameters.trained), dict[str, float]()
        count = batch.examples
        for start in range(0, count, CHUNK_ROWS):
            chunk = batch.part(slice(start, start + CHUNK_ROWS))
            share = chunk.examples / count
            gradient, metrics = self._model.learn(chunk, derive(seed, start))
            self._model.to_host(gradient)
            total += gradient * total.dtype.type(share)
            for name, value in metrics.items():
                sums[name] = sums.get(name, 0.0) + share * value
        return total, sums

    def measure(self, batch: Batch) -> Mapping[str, float]:  # type: ignore[override]
        return self._model.measure(batch)

    def to_host(self, *vectors: Vector) -> None:
        self._model.to_host(*vectors)

    def to_device(self, *vectors: Vector) -> None:
        self._model.to_device(*vectors)
