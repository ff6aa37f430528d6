"""Strategies without waiting: each push is applied on arrival (Downpour), or pulls (EASGD)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from photinus.core.clock import Clock, Steps, Trigger
from photinus.core.parameters import Vector
from photinus.core.settings import Limit, between, one_of, validate, whole
from photinus.strategies.base import (
    GRADIENT_SUM,
    PARAMETERS,
    Message,
    Policy,
    Reply,
    Strategy,
    Turn,
)
from photinus.strategies.codecs import CODECS, codec, decode, encode, residual
from photinus.strategies.outer import OuterOptimizer, Sgd
from photinus.strategies.rounds import decoded
from photinus.strategies.rows import changed, numbers_of

STALENESS = Limit(
    "'none', 'inverse', or the whole number of versions above which a push is dropped",
    lambda v: v in ("none", "inverse") or (type(v) is int and v >= 0),
)


class FetchState(NamedTuple):
    """A worker's state since it last fetched from the owner."""

    mark: Vector
    """Its parameters less what was not pushed yet [n]; of gradients, what the codec left out."""
    version: int = 0
    sent: Clock = Clock()
    """When it last pushed."""
    fetched: Clock = Clock()


@dataclass(frozen=True, kw_only=True, slots=True)
class Downpour(Strategy):
    """Pushes what was learnt, now and then fetches what the owner has; no worker waits for another.

    Δᵢ = mark − θᵢ, or with payload "gradient" the sum of the gradients since the last push;
    a fetch brings θ, and what was not pushed yet stays on top of it (of gradients it does not,
    as published).

    When a worker is lost, what it had not pushed is done again. Source: Dean et al., Large Scale
    Distributed Deep Networks, 2012.
    """

    every: Trigger = field(default_factory=lambda: Steps(10))
    """When to push."""
    fetch: Trigger | None = None
    """When to fetch; None: after every push."""
    payload: str = "delta"
    codec: str = "fp32"
    rows: int = 0
    """Only rows of so many numbers that changed are pushed, and fetched; 0: all."""
    LIMITS = {  # noqa: RUF012
        "payload": one_of("delta", "gradient"),
        "codec": one_of(*CODECS),
        "rows": whole(0),
    }

    def __post_init__(self) -> None:
        validate(self)

    @property
    def site(self) -> str:  # type: ignore[override]
        """After the inner step; what is pushed follows from the payload."""
        return PARAMETERS if self.payload == "delta" else GRADIENT_SUM

    def init(self, vector: Vector) -> FetchState:
        """All start from the same point."""
        return FetchState(vector.copy() if self.payload == "delta" else np.zeros_like(vector))

    def due(self, clock: Clock, state: FetchState) -> tuple[Turn, ...]:
        """A push when its trigger fires, a fetch when its own does; at the end what is unsent."""
        if clock.closing:
            return (Turn("push"),) if clock.steps > state.sent.steps else ()
        is_push = self.every.fires(clock, state.sent)
        is_fetch = is_push if self.fetch is None else self.fetch.fires(clock, state.fetched)
        return (Turn("push"),) * is_push + (Turn("fetch"),) * is_fetch

    def offer(
        self, turn: Turn, vector: Vector, clock: Clock, state: FetchState
    ) -> tuple[Message | None, FetchState]:
        """Offers the delta, or the gradients' sum, since the last push; or asks.

        What the codec leaves out stays unpushed, and is sent with the next push.
        """
        if turn.kind == "fetch":
            return Message("fetch", version=state.version), state._replace(fetched=clock)
        is_sum, has_feedback = self.payload == "gradient", codec(self.codec).has_feedback
        unsent = vector + state.mark if is_sum else state.mark - vector
        rows = changed(unsent, self.rows) if self.rows else None
        pushed = unsent if rows is None else unsent[numbers_of(rows, self.rows, unsent.size)]
        encoded = encode(self.codec, pushed)
        left = residual(self.codec, unsent, encoded) if has_feedback else np.zeros_like(unsent)
        message = Message(
            "push",
            encoded,
            turn.fragment,
            rows,
            since=clock.since(state.sent),
            version=state.version,
            codec=self.codec,
        )
        mark = left if is_sum else vector + left
        return message, state._replace(mark=mark, sent=clock)

    def accept(self, vector: Vector, incoming: Message, state: FetchState) -> FetchState:
        """Takes the owner's parameters; a delta that was not pushed yet stays on top."""
        assert incoming.vector is not None
        received = decode(incoming.codec, incoming.vector)
        if self.payload == "gradient":
            np.copyto(vector, received)
            return state._replace(version=incoming.version)
        if incoming.rows is not None:
            indices, mark = numbers_of(incoming.rows, self.rows, vector.size), state.mark.copy()
            vector[indices], mark[indices] = received - (mark[indices] - vector[indices]), received
            return state._replace(mark=mark, version=incoming.version)
        np.subtract(received, state.mark - vector, out=vector)
        return state._replace(mark=received.astype(vector.dtype), version=incoming.version)


