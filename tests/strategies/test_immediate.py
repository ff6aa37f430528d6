"""StrategySpec without waiting: the formulas, by hand."""

import numpy as np
import pytest

from photinus.core.clock import Clock, Steps
from photinus.core.errors import UsageError
from photinus.strategies.base import Message, Turn
from photinus.strategies.immediate import Downpour, ElasticOwner, Immediate
from photinus.strategies.outer import Adagrad, Sgd
from photinus.strategies.recipes import downpour, elastic

FOUR = frozenset(range(4))


def initial(policy, vector, floats=(), integers=()):
    floats, integers = np.array(floats, np.float32), np.array(integers, np.int64)
    return policy.init(Message("heal", np.array(vector), floats=floats, integers=integers))


def push(*numbers, version=0, **fields):
    return Message("push", np.array(numbers), since=Clock(1, 8), version=version, **fields)


def test_each_push_counts_one_worker_s_share():
    owner = Immediate()
    state = initial(owner, [1.0, 2.0])
    (reply,), state = owner.receive(1, push(0.4, -0.8), FOUR, state)
    assert state.vector.tolist() == [0.9, 2.2]
    assert (reply.slot, reply.message) == (1, Message("ack", version=1))
    (_,), state = owner.receive(2, push(0.4, -0.8), frozenset({2, 3}), state)
    assert state.vector.tolist() == pytest.approx([0.7, 2.6]), "two hold a seat now"


def test_a_sum_of_gradients_is_the_outer_optimizers_own_business():
    owner, plain = Immediate(outer=Adagrad(lr=0.5), payload="gradient"), Adagrad(lr=0.5)
    owned, vector = initial(owner, [1.0, 2.0]), np.array([1.0, 2.0])
    state = plain.init(vector)
    for gradient in ([0.4, -0.8], [0.1, 0.3]):
        (_,), owned = owner.receive(1, push(*gradient), FOUR, owned)
        vector, state = plain.update(vector, np.array(gradient), state)
    assert (owned.vector == vector).all()


@pytest.mark.parametrize(("stale", "moved"), [(0, 1.0), (1, 0.5), (3, 0.25)])
def test_a_stale_push_counts_less(stale, moved):
    owner = Immediate(staleness="inverse")
    state = initial(owner, [0.0])._replace(version=stale)
    (_,), state = owner.receive(0, push(-1.0), frozenset({0}), state)
    assert state.vector.tolist() == [moved]


@pytest.mark.parametrize(("stale", "kind"), [(2, "ack"), (3, "heal")])
def test_a_push_above_the_limit_is_dropped_and_its_worker_gets_the_point(stale, kind):
    owner = Immediate(staleness=2)
    state = initial(owner, [5.0])._replace(version=stale)
    (reply,), after = owner.receive(0, push(-1.0), frozenset({0}), state)
    assert reply.message.kind == kind
    if kind == "heal":
        assert after is state
        assert reply.message.vector.tolist() == [5.0]
        assert reply.message.version == stale


def test_what_was_not_pushed_stays_on_top_of_what_is_fetched():
    worker = Downpour(every=Steps(2))
    vector = np.array([1.0, 1.0])
    state = worker.init(vector)
    vector -= [0.5, 0.0]
    message, state = worker.offer(Turn("push"), vector, Clock(2, 16), state)
    assert message.vector.tolist() == [0.5, 0.0]
    vector -= [0.0, 0.25]
    fetched = Message("agreed", np.array([7.0, 7.0]), version=9)
    state = worker.accept(vector, fetched, state)
    assert vector.tolist() == [7.0, 6.75]
    message, _ = worker.offer(Turn("push"), vector, Clock(3, 24), state)
    assert (message.vector.tolist(), message.version, message.since.steps) == ([0, 0.25], 9, 1)


def test_float_buffers_move_by_a_share_and_whole_numbers_never_fall():
    owner = Immediate()
    state = initial(owner, [0.0], [4.0], [7])
    buffers = {"floats": np.array([8.0], np.float32), "integers": np.array([5])}
    (_,), state = owner.receive(0, push(0.0, **buffers), FOUR, state)
    assert (state.floats.tolist(), state.integers.tolist()) == ([5.0], [7])


def test_the_spring_moves_a_worker_and_the_centre_by_the_same_bits():
    worker, owner = (make() for make in _halves(elastic(alpha=0.6)))
    centre = np.linspace(-1, 1, 9)
    state, vector = initial(owner, centre), centre + np.arange(9.0)
    (reply,), state = owner.receive(1, push(*vector), frozenset({0, 1, 2}), state)
    worker.accept(vector, reply.message, worker.init(vector))
    assert np.allclose(state.vector - centre, 0.2 * np.arange(9), rtol=0.01)
    np.testing.assert_allclose(vector + state.vector, 2 * centre + np.arange(9), atol=1e-12)


def _halves(strategy):
    return strategy.worker, strategy.owner


def test_the_spring_never_throws_both_past_each_other():
    owner = ElasticOwner(alpha=0.9)
    (_,), state = owner.receive(0, push(1.0), frozenset({0}), initial(owner, [0.0]))
    assert state.vector.tolist() == [0.5]


def test_what_does_not_go_together_is_refused():
    with pytest.raises(UsageError, match="staleness of Immediate must be 'none', 'inverse', or"):
        Immediate(staleness="some")
    with pytest.raises(UsageError, match="staleness of downpour must be"):
        downpour(staleness=-1)
    with pytest.raises(UsageError, match="unknown argument of elastic; got 'outer'"):
        elastic(outer=Sgd())
    with pytest.raises(UsageError, match="alpha of elastic must be a number"):
        elastic(alpha=1.5)


def test_a_spring_without_strength_is_refused_by_the_name_of_its_recipe():
    with pytest.raises(UsageError, match=r"^alpha of elastic must be a number from 0\.001"):
        elastic(alpha=0.0)
