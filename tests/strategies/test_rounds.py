"""The owner of rounds: merging, buffers, fragments, and what the late get."""

import numpy as np
import pytest

from photinus.core.clock import Clock, Steps
from photinus.strategies.base import ALL, Message, Policy, Turn, part
from photinus.strategies.compress import compress
from photinus.strategies.outer import Adam, Nesterov, Sgd
from photinus.strategies.rounds import AllReduce, Averaging, Rounds

NOTHING = (np.zeros(0, np.float32), np.zeros(0, np.int64))


def start(vector, floats=NOTHING[0], integers=NOTHING[1]):
    return Message("heal", np.asarray(vector), floats=floats, integers=integers)


def push(delta, steps=1, examples=8, **more):
    return Message("push", np.asarray(delta), since=Clock(steps, examples), **more)


def settle(owner, state, pushes):
    members = frozenset(pushes)
    for slot, message in pushes.items():
        replies, state = owner.receive(slot, message, members, state)
    return replies, state


def test_a_round_closes_when_all_members_pushed():
    owner = Rounds(merge="examples")
    state = owner.init(start([1.0, 1.0]))
    members = frozenset({0, 1})
    replies, state = owner.receive(0, push([0.2, 0.0], examples=30), members, state)
    assert replies == []
    replies, state = owner.receive(1, push([0.0, 0.4], examples=10), members, state)
    assert [r.slot for r in replies] == [0, 1]
    np.testing.assert_allclose(replies[0].message.vector, [0.15, 0.1])
    np.testing.assert_allclose(owner.agreed(state).vector, [0.85, 0.9])
    assert replies[0].message.version == state.version == 1


def test_the_sum_does_not_depend_on_the_order_of_arrival():
    rng = np.random.default_rng(0)
    pushes = {s: push(rng.normal(size=50).astype(np.float32)) for s in range(7)}
    owner = Rounds(merge="uniform")
    sums = []
    for order in (range(7), reversed(range(7))):
        state = owner.init(start(np.zeros(50, np.float32)))
        _, state = settle(owner, state, {s: pushes[s] for s in order})
        sums.append(owner.agreed(state).vector)
    assert (sums[0] == sums[1]).all()


def test_float_buffers_take_the_mean_by_examples_and_integers_the_maximum():
    owner = Rounds(outer=Nesterov(0.7, 0.9), merge="uniform")
    state = owner.init(start(np.zeros(2), np.ones(2, np.float32), np.array([1])))
    for version in range(5):
        pushes = {
            s: push(
                np.zeros(2),
                examples=n,
                version=version,
                floats=np.full(2, f, np.float32),
                integers=np.array([i]),
            )
            for s, n, f, i in ((0, 30, 2.0, 7), (1, 10, 6.0, 5))
        }
        replies, state = settle(owner, state, pushes)
        # never through the outer optimizer: with its momentum they would run past the mean
        assert replies[0].message.floats.tolist() == [3.0, 3.0]
        assert replies[0].message.integers.tolist() == [7]
    assert owner.agreed(state).floats.tolist() == [3.0, 3.0]


def test_buffers_stay_when_nobody_brought_any():
    owner = Rounds()
    state = owner.init(start(np.zeros(2), np.ones(1, np.float32), np.array([4])))
    replies, state = settle(owner, state, {0: push(np.zeros(2))})
    assert replies[0].message.floats is None
    assert owner.agreed(state).floats.tolist() == [1.0]
    assert owner.agreed(state).integers.tolist() == [4]


def test_who_is_lost_after_its_push_still_counts():
    owner = Rounds(merge="uniform")
    state = owner.init(start(np.zeros(1)))
    members = frozenset({0, 1, 2})
    for slot in (0, 1):
        _, state = owner.receive(slot, push([1.0]), members, state)
    replies, state = owner.close(frozenset({0}), state)
    assert [r.slot for r in replies] == [0, 1]
    assert owner.agreed(state).vector.tolist() == [-1.0]


def test_nothing_closes_without_a_push():
    owner = Rounds()
    state = owner.init(start(np.zeros(1)))
    assert owner.close(frozenset(), state) == ([], state)


def test_a_fetch_is_answered_by_the_agreed_point():
    owner = Rounds(outer=Adam())
    state = owner.init(start(np.ones(3)))
    replies, after = owner.receive(4, Message("fetch"), frozenset({0}), state)
    assert after is state
    assert [r.slot for r in replies] == [4]
    assert replies[0].message.kind == "heal"
    assert len(replies[0].message.outer) == 3


def test_an_owner_continues_from_what_agreed_returned():
    owner = Rounds(outer=Nesterov())
    state = owner.init(start(np.ones(3)))
    _, state = settle(owner, state, {0: push(np.ones(3))})
    again = owner.init(owner.agreed(state))
    for s in (state, again):
        _, s = settle(owner, s, {0: push(np.ones(3), version=1)})
        assert s.version == 2
        np.testing.assert_allclose(owner.agreed(s).vector, owner.agreed(s).vector)
    assert (again.outer[0] == state.outer[0]).all()


