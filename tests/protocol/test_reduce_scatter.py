"""The mean that workers make among themselves, against the mean of one owner."""

import numpy as np
import pytest

from photinus.core.clock import Clock
from photinus.protocol.reduce_scatter import Meeting
from photinus.strategies.base import Message
from photinus.strategies.codecs import decode, encode
from photinus.strategies.merge import coefficients
from photinus.strategies.rounds import Rounds

SLOTS = (0, 2, 3)
WORKS = [Clock(2, 10), Clock(5, 40), Clock(1, 7)]


def brought(codec="fp32", numbers=11, buffers=True):
    chance = np.random.default_rng(4)
    pushes = {}
    for slot, since in zip(SLOTS, WORKS, strict=True):
        floats = chance.normal(size=5).astype("f4") if buffers else None
        integers = chance.integers(0, 99, 2) if buffers else None
        vector = encode(codec, chance.normal(size=numbers).astype("f4"))
        pushes[slot] = Message(
            "push", vector, since=since, codec=codec, floats=floats, integers=integers
        )
    return pushes


def called(merge="nova"):
    weights, shares = (np.array(coefficients(m, WORKS)) for m in (merge, "examples"))
    return Message("meet", weights, floats=shares, slots=SLOTS)


def held(pushes, call):
    """Lets all pieces arrive, the last sender first."""
    meetings = {s: Meeting(s, call, p) for s, p in pushes.items()}
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
    owner = Rounds(merge=merge, codec=codec, keeps=False)
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
    for meeting in held(pushes, called(merge)).values():
        assert meeting.is_whole
        result = meeting.result()
        np.testing.assert_array_equal(decode(codec, result.vector), decode(codec, expected.vector))
        np.testing.assert_array_equal(result.floats, expected.floats)
        np.testing.assert_array_equal(result.integers, expected.integers)


def test_a_piece_counts_once_and_only_from_members():
    pushes, call = brought(buffers=False), called()
    meeting = Meeting(0, call, pushes[0])
    other = Meeting(2, call, pushes[2])
    assert not meeting.take("part", 2, other.part(0))
    assert not meeting.take("part", 2, {"vector": np.full(3, 9.0, "f4")})
    assert not meeting.take("part", 1, {"vector": np.full(3, 9.0, "f4")})
    assert meeting.whole_for(2) is None
    assert meeting.take("part", 3, Meeting(3, call, pushes[3]).part(0))
    assert not meeting.take("part", 3, Meeting(3, call, pushes[3]).part(0))
    exact = sum(w * pushes[s].vector[:3] for w, s in zip(call.vector, SLOTS, strict=True))
    np.testing.assert_allclose(meeting.whole_for(2)["vector"], exact, rtol=1e-5)
    assert not meeting.is_whole


def test_who_is_alone_holds_the_mean_at_once():
    push = brought(buffers=False)[0]
    one = np.ones(1)
    meeting = Meeting(0, Message("meet", one, floats=one, slots=(0,)), push)
    assert meeting.is_whole
    np.testing.assert_array_equal(meeting.result().vector, push.vector)
