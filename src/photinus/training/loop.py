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
from photinus.strategies.base import GRADIENT, Message, Strategy, Turn, is_held_by_workers
from photinus.strategies.shards import Held
from photinus.training.ahead import Ahead
from photinus.training.asks import Exchange, Measured, News, Page, Snapshot, Stepped
from photinus.training.attached import accept, offer
from photinus.training.shard_pages import ShardCopy
from photinus.training.strategy_state import keep, take_up

_TAKEN: Vector = np.zeros(0, np.float32)
"""In the place of a gradient, where the steps were taken in place."""
_PAGES_OF_ROUND = 8
"""Of a checkpoint, which a worker tells in a round in which it takes no steps."""
_NO_MEMORY = ("allocate memory", "out of memory")


class Pace(NamedTuple):
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

    def after(self, clock: Clock, *told: News) -> Pace:
        """Returns the pace with the newest progress that was told of."""
        heard = [news.progress for news in told if news.progress is not None]
        return self._replace(agreed=heard[-1], examples=clock.examples) if heard else self


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """What a worker works with in one phase."""

    model: Model
    inner: Inner
    feed: Feed
    strategy: Strategy
    pace: Pace
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


Answers = Generator[Stepped | Exchange | Snapshot | Measured | Page, Any, Any]


def work(bench: Bench) -> Generator[Stepped | Exchange | Snapshot | Measured | Page, Any, Snapshot]:
    """Runs one phase; the parameters are the model's, changed in place. Returns how it ended.

    A `Stepped` that is answered by None was no step: the phase ends before it.
    """
    model, feed, strategy = bench.model, bench.feed, bench.strategy
    trained = model.parameters.trained
    state, pace, first = strategy.init(trained), bench.pace, feed.epochs
    clock = Clock(progress=pace.agreed)
    if bench.heal:
        state = take_up(trained, strategy.accept(trained, bench.heal.pop(), state), bench.kept)
        model.to_device(trained)
    if isinstance(feed, Ahead):  # the rows of the first steps
        state, news = yield from exchange(bench, trained, clock, state)
        pace = pace.after(clock, news)
        yield from tell(bench, news, clock, state)
    for batch in feed:
        at = pace.progress(clock)
        gradient, metrics = _learnt(bench, batch, at)
        if strategy.site != GRADIENT:
            step(bench, gradient, at)
        heard = yield Stepped(batch.examples, metrics)
        if heard is None:
            break
        told = _until_taken(bench, heard)
        clock = clock.after(batch.examples, told.seconds, feed.epochs - first)
        vector = gradient if strategy.site == GRADIENT else trained
        state = accept(strategy, model, vector, told.messages, state)
        state, news = yield from exchange(bench, vector, clock, state)
        if strategy.site == GRADIENT:
            step(bench, gradient, at)
        pace = pace.after(clock, told, news)
        clock = clock._replace(progress=pace.agreed)
        yield from tell(bench, news, clock, state)
        yield from tell_pages(bench, 1)
        is_over = told.stop or news.stop
        del heard, told, news  # of a large model each answer counts
        if is_over:
            break
    state = yield from drain(bench, clock._replace(closing=True), state)
    return snapshot(bench, clock, state)


def _learnt(bench: Bench, batch: Batch, progress: float) -> tuple[Vector, Mapping[str, float]]:
    """Returns gradient and metrics of a batch; an error says which batch it was."""
    at = bench.feed.position
    try:
        if isinstance(bench.inner, InPlace):
            return _TAKEN, bench.inner.descend(bench.model, batch, bench.seed(at), progress)
        return bench.model.learn(batch, bench.seed(at))
    except Exception as error:
        first = at - batch.examples
        error.add_note(f"in {bench.where}, in the batch of its examples {first} to {at - 1}")
        said = str(error).lower()  # torch raises no MemoryError
        if isinstance(error, MemoryError) or any(words in said for words in _NO_MEMORY):
            error.add_note("memory ran out: use a smaller batch, or fewer workers")
        raise