class ServerState(NamedTuple):
    """The state of an owner that applies each push on arrival."""

    vector: Vector
    outer: tuple[Vector, ...]
    floats: Vector
    integers: Vector
    version: int
    moved: Vector
    """At which version each row moved last [rows of the vector]; empty where all travel."""

    @classmethod
    def of(cls, point: Message, outer: OuterOptimizer) -> ServerState:
        """Takes up an agreed point."""
        assert point.vector is not None
        assert point.floats is not None
        assert point.integers is not None
        state = point.outer or outer.init(point.vector)
        moved = np.empty(0, np.int64)
        return cls(point.vector, state, point.floats, point.integers, point.version, moved)

    def point(self) -> Message:
        """Returns the agreed point."""
        return Message(
            "heal",
            self.vector,
            version=self.version,
            outer=self.outer,
            floats=self.floats,
            integers=self.integers,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Immediate(Policy):
    """Each push goes through the outer optimizer at once; each fetch gets what is there.

    θ ← outer(θ, f(s)/K · Δ), with K the workers that hold a seat, s the versions since the pusher
    last fetched, and f = 1 or 1/(1+s); a push staler than a limit is dropped, and its worker gets
    θ. A sum of gradients is not divided by K: the outer optimizer's learning rate is its own.

    Measured: 1/K for each push trains for every K tried, 2/K is two to three times worse, 4/K does
    not train. Source: Dean et al., 2012; 1/(1+s): Jiang et al., 2017.
    """

    outer: OuterOptimizer = field(default_factory=Sgd)
    payload: str = "delta"
    staleness: str | int = "none"
    codec: str = "fp32"
    """Of what is fetched: whole parameters, so that blocks of few bits are too coarse."""
    rows: int = 0
    """Rows of so many numbers are pushed, and fetched if they moved since; 0: all."""
    has_rounds = False
    LIMITS = {  # noqa: RUF012
        "rows": whole(0),
        "payload": one_of("delta", "gradient"),
        "staleness": STALENESS,
        "codec": one_of("fp32", "bf16"),
    }

    def __post_init__(self) -> None:
        validate(self)

    def init(self, point: Message) -> ServerState:
        """All start from the same point."""
        state = ServerState.of(point, self.outer)
        count = -(-state.vector.size // self.rows) if self.rows else 0
        return state._replace(moved=np.full(count, point.version, np.int64))

    def receive(
        self, slot: int, message: Message, members: frozenset[int], state: ServerState
    ) -> tuple[list[Reply], ServerState]:
        """Applies a push, or answers a fetch."""
        if message.kind == "fetch" and self.rows:
            return [Reply(slot, self._rows_since(message.version, state))], state
        stale = state.version - message.version
        is_dropped = isinstance(self.staleness, int) and stale > self.staleness
        if message.kind == "fetch" or is_dropped:
            kind = "agreed" if message.kind == "fetch" else "heal"
            encoded = encode(self.codec, state.vector)
            point = self.agreed(state)
            answer = point._replace(kind=kind, vector=encoded, codec=self.codec, outer=())
            return [Reply(slot, answer)], state
        weight = 1 / len(members | {slot})
        factor = weight if self.payload == "delta" else 1.0
        if self.staleness == "inverse":
            factor /= 1 + stale
        delta = decoded(message, state.vector.dtype) * state.vector.dtype.type(factor)
        mixed_state = _mix_buffers(message, weight, state)
        if message.rows is not None:
            return self._apply_rows(slot, mixed_state, message.rows, delta)
        vector, outer = self.outer.update(state.vector, delta, state.outer)
        return _acked(slot, mixed_state, vector, outer)

    def _apply_rows(
        self, slot: int, state: ServerState, rows: Vector, delta: Vector
    ) -> tuple[list[Reply], ServerState]:
        """Only these rows move: the bits are those of a push with zeros in all others."""
        indices, moved = numbers_of(rows, self.rows, state.vector.size), state.moved.copy()
        vectors = state.vector, *state.outer
        new_rows, outer = self.outer.update(
            vectors[0][indices], delta, tuple(o[indices] for o in vectors[1:])
        )
        copies = [vector.copy() for vector in vectors]
        for vector, new_values in zip(copies, (new_rows, *outer), strict=True):
            vector[indices] = new_values
        moved[rows] = state.version + 1
        return _acked(slot, state._replace(moved=moved), copies[0], tuple(copies[1:]))

    def _rows_since(self, version: int, state: ServerState) -> Message:
        """Returns the rows that moved since a version."""
        rows = np.flatnonzero(state.moved > version).astype(np.int64, copy=False)
        values = state.vector[numbers_of(rows, self.rows, state.vector.size)]
        point = self.agreed(state)._replace(kind="agreed", rows=rows, codec=self.codec, outer=())
        return point._replace(vector=encode(self.codec, values))

    def agreed(self, state: ServerState) -> Message:
        """Returns what the owner holds."""
        return state.point()


@dataclass(frozen=True, kw_only=True, slots=True)
class Elastic(Strategy):
    """A spring between each worker and the owner's centre: θᵢ ← θᵢ − e, centre ← centre + e.

    e = (α/K)(θᵢ − centre) is computed by the owner, so that both take the same bits. When a worker
    is lost, it starts again from the centre. Source: Zhang, Choromanska, LeCun: Deep learning with
    Elastic Averaging SGD, 2015.
    """

    every: Trigger = field(default_factory=lambda: Steps(10))
    site = PARAMETERS

    def init(self, vector: Vector) -> FetchState:
        """All start from the same point."""
        return FetchState(vector[:0])

    def due(self, clock: Clock, state: FetchState) -> tuple[Turn, ...]:
        """A swap when the trigger fires; at the end of the phase once more."""
        is_unsent = clock.closing and clock.steps > state.sent.steps
        return (Turn("swap"),) if is_unsent or self.every.fires(clock, state.sent) else ()

    def offer(
        self, turn: Turn, vector: Vector, clock: Clock, state: FetchState
    ) -> tuple[Message | None, FetchState]:
        """Offers its parameters, in full precision."""
        since = clock.since(state.sent)
        message = Message("push", vector.copy(), turn.fragment, since=since, version=state.version)
        return message, state._replace(sent=clock)

    def accept(self, vector: Vector, incoming: Message, state: FetchState) -> FetchState:
        """Moves the vector towards the centre, or starts from it."""
        assert incoming.vector is not None
        received = decode(incoming.codec, incoming.vector)
        if incoming.kind == "heal":
            np.copyto(vector, received)
        else:
            vector -= received.astype(vector.dtype, copy=False)
        return state._replace(version=incoming.version)


@dataclass(frozen=True, kw_only=True, slots=True)
class ElasticOwner(Policy):
    """The owner's half of `Elastic`: holds the centre, and computes the pull on both.

    e = min(α/K, ½)(θᵢ − centre), with K the workers that hold a seat.
    """

    alpha: float = 0.9
    codec: str = "fp32"
    has_rounds = False
    LIMITS = {"alpha": between(0.001, 1), "codec": one_of(*CODECS)}  # noqa: RUF012

    def __post_init__(self) -> None:
        validate(self, of="elastic")

    def init(self, point: Message) -> ServerState:
        """The centre is where all start."""
        return ServerState.of(point, Sgd())

    def receive(
        self, slot: int, message: Message, members: frozenset[int], state: ServerState
    ) -> tuple[list[Reply], ServerState]:
        """Moves the centre towards a worker, and answers by how far."""
        if message.kind == "fetch":
            return [Reply(slot, self.agreed(state)._replace(kind="agreed"))], state
        weight = 1 / len(members | {slot})
        difference = decoded(message, state.vector.dtype) - state.vector
        difference *= difference.dtype.type(min(self.alpha * weight, 0.5))
        encoded = encode(self.codec, difference)
        pull = decode(self.codec, encoded).astype(difference.dtype, copy=False)
        (reply,), state = _acked(
            slot, _mix_buffers(message, weight, state), state.vector + pull, ()
        )
        answer = reply.message._replace(
            kind="agreed",
            vector=encoded,
            codec=self.codec,
            floats=state.floats,
            integers=state.integers,
        )
        return [Reply(slot, answer)], state

    def agreed(self, state: ServerState) -> Message:
        """Returns the centre."""
        return state.point()


def _mix_buffers(message: Message, weight: float, state: ServerState) -> ServerState:
    """Float buffers move by one worker's share towards the pusher's; integers never fall."""
    if message.floats is None or message.integers is None:
        return state
    floats = state.floats + np.float32(weight) * (message.floats - state.floats)
    return state._replace(floats=floats, integers=np.maximum(state.integers, message.integers))


def _acked(
    slot: int, state: ServerState, vector: Vector, outer: tuple[Vector, ...]
) -> tuple[list[Reply], ServerState]:
    state = state._replace(vector=vector, outer=outer, version=state.version + 1)
    return [Reply(slot, Message("ack", version=state.version))], state
