"""Where a worker's shard and its backup of another's lie."""

from types import SimpleNamespace

import numpy as np
import pytest

from photinus.core.errors import NotReadyError
from photinus.strategies.base import Message, RowExchange, ShardMove
from photinus.strategies.outer import Sgd
from photinus.strategies.shards import Sharded
from photinus.training.worker_loop import _with_shard

ROWS, WIDTH = 7, 3


def begun(arrays):
    """Returns the point that worker 1 of 2 begins from, with room for so many arrays."""
    left = [arrays]

    def room(shape, dtype, whole=0):
        left[0] -= 1
        return None if left[0] < 0 else np.zeros(shape, dtype)

    def first_rows(shard, slot, seed, shards):
        shard[...] = slot

    config = SimpleNamespace(row_size=WIDTH)
    plan = SimpleNamespace(workers=2, seed=0, phases=[SimpleNamespace(config=config)])
    table = SimpleNamespace(trained=np.zeros(ROWS * WIDTH, np.float32))
    model = SimpleNamespace(parameters=table, first_rows=first_rows, dense_rows=0)
    grant = SimpleNamespace(phase=0, shard={}, is_behind=False, heal=Message("heal"))
    context = SimpleNamespace(model=model, strategy=SimpleNamespace(outer=Sgd()))
    work = _with_shard(plan, 1, SimpleNamespace(room=room), grant, context)
    with pytest.raises(StopIteration) as ended:
        next(work)
    return ended.value.value


def test_a_worker_with_room_for_its_shard_alone_keeps_no_backup_of_rows_that_move():
    strategy, vector = Sharded(rows=WIDTH), np.zeros(ROWS * WIDTH, np.float32)
    rows = np.ones((1, WIDTH), np.float32)
    nothing = ShardMove(np.zeros(0, np.int64), rows[:0], ())
    for arrays in (1, 2):
        heal = begun(arrays)
        assert heal.vector.tolist() == [1.0] * 3 * WIDTH  # rows 1, 3 and 5
        state = strategy.accept(vector, heal, strategy.init(vector))
        for at, is_kept in ((None, True), (3, arrays > 1)):  # of rows 0, 2, 4 and 6
            move = nothing if at is None else ShardMove(np.array([at]), rows, ())
            table = RowExchange(moved=nothing, guarded=move)
            message = Message("agreed", vector[:0], rows=np.zeros(0, np.int64), table=table)
            state = strategy.accept(vector, message, state)
            assert (state.backup is not None) is is_kept


def test_a_worker_without_room_for_its_shard_is_refused():
    with pytest.raises(NotReadyError, match="shard of the table fits neither"):
        begun(0)
