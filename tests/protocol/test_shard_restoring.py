"""Who takes a lost owner's seat asks for what moved in its shard, and for its rows."""

import numpy as np
import pytest

from photinus.data.rows import memory
from photinus.protocol.row_meeting import ShardExchange
from photinus.protocol.shard_restoring import ShardRestore
from photinus.strategies.base import Message, OwnedShard, RowExchange, ShardMove
from photinus.strategies.codecs import decode, encode
from photinus.strategies.outer import RowAdagrad
from photinus.strategies.shard_backups import ShardBackup
from photinus.strategies.shards import moves_by

WORKERS, ROWS, WIDTH, VERSION = 3, 23, 2, 7
OUTER = RowAdagrad(initial=0.5)


def agreed(rng, codec):
    """A table as it was loaded, as it is now, and what the workers but 0 can tell of it."""
    loaded = rng.normal(size=(ROWS, WIDTH)).astype(np.float32)
    now, sums = loaded.copy(), np.full((ROWS, 1), 0.5, np.float32)
    moved = rng.random(ROWS) < 0.6
    now[moved] += 1
    sums[moved] += 3
    exchanges = {}
    for slot in (1, 2):
        mine, before = slice(slot, None, WORKERS), slice(slot - 1, None, WORKERS)
        size = len(loaded[before])
        backup = ShardBackup(size, np.empty((0, WIDTH), np.float32), OUTER, memory)
        at = np.flatnonzero(moved[before])
        backup.take(ShardMove(at, now[before][at], (sums[before][at],), {"m": np.ones(1)}))
        shard, outer = now[mine].copy(), (sums[mine].copy(),)
        owned = OwnedShard(shard, outer, moves_by(OUTER, shard, outer), backup=backup)
        exchanges[slot] = ShardExchange()
        push = Message("push", codec=codec, table=RowExchange(owned=owned))
        exchanges[slot].end_round(push, (0, 1, 2), (1, 0))
        exchanges[slot].request_ahead(np.empty(0, np.int64), VERSION, slot)
    return loaded, now, sums, exchanges


@pytest.mark.parametrize("numbers", [1, 6, 1000])
@pytest.mark.parametrize("codec", ["fp32", "bf16"])
def test_the_shard_and_the_rows_are_those_of_the_last_round(codec, numbers, monkeypatch):
    monkeypatch.setattr("photinus.strategies.shard_backups.PAGE_NUMBERS", numbers)
    rng = np.random.default_rng(numbers)
    loaded, now, sums, exchanges = agreed(rng, codec)
    own = loaded[::WORKERS].copy()
    outer, moved = OUTER.init(own), np.zeros(len(own), np.int32)
    owned = OwnedShard(own, outer, moves_by(OUTER, own, outer), moved=moved)
    asks = np.array([0, 1, 5, 6, 9, 20, 22])
    table = RowExchange(asks=asks, owned=owned)
    brought = Message("fetch", np.empty(0), codec=codec, table=table)
    called = Message("meet", version=VERSION, slots=(0, 1, 2))
    restoring = ShardRestore(0, called, brought)
    line = [(slot, restoring.part(slot)) for slot in restoring.others] * 2
    assert not restoring.is_whole
    assert restoring.lacks == {"parts": [], "wholes": [1, 2], "start": 0}
    while line:
        slot, request = line.pop(rng.integers(len(line)))
        answer = exchanges[slot].rows(VERSION, request)
        if restoring.take(slot, answer):
            line.append((slot, restoring.part(slot)))
        assert not restoring.take(slot, answer), "what comes twice counts once"
    assert restoring.is_whole
    np.testing.assert_array_equal(own, now[::WORKERS])
    np.testing.assert_array_equal(outer[0], sums[::WORKERS])
    assert np.count_nonzero(moved == VERSION) == (own != loaded[::WORKERS]).any(axis=1).sum()
    result = restoring.result()
    expected = decode(codec, encode(codec, now[asks].ravel()))
    np.testing.assert_array_equal(decode(codec, result.vector), expected)
    assert result.rows.tolist() == asks.tolist()
    assert (result.table.moved.at.size, result.table.moved.inner["m"].tolist()) == (0, [1.0])


def test_who_stands_at_another_version_tells_nothing():
    _, _, _, exchanges = agreed(np.random.default_rng(0), "fp32")
    assert exchanges[1].rows(VERSION + 1, {"start": np.array([0])}) is None


def test_a_worker_that_came_to_its_last_rounds_still_tells():
    _, _, _, exchanges = agreed(np.random.default_rng(0), "fp32")
    exchange = exchanges[1]
    table = RowExchange(owned=exchange._owned)
    exchange.end_round(Message("push", table=table), (0, 1, 2), (1, 0))
    request = {"start": np.array([0])}
    assert exchange.rows(VERSION + 1, request) is None, "its shard is about to move"
    exchange.bring_push(Message("push", version=VERSION + 1, table=table))
    assert exchange.rows(VERSION + 1, request)["after"].tolist() == [8]
