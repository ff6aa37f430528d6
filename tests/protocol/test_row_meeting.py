"""A round over a table among workers does what one owner of the whole table would do."""

import weakref
from dataclasses import replace

import numpy as np
import pytest

from photinus.core.clock import Clock
from photinus.core.errors import FrameError
from photinus.protocol.row_meeting import RowMeeting, ShardExchange
from photinus.strategies.base import Message, OwnedShard, RowExchange
from photinus.strategies.codecs import decode, encode
from photinus.strategies.outer import Adagrad, RowAdagrad, RowAdam, Sgd
from photinus.strategies.row_codec import RowCodec, answer_codec
from photinus.strategies.shards import moves_by

ROWS, WIDTH = 23, 3


def pushes(workers, codec, outer, rng):
    """Returns the table, and of each worker its push: a third of the rows, and another third."""
    table = rng.normal(size=(ROWS, WIDTH)).astype(np.float32)
    messages = []
    for slot in range(workers):
        own = np.ascontiguousarray(table[slot::workers])
        rows, asks = (np.flatnonzero(rng.random(ROWS) < 0.4) for _ in range(2))
        delta = rng.normal(size=(rows.size, WIDTH)).astype(np.float32)
        state = outer.init(own)
        owned = OwnedShard(own, state, moves_by(outer, own, state), exact=1)
        sent = RowCodec(codec, WIDTH, 1).encode(delta)
        exchange = RowExchange(asks=asks, owned=owned)
        messages.append(Message("push", sent, rows=rows, codec=codec, table=exchange))
    return table, messages


def called(workers, weights=None):
    weights = np.full(workers, 1 / workers) if weights is None else np.array(weights)
    return Message("meet", weights, slots=tuple(range(workers)))


def meet(brought, call, rng, ahead=None):
    """Passes parts and wholes on in any order, each of them twice."""
    ahead = [{}] * len(brought) if ahead is None else ahead
    meetings = [RowMeeting(slot, call, p, ahead[slot]) for slot, p in enumerate(brought)]
    line = [(m, to, "part", m.part(to)) for m in meetings for to in m.others] * 2
    while line:
        sender, to, kind, piece = line.pop(rng.integers(len(line)))
        taker = meetings[to]
        taker.take(kind, sender.slot, piece)
        line += [(taker, *new) for new in taker.new_pieces()] * 2
    assert all(m.is_whole and not any(m.lacks.values()) for m in meetings)
    return meetings


@pytest.mark.parametrize("codec", ["fp32", "bf16", "int8", "int4"])
@pytest.mark.parametrize("outer", [Sgd(), Adagrad(), RowAdagrad(), RowAdam()], ids=lambda o: o.name)
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_rows_move_and_come_as_of_one_owner(workers, outer, codec):
    rng = np.random.default_rng(workers)
    table, brought = pushes(workers, codec, outer, rng)
    total = np.zeros_like(table)
    for push in brought:
        delta = RowCodec(codec, WIDTH, 1).decode(push.vector)
        total[push.rows] += np.float32(1 / workers) * delta
    wanted, _ = outer.update(table, total, outer.init(table))
    for meeting, push in zip(meet(brought, called(workers), rng), brought, strict=True):
        result = meeting.result()
        back = answer_codec(codec)
        sent = decode(back, encode(back, wanted[push.table.asks].ravel()))
        np.testing.assert_array_equal(result.rows, push.table.asks)
        np.testing.assert_array_equal(decode(result.codec, result.vector), sent)
        own = push.table.owned.rows.copy()
        own[result.table.moved.at] = result.table.moved.rows
        np.testing.assert_array_equal(own, wanted[meeting.slot :: workers])
        assert result.since.steps > 0
        assert result.slot == meeting.slot


