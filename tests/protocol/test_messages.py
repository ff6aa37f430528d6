"""Messages in frames, over the wire format, and back."""

import numpy as np
import pytest

from photinus.core.clock import Clock
from photinus.protocol.messages import (
    Seat,
    grant_of,
    grant_to,
    message_of,
    message_to,
    snapshot_of,
    snapshot_to,
    step_reply_of,
)
from photinus.strategies.base import Message
from photinus.training.requests import Grant, WorkerSnapshot

SEAT = Seat(bytes(range(16)), term=2, phase=1, slot=3, lease=4)
BUFFERS = {"floats": np.ones(2, np.float32), "integers": np.array([7])}


def same(a, b):
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return a == b


@pytest.mark.parametrize(
    "message",
    [
        Message("push", np.arange(3.0), since=Clock(2, 16, 0.5, 1.5), version=3),
        Message("push", np.arange(3, dtype=np.uint16), codec="bf16", fragment=(2, 5)),
        Message("heal", np.ones(2), outer=(np.zeros(2), np.ones(1)), **BUFFERS),
        Message("fetch"),
    ],
    ids=lambda m: m.kind,
)
def test_a_message_comes_back_as_it_was(message):
    frame = message_to(SEAT.frame(message.kind), message, progress=0.5)
    assert same(tuple(message), tuple(message_of(frame)))
    assert frame.header["progress"] == 0.5
    assert (frame.term, frame.phase, frame.slot, frame.lease) == (2, 1, 3, 4)


def test_an_answer_is_news():
    frame = message_to(SEAT.frame("agreed"), Message("agreed", np.ones(1)), stop=True, save=True)
    news = step_reply_of([frame], 2.5)
    assert (news.seconds, news.stop, news.save, news.progress) == (2.5, True, True, None)
    assert news.messages[0].kind == "agreed"


def test_acks_tell_how_far_all_are_and_bring_no_message():
    acks = [message_to(SEAT.frame("ack"), Message("ack"), progress=p) for p in (0.25, 0.5)]
    news = step_reply_of(acks, 1.0)
    assert (news.messages, news.progress, news.stop) == ((), 0.5, False)


@pytest.mark.parametrize("history", [(), (np.ones(2), np.zeros(3))])
def test_a_grant_comes_back_as_it_was(history):
    grant = Grant(
        phase=2,
        lease=5,
        sequence=9,
        position=64,
        budget=1000,
        progress=0.25,
        heal=Message("heal", np.arange(3.0), version=6, outer=(np.ones(3),), **BUFFERS),
        is_fresh=False,
        inner={"momentum": np.ones(3), "step": np.array([4.0])},
        history=history,
        is_idle=True,
    )
    back = grant_of(grant_to(SEAT.frame("grant"), grant))
    for name in Grant.__slots__:
        sent, received = getattr(grant, name), getattr(back, name)
        assert same(
            tuple(sent) if name == "heal" else sent, tuple(received) if name == "heal" else received
        )


@pytest.mark.parametrize("trained", [None, np.ones(3)])
def test_a_snapshot_comes_back_as_it_was(trained):
    snapshot = WorkerSnapshot(
        40, {"m": np.ones(3)}, trained, BUFFERS["floats"], BUFFERS["integers"]
    )
    frame = snapshot_to(SEAT.frame("state", {"version": 3}), snapshot)
    assert same(tuple(snapshot), tuple(snapshot_of(frame)))
    assert frame.header["version"] == 3


def test_what_the_owners_codec_left_out_never_travels():
    point = Message("heal", np.ones(4), left=np.ones(4))
    frame = message_to(Seat(bytes(16)).frame("heal"), point)
    assert {name: array.size for name, array in frame.arrays.items()} == {"vector": 4}
    assert message_of(frame).left is None
