"""Checks that a strategy without an owner keeps the contract."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from photinus.core.clock import Clock
from photinus.core.parameters import Vector
from photinus.strategies.base import Message, Reply, Strategy, StrategyPair, Turn
from photinus.strategies.codecs import decode
from photinus.strategies.merge import combine
from photinus.testing.bits import values, whole

_NUMBERS, _STEPS, _BATCH = 23, 400, 4


def check_peers(halves: StrategyPair, dtype: str) -> None:
    """Checks a way whose policy is peer-to-peer; an AssertionError names what is broken.

    Args:
        halves: what makes both halves.
        dtype: of the vectors, float32 or float64.
    """
    for check in (_check_alone, _check_mean, _check_members, _check_lost, _check_joiner):
        check(_Ring(halves, dtype))


class _Node:
    """One worker: its strategy, its vector, and how far its own steps have moved it."""

    def __init__(self, strategy: Strategy, vector: Vector, slot: int) -> None:
        self.strategy, self.vector, self.slot = strategy, vector, slot
        self.state: Any = strategy.init(vector)
        self.clock, self.own_progress = Clock(), np.zeros(len(vector))
        self._rng = np.random.default_rng(slot)

    def take_step(self) -> tuple[Turn, ...]:
        clock = self.clock
        self.clock = clock.after(_BATCH, clock.seconds + 0.05, (clock.examples + _BATCH) / 400)
        noise = 0.01 * self._rng.standard_normal(len(self.vector)).astype(self.vector.dtype)
        self.own_progress -= noise
        self.vector += noise
        return self.due(self.clock)

    def due(self, clock: Clock) -> tuple[Turn, ...]:
        before, state = copy.deepcopy(self.state), self.state
        turns = tuple(self.strategy.due(clock, self.state))
        assert values(before) == values(state), "due changed the state it was given"
        return turns

    def offer(self, turn: Turn) -> Message:
        before, given_state = copy.deepcopy(self.state), self.state
        vector_copy, state_copy = self.vector.copy(), copy.deepcopy(self.state)
        message, self.state = self.strategy.offer(turn, self.vector, self.clock, self.state)
        assert values(before) == values(given_state), "offer changed the state it was given"
        assert message is not None, "a turn without an owner offers a message"
        repeated, _ = self.strategy.offer(turn, vector_copy, self.clock, state_copy)
        assert repeated is not None, "the same offer gives the same bits"
        assert values(repeated) == values(message), "the same offer gives the same bits"
        return message

    def accept(self, message: Message) -> None:
        message_values, before, given_state = values(message), copy.deepcopy(self.state), self.state
        self.state = self.strategy.accept(self.vector, message, self.state)
        assert message_values == values(message), "accept changed the message it was given"
        assert values(before) == values(given_state), "accept changed the state it was given"


class _Ring:
    """Some workers and the owner that calls their meetings; no time passes."""

    def __init__(self, halves: StrategyPair, dtype: str, workers: int = 3) -> None:
        self.start = np.linspace(-1, 1, _NUMBERS).astype(dtype)
        self.policy, self.make_worker = halves.owner(), halves.worker
        floats, integers = np.zeros(0, np.float32), np.zeros(0, np.int64)
        point = Message("heal", self.start.copy(), floats=floats, integers=integers)
        self.owner_state: Any = self.policy.init(point)
        self.nodes = [_Node(halves.worker(), self.start.copy(), s) for s in range(workers)]
        self.slots = tuple(range(workers))
        for node in self.nodes:
            node.accept(Message("here", slot=node.slot, slots=self.slots))

    def receive(self, slot: int, message: Message, members: tuple[int, ...]) -> list[Reply]:
        replies, self.owner_state = self.policy.receive(
            slot, message, frozenset(members), self.owner_state
        )
        return replies

    def work(self, publications: int) -> None:
        """Lets all step and publish; every third publication is lost."""
        message_count = 0
        for _ in range(_STEPS):
            for node in self.nodes:
                for turn in node.take_step():
                    message, message_count = node.offer(turn), message_count + 1
                    assert turn.kind == "publish", "between meetings workers publish"
                    assert node.slot not in message.slots, "a worker publishes to itself"
                    assert set(message.slots) <= set(self.slots), "nobody is there to hear it"
                    for slot in message.slots if message_count % 3 else ():
                        self.nodes[slot].accept(message._replace(kind="publish"))
            if message_count >= publications:
                return
        raise AssertionError(f"nothing was published within {_STEPS} steps")

    def push_for_meeting(self, slots: tuple[int, ...]) -> tuple[dict[int, Message], list[Reply]]:
        """Lets workers push for a meeting; returns their pushes and the answers."""
        pushes, replies = dict[int, Message](), list[Reply]()
        for slot in slots:
            node = self.nodes[slot]
            node.accept(Message("call", version=self.version))
            (turn,) = node.due(node.clock)
            assert turn.kind == "meet", "who is called comes to the meeting"
            pushes[slot] = node.offer(turn)
            push = pushes[slot]._replace(vector=None)
            replies = self.receive(slot, push, self.slots)
        return pushes, replies

    @property
    def version(self) -> int:
        return self.policy.agreed(self.owner_state).version

    def agree(self, meeting: Message, pushes: dict[int, Message]) -> None:
        """Lets the members make their mean, report that they are ready, and take it."""
        assert meeting.vector is not None
        vectors = [decode(m.codec, whole(m)) for s, m in sorted(pushes.items())]
        mean, replies = combine(vectors, [float(w) for w in meeting.vector]), list[Reply]()
        for slot in meeting.slots:
            assert not replies, "agreed before all are ready"
            ready = Message("ready", version=meeting.version, slots=meeting.slots)
            replies = self.receive(slot, ready, self.slots)
        assert sorted(r.slot for r in replies) == sorted(meeting.slots), "all are told at once"
        for reply in replies:
            assert reply.message.kind == "agreed", "when all are ready it is agreed"
            self.nodes[reply.slot].accept(Message("agreed", mean, version=reply.message.version))


def _check_alone(ring: _Ring) -> None:
    node = ring.nodes[0]
    closing_clock = Clock(closing=True)
    assert not ring.policy.holds_parameters, "where the workers meet no owner holds the parameters"
    assert not node.due(closing_clock), "nothing is unsent before the first step"
    node.take_step()
    (turn,) = node.due(node.clock._replace(closing=True))
    assert turn.kind == "meet", "what is unsent at the end is brought to a meeting"
    node.offer(turn)
    assert not node.due(node.clock._replace(closing=True)), "the drain leaves something unsent"


def _check_mean(ring: _Ring) -> None:
    """After a meeting all hold anchor − mean(own progress), whatever was lost before."""
    for _ in range(2):
        anchor = ring.nodes[0].vector.copy() if ring.version else ring.start
        ring.work(7)
        pushes, replies = ring.push_for_meeting(ring.slots)
        assert [r.message.kind for r in replies] == ["meet"] * 3, "all came: the meeting opens"
        expected = anchor - np.mean([node.own_progress for node in ring.nodes], axis=0)
        ring.agree(replies[0].message, pushes)
        first = ring.nodes[0].vector
        for node in ring.nodes:
            assert np.array_equal(first, node.vector), "workers differ after a meeting"
            assert node.due(node.clock) == (), "a call is good for one meeting"
            node.own_progress[:] = 0
        assert np.allclose(first, expected, rtol=0, atol=1e-5), "a meeting loses progress"


def _check_members(ring: _Ring) -> None:
    """Checks that a member that is too late must rejoin, and that none is agreed with twice."""
    ring.work(4)
    pushes, replies = ring.push_for_meeting((0, 1))
    assert not replies, "a meeting opened too soon"
    meeting_replies, ring.owner_state = ring.policy.close(frozenset({0, 1}), ring.owner_state)
    assert [r.slot for r in meeting_replies] == [0, 1], "who is left meets"
    ring.agree(meeting_replies[0].message, pushes)
    late_node = ring.nodes[2]
    message = late_node.offer(Turn("meet"))._replace(vector=None)
    (reply,) = ring.receive(2, message, ring.slots)
    assert (reply.slot, reply.message.kind) == (2, "rejoin"), "who missed a meeting must rejoin"


def _check_lost(ring: _Ring) -> None:
    """A member lost in the meeting: the survivors meet again, with what they brought."""
    ring.work(4)
    pushes, replies = ring.push_for_meeting(ring.slots)
    first_meeting = replies[0].message
    ring.receive(
        0, Message("ready", version=first_meeting.version, slots=first_meeting.slots), ring.slots
    )
    meeting_replies, ring.owner_state = ring.policy.close(frozenset({0, 2}), ring.owner_state)
    kinds = {r.slot: r.message.kind for r in meeting_replies}
    assert kinds == {0: "meet", 1: "rejoin", 2: "meet"}, "the survivors meet again"
    late_replies = ring.receive(
        0, Message("ready", version=first_meeting.version, slots=first_meeting.slots), (0, 2)
    )
    assert not late_replies, "ready for a meeting that is over"
    second_meeting = next(r.message for r in meeting_replies if r.slot == 0)
    expected = ring.start - np.mean([ring.nodes[s].own_progress for s in (0, 2)], axis=0)
    ring.agree(second_meeting, {s: pushes[s] for s in (0, 2)})
    assert np.allclose(ring.nodes[0].vector, expected, rtol=0, atol=1e-5), "progress was lost"


def _check_joiner(ring: _Ring) -> None:
    """A joiner that heals from a survivor's point shares the next meeting."""
    pushes, replies = _after_work(ring)
    ring.agree(replies[0].message, pushes)
    point = ring.nodes[0].vector
    joiner = _Node(ring.make_worker(), point.copy(), 2)
    joiner.accept(Message("heal", point.copy(), version=ring.version))
    joiner.accept(Message("here", slot=2, slots=ring.slots))
    assert np.array_equal(joiner.vector, point), "a joiner starts elsewhere"
    ring.nodes[2] = joiner
    pushes, replies = _after_work(ring)
    assert len(replies) == len(ring.slots), "a joiner has no part in the next meeting"
    ring.agree(replies[0].message, pushes)
    assert np.array_equal(joiner.vector, ring.nodes[0].vector), "a joiner differs"


def _after_work(ring: _Ring) -> tuple[dict[int, Message], list[Reply]]:
    ring.work(4)
    return ring.push_for_meeting(ring.slots)
