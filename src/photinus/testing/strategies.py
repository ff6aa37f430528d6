"""`check_strategy`: checks that a strategy keeps the contract."""

from __future__ import annotations

import copy
from typing import Any, cast

import numpy as np

from photinus.core.clock import Clock
from photinus.core.parameters import Vector
from photinus.strategies.base import (
    GRADIENT,
    GRADIENT_SUM,
    PARAMETERS,
    TURNS,
    Message,
    Policy,
    Reply,
    Strategy,
    StrategyPair,
    Turn,
    former_names,
    part,
)
from photinus.strategies.codecs import codec, decode
from photinus.strategies.rounds import QUORUM
from photinus.testing.bits import key, values, whole
from photinus.testing.peers import check_peers

NUMBERS, STEPS, BATCH = 23, 1200, 4
"""How long the vectors are, how often the triggers are tried, examples in a step."""

_WORKER = ("site", "init", "due", "offer", "accept")
_OWNER = (
    *("holds_parameters", "has_rounds", "quorum", "grace_seconds"),
    *("init", "receive", "close", "agreed"),
)

State = Any


def check_strategy(halves: StrategyPair, *, dtype: str = "float32") -> None:
    """Checks both halves against their contract; an AssertionError names what is broken.

    The worker's half may be any object with `site`, `init`, `due`, `offer` and `accept`, the
    owner's any with `holds_parameters`, `has_rounds`, `quorum`, `grace_seconds`, `init`, `receive`,
    `close` and `agreed`.
    Where the policy is peer-to-peer, the workers' own exact mean is checked instead of the owner's.

    Args:
        halves: what makes both.
        dtype: of the vectors, float32 or float64.

    Example:
        >>> from photinus.strategies.recipes import averaging
        >>> check_strategy(averaging())
    """
    _check_parts(halves)
    policy = halves.owner()
    if getattr(policy, "is_peer_to_peer", False):
        check_peers(halves, dtype)
        return
    owner_checks = (_check_lost_round, _check_late, _check_joiner)
    round_checks = (_check_replies, _check_rounds, _check_drain)
    late_checks = owner_checks if policy.holds_parameters else (_check_rejoin,)
    specific_checks = (
        (*round_checks, *late_checks)
        if policy.has_rounds
        else (_check_at_once, _check_drain, _check_served)
    )
    for check in (_check_shape, _check_pure, *specific_checks):
        check(_Table(halves, dtype))


class _FormedStrategy:
    """A worker's half; what it returns in another form than that of the interface is named."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the half has
        return getattr(self._strategy, name)

    def due(self, clock: Clock, state: State) -> tuple[Turn, ...]:
        turns: Any = self._strategy.due(clock, state)
        is_formed = isinstance(turns, (tuple, list)) and all(type(t) is Turn for t in turns)
        assert is_formed, f"due returns a tuple of Turns, not {turns!r}"
        for turn in turns:
            assert turn.kind in TURNS, f"a turn is one of {', '.join(TURNS)}, not {turn.kind!r}"
        return tuple(turns)

    def offer(
        self, turn: Turn, vector: Vector, clock: Clock, state: State
    ) -> tuple[Message | None, State]:
        offered: Any = self._strategy.offer(turn, vector, clock, state)
        is_formed = _is_pair(offered) and isinstance(offered[0], (Message, type(None)))
        assert is_formed, "offer returns a Message and the state"
        return offered[0], offered[1]


class _FormedPolicy:
    """An owner's half, likewise."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - likewise
        return getattr(self._policy, name)

    def receive(
        self, slot: int, message: Message, members: frozenset[int], state: State
    ) -> tuple[list[Reply], State]:
        return _replies_of("receive", self._policy.receive(slot, message, members, state))

    def close(self, members: frozenset[int], state: State) -> tuple[list[Reply], State]:
        return _replies_of("close", self._policy.close(members, state))

    def agreed(self, state: State) -> Message:
        point: Any = self._policy.agreed(state)
        assert isinstance(point, Message), "agreed returns a Message"
        return point


