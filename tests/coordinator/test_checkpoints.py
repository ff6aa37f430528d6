"""Snapshots go into a checkpoint and come back as they were."""

from dataclasses import replace

import numpy as np
import pytest

from photinus.checkpoint.store import Store
from photinus.coordinator.checkpoints import files_of, meta_of, snapshot_from
from photinus.core.errors import CheckpointError
from photinus.strategies.base import Message
from photinus.training.snapshots import RunSnapshot


def run_snapshot():
    point = Message(
        "heal",
        np.arange(5, dtype=np.float32),
        version=7,
        outer=(np.ones(5, np.float32), np.full(5, 2, np.float32)),
        floats=np.array([0.5], np.float32),
        integers=np.array([3], np.int64),
    )
    return RunSnapshot(
        phase=1,
        version=7,
        applied=700,
        budget=900,
        point=point,
        positions={0: 400, 1: 300},
        rows={0: 450, 1: 450},
        reached={1: {(0, 0): 200, (0, 3): 300}},
        lost={0: 12},
        inner={0: {"exp_avg": np.full(5, 9, np.float32)}, 1: {}},
        history=(np.zeros(3, np.float32),),
    )


def test_a_cut_comes_back_from_a_checkpoint_as_it_was(tmp_path):
    snapshot, store = run_snapshot(), Store(tmp_path)
    store.save(snapshot.name, meta_of(snapshot, "job"), files_of(snapshot))
    restored = snapshot_from(store.load(snapshot.name), "job")
    assert (restored.phase, restored.version, restored.applied, restored.budget) == (1, 7, 700, 900)
    assert (restored.positions, restored.rows) == (snapshot.positions, snapshot.rows)
    assert (restored.reached, restored.lost) == (snapshot.reached, snapshot.lost)
    for name in ("vector", "floats", "integers"):
        assert np.array_equal(getattr(restored.point, name), getattr(snapshot.point, name))
    assert [o.tolist() for o in restored.point.outer] == [o.tolist() for o in snapshot.point.outer]
    assert restored.inner[0]["exp_avg"].tolist() == [9.0] * 5
    assert restored.inner[1] == {}
    assert [h.tolist() for h in restored.history] == [[0.0] * 3]


def test_a_table_among_the_workers_has_a_file_for_each_shard(tmp_path):
    snapshot = replace(
        run_snapshot(), point=run_snapshot().point._replace(vector=None, outer=()), row_size=2
    )
    shards = {0: {"vector": np.array([0.0, 1.0, 4.0, 5.0])}, 1: {"vector": np.array([2.0, 3.0])}}
    snapshot, store = replace(snapshot, shards=shards), Store(tmp_path)
    files = files_of(snapshot)
    assert files["shard-00001"] is shards[1]
    assert "vector" not in files["agreed"]
    store.save(snapshot.name, meta_of(snapshot, "job"), files)
    restored = snapshot_from(store.load(snapshot.name), "job")
    assert [s["vector"].tolist() for s in restored.shards.values()] == [[0, 1, 4, 5], [2, 3]]
    assert not restored.shards[0]["vector"].flags.writeable
    assert (restored.row_size, restored.point.floats.tolist()) == (2, [0.5])


def test_a_checkpoint_from_before_rows_were_counted_by_fragment_is_read(tmp_path):
    snapshot, store = run_snapshot(), Store(tmp_path)
    old_meta = {n: v for n, v in meta_of(snapshot, "job").items() if n not in ("reached", "lost")}
    store.save(snapshot.name, old_meta, files_of(snapshot))
    restored = snapshot_from(store.load(snapshot.name), "job")
    assert (restored.positions, restored.reached, restored.lost) == (snapshot.positions, {}, {})


def test_a_checkpoint_of_another_job_is_refused_by_name(tmp_path):
    snapshot, store = run_snapshot(), Store(tmp_path)
    store.save(snapshot.name, meta_of(snapshot, "job"), files_of(snapshot))
    pattern = (
        "belongs to another job; got job; .*begin a new run with start = 'FOLDER/model' of one"
    )
    with pytest.raises(CheckpointError, match=pattern):
        snapshot_from(store.load(snapshot.name), "another")
