"""The training loop: step, offer, exchange, accept.

It is a generator, so that its driver owns the input and output: processes on one machine, Spark
tasks, or a simulator in virtual time. It uses no sockets, no clocks and no threads.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from photinus.core.clock import Clock
from photinus.core.pages import release_pages
from photinus.core.parameters import Vector
from photinus.strategies.base import GRADIENT, Turn
from photinus.strategies.shards import ShardState
from photinus.training.ahead import LookaheadFeed
from photinus.training.offer_accept import accept, due, early, offer
from photinus.training.phase_context import PhaseContext
from photinus.training.requests import Exchange, Request, StepDone, StepReply, WorkerSnapshot
from photinus.training.shard_pages import ShardCopy
from photinus.training.steps import learn, step
from photinus.training.strategy_state import take_up
from photinus.training.worker_state import pages_after, snapshot, tell, tell_pages

_PAGES_OF_ROUND = 8
"""How many pages of a checkpoint a worker sends in a round in which it takes no steps."""

Answers = Generator[Request, Any, Any]


def work(context: PhaseContext) -> Generator[Request, Any, WorkerSnapshot]:
    """Runs one phase; the parameters are the model's, changed in place. Returns how it ended.

    A `StepDone` that is answered by None was no step: the phase ends before it.
    """
    model, feed, strategy = context.model, context.feed, context.strategy
    trained = model.parameters.trained
    state, phase_progress, first = strategy.init(trained), context.phase_progress, feed.epochs
    clock = Clock(progress=phase_progress.agreed)
    if context.heal:
        state = take_up(trained, strategy.accept(trained, context.heal.pop(), state), context.kept)
        model.to_device(trained)
    if isinstance(feed, LookaheadFeed):  # the rows of the first steps
        state, latest = yield from exchange(context, trained, clock, state)
        phase_progress = phase_progress.after(clock, latest)
        yield from tell(context, latest, clock, state)
    for batch in feed:
        progress = phase_progress.progress(clock)
        gradient, metrics = learn(context, batch, progress, early(context, clock, batch, state))
        if strategy.site != GRADIENT:
            step(context, gradient, progress)
        reply = yield StepDone(batch.examples, metrics)
        if reply is None:
            break
        taken, before = _until_taken(context, reply), clock.seconds
        clock = clock.after(batch.examples, taken.seconds, feed.epochs - first)
        vector = gradient if strategy.site == GRADIENT else trained
        state = accept(strategy, model, vector, taken.messages, state)
        state, latest = yield from exchange(context, vector, clock, state)
        if strategy.site == GRADIENT:
            step(context, gradient, progress)
        phase_progress = phase_progress.after(clock, taken, latest)
        clock = clock._replace(progress=phase_progress.agreed)
        yield from tell(context, latest, clock, state)
        yield from tell_pages(context, pages_after(clock.seconds - before))
        is_over = taken.stop or latest.stop
        del reply, taken, latest  # of a large model each answer counts
        if is_over:
            break
    state = yield from drain(context, clock._replace(closing=True), state)
    return snapshot(context, clock, state)


def drain(context: PhaseContext, clock: Clock, state: Any) -> Answers:  # noqa: ANN401
    """Sends all that is unsent: pushes again where a push missed its round; sends its shard."""
    while due(context.strategy, clock, state):
        state, latest = yield from exchange(context, context.model.parameters.trained, clock, state)
        yield from tell(context, latest, clock, state)
        yield from tell_pages(context, _PAGES_OF_ROUND)
        if latest.progress is not None:  # an owner steps its rows for the others
            clock = clock._replace(progress=latest.progress)
    if isinstance(state, ShardState):
        yield from tell_pages(context)
        yield from ShardCopy(state, is_last=True).pages()
        release_pages(state.own)  # the driver may need the room for the whole table
    return state


def exchange(context: PhaseContext, vector: Vector, clock: Clock, state: Any) -> Answers:  # noqa: ANN401
    """Does all turns that are due; returns the strategy's new state and the last news."""
    latest = StepReply()
    for turn in due(context.strategy, clock, state):
        offered, state = context.offered(turn, vector, state)
        message, state = offer(context.strategy, context.model, turn, offered, clock, state)
        message = context.with_reads(turn, message, clock.progress)
        if offered is context.sums:
            offered[:] = 0
        if turn.kind == "take" and context.arrived:
            latest = context.arrived.pop(0)
        else:
            points = _points(context, turn, state)
            reply = yield Exchange(turn, message, context.position, points)
            latest = reply.merged_with(latest)
        if turn.kind == "push":
            latest = _until_taken(context, latest)
        for moved in (m.table.moved for m in latest.messages if m.table.moved is not None):
            context.shard_moves(moved)
        state = accept(context.strategy, context.model, vector, latest.messages, state)
    return state, latest


def _points(context: PhaseContext, turn: Turn, state: Any) -> tuple[Vector, Vector] | None:  # noqa: ANN401
    """Returns a worker's point for a meeting: as views, for it waits until that is over."""
    if turn.kind != "meet" or context.strategy.site == GRADIENT:
        return None
    anchor = getattr(state, "anchor", None)
    return None if anchor is None else (context.model.parameters.trained, anchor)


def _until_taken(context: PhaseContext, reply: StepReply) -> StepReply:
    """Keeps an answer back until its `take`: that step is the same however fast it travels."""
    if not reply.messages or not getattr(context.strategy, "has_late_answers", False):
        return reply
    context.arrived.append(reply)
    return StepReply(reply.seconds, stop=reply.stop)
