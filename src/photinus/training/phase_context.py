"""What a worker works with in one phase, and how far the phase is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from photinus.core.clock import Clock
from photinus.core.parameters import Vector
from photinus.data.base import Batch, Feed
from photinus.models.base import Model
from photinus.models.optimizers import InnerOptimizer
from photinus.models.owner_steps import OwnerSteps
from photinus.strategies.base import Message, OwnedShard, ShardMove, Strategy, Turn
from photinus.training.ahead import LookaheadFeed
from photinus.training.requests import StepReply
from photinus.training.segments import EarlySending
from photinus.training.shard_pages import ShardCopy


class PhaseProgress(NamedTuple):
    """How far the phase is: what was agreed, and the work since, estimated from one's own."""

    agreed: float
    """Progress at the last agreement, 0 to 1."""
    examples: int
    """This worker's examples at the last agreement."""
    per_example: float
    """Progress by one example of this worker: all rows / own rows / budget."""
    span: tuple[float, float] = (0.0, 1.0)
    """The phase's part of its stage, as shares: from, to."""

    def progress(self, clock: Clock) -> float:
        """Returns the stage's progress as learning-rate schedules see it."""
        within_phase = self.agreed + (clock.examples - self.examples) * self.per_example
        return self.of_stage(min(1.0, within_phase))

    def of_stage(self, within_phase: float) -> float:
        """Returns the progress of the stage at a progress of the phase."""
        return self.span[0] + (self.span[1] - self.span[0]) * within_phase

    def after(self, clock: Clock, *replies: StepReply) -> PhaseProgress:
        """Returns it with the newest progress that was reported."""
        reported = [reply.progress for reply in replies if reply.progress is not None]
        return self._replace(agreed=reported[-1], examples=clock.examples) if reported else self


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseContext:
    """Model, optimizer, rows and strategy of a worker in one phase."""

    model: Model
    inner: InnerOptimizer
    feed: Feed
    strategy: Strategy
    phase_progress: PhaseProgress
    seed: Callable[[int], int]
    """Feed position -> the seed of that step."""
    heal: list[Message] = field(default_factory=list)
    """The agreed point that a joiner starts from; empty once it has started."""
    arrived: list[StepReply] = field(default_factory=list)
    """Answers that wait for their `take`."""
    held: Callable[[], Iterable[Batch]] = tuple
    """Returns the rows set aside, in batches."""
    kept: Mapping[str, Vector] = field(default_factory=dict)
    """The strategy's own state of the worker, from the snapshot that it continues from."""
    sums: Vector | None = None
    """The gradients [n] since the last push, where the strategy pushes their sum."""
    where: str = ""
    """Phase and partition, for an error of the model."""
    early: EarlySending | None = None
    """How segments of the gradient leave while the rest of it is computed; None where none may."""
    copies: list[ShardCopy] = field(default_factory=list)
    """Copies of its shard of a table for a checkpoint: at most one is being sent."""
    pushed_inner: dict[str, Vector] = field(default_factory=dict)
    """The inner optimizer's state at the last push of a worker that others call."""

    @property
    def position(self) -> int:
        """The feed's, or that at the last push, where a round may end before the next one."""
        return self.feed.counted if isinstance(self.feed, LookaheadFeed) else self.feed.position

    @property
    def inner_state(self) -> dict[str, Vector]:
        """The inner optimizer's, or that at the last push, likewise."""
        is_pushed = getattr(self.strategy, "calls_meetings", False)
        return self.pushed_inner if is_pushed else self.inner.state()

    def offered(self, turn: Turn, vector: Vector, state: Any) -> tuple[Vector, Any]:  # noqa: ANN401
        """Returns what a turn offers, a vector of its own or gradients, and the strategy's state.

        Of a row that was read without a gradient no owner hears: it takes no step.
        """
        if isinstance(self.inner, OwnerSteps):
            if turn.kind == "meet" and state.rows.size:  # none came for a round without a step
                state = state._replace(rows=self.inner.rows)
            return self.inner.gradient, state
        return vector if self.sums is None or turn.kind != "push" else self.sums, state

    def with_reads(self, turn: Turn, message: Message | None, progress: float) -> Message | None:
        """Returns a message with the rows that the next steps read, where the feed knows them.

        A push also has how often its own rows were read, and the inner optimizer's state, which
        is sent to the worker that keeps the backup of the shard. An owner that takes the steps
        itself takes them at the agreed progress.
        """
        feed = self.feed
        if message is None or not isinstance(feed, LookaheadFeed):
            return message
        table, owned = message.table, message.table.owned
        if owned is not None and isinstance(self.inner, OwnerSteps):
            stage_progress = self.phase_progress.of_stage(progress)
            squares = self.inner.squares if self.inner.clips else None
            update = partial(_step, self.inner, owned, stage_progress)
            owned = owned._replace(update=update, squares=squares)
        elif owned is not None:
            if not owned.is_serving:
                self._keep_inner(self.inner.state())
            owned = owned._replace(inner=self.inner_state)
        reads = table.reads
        # they are counted where the merge asks, and else forgotten
        if reads is None and message.rows is not None:
            is_merged_by_reads = owned is not None and owned.by_reads
            reads = feed.reads(message.rows if is_merged_by_reads else message.rows[:0])
        asks = feed.asks(int(turn.kind == "publish")) if table.asks is None else table.asks
        return message._replace(table=replace(table, asks=asks, reads=reads, owned=owned))

    def shard_moves(self, moved: ShardMove) -> None:
        """Prepares for a move of the shard: its copies take what is about to change."""
        for copy in self.copies:
            copy.moving(moved.at)
        if moved.inner:
            self.inner.load(moved.inner)
            self._keep_inner(moved.inner)

    def _keep_inner(self, state: Mapping[str, Vector]) -> None:
        """Keeps a copy of the inner optimizer's state, where a round may end between two pushes."""
        if getattr(self.strategy, "calls_meetings", False):
            self.pushed_inner.update({name: value.copy() for name, value in state.items()})


def _step(
    inner: OwnerSteps,
    owned: OwnedShard,
    progress: float,
    at: Vector,
    gradients: Vector,
    squares: float = 0.0,
) -> ShardMove:
    """Returns where rows [r] of a shard move by a step with their mean gradient [r, width]."""
    rows = owned.rows[at]
    state = inner.step_rows(at, rows, gradients, progress, squares)
    return ShardMove(at, rows, tuple(array[at] for array in owned.outer), state)