def test_an_owner_moves_its_rows_once_it_knows_the_squares_of_all_owners():
    rng, workers, known = np.random.default_rng(5), 4, []
    table, brought = pushes(workers, "fp32", Sgd(), rng)
    for slot, push in enumerate(brought):
        moves = push.table.owned.update

        def update(at, merged, squares, moves=moves):
            known.append(squares)
            return moves(at, merged)

        owned = push.table.owned._replace(
            update=update, squares=lambda _, merged: float(np.vdot(merged, merged))
        )
        brought[slot] = push._replace(table=replace(push.table, owned=owned))
    total = np.zeros_like(table)
    for push in brought:
        total[push.rows] += np.float32(1 / workers) * push.vector.reshape(-1, WIDTH)
    first = RowMeeting(0, called(workers), brought[0], {})
    for slot in range(1, workers):
        first.take("part", slot, RowMeeting(slot, called(workers), brought[slot], {}).part(0))
    assert [kind for _, kind, _ in first.new_pieces()] == ["norm"] * 3
    assert first.whole_for(1) is None
    assert first.lacks == {"parts": [], "wholes": [1, 2, 3]}
    assert not known
    meet(brought, called(workers), rng)
    assert len(set(known)) == 1
    assert len(known) == workers
    np.testing.assert_allclose(known[0], np.vdot(total, total), rtol=1e-5)


@pytest.mark.parametrize("squares", [None, lambda _, merged: float(np.vdot(merged, merged))])
def test_what_was_merged_is_forgotten_once_the_rows_have_moved(squares):
    _, [push] = pushes(1, "fp32", Sgd(), np.random.default_rng(6))
    moves, merged = push.table.owned.update, []

    def update(at, total, *_):
        merged.append(weakref.ref(total))
        return moves(at, total)

    owned = push.table.owned._replace(update=update, squares=squares)
    meeting = RowMeeting(0, called(1), push._replace(table=replace(push.table, owned=owned)), {})
    assert meeting.is_whole
    assert [reference() is None for reference in merged] == [True]