def tell(bench: Bench, news: News, clock: Clock, state: Any) -> Answers:  # noqa: ANN401
    """Tells what was asked for with an answer, as it is at the point that it brought."""
    if news.save:
        if isinstance(state, Held):
            bench.copies[:] = [ShardCopy(state)]
        yield snapshot(bench, clock, state)
    if news.measure:
        yield Measured(bench.measure())


def tell_pages(bench: Bench, most: int = 0) -> Answers:
    """Tells the next pages of its shard, where a checkpoint waits for them; 0: all of them."""
    for copy in bench.copies:
        yield from copy.pages(most)
    bench.copies[:] = [copy for copy in bench.copies if not copy.is_over]


def step(bench: Bench, gradient: Vector, progress: float) -> None:
    """Takes the inner step, and adds the gradient up where its sum is pushed."""
    if bench.sums is not None:
        bench.model.to_host(gradient)
        bench.sums[:] += gradient
    if gradient is not _TAKEN:
        bench.inner.step(bench.model.parameters.trained, gradient, progress)


def drain(bench: Bench, clock: Clock, state: Any) -> Answers:  # noqa: ANN401
    """Leaves nothing unsent: a push that missed its round is due once more; tells its shard."""
    while bench.strategy.due(clock, state):
        state, news = yield from exchange(bench, bench.model.parameters.trained, clock, state)
        yield from tell(bench, news, clock, state)
        yield from tell_pages(bench, _PAGES_OF_ROUND)
    if isinstance(state, Held):
        yield from tell_pages(bench)
        yield from ShardCopy(state, is_last=True).pages()
    return state


def exchange(bench: Bench, vector: Vector, clock: Clock, state: Any) -> Answers:  # noqa: ANN401
    """Does all turns that are due; returns the strategy's new state and the last news."""
    news = News()
    for turn in bench.strategy.due(clock, state):
        offered = vector if bench.sums is None or turn.kind != "push" else bench.sums
        message, state = offer(bench.strategy, bench.model, turn, offered, clock, state)
        if message is not None and isinstance(bench.feed, Ahead):
            message = message._replace(asks=bench.feed.asks(int(turn.kind == "publish")))
        if offered is bench.sums:
            offered[:] = 0
        if turn.kind == "take" and bench.arrived:
            news = bench.arrived.pop(0)
        else:
            stands = _stands(bench, turn, state)
            heard = yield Exchange(turn, message, bench.feed.position, stands)
            news = heard.behind(news)
        if turn.kind == "push":
            news = _until_taken(bench, news)
        for copy in bench.copies:
            for moved in (m.moved for m in news.messages if m.moved is not None):
                copy.moving(moved.at)
        state = accept(bench.strategy, bench.model, vector, news.messages, state)
    return state, news


def _stands(bench: Bench, turn: Turn, state: Any) -> tuple[Vector, Vector] | None:  # noqa: ANN401
    """Where a worker stands that comes to a meeting: views, as it waits until that is over."""
    if turn.kind != "meet" or bench.strategy.site == GRADIENT:
        return None
    anchor = getattr(state, "anchor", None)
    return None if anchor is None else (bench.model.parameters.trained, anchor)


def _until_taken(bench: Bench, news: News) -> News:
    """Keeps an answer back until its `take`: that step is the same however fast it travels."""
    if not news.messages or not getattr(bench.strategy, "takes", False):
        return news
    bench.arrived.append(news)
    return News(news.seconds, stop=news.stop)


def snapshot(bench: Bench, clock: Clock, state: Any) -> Snapshot:  # noqa: ANN401
    """Returns copies of all that a worker holds alone."""
    parameters, position = bench.model.parameters, bench.feed.position
    bench.model.to_host(parameters.trained, parameters.floats, parameters.integers)
    is_table = isinstance(state, Held)
    held = parameters.trained if is_held_by_workers(bench.strategy) and not is_table else None
    some = slice(0) if is_table else slice(None)
    inner = {name: value.copy() for name, value in bench.inner.state().items()}
    return Snapshot(
        position,
        inner | keep(bench.strategy, parameters.trained, clock, state, position),
        None if held is None else held.copy(),
        parameters.floats[some].copy(),
        parameters.integers[some].copy(),
    )
