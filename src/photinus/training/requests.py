"""The requests that a worker's generator yields to its driver, and the answers to them."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from photinus.core.parameters import Parameters, Vector
from photinus.strategies.base import Message, Turn
from photinus.training.segments import EarlySending


class Hello(NamedTuple):
    """From the worker: it asks for the seat. Answered by a Grant, or None when the run is over."""

    rows: int
    has: int
    """How many earlier phases' parameters it holds."""
    passes: int | None = None
    """As of its part."""
    labels: Mapping[str, int] = MappingProxyType({})
    """As of its part."""
    span: tuple[float, float] | None = None
    """As of its part."""
    digest: str = ""
    """As of its part."""
    is_weightless: bool = False
    """As of its part."""


class Close(NamedTuple):
    """From the worker: its share of this phase is done. Answered by the next Grant, or None."""

    position: int
    parameters: Parameters | None = None
    """Where no owner holds them."""
    is_unfinished: bool = False
    """The share is not done, but the pass over the rows is: another attempt continues."""
    inner: Mapping[str, Vector] = MappingProxyType({})
    """What another attempt continues with, as of a `WorkerSnapshot`."""


class Page(NamedTuple):
    """From the worker: a page of its shard, sent or asked for. Answered by a `Page`.

    The answer to a page that is sent says how many of the array's numbers have arrived, or that no
    more are wanted.
    """

    version: int
    """The version of the shard."""
    name: str
    """The name of an array of the shard: "vector", or "outer.0", ... of the owner's optimizer."""
    start: int
    """Where in the array the page begins; of an answer the count as above, below 0 for no more."""
    numbers: Vector | None = None
    """The page [n]; None: it is asked for."""
    kinds: Mapping[str, tuple[str, tuple[int, ...]]] = MappingProxyType({})
    """Types and shapes of all arrays of the shard."""
    is_last: bool = False
    """It is sent because the share is done, not for a checkpoint."""


class RowsRequest(NamedTuple):
    """From the loop: rows [r] of a sharded table, as they were last agreed on.

    Answered by their numbers [r, width], once the owners have sent them; None where one of them
    does not answer.
    """

    rows: Vector


class StepDone(NamedTuple):
    """From the loop after every step; answered by News."""

    examples: int
    metrics: Mapping[str, float]


class Exchange(NamedTuple):
    """From the loop when a turn is due; answered by News, a push at once."""

    turn: Turn
    message: Message | None
    position: int
    points: tuple[Vector, Vector] | None = None
    """For a meeting: the parameters [n], and the point [n] that was last agreed on."""


class WorkerSnapshot(NamedTuple):
    """From the loop when its state was asked for: all of a worker that a checkpoint needs."""

    position: int
    inner: Mapping[str, Vector]
    """The inner optimizer's state, and the strategy's own state of the worker."""
    trained: Vector | None
    """Where no owner holds the parameters; a shard of a table follows in pages."""
    floats: Vector
    integers: Vector
    """With a sharded table both are empty: they stay as they were at the start."""


class Measured(NamedTuple):
    """From the loop when the agreed point was measured; the next frame carries it."""

    sums: Mapping[str, float]


class StepReply(NamedTuple):
    """Into the loop: the time, what arrived, and how far all are."""

    seconds: float = 0.0
    messages: tuple[Message, ...] = ()
    progress: float | None = None
    stop: bool = False
    """The phase's budget is used up."""
    save: bool = False
    """The worker's state is asked for, as it is after this step."""
    measure: bool = False
    """Likewise, what it measures on its rows set aside."""

    def merged_with(self, earlier: StepReply) -> StepReply:
        """Returns it merged with an earlier turn's news of the same step, but for its messages."""
        return self._replace(
            progress=earlier.progress if self.progress is None else self.progress,
            stop=self.stop or earlier.stop,
            save=self.save or earlier.save,
            measure=self.measure or earlier.measure,
        )


Request = Hello | Close | Page | RowsRequest | StepDone | Exchange | WorkerSnapshot | Measured
WorkerGenerator = Generator[Request, Any, None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Grant:
    """What a worker is sent when it takes a seat or enters a phase."""

    phase: int
    lease: int
    sequence: int
    """The number of the next push."""
    position: int
    """Where in its rows it continues."""
    budget: int
    progress: float
    heal: Message
    is_fresh: bool
    """True at the very start of a phase: every worker begins with fresh inner state."""
    rows: int = 0
    """Of all workers."""
    span: tuple[float, float] = (0.0, 1.0)
    """The phase's part of its stage, as shares: from, to."""
    sends_inner: bool = False
    """It makes the most steps, and sends its inner state when a start ends."""
    inner: Mapping[str, Vector] = field(default_factory=dict)
    history: tuple[Vector, ...] = ()
    """What phases before this one agreed on, as far as the worker lacks it."""
    shard: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    """Of a sharded table: which arrays the worker asks for in pages; none where the worker makes
    the first numbers."""
    is_behind: bool = False
    """Of a sharded table: those arrays are older than the others' shards, and the next worker has
    the rows of them that have moved."""
    is_idle: bool = False
    """Nothing is left to do in this phase: the budget is used up, or the rows are quarantined."""
    early: EarlySending | None = None
    """None where there is no link to the other workers. It never travels."""

    def used(self) -> Grant:
        """Returns it without its vectors: once they are loaded nothing may keep them in memory."""
        return replace(self, heal=Message("heal"), inner={}, history=())