def _is_pair(returned: Any) -> bool:  # noqa: ANN401 - whatever a half returns
    return isinstance(returned, tuple) and len(returned) == 2


def _replies_of(function: str, returned: Any) -> tuple[list[Reply], State]:  # noqa: ANN401
    is_formed = _is_pair(returned) and isinstance(returned[0], (tuple, list))
    is_formed = is_formed and all(isinstance(reply, Reply) for reply in returned[0])
    assert is_formed, f"{function} returns a list of Replies and the state"
    return returned[0], returned[1]


class _Seat:
    """One worker at the table: its strategy, its vector, its state and its clock."""

    def __init__(self, strategy: Strategy, vector: Vector, slot: int) -> None:
        self.strategy, self.vector, self.slot = strategy, vector, slot
        self.state: State = strategy.init(vector)
        self.clock, self.last_turn = Clock(), Turn("fetch")
        self._rng = np.random.default_rng(slot)

    def take_step(self) -> tuple[Turn, ...]:
        """Takes a step of its own; returns what is due after it."""
        clock = self.clock
        examples = clock.examples + BATCH
        self.clock = clock.after(BATCH, clock.seconds + 0.05, examples / 400)
        self.change_vector()
        return tuple(self.strategy.due(self.clock, self.state))

    def change_vector(self) -> None:
        """Changes the vector as an inner step does, or fills it with a gradient."""
        noise = self._rng.standard_normal(len(self.vector)).astype(self.vector.dtype)
        if self.strategy.site == GRADIENT:
            self.vector[:] = noise
        else:
            self.vector -= self.vector.dtype.type(0.01) * noise

    def offer(self, turn: Turn) -> Message:
        """Offers what a turn asks for."""
        before, self.last_turn = self.vector.copy(), turn
        message, self.state = self.strategy.offer(turn, self.vector, self.clock, self.state)
        assert message is not None, "a turn that waits for an answer offers a message"
        assert np.array_equal(before, self.vector), "offer changed the vector it was given"
        return message

    def accept(self, message: Message) -> None:
        """Takes an answer in, at the turn for it where there is one; an ack is not for it."""
        if message.kind == "ack":
            return
        message_values = values(message)
        if self.last_turn.kind == "push" and getattr(self.strategy, "has_late_answers", False):
            turn = Turn("take", self.last_turn.fragment)
            take_message, self.state = self.strategy.offer(
                turn, self.vector, self.clock, self.state
            )
            assert take_message is None, "a take has nothing to say"
        self.state = self.strategy.accept(self.vector, message, self.state)
        assert message_values == values(message), "accept changed the message it was given"
        assert np.isfinite(self.vector).all(), "accept left numbers that are not finite"


