"""What a worker keeps of another's shard: rows that moved, in pages, and as they travel."""

import numpy as np
import pytest

from photinus.data.rows import memory
from photinus.strategies.base import ShardMove
from photinus.strategies.outer import Adagrad, RowAdagrad, RowAdam, Sgd
from photinus.strategies.shard_backups import ShardBackup, from_arrays, next_moved, to_arrays, write

WIDTH, COUNT = 3, 11


def backup(outer, room=memory):
    return ShardBackup(COUNT, np.empty((0, WIDTH), np.float32), outer, room)


def moves(outer, chance, rounds=4):
    """What some rounds do to a shard, and the shard after them."""
    own = chance.normal(size=(COUNT, WIDTH)).astype(np.float32)
    state, shard_moves = outer.init(own), []
    for n in range(rounds):
        at = np.flatnonzero(chance.random(COUNT) < 0.3)
        delta = chance.normal(size=(at.size, WIDTH)).astype(np.float32)
        rows, some = outer.update(own[at], delta, tuple(array[at] for array in state))
        shard_moves.append(ShardMove(at, rows, some, {"moments": np.full(2, float(n))}))
        write(shard_moves[-1], own, state, np.zeros(COUNT, np.int32), n + 1)
    return own, state, shard_moves


@pytest.mark.parametrize("most", [1, 7, 1000])
@pytest.mark.parametrize("outer", [Sgd(), Adagrad(), RowAdagrad(), RowAdam()], ids=lambda o: o.name)
def test_pages_of_a_backup_hold_each_row_that_moved_as_it_is_now(outer, most, monkeypatch):
    monkeypatch.setattr("photinus.strategies.shard_backups.PAGE_NUMBERS", most)
    monkeypatch.setattr("photinus.strategies.shard_backups._BLOCK_NUMBERS", 3 * most)
    own, state, shard_moves = moves(outer, np.random.default_rng(most))
    copy = backup(outer)
    for move in shard_moves:
        assert copy.take(from_arrays(to_arrays(move)))
    start, rows, inner = 0, [], {}
    while start < COUNT:
        page, start = copy.page(start)
        page = from_arrays(to_arrays(page))
        np.testing.assert_array_equal(page.rows, own[page.at])
        for array, some in zip(state, page.outer, strict=True):
            np.testing.assert_array_equal(some, array[page.at])
        rows += page.at.tolist()
        inner = dict(page.inner)
    assert rows == sorted({int(row) for move in shard_moves for row in move.at})
    assert inner["moments"].tolist() == [3.0, 3.0], "of the last round"


def test_a_shard_that_never_moved_is_one_page_without_rows():
    page, after = backup(RowAdagrad()).page(0)
    assert (page.at.size, after) == (0, COUNT)
    write(from_arrays(to_arrays(page)), np.zeros((COUNT, WIDTH)), (np.zeros((COUNT, 1)),), None, 1)


def test_room_is_taken_for_the_rows_that_moved_only(monkeypatch):
    monkeypatch.setattr("photinus.strategies.shard_backups._BLOCK_NUMBERS", 2 * WIDTH)
    requests = []

    def room(shape, dtype, whole):
        requests.append((shape, whole))
        return np.zeros(shape, dtype)

    copy = backup(RowAdagrad(), room)
    for at in ([1], [5], [1, 5], [0, 7, 9]):
        rows = np.ones((len(at), WIDTH), np.float32)
        assert copy.take(ShardMove(np.array(at), rows, (rows[:, :1],)))
    block = [((2, WIDTH), 4 * COUNT * (WIDTH + 1)), ((2, 1), 4 * COUNT * (WIDTH + 1))]
    assert requests == 3 * block, "five rows, of which two moved twice"
    assert copy.page(0)[0].at.tolist() == [0, 1, 5, 7, 9]


def test_a_backup_without_room_for_a_row_takes_none():
    copy = backup(Adagrad(), lambda shape, dtype, whole: None)
    rows = np.ones((1, WIDTH), np.float32)
    assert not copy.take(ShardMove(np.array([3]), rows, (rows,)))


def test_the_next_rows_that_moved_are_told_in_order_to_the_last():
    moved = np.array([True, False, True, True, False])
    assert [next_moved(moved, start, 2)[1] for start in (0, 3, 4, 5)] == [3, 5, 5, 5]
    assert next_moved(moved, 1, 0)[0].tolist() == [2], "one at least"


def test_a_message_without_a_move_holds_none():
    assert from_arrays({"vector": np.zeros(3)}) is None
