"""The training loop: step, offer, exchange, accept.

It is a generator, so that whoever pumps it owns the input and output: processes on one machine,
Spark tasks, or a simulator in virtual time. It knows no sockets, no clocks and no threads.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from photinus.core.clock import Clock
from photinus.core.parameters import Vector
from photinus.data.base import Batch, Feed
from photinus.models.base import Model
from photinus.models.optimizers import Inner, InPlace
from photinus.strategies.base import (
    GRADIENT,
    Message,
    ShardMove,
    Strategy,
    Turn,
    is_held_by_workers,
)
from photinus.strategies.shards import ShardState
from photinus.training.ahead import LookaheadFeed
from photinus.training.asks import Exchange, Measured, News, Page, Snapshot, StepDone
from photinus.training.attached import accept, offer
from photinus.training.shard_pages import ShardCopy
from photinus.training.strategy_state import keep, take_up

_TAKEN: Vector = np.zeros(0, np.float32)
"""In the place of a gradient, where the steps were taken in place."""
_PAGES_OF_ROUND = 8
"""Of a checkpoint, which a worker tells in a round in which it takes no steps."""
_NO_MEMORY = ("allocate memory", "out of memory")


class PhaseProgress(NamedTuple):
    """How far the phase is: what was agreed, and one's own work since on everybody's behalf."""

    agreed: float
    """Progress at the last agreement, 0 to 1."""
    examples: int
    """One's own examples at the last agreement."""
    per_example: float
    """Progress by one example of one's own: all rows / own rows / budget."""
    span: tuple[float, float] = (0.0, 1.0)
    """From which share of its stage to which the phase goes."""

    def progress(self, clock: Clock) -> float:
        """Returns the stage's progress as learning-rate schedules see it."""
        here = min(1.0, self.agreed + (clock.examples - self.examples) * self.per_example)
        return self.span[0] + (self.span[1] - self.span[0]) * here

    def after(self, clock: Clock, *told: News) -> PhaseProgress:
        """Returns it with the newest progress that was reported."""
        heard = [news.progress for news in told if news.progress is not None]
        return self._replace(agreed=heard[-1], examples=clock.examples) if heard else self


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseContext:
    """Model, optimizer, rows and strategy of a worker in one phase."""

    model: Model
    inner: Inner
    feed: Feed
    strategy: Strategy
    pace: PhaseProgress
    seed: Callable[[int], int]
    """Feed position -> the seed of that step."""
    heal: list[Message] = field(default_factory=list)
    """The agreed point that a joiner starts from, until it has."""
    arrived: list[News] = field(default_factory=list)
    """Answers that wait for their `take`."""
    measure: Callable[[], Mapping[str, float]] = dict
    """Measures the model as it is on the rows set aside."""
    kept: Mapping[str, Vector] = field(default_factory=dict)
    """What its strategy alone knew, of the cut that it goes on from."""
    sums: Vector | None = None
    """The gradients [n] since the last push, where the strategy pushes their sum."""
    where: str = ""
    """Phase and partition, for an error of the model."""
    copies: list[ShardCopy] = field(default_factory=list)
    """Of its shard of a table, for a checkpoint: at most one is being told."""


Answers = Generator[StepDone | Exchange | Snapshot | Measured | Page, Any, Any]


def work(
    context: PhaseContext,
) -> Generator[StepDone | Exchange | Snapshot | Measured | Page, Any, Snapshot]:
    """Runs one phase; the parameters are the model's, changed in place. Returns how it ended.

    A `StepDone` that is answered by None was no step: the phase ends before it.
    """
    model, feed, strategy = context.model, context.feed, context.strategy
    trained = model.parameters.trained
    state, pace, first = strategy.init(trained), context.pace, feed.epochs
    clock = Clock(progress=pace.agreed)
    if context.heal:
        state = take_up(trained, strategy.accept(trained, context.heal.pop(), state), context.kept)
        model.to_device(trained)
    if isinstance(feed, LookaheadFeed):  # the rows of the first steps
        state, news = yield from exchange(context, trained, clock, state)
        pace = pace.after(clock, news)
        yield from tell(context, news, clock, state)
    for batch in feed:
        at = pace.progress(clock)
        gradient, metrics = _learnt(context, batch, at)
        if strategy.site != GRADIENT:
            step(context, gradient, at)
        heard = yield StepDone(batch.examples, metrics)
        if heard is None:
            break
        told = _until_taken(context, heard)
        clock = clock.after(batch.examples, told.seconds, feed.epochs - first)
        vector = gradient if strategy.site == GRADIENT else trained
        state = accept(strategy, model, vector, told.messages, state)
        state, news = yield from exchange(context, vector, clock, state)
        if strategy.site == GRADIENT:
            step(context, gradient, at)
        pace = pace.after(clock, told, news)
        clock = clock._replace(progress=pace.agreed)
        yield from tell(context, news, clock, state)
        yield from tell_pages(context, 1)
        is_over = told.stop or news.stop
        del heard, told, news  # of a large model each answer counts
        if is_over:
            break
    state = yield from drain(context, clock._replace(closing=True), state)
    return snapshot(context, clock, state)


