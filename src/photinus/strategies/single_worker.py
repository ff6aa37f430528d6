"""How a single worker agrees: the owner holds a copy of its parameters, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from photinus.core.clock import Clock, Steps, Trigger
from photinus.core.parameters import Vector
from photinus.strategies.base import PARAMETERS, Message, Policy, Reply, Strategy, Turn


class SingleWorkerState(NamedTuple):
    """The worker's state."""

    version: int = 0
    sent: Clock = Clock()
    """When it last pushed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SingleWorker(Strategy):
    """Pushes the parameters as they are: θ. Nothing comes down, except to a worker that rejoins.

    anchor − (anchor − θ) has other bits than θ: with a delta one worker would not be plain training
    bit for bit. A worker that was lost continues from its last push. One object is both halves.

    Example:
        >>> SingleWorker(every=Steps(2)).due(Clock(steps=2), SingleWorkerState())
        (Turn(kind='swap', fragment=(0, 0)),)
    """

    every: Trigger = field(default_factory=lambda: Steps(50))
    """When to push."""
    site = PARAMETERS
    is_deterministic = True

    def __str__(self) -> str:
        return f"one worker, saved every {self.every}"

    def worker(self) -> SingleWorker:
        """Returns the worker's half."""
        return self

    def owner(self) -> Latest:
        """Returns the owner's half."""
        return Latest()

    def init(self, vector: Vector) -> SingleWorkerState:  # noqa: ARG002 - the owner has it
        """Nothing was pushed yet."""
        return SingleWorkerState()

    def due(self, clock: Clock, state: SingleWorkerState) -> tuple[Turn, ...]:
        """A swap when the trigger fires; at the end of the phase, when anything is unsent."""
        is_unsent = clock.closing and clock.steps > state.sent.steps
        return (Turn("swap"),) if is_unsent or self.every.fires(clock, state.sent) else ()

    def offer(
        self, turn: Turn, vector: Vector, clock: Clock, state: SingleWorkerState
    ) -> tuple[Message, SingleWorkerState]:
        """Offers the parameters."""
        since = clock.since(state.sent)
        message = Message("push", vector.copy(), turn.fragment, since=since, version=state.version)
        return message, state._replace(sent=clock)

    def accept(
        self, vector: Vector, incoming: Message, state: SingleWorkerState
    ) -> SingleWorkerState:
        """Takes the version; the parameters only as a joiner."""
        if incoming.vector is not None:
            np.copyto(vector, incoming.vector)
        return state._replace(version=incoming.version)


class Latest(Policy):
    """The owner of one worker's parameters: the latest push."""

    def init(self, point: Message) -> Message:
        """Starts from a point."""
        return point._replace(kind="heal")

    def receive(
        self,
        slot: int,
        message: Message,
        members: frozenset[int],  # noqa: ARG002 - there is one
        state: Message,
    ) -> tuple[list[Reply], Message]:
        """Keeps a push of the present version; any other worker is sent the point."""
        if message.kind == "fetch" or message.version != state.version:
            return [Reply(slot, state)], state
        fields = {n: getattr(message, n) for n in ("vector", "floats", "integers")}
        updates = {name: value for name, value in fields.items() if value is not None}
        state = state._replace(**updates, version=state.version + 1)
        return [Reply(slot, Message("agreed", version=state.version))], state

    def agreed(self, state: Message) -> Message:
        """Returns the latest push."""
        return state
