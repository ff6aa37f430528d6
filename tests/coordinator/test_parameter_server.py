"""What the owner does with a push: each number is decoded once."""

import numpy as np
import pytest

from photinus.coordinator.callbacks import Callbacks
from photinus.coordinator.leases import Leases
from photinus.coordinator.parameter_server import ParameterServer
from photinus.core.clock import Clock
from photinus.core.errors import FrameError
from photinus.protocol.messages import Seat, message_to
from photinus.strategies import codecs
from photinus.strategies.base import Message
from photinus.strategies.codecs import encode
from photinus.strategies.rounds import Rounds

COUNT, WORKERS = 5_000, 3


@pytest.fixture
def owner():
    leases = Leases(WORKERS)
    for seat in leases:
        note = {"attempt": "a", "hello": 1, "rows": 5, "has": 0}
        leases.grant(seat, Seat(bytes(16), slot=seat.slot).frame("hello", note), 0.0)
    empty = np.zeros(0, np.float32)
    point = Message(
        "heal", np.ones(COUNT, np.float32), floats=empty, integers=empty.astype(np.int64)
    )
    owner = ParameterServer(leases, Callbacks())
    owner.enter(0, Rounds(merge="uniform", codec="int8"), point)
    return owner


def push(slot, vector, codec="int8"):
    frame = Seat(bytes(16), slot=slot, lease=1).frame("push", {"position": 8})
    return message_to(frame, Message("push", encode(codec, vector), since=Clock(1, 8), codec=codec))


def receive_all(owner, vectors):
    seats = owner._leases
    return [owner.receive(seats[s], push(s, v), 0.0) for s, v in enumerate(vectors)][-1]


def test_each_number_of_a_round_is_decoded_once(owner, monkeypatch):
    """Whether it is finite, what the mean is, and how far apart the workers are: in one pass."""
    decoded, unpack = [], codecs.unpack

    def counting(codec, body, scales, numbers):
        decoded.append(numbers.size)
        unpack(codec, body, scales, numbers)

    monkeypatch.setattr(codecs, "unpack", counting)
    rng = np.random.default_rng(0)
    answers = receive_all(owner, [rng.normal(size=COUNT).astype("f4") for _ in range(WORKERS)])
    assert [a.message.kind for a in answers] == ["agreed"] * WORKERS
    assert sum(decoded) == (WORKERS + 1) * COUNT, "every push, and the mean as workers read it"
    assert owner.metrics["consistency"] > 0


def test_how_far_apart_workers_are_is_the_spread_of_what_they_pushed(owner):
    vectors = [np.full(COUNT, value, np.float32) for value in (0.0, 0.0, 0.0)]
    vectors[0][:], vectors[1][:] = 1.0, -1.0
    receive_all(owner, vectors)
    spread = np.sqrt(2 / 3 * COUNT)
    assert owner.metrics["consistency"] == pytest.approx(spread / np.sqrt(COUNT), rel=1e-3)


@pytest.mark.parametrize("codec", ["fp32", "bf16", "int8", "int4"])
def test_what_is_not_finite_is_refused_as_it_travels(owner, codec):
    vector = np.ones(COUNT, np.float32)
    vector[COUNT - 1] = np.inf
    assert owner.receive(owner._leases[0], push(0, vector, codec), 0.0) is None


@pytest.mark.parametrize("codec", ["fp32", "bf16", "int8", "int4"])
def test_a_push_of_another_length_is_an_error(owner, codec):
    with pytest.raises(FrameError, match="a push must hold 5000 numbers; got 4999"):
        owner.receive(owner._leases[0], push(0, np.ones(COUNT - 1, "f4"), codec), 0.0)