@pytest.mark.parametrize("outer", [Sgd(), Nesterov(0.7, 0.5), Adam()])
def test_agreed_fragment_by_fragment_the_owner_moves_as_in_one_piece(outer):
    start_at, delta = np.linspace(0, 1, 6), np.linspace(-1, 1, 6)
    owner = Rounds(outer=outer, merge="uniform")
    whole = owner.init(start(start_at))
    _, whole = settle(owner, whole, {0: push(delta)})
    split = owner.init(start(start_at))
    for version, fragment in enumerate(((0, 2), (2, 6))):
        message = push(part(delta, fragment), fragment=fragment, version=version)
        replies, split = settle(owner, split, {0: message})
        assert replies[0].message.fragment == fragment
    if outer.name != "adam":  # its count of updates is one for all fragments
        np.testing.assert_allclose(owner.agreed(split).vector, owner.agreed(whole).vector)
    assert (start_at == np.linspace(0, 1, 6)).all()


def test_a_fragment_is_a_view():
    vector = np.zeros(5)
    part(vector, (1, 3))[:] = 1
    assert vector.tolist() == [0, 1, 1, 0, 0]
    assert part(vector, ALL) is vector


def test_float32_deltas_meet_a_float64_anchor_in_its_precision():
    owner = Rounds(codec="bf16")
    state = owner.init(start(np.zeros(3)))
    from photinus.strategies.codecs import encode

    message = push(encode("bf16", np.ones(3)), codec="bf16")
    _, state = settle(owner, state, {0: message})
    assert owner.agreed(state).vector.dtype == np.float64


def test_a_turn_says_whether_it_waits():
    assert not Turn("push").waits
    assert all(Turn(kind).waits for kind in ("swap", "take", "fetch"))


def test_due_follows_the_trigger_and_drains_at_the_end():
    strategy = Averaging(every=Steps(5))
    state = strategy.init(np.zeros(2))
    assert strategy.due(Clock(4), state) == ()
    assert strategy.due(Clock(5), state) == (Turn("swap"),)
    assert strategy.due(Clock(4, closing=True), state) == (Turn("swap"),)
    assert strategy.due(Clock(0, closing=True), state) == ()


def test_the_gradient_is_due_every_step_and_never_at_the_end():
    strategy = AllReduce()
    state = strategy.init(np.zeros(2))
    assert strategy.due(Clock(0), state) == (Turn("swap"),)
    assert strategy.due(Clock(3, closing=True), state) == ()


def test_a_gradient_counts_the_examples_of_its_own_step():
    strategy = AllReduce()
    state = strategy.init(np.zeros(2))
    one, state = strategy.offer(Turn("swap"), np.ones(2), Clock(1, 32), state)
    two, _ = strategy.offer(Turn("swap"), np.ones(2), Clock(2, 40), state)
    assert [m.since.examples for m in (one, two)] == [32, 8]


def test_policies_are_barriers_unless_they_say_otherwise():
    assert (Policy.holds_parameters, Policy.quorum, Policy.grace_seconds) == (True, 1.0, 0.0)


# -- error feedback ----------------------------------------------------------------------------


def fed(codec="int4"):
    """A worker and an owner, and a delta of which int4 leaves most out."""
    worker, owner = compress(Averaging(every=Steps(1)), codec), Rounds(codec=codec)
    vector = np.zeros(3)
    state, owned = worker.init(vector), owner.init(start(vector.copy()))
    return worker, owner, vector, state, owned


def step(vector):
    vector -= np.array([1.0, 0.06, -0.02])
    return vector


def test_what_a_codec_leaves_out_comes_with_the_rounds_after():
    worker, owner, vector, state, owned = fed()
    for n in range(1, 201):
        message, state = worker.offer(Turn("swap"), step(vector), Clock(n, 8 * n), state)
        (reply,), owned = owner.receive(0, message, frozenset({0}), owned)
        state = worker.accept(vector, reply.message, state)
        assert (vector == owner.agreed(owned).vector).all()
    np.testing.assert_allclose(vector / 200, [-1.0, -0.06, 0.02], atol=2 / 14 / 200 * 1.2)


def test_a_push_that_missed_its_round_leaves_the_feedback_as_it_was():
    worker, owner, vector, state, owned = fed()
    message, state = worker.offer(Turn("swap"), step(vector), Clock(1, 8), state)
    (reply,), owned = owner.receive(0, message, frozenset({0}), owned)
    state = worker.accept(vector, reply.message, state)
    left = state.left.copy()
    assert left.any()
    late, state = worker.offer(Turn("swap"), step(vector), Clock(2, 16), state)
    assert not (state.pending == left).all(), "agreed on, it would be another"
    state = worker.accept(vector, owner.agreed(owned), state)
    assert (state.left == left).all(), "nothing of that push was agreed on: it is sent once more"
    again, _ = worker.offer(Turn("swap"), vector, Clock(2, 16), state)
    assert (again.vector == late.vector).all()


def test_a_joiner_has_left_nothing_out_and_the_owner_continues_with_what_it_left_out():
    worker, owner, vector, state, owned = fed()
    message, state = worker.offer(Turn("swap"), step(vector), Clock(1, 8), state)
    _, owned = owner.receive(0, message, frozenset({0}), owned)
    point = owner.agreed(owned)
    assert point.left.size == 3
    assert (owner.init(point).left == owned.left).all()
    joiner = worker.accept(vector.copy(), point, worker.init(vector))
    assert not joiner.left.any()


def test_owners_of_gradients_and_whole_numbers_are_without_feedback():
    assert not hasattr(compress(Averaging(), "bf16").init(np.zeros(3)), "left")
    assert Rounds(codec="int8", holds_parameters=False).init(start(np.zeros(3))).left.size == 0
    assert Rounds(codec="fp32").agreed(Rounds().init(start(np.zeros(3)))).left is None