class _Table:
    """Some workers and an owner, all in one place: no time passes and nothing is lost."""

    def __init__(self, halves: StrategyPair, dtype: str, workers: int = 3) -> None:
        self.start = np.linspace(-1, 1, NUMBERS).astype(dtype)
        self.policy = cast("Policy", _FormedPolicy(halves.owner()))
        self._make_worker = halves.worker
        self.state: State = self.policy.init(_point(self.start))
        self.seats = [_Seat(self.make_worker(), self.start.copy(), s) for s in range(workers)]

    def make_worker(self) -> Strategy:
        """Makes a worker's half."""
        return cast("Strategy", _FormedStrategy(self._make_worker()))

    @property
    def members(self) -> frozenset[int]:
        """All of them."""
        return frozenset(seat.slot for seat in self.seats)

    def agreed(self) -> Message:
        """Returns what was agreed, by the owner."""
        return self.policy.agreed(self.state)

    def receive(self, slot: int, message: Message, members: frozenset[int]) -> list[Reply]:
        """Lets the owner take a push in."""
        before, given_state = copy.deepcopy(self.state), self.state
        replies, self.state = self.policy.receive(slot, message, members, self.state)
        assert values(before) == values(given_state), "receive changed the state it was given"
        return replies

    def close(self, members: frozenset[int]) -> list[Reply]:
        """Reports to the owner which members are left."""
        before, given_state = copy.deepcopy(self.state), self.state
        replies, self.state = self.policy.close(members, self.state)
        assert values(before) == values(given_state), "close changed the state it was given"
        return replies

    def work_until_due(self, seat: _Seat) -> Turn:
        """Lets a worker step until it has something to do."""
        for _ in range(STEPS):
            turns = seat.take_step()
            if turns:
                return turns[0]
        raise AssertionError(f"nothing was due within {STEPS} steps")

    def is_same(self, *vectors: Vector) -> bool:
        """Returns whether vectors are equal where the last round agreed: in a fragment, or all."""
        parts = [part(vector, self.seats[0].last_turn.fragment) for vector in vectors]
        return all(np.array_equal(parts[0], other) for other in parts)

    def push_until_applied(self, seat: _Seat) -> list[Message]:
        """Lets a worker do all that is due, until a push is applied; returns what was."""
        pushed: list[Message] = []
        for _ in range(STEPS):
            for turn in seat.take_step():
                message = seat.offer(turn)
                replies = self.receive(seat.slot, message, self.members)
                assert [r.slot for r in replies] == [seat.slot], "a push is answered at once"
                is_applied = message.kind == "push" and replies[0].message.kind != "heal"
                pushed += [message] if is_applied else []
                assert turn.kind == "push" or replies[0].message.vector is not None, "no answer"
                seat.accept(replies[0].message)
            if pushed:
                return pushed
        raise AssertionError(f"nothing was pushed within {STEPS} steps")

    def round(self, slots: frozenset[int]) -> list[Reply]:
        """Lets some workers push for one round."""
        replies: list[Reply] = []
        for seat in self.seats:
            if seat.slot in slots:
                message = seat.offer(self.work_until_due(seat))
                replies += self.receive(seat.slot, message, slots)
        for reply in replies:
            self.seats[reply.slot].accept(reply.message)
        return replies


def _check_parts(halves: StrategyPair) -> None:
    for half in ("worker", "owner"):
        assert callable(getattr(halves, half, None)), f"{half}() is missing"
    policy = halves.owner()
    for half, made in (("worker", halves.worker()), ("owner", policy)):
        former = former_names(made)
        assert not former, f"{half}() has former names, with today's: {former}"
    required: dict[str, tuple[object, tuple[str, ...]]] = {"worker": (halves.worker(), _WORKER)}
    if not getattr(policy, "is_peer_to_peer", False):
        required["owner"] = (policy, _OWNER)
    for half, (instance, names) in required.items():
        missing = [name for name in names if not hasattr(instance, name)]
        assert not missing, f"{half}() is without {', '.join(missing)}"


def _check_shape(table: _Table) -> None:
    seat, policy = table.seats[0], table.policy
    sites = (GRADIENT, PARAMETERS, GRADIENT_SUM)
    names = ", ".join(map(repr, sites))
    assert seat.strategy.site in sites, f"site is one of {names}, not {seat.strategy.site!r}"
    assert QUORUM.holds(policy.quorum), "quorum is a share of the members, or how many"
    assert policy.grace_seconds >= 0, "grace_seconds is a time"
    closing = Clock(closing=True)
    assert not seat.strategy.due(closing, seat.state), "nothing is unsent before the first step"


