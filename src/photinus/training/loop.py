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
from photinus.core.parameters import Vector, fingerprint
from photinus.data.base import Batch, Feed
from photinus.models.base import Model
from photinus.models.optimizers import Inner, InPlace
from photinus.strategies.base import GRADIENT, Message, Strategy, Turn, is_held_by_workers
from photinus.training.strategy_state import keep, take_up

__all__ = [
    "BUFFERS_EVERY",
    "FINGERPRINT_EVERY",
    "Answers",
    "Bench",
    "Exchange",
    "Measured",
    "News",
    "Pace",
    "Snapshot",
    "Stepped",
    "drain",
    "exchange",
    "snapshot",
    "step",
    "take_in",
    "tell",
    "work",
]

BUFFERS_EVERY = 50
"""With agreement on gradients, float buffers are averaged every so many steps."""
FINGERPRINT_EVERY = 20
"""Every so many rounds a push says which bits its worker holds as agreed."""
_TAKEN: Vector = np.zeros(0, np.float32)
"""In the place of a gradient, where the steps were taken in place."""
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


class Stepped(NamedTuple):
    """Out of the loop after every step; answered by News."""

    examples: int
    metrics: Mapping[str, float]


class Exchange(NamedTuple):
    """Out of the loop when a turn is due; answered by News, a push at once."""

    turn: Turn
    message: Message | None
    position: int
    stands: tuple[Vector, Vector] | None = None
    """Of a meeting: the parameters [n], and the point [n] that was last agreed on."""


class Snapshot(NamedTuple):
    """Out of the loop when its state was asked for: all of a worker that a checkpoint needs."""

    position: int
    inner: Mapping[str, Vector]
    """The inner optimizer's state, and what the strategy alone knows."""
    trained: Vector | None
    """With agreement on gradients, where no owner holds the parameters."""
    floats: Vector
    integers: Vector


class Measured(NamedTuple):
    """Out of the loop when the agreed point was measured; it rides on what is said next."""

    sums: Mapping[str, float]


class News(NamedTuple):
    """Into the loop: the time, what came in, and how far all are."""

    seconds: float = 0.0
    messages: tuple[Message, ...] = ()
    progress: float | None = None
    stop: bool = False
    """The phase's budget is used up."""
    save: bool = False
    """The worker's state is asked for, as it is after this step."""
    measure: bool = False
    """Likewise, what it measures on its rows set aside."""


Answers = Generator[Stepped | Exchange | Snapshot | Measured, News, Any]


def work(
    bench: Bench,
) -> Generator[Stepped | Exchange | Snapshot | Measured, News | None, Snapshot]:
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
        state = take_in(bench, vector, told.messages, state)
        state, news = yield from exchange(bench, vector, clock, state)
        if strategy.site == GRADIENT:
            step(bench, gradient, at)
        pace = pace.after(clock, told, news)
        clock = clock._replace(progress=pace.agreed)
        yield from tell(bench, news, clock, state)
        is_over = told.stop or news.stop
        del heard, told, news  # of a large model each answer counts
        if is_over:
            break
    state, news = yield from drain(bench, clock._replace(closing=True), state)
    yield from tell(bench, news, clock, state)
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
        yield snapshot(bench, clock, state)
    if news.measure:
        yield Measured(bench.measure())


def step(bench: Bench, gradient: Vector, progress: float) -> None:
    """Takes the inner step, and adds the gradient up where its sum is pushed."""
    if bench.sums is not None:
        bench.model.to_host(gradient)
        bench.sums[:] += gradient
    if gradient is not _TAKEN:
        bench.inner.step(bench.model.parameters.trained, gradient, progress)


def drain(bench: Bench, clock: Clock, state: Any) -> Answers:  # noqa: ANN401
    """Leaves nothing unsent: a push that missed its round is due once more."""
    news = News()
    while bench.strategy.due(clock, state):
        state, news = yield from exchange(bench, bench.model.parameters.trained, clock, state)
    return state, news


def exchange(bench: Bench, vector: Vector, clock: Clock, state: Any) -> Answers:  # noqa: ANN401
    """Does all turns that are due; returns the strategy's new state and the last news."""
    news = News()
    for turn in bench.strategy.due(clock, state):
        offered = vector if bench.sums is None or turn.kind != "push" else bench.sums
        bench.model.to_host(offered)
        message, state = bench.strategy.offer(turn, offered, clock, state)
        if message is not None:
            message = _with_fingerprint(bench, _with_buffers(bench, message), state)
        bench.model.to_device(offered)  # some write into it
        if offered is bench.sums:
            offered[:] = 0
        if turn.kind == "take" and bench.arrived:
            news = bench.arrived.pop(0)
        else:
            stands = _stands(bench, turn, state)
            news = yield Exchange(turn, message, bench.feed.position, stands)
        if turn.kind == "push":
            news = _until_taken(bench, news)
        state = take_in(bench, vector, news.messages, state)
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


def take_in(bench: Bench, vector: Vector, messages: tuple[Message, ...], state: Any) -> Any:  # noqa: ANN401
    """Accepts what came in, one message after the other; returns the strategy's new state."""
    model, parameters = bench.model, bench.model.parameters
    for incoming in messages:
        model.to_host(vector)
        state = bench.strategy.accept(vector, incoming, state)
        model.to_device(vector)
        if incoming.floats is not None and incoming.integers is not None:
            model.to_host(parameters.floats, parameters.integers)
            np.copyto(parameters.floats, incoming.floats)
            np.copyto(parameters.integers, incoming.integers)
            model.to_device(parameters.floats, parameters.integers)
    return state


def snapshot(bench: Bench, clock: Clock, state: Any) -> Snapshot:  # noqa: ANN401
    """Returns copies of all that a worker holds alone."""
    parameters, position = bench.model.parameters, bench.feed.position
    bench.model.to_host(parameters.trained, parameters.floats, parameters.integers)
    inner = {name: value.copy() for name, value in bench.inner.state().items()}
    return Snapshot(
        position,
        inner | keep(bench.strategy, parameters.trained, clock, state, position),
        parameters.trained.copy() if is_held_by_workers(bench.strategy) else None,
        parameters.floats.copy(),
        parameters.integers.copy(),
    )


def _with_fingerprint(bench: Bench, message: Message, state: Any) -> Message:  # noqa: ANN401
    """Where all hold the same point bit for bit: an anchor, or, with gradients, the parameters."""
    is_under_way = getattr(bench.strategy, "takes", False)
    if message.kind != "push" or message.version % FINGERPRINT_EVERY or is_under_way:
        return message
    is_gradient = bench.strategy.site == GRADIENT
    if is_gradient:
        bench.model.to_host(bench.model.parameters.trained)
    same = bench.model.parameters.trained if is_gradient else getattr(state, "anchor", None)
    return message if same is None else message._replace(fingerprint=fingerprint(same))


def _with_buffers(bench: Bench, message: Message) -> Message:
    parameters = bench.model.parameters
    has_buffers = parameters.floats.size + parameters.integers.size > 0
    is_time = bench.strategy.site != GRADIENT or message.version % BUFFERS_EVERY == 0
    if message.kind != "push" or not has_buffers or not is_time:
        return message
    bench.model.to_host(parameters.floats, parameters.integers)
    return message._replace(floats=parameters.floats.copy(), integers=parameters.integers.copy())
