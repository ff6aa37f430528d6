"""A table that lies among workers: who owns which row, and what a worker's half does with rows."""

import numpy as np
import pytest

from photinus.core.clock import Clock, Seconds, Steps
from photinus.core.errors import UsageError
from photinus.strategies.base import Message, RowExchange, ShardMove, Turn
from photinus.strategies.outer import Nesterov, RowAdagrad
from photinus.strategies.peers import Meetings
from photinus.strategies.row_codec import RowCodec
from photinus.strategies.shards import Sharded

WIDTH = 2


def begun(strategy, rows=4):
    """A worker whose shard is rows 0 and 2, and to which rows 1 and 3 have come."""
    vector = np.zeros(rows * WIDTH)
    state = strategy.accept(vector, Message("heal", np.arange(4.0)), strategy.init(vector))
    moved = ShardMove(
        np.empty(0, np.int64), np.empty((0, WIDTH)), tuple(o[:0] for o in state.outer)
    )
    moved = moved._replace(outer=tuple(np.empty((0, 1)) for _ in state.outer))
    message = Message(
        "agreed", np.ones(4), rows=np.array([1, 3]), version=1, table=RowExchange(moved=moved)
    )
    return vector, strategy.accept(vector, message, state)


def test_the_rows_that_came_are_written_and_only_what_changed_is_offered():
    strategy = Sharded(every=Steps(2), rows=WIDTH)
    vector, state = begun(strategy)
    assert vector.tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
    vector[6] += 0.5
    message, state = strategy.offer(Turn("meet"), vector, Clock(2, 8), state)
    assert message.rows.tolist() == [3]
    assert message.vector.tolist() == [-0.5, 0.0]
    assert (message.since.steps, message.version) == (2, 1)


@pytest.mark.parametrize(
    ("every", "rows"), [(Steps(2), [1, 3]), (Steps(2) | Seconds(1.0), [3])], ids=["steps", "time"]
)
def test_by_time_a_row_that_came_and_did_not_move_was_not_read_and_is_not_sent(every, rows):
    strategy = Sharded(every=every, rows=WIDTH, merge="reads")
    vector, state = begun(strategy)
    vector[6] += 0.5
    message, _ = strategy.offer(Turn("meet"), vector, Clock(1, 4, seconds=1.0), state)
    assert message.rows.tolist() == rows


def test_by_time_what_was_left_out_of_a_row_that_is_not_read_stays():
    strategy = Sharded(every=Steps(2) | Seconds(1.0), rows=WIDTH, merge="reads", codec="int4")
    vector, state = begun(strategy)
    left = np.array([[0.25, 0.5]])
    state = state._replace(left_rows=np.array([1]), left=left.ravel())
    vector[6] += 0.5
    message, state = strategy.offer(Turn("meet"), vector, Clock(1, 4, seconds=1.0), state)
    assert message.rows.tolist() == [3]
    pending = dict(zip(state.pending.rows.tolist(), state.pending.numbers, strict=True))
    assert np.array_equal(pending[1], left[0])


@pytest.mark.parametrize(("steps", "rows"), [(1, [1, 3]), (0, [])], ids=["steps", "no step"])
@pytest.mark.parametrize("merge", ["uniform", "reads"])
def test_dense_layers_with_momentum_are_sent_whole_after_steps_and_else_not(steps, rows, merge):
    strategy = Sharded(every=Steps(2), rows=WIDTH, outer=Nesterov(), codec="int8", merge=merge)
    vector = np.zeros(8)
    table = RowExchange(dense_rows=4, dense_outer=(np.zeros(4),))
    heal = Message("heal", np.arange(4.0), table=table)
    state = strategy.accept(vector, heal, strategy.init(vector))
    state = state._replace(rows=np.array([1, 3]), received=np.zeros((2, WIDTH)))
    state = state._replace(left_rows=np.array([3]), left=np.full(WIDTH, 0.5))
    message, state = strategy.offer(Turn("meet"), vector, Clock(steps), state)
    assert message.rows.tolist() == rows
    assert state.pending.numbers.any() != bool(steps)  # what is not sent stays


def test_what_a_round_did_to_the_own_shard_is_taken_up_in_place():
    strategy = Sharded(rows=WIDTH, outer=RowAdagrad())
    vector, state = begun(strategy)
    own = state.own
    moved = ShardMove(np.array([1]), np.full((1, WIDTH), 9.0), (np.full((1, 1), 4.0),))
    message = Message(
        "agreed", np.empty(0), rows=np.empty(0, np.int64), version=2, table=RowExchange(moved=moved)
    )
    state = strategy.accept(vector, message, state)
    assert own is state.own
    assert own.tolist() == [[0, 1], [9, 9]]
    assert state.outer[0].tolist() == [0.0, 4.0]