def _learnt(
    context: PhaseContext, batch: Batch, progress: float
) -> tuple[Vector, Mapping[str, float]]:
    """Returns gradient and metrics of a batch; an error says which batch it was."""
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


def tell(context: PhaseContext, news: News, clock: Clock, state: Any) -> Answers:  # noqa: ANN401
    """Tells what was asked for with an answer, as it is at the point that it brought."""
    if news.save:
        if isinstance(state, ShardState):
            context.copies[:] = [ShardCopy(state)]
        yield snapshot(context, clock, state)
    if news.measure:
        yield Measured(context.measure())


def tell_pages(context: PhaseContext, most: int = 0) -> Answers:
    """Tells the next pages of its shard, where a checkpoint waits for them; 0: all of them."""
    for copy in context.copies:
        yield from copy.pages(most)
    context.copies[:] = [copy for copy in context.copies if not copy.is_over]


def step(context: PhaseContext, gradient: Vector, progress: float) -> None:
    """Takes the inner step, and adds the gradient up where its sum is pushed."""
    if context.sums is not None:
        context.model.to_host(gradient)
        context.sums[:] += gradient
    if gradient is not _TAKEN:
        context.inner.step(context.model.parameters.trained, gradient, progress)


def drain(context: PhaseContext, clock: Clock, state: Any) -> Answers:  # noqa: ANN401
    """Leaves nothing unsent: a push that missed its round is due once more; tells its shard."""
    while context.strategy.due(clock, state):
        state, news = yield from exchange(context, context.model.parameters.trained, clock, state)
        yield from tell(context, news, clock, state)
        yield from tell_pages(context, _PAGES_OF_ROUND)
    if isinstance(state, ShardState):
        yield from tell_pages(context)
        yield from ShardCopy(state, is_last=True).pages()
    return state


def exchange(context: PhaseContext, vector: Vector, clock: Clock, state: Any) -> Answers:  # noqa: ANN401
    """Does all turns that are due; returns the strategy's new state and the last news."""
    news = News()
    for turn in context.strategy.due(clock, state):
        offered = vector if context.sums is None or turn.kind != "push" else context.sums
        message, state = offer(context.strategy, context.model, turn, offered, clock, state)
        if message is not None and isinstance(context.feed, LookaheadFeed):
            message = _with_reads(context, context.feed, turn, message)
        if offered is context.sums:
            offered[:] = 0
        if turn.kind == "take" and context.arrived:
            news = context.arrived.pop(0)
        else:
            stands = _stands(context, turn, state)
            heard = yield Exchange(turn, message, context.feed.position, stands)
            news = heard.behind(news)
        if turn.kind == "push":
            news = _until_taken(context, news)
        for moved in (m.moved for m in news.messages if m.moved is not None):
            _moving(context, moved)
        state = accept(context.strategy, context.model, vector, news.messages, state)
    return state, news


def _moving(context: PhaseContext, moved: ShardMove) -> None:
    """Its shard is about to move, or is restored."""
    for copy in context.copies:
        copy.moving(moved.at)
    if moved.inner:
        context.inner.load(moved.inner)


def _with_reads(
    context: PhaseContext, feed: LookaheadFeed, turn: Turn, message: Message
) -> Message:
    """Adds which rows the next steps read, and to a push how often its own were read.

    What the inner optimizer remembers goes to the worker that keeps the backup of the shard.
    """
    if message.owned is not None:
        message = message._replace(owned=message.owned._replace(inner=context.inner.state()))
    reads = None if message.rows is None else feed.reads(message.rows)
    return message._replace(asks=feed.asks(int(turn.kind == "publish")), reads=reads)


def _stands(context: PhaseContext, turn: Turn, state: Any) -> tuple[Vector, Vector] | None:  # noqa: ANN401
    """Where a worker stands that comes to a meeting: views, as it waits until that is over."""
    if turn.kind != "meet" or context.strategy.site == GRADIENT:
        return None
    anchor = getattr(state, "anchor", None)
    return None if anchor is None else (context.model.parameters.trained, anchor)


def _until_taken(context: PhaseContext, news: News) -> News:
    """Keeps an answer back until its `take`: that step is the same however fast it travels."""
    if not news.messages or not getattr(context.strategy, "takes", False):
        return news
    context.arrived.append(news)
    return News(news.seconds, stop=news.stop)


def snapshot(context: PhaseContext, clock: Clock, state: Any) -> Snapshot:  # noqa: ANN401
    """Returns copies of all that a worker holds alone."""
    parameters, position = context.model.parameters, context.feed.position
    context.model.to_host(parameters.trained, parameters.floats, parameters.integers)
    is_table = isinstance(state, ShardState)
    held = parameters.trained if is_held_by_workers(context.strategy) and not is_table else None
    some = slice(0) if is_table else slice(None)
    inner = {name: value.copy() for name, value in context.inner.state().items()}
    return Snapshot(
        position,
        inner | keep(context.strategy, parameters.trained, clock, state, position),
        None if held is None else held.copy(),
        parameters.floats[some].copy(),
        parameters.integers[some].copy(),
    )
