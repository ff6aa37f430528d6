"""What a worker reports of itself: its state for a checkpoint, and what it measured."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from typing import Any

import numpy as np

from photinus.core.clock import Clock
from photinus.core.parameters import Vector
from photinus.strategies.base import is_held_by_workers
from photinus.strategies.shards import ShardState
from photinus.training.phase_context import PhaseContext
from photinus.training.requests import Measured, Page, RowsRequest, StepReply, WorkerSnapshot
from photinus.training.shard_pages import ShardCopy
from photinus.training.strategy_state import keep

_PAGES_AT_ONCE = 64
"""Of a checkpoint: where few rows have moved it is whole before another worker can be lost."""
_PAGES_OF_SECOND, _MOST_PAGES = 8, 64
"""More than one page for each second of a step, and the most: where steps wait for a disk they are
few."""
Reports = Generator[WorkerSnapshot | Measured | Page | RowsRequest, Any, None]
Read = Generator[RowsRequest, Any, Mapping[str, float] | None]


def tell(context: PhaseContext, reply: StepReply, clock: Clock, state: Any) -> Reports:  # noqa: ANN401
    """Yields the state and measurement that an answer asked for, at the answer's point."""
    if reply.save:
        if isinstance(state, ShardState):
            context.copies[:] = [ShardCopy(state)]
        yield snapshot(context, clock, state)
        yield from tell_pages(context, _PAGES_AT_ONCE)
    if reply.measure:
        yield from tell_pages(context)  # the point that is measured may be the best one
        sums = yield from _measured(context, state)
        if sums is not None:
            yield Measured(sums)


def _measured(context: PhaseContext, state: Any) -> Read:  # noqa: ANN401
    """Returns the model's sums over the rows set aside.

    What these read of a sharded table comes from its owners, and makes room for the rows of the
    next steps. A worker that has none set aside answers the others. None where an owner cannot be
    reached: the next round will find out.
    """
    is_sharded, sums = isinstance(state, ShardState), dict[str, float]()
    if is_sharded:
        own = context.model.parameters.trained.reshape(-1, state.received.shape[1])[state.rows]
        # a worker that did not push has its own steps in the dense layers, which no owner knows;
        # one without a next step has these layers as they were before this round
        lacks_dense = getattr(context.strategy, "calls_meetings", False) or not state.rows.size
        dense = np.arange(context.model.dense_rows if lacks_dense else 0)
        yield RowsRequest(np.empty(0, np.int64))
    for batch in context.held():
        if is_sharded:
            rows = np.concatenate([dense, context.model.measured_rows(batch)])
            numbers = yield RowsRequest(rows)
            if numbers is None:
                _load_rows(context, state.rows, own)
                return None
            _load_rows(context, rows, numbers)
        for name, value in context.model.measure(batch).items():
            sums[name] = sums.get(name, 0.0) + float(value)
    if is_sharded:
        _load_rows(context, state.rows, own)
    return {name: value for name, value in sums.items() if math.isfinite(value)}


def _load_rows(context: PhaseContext, rows: Vector, numbers: Vector) -> None:
    """Has these rows [r, width] of the table in memory, and no others."""
    trained = context.model.parameters.trained
    context.model.forget()
    trained.reshape(-1, numbers.shape[1])[rows] = numbers
    if rows.size and rows[0] < context.model.dense_rows:
        context.model.to_device(trained)


def tell_pages(context: PhaseContext, most: int = 0) -> Reports:
    """Sends the next pages of its shard, where a checkpoint waits for them; 0: all of them."""
    for copy in context.copies:
        yield from copy.pages(most)
    context.copies[:] = [copy for copy in context.copies if not copy.is_over]


def pages_after(seconds: float) -> int:
    """Returns how many pages of a checkpoint follow a step of so many seconds.

    Example:
        >>> pages_after(0.01), pages_after(2.0), pages_after(60.0)
        (1, 17, 64)
    """
    return min(_MOST_PAGES, 1 + int(_PAGES_OF_SECOND * seconds))


def snapshot(context: PhaseContext, clock: Clock, state: Any) -> WorkerSnapshot:  # noqa: ANN401
    """Returns copies of all that a worker holds alone."""
    parameters, position = context.model.parameters, context.position
    context.model.to_host(parameters.trained, parameters.floats, parameters.integers)
    is_table = isinstance(state, ShardState)
    trained = parameters.trained if is_held_by_workers(context.strategy) else None
    section = slice(0) if is_table else slice(None)
    inner = {name: value.copy() for name, value in context.inner_state.items()}
    return WorkerSnapshot(
        position,
        inner | keep(context.strategy, parameters.trained, clock, state, position),
        None if trained is None else trained.copy(),
        parameters.floats[section].copy(),
        parameters.integers[section].copy(),
    )
