"""The suite for ways without an owner sees each way of breaking their contract."""

import numpy as np
import pytest

from photinus.core.clock import Steps
from photinus.strategies.base import Message
from photinus.strategies.peers import Gossip, Meetings, Publish
from photinus.strategies.recipes import gossip, publish
from photinus.testing.bits import key, values
from photinus.testing.peers import check_peers

WAYS = [publish(codec="fp32"), publish(), gossip(), gossip(every=Steps(2), graph="random")]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_way_keeps_the_contract(way, dtype):
    check_peers(way, dtype)


class Worker:
    """A worker's half around another one, to be broken at one place."""

    site, is_peer_to_peer = "parameters", True

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)


class Forgets(Worker):
    """Brings only what it has not published: what was lost stays lost."""

    def offer(self, turn, vector, clock, state):
        message, after = self.inner.offer(turn, vector, clock, state)
        if turn.kind == "meet":
            message = message._replace(vector=message.vector - state.sent)
        return message, after


class Overwrites(Worker):
    def accept(self, vector, incoming, state):
        if incoming.kind == "publish":
            state.base[:] = 0
        return self.inner.accept(vector, incoming, state)


class Deaf(Worker):
    """Never comes to a meeting."""

    def due(self, clock, state):
        return self.inner.due(clock, state._replace(is_called=False))


class Selfish(Worker):
    def offer(self, turn, vector, clock, state):
        message, after = self.inner.offer(turn, vector, clock, state)
        return message._replace(slots=(*message.slots, state.slot)), after


class Keeps(Worker):
    """Holds on to its own parameters after a meeting."""

    def accept(self, vector, incoming, state):
        before = vector.copy()
        after = self.inner.accept(vector, incoming, state)
        if incoming.kind == "agreed":
            vector += 1e-3 * (before - vector)
        return after


class ParameterServer:
    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)


class Hasty(ParameterServer):
    """Agrees when the first is ready."""

    def receive(self, slot, message, members, state):
        if message.kind == "ready":
            state = state._replace(ready=frozenset(state.meeting))
        return self.inner.receive(slot, message, members, state)


class Stubborn(ParameterServer):
    """Waits for the dead."""

    def close(self, members, state):
        return self.inner.close(members | frozenset(state.meeting), state)


class Way:
    def __init__(self, worker=None, owner=None):
        self._worker, self._owner = worker, owner

    def worker(self):
        inner = Publish(every=Steps(3), codec="fp32")
        return self._worker(inner) if self._worker else inner

    def owner(self):
        inner = Meetings(rounds_between=3)
        return self._owner(inner) if self._owner else inner


@pytest.mark.parametrize(
    ("way", "words"),
    [
        (Way(Forgets), "a meeting loses progress"),
        (Way(Overwrites), "accept changed the state it was given"),
        (Way(Deaf), "not enough values to unpack"),
        (Way(Selfish), "a worker publishes to itself"),
        (Way(Keeps), "workers differ after a meeting"),
        (Way(owner=Hasty), "agreed before all are ready"),
        (Way(owner=Stubborn), "the survivors meet again"),
    ],
    ids=lambda w: w if isinstance(w, str) else "",
)
def test_what_is_broken_is_named(way, words):
    with pytest.raises((AssertionError, ValueError), match=words):
        check_peers(way, "float64")


def test_arrays_equal_their_own_bits_only():
    assert key(np.float32([0.0])) != key(np.float32([-0.0]))
    state = Gossip().init(np.ones(2))
    assert values(state) == values(state._replace(anchor=np.ones(2)))
    assert values(Message("push")) != values(Message("push", np.zeros(1)))