def _check_pure(table: _Table) -> None:
    """The state is values: the same calls on a copy of it give the same bits."""
    seat = table.seats[0]
    turn = table.work_until_due(seat)
    vector, before = seat.vector.copy(), copy.deepcopy(seat.state)
    message, state = seat.strategy.offer(turn, seat.vector, seat.clock, seat.state)
    assert values(before) == values(seat.state), "offer changed the state it was given"
    assert message is not None, "a turn that waits for an answer offers a message"
    repeated, _ = table.make_worker().offer(
        turn, seat.vector, seat.clock, copy.deepcopy(seat.state)
    )
    assert repeated is not None, "the same offer gives the same bits"
    assert values(message) == values(repeated), "the same offer gives the same bits"
    message_values = values(message)
    seat.vector += 1
    assert message_values == values(message), (
        "a message changes when the worker continues: copy the vector"
    )
    np.copyto(seat.vector, vector)
    replies = table.receive(0, message, frozenset({0}))
    assert replies, "a round of one is whole at once"
    state_copy, given_state = copy.deepcopy(state), state
    if replies[0].message.kind == "ack":
        return
    seat.strategy.accept(seat.vector, replies[0].message, state)
    assert values(state_copy) == values(given_state), "accept changed the state it was given"


def _check_rounds(table: _Table) -> None:
    """The owner and all workers hold the same, bit for bit."""
    for _ in range(3):
        table.round(table.members)
        vectors = [seat.vector for seat in table.seats]
        assert table.is_same(*vectors), "workers differ after a round"
        if table.policy.holds_parameters:
            point = table.agreed()
            assert table.is_same(whole(point), vectors[0]), "owner and workers differ"
            for seat in table.seats:
                state_values = values((seat.state, getattr(seat.state, "outer", ())))
                is_known = all(key(o) in state_values for o in point.outer)
                assert is_known, "owner and workers hold another outer state"


def _check_replies(table: _Table) -> None:
    """Answers go to those who pushed, once, when all members did."""
    first, second, third = table.seats
    messages = [seat.offer(table.work_until_due(seat)) for seat in (first, second)]
    for seat, message in zip((first, second), messages, strict=True):
        assert not table.receive(seat.slot, message, table.members), "a round closed too soon"
    pushed_slots = frozenset({first.slot, second.slot})
    replies = table.close(pushed_slots)
    slots = sorted(r.slot for r in replies)
    assert slots == [first.slot, second.slot], "not all who pushed were answered, or others were"
    assert all(r.message.kind == "agreed" for r in replies), "a whole round is agreed"
    assert not table.close(pushed_slots), "a round was answered twice"
    for reply in replies:
        table.seats[reply.slot].accept(reply.message)
    late_replies = table.receive(
        third.slot, third.offer(table.work_until_due(third)), table.members
    )
    assert [r.slot for r in late_replies] == [third.slot], "who missed a round is answered at once"
    assert late_replies[0].message.kind in ("heal", "rejoin"), "who missed a round must heal"


def _check_drain(table: _Table) -> None:
    """With `closing` set, what is unsent is due; after it nothing is."""
    for seat in table.seats:
        seat.take_step()
        closing_clock, sent_steps = seat.clock._replace(closing=True), 0
        for _ in range(8):
            turns = seat.strategy.due(closing_clock, seat.state)
            if not turns:
                break
            message, seat.state = seat.strategy.offer(
                turns[0], seat.vector, closing_clock, seat.state
            )
            assert message is not None, "the drain offers what is unsent"
            sent_steps += message.since.steps
            for reply in table.receive(seat.slot, message, frozenset({seat.slot})):
                seat.accept(reply.message)
        assert not seat.strategy.due(closing_clock, seat.state), "the drain leaves something unsent"
        if not table.policy.has_rounds:
            assert sent_steps == seat.clock.steps, "the drain leaves something unsent"
        elif table.policy.holds_parameters:
            is_agreed = np.array_equal(whole(table.agreed()), seat.vector)
            assert is_agreed, "after the drain a worker holds more than was agreed"


def _check_lost_round(table: _Table) -> None:
    """Who gets no answer loses nothing: the next push carries both rounds' work."""
    seat = table.seats[0]
    lost_push = seat.offer(table.work_until_due(seat))
    # where answers come late, nothing else is sent until this is answered
    if getattr(seat.strategy, "has_late_answers", False):
        return
    message = seat.offer(table.work_until_due(seat))
    assert message.since.steps > lost_push.since.steps, "a lost round loses the work that was in it"
    assert message.since.steps == seat.clock.steps, "a lost round loses the work that was in it"
    delta = decode(message.codec, whole(message))
    unsent = part(table.start - seat.vector, message.fragment)
    max_error = float(np.abs(unsent).max()) * codec(message.codec).error
    is_kept = np.allclose(delta, unsent, rtol=0, atol=1.01 * max_error + 1e-6)
    assert is_kept, "a lost round loses progress"