def test_rounds_are_due_before_the_first_step_and_until_nobody_has_any_left():
    strategy = Sharded(every=Steps(2), rows=WIDTH)
    vector = np.zeros(8)
    fresh = strategy.accept(vector, Message("heal", np.arange(4.0)), strategy.init(vector))
    assert strategy.due(Clock(), fresh)
    _, state = begun(strategy)
    assert not strategy.due(Clock(1, 4), state)
    assert [turn.kind for turn in strategy.due(Clock(2, 8), state)] == ["meet", "publish"]
    message, _ = strategy.offer(Turn("publish"), vector, Clock(2, 8), state)
    assert (message.kind, message.version, message.rows) == ("fetch", 1, None)
    closing = Clock(2, 8, closing=True)
    nothing = ShardMove(np.empty(0, np.int64), np.empty((0, WIDTH)), ())
    for steps, is_due in ((1, True), (0, False)):
        assert strategy.due(closing, state)
        _, state = strategy.offer(Turn("meet"), vector, closing, state)
        answer = Message(
            "agreed", np.empty(0), rows=np.empty(0, np.int64), table=RowExchange(moved=nothing)
        )
        state = strategy.accept(vector, answer._replace(since=Clock(steps)), state)
        assert bool(strategy.due(closing, state)) == is_due


def test_a_meeting_about_a_table_waits_for_all_its_owners():
    policy = Meetings(rows=WIDTH, shards=2)
    point = Message("heal", np.zeros(8), floats=np.zeros(0), integers=np.zeros(0, np.int64))
    push, state = Message("push", since=Clock(1, 1)), policy.init(point)
    replies, state = policy.receive(0, push, frozenset({0}), state)
    assert not replies
    replies, state = policy.receive(1, push, frozenset({0, 1}), state)
    assert [reply.message.slots for reply in replies] == [(0, 1), (0, 1)]


def opened(policy):
    """The state of an open meeting of both, of whom worker 0 is ready."""
    point = Message("heal", None, floats=np.zeros(0), integers=np.zeros(0, np.int64))
    push, state, both = Message("push", since=Clock(1, 1)), policy.init(point), frozenset({0, 1})
    for slot in both:
        _, state = policy.receive(slot, push, both, state)
    ready = Message("ready", slots=(0, 1))
    return push, ready, policy.receive(0, ready, both, state)[1]


def test_a_meeting_of_which_an_owner_is_lost_begins_anew_once_it_is_back():
    policy = Meetings(rows=WIDTH, shards=2)
    push, ready, state = opened(policy)
    replies, state = policy.close(frozenset({0}), state)
    assert [(r.slot, r.message.kind) for r in replies] == [(1, "rejoin")]
    assert policy.close(frozenset({0}), state) == ([], state)
    replies, state = policy.receive(1, push, frozenset({0, 1}), state)
    assert [(r.slot, r.message.kind) for r in replies] == [(0, "meet"), (1, "meet")]
    replies, state = policy.receive(1, ready, frozenset({0, 1}), state)
    assert not replies, "worker 0 was ready in the meeting before"
    replies, _ = policy.receive(0, ready, frozenset({0, 1}), state)
    assert [r.message.kind for r in replies] == ["agreed", "agreed"]


def test_who_restores_a_shard_is_answered_alone_and_agrees_on_nothing_new():
    policy = Meetings(rows=WIDTH, shards=2)
    _, ready, state = opened(policy)
    _, state = policy.close(frozenset({0}), state)
    both = frozenset({0, 1})
    [called], state = policy.receive(1, Message("fetch"), both, state)
    assert (called.slot, called.message.kind, called.message.slots) == (1, "meet", (0, 1))
    lost, after = policy.close(frozenset({0}), state)
    assert [(r.slot, r.message.kind) for r in lost] == [(1, "rejoin")]
    assert not after.restoring
    [reply], state = policy.receive(1, ready, both, state)
    assert (reply.slot, reply.message.kind, reply.message.version) == (1, "agreed", 0)
    [reply], _ = policy.receive(1, Message("fetch", version=3), both, state)
    assert reply.message.kind == "rejoin", "of another version"


