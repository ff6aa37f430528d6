"""Strategies with rounds: the worker's halves, and the owner's policy for both."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from photinus.core.clock import Clock, Steps, Trigger
from photinus.core.parameters import Vector, fingerprint
from photinus.core.settings import Limit, at_least, between, one_of, validate, whole
from photinus.strategies.base import (
    ALL,
    GRADIENT,
    PARAMETERS,
    Message,
    Policy,
    Reply,
    Strategy,
    Turn,
    fragments_of,
    part,
)
from photinus.strategies.codecs import CODECS, codec, decode, encode
from photinus.strategies.merge import MERGES, coefficients, combine, combine_sent
from photinus.strategies.outer import OuterOptimizer, Sgd

APART_EVERY = 8
"""After so many rounds the owner measures how far apart the workers are."""
QUORUM = Limit(
    "a share from 0.01 to 1, or a whole number of workers",
    lambda v: between(0.01, 1).holds(v) or whole(1).holds(v),
)


class AveragingState(NamedTuple):
    """A worker's state between rounds."""

    anchor: Vector
    """The parameters [n] that were last agreed on."""
    outer: tuple[Vector, ...]
    version: int
    counted: Clock
    """How far its work has gone into agreed rounds."""
    sent: Clock
    """When it last pushed: what the trigger counts from."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Averaging(Strategy):
    """Rounds: the merged deltas go through the outer optimizer, the same on every worker.

    Δᵢ = anchor − θᵢ;  anchor ← outer(anchor, Σ cᵢΔᵢ);  θᵢ ← anchor.

    SparkNet (Moritz et al., 2015), IterativeReduce, DiLoCo (Douillard et al., 2023) and SlowMo
    are settings of it. When a worker is lost the round closes without it; one that missed a
    round takes the agreed point and keeps its own unsent progress on top. Where the workers make
    the mean among themselves no owner holds that point: it heals as a joiner does instead.
    """

    every: Trigger = field(default_factory=lambda: Steps(50))
    """When a round is due."""
    outer: OuterOptimizer = field(default_factory=Sgd)
    """The optimizer that applies the merged delta."""
    is_peer_to_peer: bool = False
    """Every worker owns a shard: the mean is made among them, with the bits of one owner."""
    site = PARAMETERS

    def __post_init__(self) -> None:
        validate(self)

    @property
    def own_fields(self) -> tuple[str, ...]:  # type: ignore[override]
        """Without an owner the outer optimizer's state, which is the same on all."""
        return ("outer",) if self.is_peer_to_peer else ()

    def init(self, vector: Vector) -> AveragingState:
        """The anchor is where all start."""
        return AveragingState(vector.copy(), self.outer.init(vector), 0, Clock(), Clock())

    def due(self, clock: Clock, state: AveragingState) -> tuple[Turn, ...]:
        """A swap when the trigger fires; at the end of the phase, when anything is unsent."""
        is_unsent = clock.closing and clock.steps > state.counted.steps
        is_due = is_unsent or self.every.fires(clock, state.sent)
        return (Turn("meet" if self.is_peer_to_peer else "swap"),) if is_due else ()

    def offer(
        self, turn: Turn, vector: Vector, clock: Clock, state: AveragingState
    ) -> tuple[Message | None, AveragingState]:
        """Offers the delta since the anchor: Δᵢ = anchor − θᵢ."""
        delta, since = state.anchor - vector, clock.since(state.counted)
        message = Message("push", delta, turn.fragment, since=since, version=state.version)
        return message, state._replace(sent=clock)

    def accept(self, vector: Vector, incoming: Message, state: AveragingState) -> AveragingState:
        """Takes the merged delta through the outer step, or the agreed point after a miss."""
        if incoming.kind == "here":
            return state
        mean = decoded(incoming, vector.dtype)  # the owner steps in this precision too
        if incoming.kind == "heal":
            np.subtract(mean, state.anchor - vector, out=vector)
            outer = self.outer.init(vector) if self.is_peer_to_peer else incoming.outer
            return state._replace(anchor=mean.copy(), outer=outer, version=incoming.version)
        anchor, outer = self.outer.update(state.anchor, mean, state.outer)
        np.copyto(vector, anchor)
        return AveragingState(anchor, outer, incoming.version, state.sent, state.sent)


