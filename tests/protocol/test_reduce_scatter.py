"""The mean that workers make among themselves, against the mean of one owner."""

from itertools import pairwise

import numpy as np
import pytest

from photinus.core.clock import Clock
from photinus.protocol.reduce_scatter import ReduceScatter
from photinus.strategies.base import Message
from photinus.strategies.codecs import decode, encode
from photinus.strategies.merge import coefficients
from photinus.strategies.rounds import Rounds
from photinus.training import segments

SLOTS = (0, 2, 3)
WORKS = [Clock(2, 10), Clock(5, 40), Clock(1, 7)]


def brought(codec="fp32", numbers=11, buffers=True):
    rng = np.random.default_rng(4)
    pushes = {}
    for slot, since in zip(SLOTS, WORKS, strict=True):
        floats = rng.normal(size=5).astype("f4") if buffers else None
        integers = rng.integers(0, 99, 2) if buffers else None
        vector = encode(codec, rng.normal(size=numbers).astype("f4"))
        pushes[slot] = Message(
            "push", vector, since=since, codec=codec, floats=floats, integers=integers
        )
    return pushes


def called(merge="nova"):
    weights, shares = (np.array(coefficients(m, WORKS)) for m in (merge, "examples"))
    return Message("meet", weights, floats=shares, slots=SLOTS)


def exchanged(pushes, call):
    """Lets all pieces arrive, the last sender first."""
    meetings = {s: ReduceScatter.called(s, call, p) for s, p in pushes.items()}
    for slot in reversed(SLOTS):
        for to in meetings[slot].others:
            meetings[to].take("part", slot, meetings[slot].part(to))
    for slot in SLOTS:
        for to in meetings[slot].others:
            meetings[to].take("whole", slot, meetings[slot].whole_for(to))
    return meetings


@pytest.mark.parametrize("codec", ["fp32", "bf16"])
@pytest.mark.parametrize("merge", ["uniform", "examples", "nova"])
@pytest.mark.parametrize("numbers", [11, 2])
def test_the_mean_has_the_bits_of_one_owner(codec, merge, numbers):
    pushes = brought(codec, numbers)
    owner = Rounds(merge=merge, codec=codec, holds_parameters=False)
    point = Message(
        "heal",
        np.zeros(numbers, "f4"),
        floats=np.zeros(5, "f4"),
        integers=np.zeros(2, np.int64),
    )
    state, members = owner.init(point), frozenset(SLOTS)
    for slot in SLOTS:
        replies, state = owner.receive(slot, pushes[slot], members, state)
    expected = replies[0].message
    for meeting in exchanged(pushes, called(merge)).values():
        assert meeting.is_whole
        result = meeting.result()
        np.testing.assert_array_equal(decode(codec, result.vector), decode(codec, expected.vector))
        np.testing.assert_array_equal(result.floats, expected.floats)
        np.testing.assert_array_equal(result.integers, expected.integers)


def test_a_piece_counts_once_and_only_from_members():
    pushes, call = brought(buffers=False), called()
    meeting = ReduceScatter.called(0, call, pushes[0])
    sender = ReduceScatter.called(2, call, pushes[2])
    assert not meeting.take("part", 2, sender.part(0))
    assert not meeting.take("part", 2, {"vector": np.full(3, 9.0, "f4")})
    assert not meeting.take("part", 1, {"vector": np.full(3, 9.0, "f4")})
    assert meeting.whole_for(2) is None
    assert meeting.take("part", 3, ReduceScatter.called(3, call, pushes[3]).part(0))
    assert not meeting.take("part", 3, ReduceScatter.called(3, call, pushes[3]).part(0))
    exact = sum(w * pushes[s].vector[:3] for w, s in zip(call.vector, SLOTS, strict=True))
    np.testing.assert_allclose(meeting.whole_for(2)["vector"], exact, rtol=1e-5)
    assert not meeting.is_whole


def test_who_is_alone_holds_the_mean_at_once():
    push = brought(buffers=False)[0]
    one = np.ones(1)
    meeting = ReduceScatter.called(0, Message("meet", one, floats=one, slots=(0,)), push)
    assert meeting.is_whole
    np.testing.assert_array_equal(meeting.result().vector, push.vector)


SIZE = 23


@pytest.fixture
def announced(monkeypatch):
    """Has segments of 4 numbers, and meetings to which all members bring 23."""
    monkeypatch.setattr(segments, "SEGMENT", 4)
    return {s: ReduceScatter(s, SLOTS, p) for s, p in brought("bf16", SIZE, buffers=False).items()}


def run_of(push, start, stop):
    return push._replace(vector=push.vector[start:stop], fragment=(start, stop))


def deliver(meetings, slot, shares):
    """Lets a member's shares arrive, and all that was merged of them."""
    for to, share in shares.items():
        meetings[to].take("part", slot, *share[::-1])
    for owner, meeting in meetings.items():
        for run in meeting.merged():
            for other in meeting.others:
                meetings[other].take("whole", owner, run.piece, run.start)


@pytest.mark.parametrize("merge", ["uniform", "examples", "nova"])
def test_runs_of_segments_before_the_call_have_the_bits_of_whole_shards(announced, merge):
    pushes, call = brought("bf16", SIZE, buffers=False), called(merge)
    expected = exchanged(pushes, call)[0].result().vector
    borders = {0: (23, 20, 8, 0), 2: (23, 8, 0), 3: (23, 12, 0)}
    for slot, push in pushes.items():
        for other in SLOTS:
            announced[other].count(slot, push.since, merge)
    for slot, edges in borders.items():
        for stop, start in pairwise(edges):
            shares = announced[slot].announce(run_of(pushes[slot], start, stop), merge)
            deliver(announced, slot, shares)
    for slot, meeting in announced.items():
        assert meeting.is_whole, meeting.lacks
        assert meeting.open(call, pushes[slot])
        np.testing.assert_array_equal(meeting.result().vector, expected)


def test_a_segment_is_merged_while_others_are_unknown(announced):
    pushes = brought("bf16", SIZE, buffers=False)
    for slot, push in pushes.items():
        announced[0].count(slot, push.since, "examples")
    announced[0].announce(run_of(pushes[0], 4, 8), "examples")
    for slot in (2, 3):
        assert announced[0].merged() == []
        announced[0].take("part", slot, {"vector": pushes[slot].vector[4:7]}, 4)
    (run,) = announced[0].merged()
    assert (run.start, len(run.piece["vector"])) == (4, 3), "the shard ends within the segment"
    assert not announced[0].is_whole
    assert announced[0].lacks == {"parts": [0, 2, 3], "wholes": [2, 3]}


@pytest.mark.parametrize("wrong", ["weights", "buffers", "unfinished"])
def test_a_call_to_another_meeting_than_was_announced_is_not_taken(announced, wrong):
    pushes = brought("bf16", SIZE, buffers=wrong == "buffers")
    for slot, push in pushes.items():
        announced[0].count(slot, push.since, "uniform" if wrong == "weights" else "nova")
    stop = 20 if wrong == "unfinished" else SIZE
    announced[0].announce(run_of(pushes[0], 0, stop), "nova")
    assert not announced[0].open(called("nova"), pushes[0])


def test_a_piece_beyond_its_shard_is_not_taken(announced):
    too_long = {"vector": np.zeros(8, np.uint16)}
    assert not announced[0].take("part", 2, too_long, 4)
    assert not announced[2].take("part", 0, too_long, 4)
    announced[2].take("whole", 0, too_long, 4)
    assert announced[2].lacks["wholes"] == [0, 3]