def test_by_reads_rows_of_few_steps_move_by_the_sum_and_those_of_all_by_the_mean():
    rng, steps, workers = np.random.default_rng(2), 1000, 3
    table, brought = pushes(workers, "fp32", Sgd(), rng)
    for slot, push in enumerate(brought):
        reads = np.where(push.rows < ROWS // 2, 1, steps).astype(np.uint16)
        owned = push.table.owned._replace(by_reads=True)
        exchange = replace(push.table, owned=owned, reads=reads)
        work = Clock(steps=steps, examples=steps)
        brought[slot] = push._replace(table=exchange, since=work)
    wanted = table.copy()
    for row in range(ROWS):
        deltas = [p.vector.reshape(-1, WIDTH)[p.rows == row].sum(0) for p in brought]
        sharers = 1 if row < ROWS // 2 else max(1, sum(row in p.rows for p in brought))
        wanted[row] -= sum(deltas) / sharers
    for meeting in meet(brought, called(workers), rng):
        moved = meeting.result().table.moved
        own = table[meeting.slot :: workers].copy()
        own[moved.at] = moved.rows
        np.testing.assert_allclose(own, wanted[meeting.slot :: workers], atol=1e-2)


def test_nothing_but_deltas_of_rows_and_rows_that_are_asked_for_travels():
    rng = np.random.default_rng(3)
    _, brought = pushes(4, "fp32", Sgd(), rng)
    for meeting, push in zip(meet(brought, called(4), rng), brought, strict=True):
        parts = [meeting.part(slot) for slot in meeting.slots]
        sent = sum(array.nbytes for part in parts for array in part.values())
        assert sent == push.rows.size * (8 + 4 * WIDTH) + push.table.asks.size * 8 + 8 * len(parts)


def shares(brought):
    """Each has agreed on a round, and asks the others for what its push will ask for."""
    all_of = [ShardExchange() for _ in brought]
    for slot, (share, push) in enumerate(zip(all_of, brought, strict=True)):
        share.end_round(push, tuple(range(len(brought))), (0, 0))
        share.request_ahead(push.table.asks, 7, slot)
    return all_of


@pytest.mark.parametrize("codec", ["fp32", "bf16"])
def test_of_rows_that_came_ahead_only_those_come_again_that_the_round_moved(codec):
    rng = np.random.default_rng(6)
    _, brought = pushes(3, codec, Sgd(), rng)
    plain = [meeting.result() for meeting in meet(brought, called(3), rng)]
    all_of = shares(brought)
    for slot, share in enumerate(all_of):
        for owner, rows in share.request_ahead(brought[slot].table.asks, 7, slot).items():
            share.take_answer(owner, 7, all_of[owner].rows(7, {"asks": rows})["vector"])
    ahead = [s.fetched_ahead(push.table.asks, 7) for s, push in zip(all_of, brought, strict=True)]
    assert [sorted(slots) for slots in ahead] == [[1, 2], [0, 2], [0, 1]]
    moved = np.unique(np.concatenate([push.rows for push in brought]))
    for meeting, wanted in zip(meet(brought, called(3), rng, ahead), plain, strict=True):
        np.testing.assert_array_equal(meeting.result().vector, wanted.vector)
        for slot in meeting.others:
            mine = brought[slot].table.asks % 3 == meeting.slot
            again = np.isin(brought[slot].table.asks[mine], moved).sum()
            assert len(meeting.whole_for(slot)["which"]) == again


def test_what_came_for_other_rows_or_of_another_version_is_of_no_use():
    _, brought = pushes(2, "fp32", Sgd(), np.random.default_rng(7))
    one, _ = shares(brought)
    rows = one.request_ahead(brought[0].table.asks, 7, 0)[1]
    one.take_answer(1, 6, np.zeros(rows.size * WIDTH, np.float32))
    assert not one.fetched_ahead(brought[0].table.asks, 7)
    one.take_answer(1, 7, np.zeros(rows.size * WIDTH, np.float32))
    assert list(one.fetched_ahead(brought[0].table.asks, 7)) == [1]
    assert not one.fetched_ahead(brought[0].table.asks, 8)
    assert not one.fetched_ahead(brought[0].table.asks[brought[0].table.asks != rows[0]], 7)


def test_a_shard_that_is_about_to_move_answers_nobody():
    _, brought = pushes(2, "fp32", Sgd(), np.random.default_rng(8))
    one, _ = shares(brought)
    request = {"asks": np.array([0, 4])}
    assert one.rows(7, request)["vector"].size == 2 * WIDTH
    assert one.rows(8, request) is None
    one.end_round(brought[0], (0, 1), (0, 0))
    assert one.rows(7, request) is None


def test_where_nobody_worked_nothing_moves_and_the_answer_says_so():
    rng = np.random.default_rng(4)
    _, brought = pushes(2, "fp32", Sgd(), rng)
    nothing = {"vector": np.empty(0, np.float32), "rows": np.empty(0, np.int64)}
    brought = [push._replace(**nothing) for push in brought]
    for meeting in meet(brought, called(2, [0.0, 0.0]), rng):
        result = meeting.result()
        assert result.since == Clock()
        assert not result.table.moved.at.size


@pytest.mark.parametrize("rows", [[1], [-2], [ROWS + 1]])
def test_rows_of_others_and_of_no_table_are_refused(rows):
    _, brought = pushes(2, "fp32", Sgd(), np.random.default_rng(5))
    meeting = RowMeeting(0, called(2), brought[0], {})
    nothing = {"asks": np.empty(0, np.int64), "came": np.zeros(1, np.int64)}
    piece = {"rows": np.array(rows), "vector": np.ones(WIDTH, np.float32), **nothing}
    with pytest.raises(FrameError, match="these are no rows of worker 0"):
        meeting.take("part", 1, piece)


@pytest.mark.parametrize("is_serving", [True, False])
def test_a_round_without_steps_is_the_last_one_only_where_no_member_is_at_steps(is_serving):
    rng = np.random.default_rng(7)
    _, brought = pushes(3, "fp32", Sgd(), rng)
    owned = brought[1].table.owned._replace(is_serving=is_serving)
    brought[1] = brought[1]._replace(table=replace(brought[1].table, owned=owned))
    brought = [
        push._replace(table=replace(push.table, owned=push.table.owned._replace(by_push=True)))
        for push in brought
    ]
    for meeting in meet(brought, called(3, [0.0, 0.0, 0.0]), rng):
        assert (meeting.result().since.steps > 0) == is_serving
