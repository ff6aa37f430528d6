"""Strategies by fragments: one after the other, each in flight while training continues."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from photinus.core.clock import Clock, Steps, Trigger
from photinus.core.errors import UsageError
from photinus.core.parameters import Vector
from photinus.core.settings import between, validate, whole
from photinus.strategies.base import (
    OWN_PARAMETERS,
    PARAMETERS,
    Message,
    Strategy,
    Turn,
    fragments_of,
    part,
)
from photinus.strategies.outer import Outer, Sgd
from photinus.strategies.rounds import decoded, stepped


class StreamingState(NamedTuple):
    """A worker's state between rounds, each of one fragment."""

    anchor: Vector
    """The parameters [n] that were last agreed on, fragment by fragment."""
    outer: tuple[Vector, ...]
    version: int
    """Rounds so far: the next one is of fragment `version` modulo their count."""
    counted: tuple[Clock, ...]
    """How far the work in each fragment has gone into agreed rounds."""
    sent: Clock
    """When a fragment was last pushed."""
    taken: Clock
    """When it was taken."""
    is_under_way: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Streaming(Strategy):
    """Rounds of one fragment each: pushed, trained on for d steps, then mixed in.

    Δᵢ = anchor − θᵢ;  anchor ← outer(anchor, Σ cᵢΔᵢ);  θᵢ ← α·θᵢ + (1−α)·anchor, within the
    fragment; where nothing was trained meanwhile (no delay, the drain) θᵢ ← anchor.

    Every fragment has its turn in each `every`, so the peak of what travels is a P-th. Source:
    Streaming DiLoCo (Douillard et al., 2025).

    Raises:
        UsageError: the delay is not shorter than it is from one fragment to the next, or the outer
            optimizer is adam.
    """

    every: Trigger = field(default_factory=lambda: Steps(100))
    fragments: int = 4
    delay: int = 1
    """Steps that a fragment is under way."""
    alpha: float = 0.5
    """How much stays of what a worker has when the fragment arrives."""
    outer: Outer = field(default_factory=Sgd)
    site = PARAMETERS
    takes = True
    alone = (OWN_PARAMETERS, "sent", "counted")
    LIMITS = {  # noqa: RUF012
        "fragments": whole(1),
        "delay": whole(0),
        "alpha": between(0, 1),
    }

    def __post_init__(self) -> None:
        validate(self)
        if self.outer.name in ("adam", "delayed_nesterov", "row_adagrad"):
            wrong = f"{self.outer.name} keeps state of a whole vector, which fragments would share"
            raise UsageError(wrong, do="take nesterov, slowmo, adagrad or sgd outside")
        gap = self.gap.steps
        if gap is not None and self.delay >= gap and self.delay > 0:
            wrong = f"a fragment must arrive before the next one goes, {gap} steps after it"
            raise UsageError(wrong, got=f"delay {self.delay}", do="shorten it, or agree less often")

    @property
    def gap(self) -> Trigger:
        """When the next fragment is pushed: a P-th of `every`, whole numbers rounded up."""
        e, count = self.every, self.fragments
        return Trigger(
            steps=None if e.steps is None else -(-e.steps // count),
            seconds=None if e.seconds is None else e.seconds / count,
            examples=None if e.examples is None else -(-e.examples // count),
            epochs=None if e.epochs is None else e.epochs / count,
        )

    def init(self, vector: Vector) -> StreamingState:
        """The anchor is where all start."""
        fragments_of(vector.size, self.fragments)
        none, outer = Clock(), self.outer.init(vector)
        return StreamingState(vector.copy(), outer, 0, (none,) * self.fragments, none, none, False)  # noqa: FBT003

    def due(self, clock: Clock, state: StreamingState) -> tuple[Turn, ...]:
        """Push the next fragment; take it after the delay; at the end swap what is unsent."""
        fragment = fragments_of(state.anchor.size, self.fragments)[state.version % self.fragments]
        if state.is_under_way:
            is_time = clock.closing or clock.steps - state.sent.steps >= self.delay
            return (Turn("take", fragment),) if is_time else ()
        if clock.closing:
            unsent = any(c.steps < clock.steps for c in state.counted)
            return (Turn("swap", fragment),) if unsent else ()
        kind = "push" if self.delay else "swap"
        return (Turn(kind, fragment),) if self.gap.fires(clock, state.sent) else ()

    def offer(
        self, turn: Turn, vector: Vector, clock: Clock, state: StreamingState
    ) -> tuple[Message | None, StreamingState]:
        """Offers a fragment's delta."""
        if turn.kind == "take":
            return None, state._replace(taken=clock)
        f = turn.fragment
        delta = part(state.anchor, f) - part(vector, f)
        since = clock.since(state.counted[state.version % self.fragments])
        message = Message("push", delta, f, since=since, version=state.version)
        is_under_way = turn.kind == "push"
        return message, state._replace(sent=clock, taken=clock, is_under_way=is_under_way)

    def accept(self, vector: Vector, incoming: Message, state: StreamingState) -> StreamingState:
        """Mixes an agreed fragment in; after a miss, takes the agreed point."""
        mean = decoded(incoming, vector.dtype)
        state = state._replace(is_under_way=False, version=incoming.version)
        if incoming.kind == "heal":
            unsent = state.anchor - vector
            np.subtract(mean, unsent, out=vector)
            return state._replace(anchor=mean.copy(), outer=incoming.outer)
        f, real = incoming.fragment, vector.dtype.type
        anchor, outer = stepped(self.outer, f, mean, state.anchor, state.outer)
        mine, agreed = part(vector, f), part(anchor, f)
        if state.taken.steps > state.sent.steps:
            mine *= real(self.alpha)
            mine += real(1 - self.alpha) * agreed
        else:
            mine[:] = agreed
        counted = list(state.counted)
        counted[fragments_of(vector.size, self.fragments).index(f)] = state.sent
        return state._replace(anchor=anchor, outer=outer, counted=tuple(counted))