def _check_late(table: _Table) -> None:
    """Who missed a round takes the agreed point and keeps its unsent progress on top."""
    table.round(frozenset({0, 1}))
    late_seat = table.seats[2]
    message = late_seat.offer(table.work_until_due(late_seat))
    progress = table.start - late_seat.vector
    (reply,) = table.receive(late_seat.slot, message, table.members)
    assert reply.message.kind == "heal", "where the owner keeps the point, it heals by it"
    late_seat.accept(reply.message)
    is_kept = np.allclose(whole(table.agreed()) - late_seat.vector, progress, atol=1e-6)
    assert is_kept, "heal must keep unsent progress on top of the agreed point"
    next_push = late_seat.offer(table.work_until_due(late_seat))
    assert next_push.since.steps == late_seat.clock.steps, "heal loses the count of unsent work"


def _check_joiner(table: _Table) -> None:
    """A joiner that heals holds what the others do, and shares their next round."""
    table.round(frozenset({0, 1}))
    point = table.agreed()
    joiner = _Seat(table.make_worker(), whole(point).copy(), 2)
    joiner.accept(point)
    table.seats[2] = joiner
    assert np.array_equal(joiner.vector, whole(point)), "a joiner starts elsewhere"
    resumed = table.policy.agreed(table.policy.init(point))
    assert values(point) == values(resumed), "init does not take up what agreed returned"
    table.round(table.members)
    vectors = [seat.vector for seat in table.seats]
    assert table.is_same(*vectors), "a joiner differs after a round"


def _check_rejoin(table: _Table) -> None:
    """Where only workers hold the parameters, who missed a round heals as a joiner does."""
    table.round(frozenset({0, 1}))
    late_seat = table.seats[2]
    (reply,) = table.receive(
        late_seat.slot, late_seat.offer(table.work_until_due(late_seat)), table.members
    )
    assert reply.message.kind == "rejoin", "an owner without parameters cannot heal anybody"
    joiner = _Seat(table.make_worker(), table.start.copy(), 2)
    joiner.accept(table.agreed()._replace(vector=table.start))
    table.seats[2] = joiner
    replies = table.round(table.members)
    assert len(replies) == len(table.seats), "a joiner has no part in the next round"


def _check_at_once(table: _Table) -> None:
    """Each push is answered at once, to who pushed; it moves the owner, and counts all work."""
    for seat in table.seats:
        for _ in range(3):
            before = table.agreed()
            counted_steps = sum(message.since.steps for message in table.push_until_applied(seat))
            assert counted_steps > 0, "a push tells how much work is in it"
            after = table.agreed()
            assert after.version > before.version, "a push that was applied has a version"
            assert not np.array_equal(whole(before), whole(after)), "a push moves the owner"
    assert not table.close(frozenset({0})), "nobody waits: nothing is left to answer"


def _check_served(table: _Table) -> None:
    """Who starts or comes back holds what the owner has, and continues from there."""
    for seat in table.seats[:2]:
        table.push_until_applied(seat)
    point = table.agreed()
    resumed = table.policy.agreed(table.policy.init(point))
    assert values(point) == values(resumed), "init does not take up what agreed returned"
    joiner = _Seat(table.make_worker(), whole(point).copy(), 2)
    joiner.accept(point)
    assert np.array_equal(joiner.vector, whole(point)), "a joiner starts elsewhere"
    for message in table.push_until_applied(joiner):
        assert message.version == point.version, "a push names the version that it starts from"


def _point(vector: Vector) -> Message:
    floats, integers = np.zeros(0, np.float32), np.zeros(0, np.int64)
    return Message("heal", vector.copy(), floats=floats, integers=integers)
