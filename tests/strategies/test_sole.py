"""One worker's parameters are at the owner as they are."""

import numpy as np

from photinus.core.clock import Clock, Steps
from photinus.strategies.base import Message, Turn
from photinus.strategies.single_worker import SingleWorker

SOLE = SingleWorker(every=Steps(3))
START = Message(
    "heal", np.zeros(4, "f4"), floats=np.zeros(1, "f4"), integers=np.zeros(0, "i8"), version=0
)


def test_what_the_owner_holds_has_the_bits_that_were_pushed():
    vector = np.random.default_rng(0).normal(size=4).astype("f4")
    worker, owner, policy = SOLE.init(vector), SOLE.owner().init(START), SOLE.owner()
    message, worker = SOLE.offer(Turn("swap"), vector, Clock(steps=3), worker)
    [reply], owner = policy.receive(0, message, frozenset({0}), owner)
    worker = SOLE.accept(vector, reply.message, worker)
    assert np.array_equal(policy.agreed(owner).vector, vector)
    assert (worker.version, policy.agreed(owner).version) == (1, 1)
    assert reply.message.vector is None


def test_a_push_is_due_after_so_many_steps_and_at_the_end():
    _, worker = SOLE.offer(Turn("swap"), np.zeros(4, "f4"), Clock(steps=3), SOLE.init(None))
    assert SOLE.due(Clock(steps=5), worker) == ()
    assert SOLE.due(Clock(steps=6), worker) == (Turn("swap"),)
    assert SOLE.due(Clock(steps=4, closing=True), worker) == (Turn("swap"),)
    assert SOLE.due(Clock(steps=3, closing=True), worker) == ()


def test_who_missed_a_version_gets_the_point_and_takes_it():
    policy = SOLE.owner()
    owner = policy.init(START)._replace(vector=np.ones(4, "f4"), version=2)
    [reply], same = policy.receive(0, Message("push", np.zeros(4, "f4")), frozenset({0}), owner)
    assert same is owner
    vector = np.zeros(4, "f4")
    assert SOLE.accept(vector, reply.message, SOLE.init(vector)).version == 2
    assert vector.tolist() == [1.0] * 4