@dataclass(frozen=True, kw_only=True, slots=True)
class AllReduce(Strategy):
    """Every step takes the mean gradient of all workers: g ← Σ nᵢgᵢ / Σ nᵢ.

    When a worker is lost the step continues without it; one that missed a step heals as a joiner
    does, with the inner optimizer's state, because only equal workers stay equal.
    """

    codec: str = "fp32"
    whole_part: bool = False
    """One step is the worker's whole part, its gradient summed inside `learn`."""
    is_peer_to_peer: bool = False
    """Every worker owns a shard: the mean is made among them, with the bits of one owner."""
    is_early: bool = False
    """Its segments are sent while the rest of the gradient is computed."""
    merge: str = "examples"
    """The owner's, for the segments sent early."""
    site = GRADIENT
    LIMITS = {"codec": one_of(*CODECS), "merge": one_of(*MERGES)}  # noqa: RUF012

    def __post_init__(self) -> None:
        validate(self)

    def init(self, vector: Vector) -> tuple[int, int]:  # noqa: ARG002 - nothing but counts
        """Returns (version, examples already counted)."""
        return 0, 0

    def due(self, clock: Clock, state: tuple[int, int]) -> tuple[Turn, ...]:  # noqa: ARG002
        """Every step; nothing is unsent at the end."""
        return () if clock.closing else (Turn("meet" if self.is_peer_to_peer else "swap"),)

    def offer(
        self, turn: Turn, vector: Vector, clock: Clock, state: tuple[int, int]
    ) -> tuple[Message | None, tuple[int, int]]:
        """Offers the gradient of this step, or a fragment of it."""
        version, counted = state
        since = Clock(1, clock.examples - counted)
        gradient = part(vector, turn.fragment)
        encoded = encode(self.codec, gradient)
        message = Message(
            "push",
            encoded.copy() if encoded is gradient else encoded,
            turn.fragment,
            since=since,
            version=version,
            codec=self.codec,
        )
        return message, (version, clock.examples)

    def accept(self, vector: Vector, incoming: Message, state: tuple[int, int]) -> tuple[int, int]:
        """Takes the mean gradient; a heal brings the version to continue from."""
        if incoming.kind == "here":
            return state
        if incoming.kind != "heal":
            assert incoming.vector is not None
            np.copyto(vector, decode(incoming.codec, incoming.vector))
        return incoming.version, state[1]


