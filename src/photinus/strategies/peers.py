"""Strategies without an owner: workers publish to each other, and meet from time to time.

Both ways keep the same account. A worker's own progress P since the last exact average is known
exactly whatever was mixed in since, so that the next one, anchor − mean P, makes up for every
publication that was lost, doubled or late.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from photinus.core.clock import Clock, Steps, Trigger
from photinus.core.errors import UsageError
from photinus.core.parameters import Vector
from photinus.core.seeds import derive
from photinus.core.settings import at_least, between, one_of, validate, whole
from photinus.strategies.base import PARAMETERS, Message, Policy, Reply, Strategy, Turn
from photinus.strategies.codecs import CODECS, decode, encode
from photinus.strategies.merge import MERGES, coefficients
from photinus.strategies.rounds import QUORUM

GRAPHS = ("exponential", "ring", "random")


class PeerState(NamedTuple):
    """A worker's state between exact averages: its parameters are base − P."""

    anchor: Vector
    """The parameters [n] that were last agreed on."""
    base: Vector
    """The anchor [n] and all that was mixed in since."""
    sent: Vector
    """How much of its own progress P [n] was published, or existed when it published last."""
    version: int = 0
    counted: Clock = Clock()
    """How far its work has gone into exact averages."""
    last_published: Clock = Clock()
    """When it last published."""
    publications: int = 0
    """How often it has published."""
    slot: int = -1
    slots: tuple[int, ...] = ()
    """The slots of all members, its own among them."""
    is_called: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class _Peer(Strategy):
    """What all ways without an owner have in common: publish by a trigger, meet when called."""

    every: Trigger = field(default_factory=lambda: Steps(10))
    codec: str = "bf16"
    site = PARAMETERS
    is_peer_to_peer = True
    LIMITS = {"codec": one_of(*CODECS)}  # noqa: RUF012

    def __post_init__(self) -> None:
        validate(self)

    def init(self, vector: Vector) -> PeerState:
        """The anchor is where all start."""
        anchor = vector.copy()
        return PeerState(anchor, anchor, np.zeros_like(anchor))

    def due(self, clock: Clock, state: PeerState) -> tuple[Turn, ...]:
        """Returns a meeting when called or at the end, if anything is unsent; else by the trigger.

        A worker that is alone meets by the trigger, too: it has no peer to publish to.
        """
        is_unsent = clock.steps > state.counted.steps
        if clock.closing or (state.is_called and is_unsent):
            return (Turn("meet"),) if is_unsent else ()
        is_due = bool(state.slots) and self.every.fires(clock, state.last_published)
        return (Turn("publish" if len(state.slots) > 1 else "meet"),) if is_due else ()

    def offer(
        self, turn: Turn, vector: Vector, clock: Clock, state: PeerState
    ) -> tuple[Message, PeerState]:
        """Offers all own progress to a meeting, or a publication to the others."""
        since = clock.since(state.counted)
        if turn.kind == "meet":
            progress = state.base - vector
            push = Message("push", progress, since=since, version=state.version)
            return push, state._replace(counted=clock, last_published=clock)
        state = state._replace(last_published=clock, publications=state.publications + 1)
        message, state = self._publication(vector, state)
        return message._replace(since=since, version=state.version, codec=self.codec), state

    def accept(self, vector: Vector, incoming: Message, state: PeerState) -> PeerState:
        """Mixes a publication in, or takes the exact average."""
        if incoming.kind == "here":
            return state._replace(slot=incoming.slot, slots=incoming.slots)
        if incoming.kind == "call":
            return state._replace(is_called=incoming.version == state.version)
        assert incoming.vector is not None
        received = decode(incoming.codec, incoming.vector)
        if incoming.kind == "publish":
            shift = self._shift(vector, received, state)
            vector += shift
            return state._replace(base=state.base + shift)
        is_joiner = incoming.kind == "heal"
        anchor = received.astype(vector.dtype) if is_joiner else state.anchor - received
        np.copyto(vector, anchor)
        zeros, version = np.zeros_like(anchor), incoming.version
        return state._replace(
            anchor=anchor, base=anchor, sent=zeros, version=version, is_called=False
        )

    @abstractmethod
    def _publication(self, vector: Vector, state: PeerState) -> tuple[Message, PeerState]:
        """Returns what to publish and to which workers, and the new state."""

    @abstractmethod
    def _shift(self, vector: Vector, received: Vector, state: PeerState) -> Vector:
        """Returns how far a publication [n] moves one's parameters [n]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Publish(_Peer):
    """Every worker publishes what it learnt; all take it in when it arrives; no worker waits.

    Δ = what was learnt and not yet published;  θ ← θ − Δⱼ/K for every Δⱼ, one's own too.

    The scheme of impetus, with deltas: overwriting the parameters by a peer's loses (6.7 % test
    error where this has 4.4 %). When a worker is lost the others do not wait for it; what it
    published since the last exact average is taken back by the next one, because its rows are
    done again.
    """

    def _publication(self, vector: Vector, state: PeerState) -> tuple[Message, PeerState]:
        encoded = encode(self.codec, state.base - vector - state.sent)
        delta = decode(self.codec, encoded).astype(vector.dtype, copy=False)
        taken_back = delta * vector.dtype.type(1.0 - 1.0 / len(state.slots))
        vector += taken_back
        others = tuple(s for s in state.slots if s != state.slot)
        state = state._replace(base=state.base + taken_back, sent=state.sent + delta)
        return Message("publish", encoded, slots=others), state

    def _shift(self, vector: Vector, received: Vector, state: PeerState) -> Vector:
        shift: Vector = received * vector.dtype.type(-1.0 / len(state.slots))
        return shift


@dataclass(frozen=True, kw_only=True, slots=True)
class Gossip(_Peer):
    """Every worker sends its parameters to one other, and mixes arrivals in: θ ← θ + ½(θⱼ − θ′).

    θ′ are its own without its steps since it published last (the delta rule): θⱼ is as old as
    these, and would pull them back, though the next exact average counts them whole. Graphs:
    `exponential`, hops of 1, 2, 4, … (Assran et al., 2019) · `ring`, the neighbours in turn (Lian
    et al., 2017) · `random`. When a worker is lost the graph closes over its place.
    """

    graph: str = "exponential"
    mix: float = 0.5
    LIMITS = {  # noqa: RUF012
        "codec": one_of(*CODECS),
        "graph": one_of(*GRAPHS),
        "mix": between(0.01, 1),
    }

    def _publication(self, vector: Vector, state: PeerState) -> tuple[Message, PeerState]:
        receiver = partner(self.graph, state.slot, state.slots, state.publications - 1)
        encoded = encode(self.codec, vector)
        encoded = encoded.copy() if encoded is vector else encoded
        state = state._replace(sent=state.base - vector)
        return Message("publish", encoded, slots=() if receiver is None else (receiver,)), state

    def _shift(self, vector: Vector, received: Vector, state: PeerState) -> Vector:
        shift: Vector = (received - (state.base - state.sent)) * vector.dtype.type(self.mix)
        return shift.astype(vector.dtype, copy=False)


def partner(graph: str, slot: int, slots: tuple[int, ...], round_: int) -> int | None:
    """Returns the slot that a worker publishes to in a round; None when it is alone.

    Args:
        graph: one of `GRAPHS`.
        slot: its own.
        slots: of all members, its own among them.
        round_: 0, 1, 2, …

    Example:
        >>> [partner("exponential", 0, (0, 1, 2, 3, 4, 5), r) for r in range(4)]
        [1, 2, 4, 1]
    """
    count = len(slots)
    if count < 2 or slot not in slots:
        return None
    if graph == "exponential":
        hop = 1 << (round_ % (count - 1).bit_length())
    elif graph == "ring":
        hop = 1 if round_ % 2 == 0 else count - 1
    else:
        hop = 1 + derive(slot, "gossip", round_) % (count - 1)
    return slots[(slots.index(slot) + hop) % count]


class _MeetingsState(NamedTuple):
    """The state of the owner, which calls the meetings."""

    point: Message
    """Where the phase starts: the owner holds no newer point."""
    version: int
    pushes: Mapping[int, Message]
    """Slot -> its push, without the vector."""
    meeting: tuple[int, ...] = ()
    """The members of the open meeting."""
    ready: frozenset[int] = frozenset()
    restoring: frozenset[int] = frozenset()
    """The slots that restore their own shards of a table from the others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Meetings(Policy):
    """Fixes who is in an exact average; the vectors pass from worker to worker.

    When all members have come each is sent the list of members, with the weights of the merge; each
    sends `ready` when it holds the whole mean, and when all are ready it is agreed. If one is lost
    before that, the survivors meet again: they keep their progress.

    Where a push calls the others, it weighs 1/K whoever else has pushed.
    """

    merge: str = "uniform"
    quorum: float = 1.0
    grace_seconds: float = 0.0
    rounds_between: int = 0
    rows: int = 0
    shards: int = 0
    calls_meetings: bool = False
    holds_parameters = False
    is_peer_to_peer = True
    LIMITS = {  # noqa: RUF012
        "merge": one_of(*MERGES),
        "quorum": QUORUM,
        "grace_seconds": at_least(0),
        "rounds_between": whole(0),
        "rows": whole(0),
        "shards": whole(0),
    }

    def __post_init__(self) -> None:
        validate(self)

    def init(self, point: Message) -> _MeetingsState:
        """Returns the state in which no worker has come yet.

        Raises:
            UsageError: of a table, the parameters are no whole number of rows, or there are float
                buffers beside them.
        """
        if self.rows and point.vector is not None and point.vector.size % self.rows:
            wrong = f"a sharded table has whole rows of {self.rows} numbers"
            raise UsageError(wrong, got=f"{point.vector.size} numbers", do="set rows to the width")
        if self.rows and point.floats is not None and point.floats.size:
            wrong = "a model whose table is sharded must have no float buffers"
            raise UsageError(wrong, got=f"{point.floats.size} numbers", do="use rows=0")
        return _MeetingsState(point, point.version, {})

    def receive(
        self, slot: int, message: Message, members: frozenset[int], state: _MeetingsState
    ) -> tuple[list[Reply], _MeetingsState]:
        """Takes in a worker's push for the meeting, or that it is ready."""
        if message.kind == "ready" and slot in state.restoring:
            state = state._replace(restoring=state.restoring - {slot})
            return [Reply(slot, Message("agreed", version=state.version))], state
        if message.kind == "ready":
            is_current = message.version == state.version and message.slots == state.meeting
            return self._receive_ready(slot, state) if is_current and state.meeting else ([], state)
        if message.version != state.version:
            return [Reply(slot, Message("rejoin", version=state.version))], state
        if message.kind == "fetch":
            invitation = Message("meet", version=state.version, slots=tuple(range(self.shards)))
            return [Reply(slot, invitation)], state._replace(restoring=state.restoring | {slot})
        return self.close(members, state._replace(pushes={**state.pushes, slot: message}))

    def close(
        self, members: frozenset[int], state: _MeetingsState
    ) -> tuple[list[Reply], _MeetingsState]:
        """Opens the meeting when all have come, and again when one of its members was lost.

        Where each worker owns a shard it opens only with all of them, and anew once a lost one is
        back.
        """
        present = {s: m for s, m in sorted(state.pushes.items()) if s in members}
        lost = [s for s in (*state.pushes, *state.restoring) if s not in members]
        replies = [Reply(s, Message("rejoin", version=state.version)) for s in lost]
        if len(members) < self.shards:
            restoring = state.restoring & members
            state = state._replace(meeting=(), ready=frozenset(), restoring=restoring)
            return replies, state._replace(pushes=present)
        meeting = tuple(s for s in state.meeting if s in present)
        if not meeting and members and members <= present.keys() and len(present) >= self.shards:
            meeting = tuple(present)
        if meeting == state.meeting:
            return replies, state._replace(pushes=present)
        state = state._replace(pushes=present, meeting=meeting, ready=frozenset())
        works = [present[s].since for s in meeting]
        weights = np.array(coefficients(self.merge, works), "f8")
        if self.calls_meetings:
            weights = np.array([work.steps > 0 for work in works]) / max(1, self.shards)
        shares = np.array(coefficients("examples", works), "f8")
        invitation = Message("meet", weights, version=state.version, floats=shares, slots=meeting)
        return [*replies, *(Reply(s, invitation) for s in meeting)], state

    def _receive_ready(
        self, slot: int, state: _MeetingsState
    ) -> tuple[list[Reply], _MeetingsState]:
        ready = state.ready | {slot}
        if not ready.issuperset(state.meeting):
            return [], state._replace(ready=ready)
        version = state.version + 1
        agreed = [Reply(s, Message("agreed", version=version)) for s in state.meeting]
        others = [s for s in state.pushes if s not in state.meeting]
        rejoins = [Reply(s, Message("rejoin", version=version)) for s in others]
        return agreed + rejoins, _MeetingsState(state.point, version, {})

    def agreed(self, state: _MeetingsState) -> Message:
        """Returns where the phase started: all later points are the workers' alone."""
        return state.point._replace(kind="heal", version=state.version)