@pytest.mark.parametrize(
    ("numbers", "floats", "wrong"),
    [(7, 0, "whole rows of 2 numbers; got 7 numbers"), (8, 3, "no float buffers; got 3 numbers")],
)
def test_a_table_has_whole_rows_and_nothing_beside_it(numbers, floats, wrong):
    with pytest.raises(UsageError, match=wrong):
        Meetings(rows=WIDTH, shards=2).init(
            Message("heal", np.zeros(numbers), floats=np.zeros(floats))
        )


def agreed(rows, numbers, version):
    """The answer to a round that brings some rows, and moves none of the own shard."""
    nothing = ShardMove(np.empty(0, np.int64), numbers[:0], ())
    return Message(
        "agreed", numbers.ravel(), rows=rows, version=version, table=RowExchange(moved=nothing)
    )


def pushed(strategy, message, count):
    """What the owners are told to subtract from each row of the table."""
    total = np.zeros((count, strategy.rows))
    by_row = RowCodec(message.codec, strategy.rows, strategy.exact)
    total[message.rows] = by_row.decode(message.vector)
    return total


@pytest.mark.parametrize("exact", [0, 1])
@pytest.mark.parametrize("codec", ["int8", "int4"])
def test_what_was_applied_and_what_is_left_out_add_up_to_all_deltas(codec, exact):
    count, width, chance = 11, 3, np.random.default_rng(0)
    strategy = Sharded(every=Steps(1), rows=width, codec=codec, exact=exact)
    vector = np.zeros(count * width, np.float32)
    own = np.zeros(count * width, np.float32)
    state = strategy.accept(vector, Message("heal", own), strategy.init(vector))
    wanted, applied = np.zeros((count, width)), np.zeros((count, width))
    for version in range(40):
        rows = np.flatnonzero(chance.random(count) < 0.5)
        numbers = chance.standard_normal((rows.size, width)).astype(np.float32)
        state = strategy.accept(vector, agreed(rows, numbers, version), state)
        delta = 10.0 ** chance.uniform(-3, 3, (rows.size, 1)) * chance.standard_normal(
            numbers.shape
        )
        vector.reshape(-1, width)[rows] -= delta.astype(np.float32)
        wanted[rows] += numbers - vector.reshape(-1, width)[rows]
        lost, _ = strategy.offer(Turn("meet"), vector, Clock(version, 8), state)
        message, state = strategy.offer(Turn("meet"), vector, Clock(version, 8), state)
        np.testing.assert_array_equal(lost.vector, message.vector)
        applied += pushed(strategy, message, count)
    state = strategy.accept(vector, agreed(rows[:0], numbers[:0], 40), state)
    left = np.zeros((count, width))
    left[state.left_rows] = state.left.reshape(-1, width)
    assert abs(left).max() > 0.01, "the codec leaves something out"
    np.testing.assert_allclose(applied + left, wanted, atol=1e-3)
    assert not left[:, width - exact :].any()


def test_who_restores_a_shard_drops_what_was_left_out_before_a_checkpoint():
    strategy = Sharded(every=Steps(1), rows=WIDTH, codec="int8")
    vector, own = np.zeros(8, np.float32), np.zeros(4, np.float32)
    left_out = {"left_rows": np.array([3]), "left": np.array([0.5, 0.25], np.float32)}
    for is_behind in (False, True):
        heal = Message("heal", own.copy(), table=RowExchange(is_behind=is_behind))
        state = strategy.accept(vector, heal, strategy.init(vector))._replace(**left_out)
        _, state = strategy.offer(Turn("meet"), vector, Clock(), state)
        numbers = np.ones((2, WIDTH), np.float32)
        state = strategy.accept(vector, agreed(np.array([1, 3]), numbers, 1), state)
        message, _ = strategy.offer(Turn("meet"), vector, Clock(1, 8), state)
        assert message.rows.tolist() == ([] if is_behind else [3])


@pytest.mark.parametrize("codec", ["fp32", "bf16"])
def test_nothing_is_kept_where_the_codec_needs_no_feedback(codec):
    vector, state = begun(Sharded(every=Steps(2), rows=WIDTH, codec=codec))
    vector[6] += 0.3
    _, state = Sharded(rows=WIDTH, codec=codec).offer(Turn("meet"), vector, Clock(2, 8), state)
    assert (state.pending, state.left.size) == (None, 0)


def test_an_unknown_codec_of_rows_is_one_sentence():
    with pytest.raises(UsageError, match="codec of Sharded must be"):
        Sharded(rows=WIDTH, codec="int2")