class RoundsState(NamedTuple):
    """The state of an owner of rounds."""

    vector: Vector
    outer: tuple[Vector, ...]
    floats: Vector
    integers: Vector
    version: int
    open_rounds: Mapping[tuple[int, int], Mapping[int, Message]]
    """fragment -> slot -> its push."""
    left: Vector
    """What the codec left out of the means so far [n]; empty where nothing is kept."""
    apart: float = math.nan
    """How far apart the pushes were in the last round in which that was measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rounds(Policy):
    """A round closes when all members have pushed, or a quorum has and the others are late.

    A worker that pushes for a round that is over gets the agreed point instead (`heal`), and keeps
    its progress; where the owner keeps no parameters (gradients) it must rejoin. A worker must also
    rejoin, and its push does not count, if it holds other bits as agreed than the owner, or than
    most workers.
    """

    outer: OuterOptimizer = field(default_factory=Sgd)
    """The optimizer that applies the merged delta."""
    merge: str = "nova"
    """How the deltas become one: "uniform", "examples" or "nova"."""
    codec: str = "fp32"
    """The numbers that the merged delta travels in."""
    holds_parameters: bool = True
    """False where no parameters are kept, as with gradients."""
    quorum: float = 1.0
    """The share of the workers (above 1: how many) whose pushes close a round."""
    grace_seconds: float = 0.0
    """How long a round waits for the others once the quorum has pushed."""
    fragments: int = 1
    """How many parts the workers push the vector in."""
    LIMITS = {  # noqa: RUF012
        "merge": one_of(*MERGES),
        "codec": one_of(*CODECS),
        "quorum": QUORUM,
        "grace_seconds": at_least(0),
    }

    def __post_init__(self) -> None:
        validate(self)

    def init(self, point: Message) -> RoundsState:
        """All start from the same point."""
        assert point.vector is not None
        assert point.floats is not None
        assert point.integers is not None
        fragments_of(point.vector.size, self.fragments)  # refuses a fragment of nothing
        initial_outer = self.outer.init(point.vector) if self.holds_parameters else ()
        outer = point.outer or initial_outer
        left = point.left
        if left is None:
            has_feedback = self.holds_parameters and codec(self.codec).has_feedback
            left = np.zeros_like(point.vector if has_feedback else point.vector[:0])
        return RoundsState(
            point.vector, outer, point.floats, point.integers, point.version, {}, left
        )

    def receive(
        self, slot: int, message: Message, members: frozenset[int], state: RoundsState
    ) -> tuple[list[Reply], RoundsState]:
        """Keeps the push until its round is whole."""
        if message.kind == "fetch":
            return [Reply(slot, self.agreed(state))], state
        if message.version != state.version:
            rejoin = Message("rejoin", version=state.version)
            answer = self.agreed(state) if self.holds_parameters else rejoin
            return [Reply(slot, answer)], state
        pushes = {**state.open_rounds.get(message.fragment, {}), slot: message}
        open_rounds = {**state.open_rounds, message.fragment: pushes}
        return self.close(members, state._replace(open_rounds=open_rounds))

    def close(self, members: frozenset[int], state: RoundsState) -> tuple[list[Reply], RoundsState]:
        """Closes every round that no member is missing from."""
        replies: list[Reply] = []
        for fragment in list(state.open_rounds):
            pushes = state.open_rounds[fragment]
            if len(members) <= len(pushes) and members <= pushes.keys():
                round_replies, state = self._merge_round(fragment, state)
                replies += round_replies
        return replies, state

    def _merge_round(
        self, fragment: tuple[int, int], state: RoundsState
    ) -> tuple[list[Reply], RoundsState]:
        pushes, replies = self._split_by_fingerprint(
            dict(sorted(state.open_rounds[fragment].items())), state
        )
        open_rounds = {f: p for f, p in state.open_rounds.items() if f != fragment}
        state = state._replace(open_rounds=open_rounds)
        if not pushes:
            return replies, state
        encoded, mean, state = self._mean(fragment, pushes, state)
        state = self._moved(fragment, mean, state)
        floats, integers = _merge_buffers(pushes)
        state = state._replace(version=state.version + 1)
        if floats is not None and integers is not None:
            state = state._replace(floats=floats, integers=integers)
        answer = Message(
            "agreed",
            encoded,
            fragment,
            version=state.version,
            codec=self.codec,
            floats=floats,
            integers=integers,
        )
        return [*replies, *(Reply(slot, answer) for slot in pushes)], state

    def _mean(
        self, fragment: tuple[int, int], pushes: Mapping[int, Message], state: RoundsState
    ) -> tuple[Vector, Vector, RoundsState]:
        """Returns the mean as it is sent, and as every worker reads it: decode(encode(m)).

        m = Σ cᵢΔᵢ + left;  left ← m − decode(encode(m)).
        """
        weights = coefficients(self.merge, [m.since for m in pushes.values()])
        deltas = [(m.codec, m.vector) for m in pushes.values() if m.vector is not None]
        combined = np.empty(part(state.vector, fragment).size, state.vector.dtype)
        should_measure = len(deltas) > 1 and self.holds_parameters and _should_measure_spread(state)
        spread = combine_sent(deltas, weights, combined, should_measure_spread=should_measure)
        state = state if spread is None else state._replace(apart=spread)
        if state.left.size:
            combined += part(state.left, fragment)
        encoded = encode(self.codec, combined)
        mean = decode(self.codec, encoded).astype(state.vector.dtype, copy=False)
        if state.left.size:
            left = state.left.copy()
            part(left, fragment)[:] = combined - mean
            state = state._replace(left=left)
        return encoded, mean, state

    def _split_by_fingerprint(
        self, pushes: Mapping[int, Message], state: RoundsState
    ) -> tuple[Mapping[int, Message], list[Reply]]:
        """Splits the pushes into those from the agreed point and those from other bits."""
        fingerprints = Counter(m.fingerprint for m in pushes.values() if m.fingerprint)
        if not fingerprints or any(m.fragment != ALL for m in pushes.values()):
            return pushes, []
        if self.holds_parameters:
            agreed = fingerprint(state.vector)
        else:
            agreed = fingerprints.most_common(1)[0][0]
        rejoin = Message("rejoin", version=state.version, fingerprint=agreed)
        differing = [slot for slot, m in pushes.items() if m.fingerprint not in ("", agreed)]
        matching = {slot: m for slot, m in pushes.items() if slot not in differing}
        return matching, [Reply(slot, rejoin) for slot in differing]

    def _moved(self, fragment: tuple[int, int], mean: Vector, state: RoundsState) -> RoundsState:
        if not self.holds_parameters:
            return state
        vector, outer = stepped(self.outer, fragment, mean, state.vector, state.outer)
        return state._replace(vector=vector, outer=outer)

    def agreed(self, state: RoundsState) -> Message:
        """Returns the agreed point in full precision, with all that a joiner needs."""
        return Message(
            "heal",
            state.vector,
            version=state.version,
            outer=state.outer,
            floats=state.floats,
            integers=state.integers,
            left=state.left if state.left.size else None,
        )


def stepped(
    outer: OuterOptimizer,
    fragment: tuple[int, int],
    mean: Vector,
    vector: Vector,
    state: tuple[Vector, ...],
) -> tuple[Vector, tuple[Vector, ...]]:
    """Takes an outer step within a fragment; returns the whole vector [n] and state, as copies."""
    if fragment == ALL:
        return outer.update(vector, mean, state)
    size, vector, state = vector.size, vector.copy(), tuple(o.copy() for o in state)
    state_parts = tuple(part(o, fragment) if o.size == size else o for o in state)
    new_part, state_parts = outer.update(part(vector, fragment), mean, state_parts)
    part(vector, fragment)[:] = new_part
    for full, new in zip(state, state_parts, strict=True):
        target = part(full, fragment) if full.size == size else full
        target[:] = new
    return vector, state


def decoded(message: Message, dtype: np.dtype[Any]) -> Vector:
    """Returns a message's vector in the precision of the parameters: all step in the same."""
    assert message.vector is not None
    return decode(message.codec, message.vector).astype(dtype, copy=False)


def _should_measure_spread(state: RoundsState) -> bool:
    """Returns True in the first round, and each eighth: the sums take as long as the merge."""
    return math.isnan(state.apart) or (state.version + 1) % APART_EVERY == 0


def _merge_buffers(pushes: Mapping[int, Message]) -> tuple[Vector | None, Vector | None]:
    """Merges float buffers by the mean over examples, integers by the maximum; None if none."""
    with_buffers = [m for m in pushes.values() if m.floats is not None and m.since.steps > 0]
    if not with_buffers:
        return None, None
    weights = coefficients("examples", [m.since for m in with_buffers])
    floats = combine([m.floats for m in with_buffers if m.floats is not None], weights)
    integers = np.maximum.reduce([m.integers for m in with_buffers if m.integers is not None])
    return floats, integers
