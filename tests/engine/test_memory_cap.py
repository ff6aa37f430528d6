"""A worker that takes more memory than it may ends, and the run says which and how much."""

import mmap
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from photinus.core.clock import Steps
from photinus.core.errors import NotReadyError, RunFailedError
from photinus.data.arrow import ColumnSpec
from photinus.data.checks import RowChecks
from photinus.data.rows import Rows
from photinus.data.spool import Budget
from photinus.engine import memory_cap, worker_bootstrap
from photinus.engine.base import ArrayData, RunSpec, part_of
from photinus.engine.driver_session import DriverSession
from photinus.engine.hooks import Hooks
from photinus.engine.local.engine import LocalEngine
from photinus.engine.memory_cap import MemoryCap, anonymous_bytes
from photinus.engine.spark.engine import _TaskSpec
from photinus.models.module import ModuleConfig
from photinus.strategies.recipes import averaging
from photinus.training.plan import Phase, TrainingPlan, WorkerLimits

MIB = 1 << 20
linux = pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="memory is measured on Linux only"
)


def reading(*mib):
    left = list(mib)
    return lambda: (left.pop(0) if len(left) > 1 else left[0]) * MIB


def test_what_stays_within_its_cap_is_left_alone():
    errors = []
    cap = MemoryCap(512 * MIB, 0, errors.append, reading(100, 500, 512))
    assert [cap.is_within_cap() for _ in range(3)] == [True, True, True]
    assert errors == []


def test_memory_that_is_merely_kept_for_later_is_given_back_first():
    errors = []
    cap = MemoryCap(512 * MIB, 0, errors.append, reading(600, 100, 700, 400))
    assert cap.is_within_cap()
    assert errors == []


def test_a_thread_of_its_own_tells_once_which_worker_takes_how_much(monkeypatch):
    monkeypatch.setattr(memory_cap, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(memory_cap, "GRACE_SECONDS", 1_000.0)
    errors, reported = [], threading.Event()

    def exceeded(error):
        errors.append(error)
        reported.set()

    with MemoryCap(512 * MIB, 3, exceeded, reading(100, 500, 513), end=errors.clear):
        assert reported.wait(10)
    assert [str(error) for error in errors] == [
        "worker 3 takes more memory than it may; got 513 MiB of 512 MiB; "
        "set memory to more, use a smaller batch, or more workers"
    ]
    assert isinstance(errors[0], RunFailedError)


def test_a_worker_that_does_not_leave_is_ended(monkeypatch):
    monkeypatch.setattr(memory_cap, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(memory_cap, "GRACE_SECONDS", 0.001)
    errors, ended = [], threading.Event()
    with MemoryCap(512 * MIB, 3, errors.append, reading(100, 513), ended.set):
        assert ended.wait(10)
    assert len(errors) == 1


def test_a_worker_that_leaves_by_itself_is_not_ended(monkeypatch):
    monkeypatch.setattr(memory_cap, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(memory_cap, "GRACE_SECONDS", 1_000.0)
    reported, ended = threading.Event(), threading.Event()
    with MemoryCap(512 * MIB, 3, lambda error: reported.set(), reading(100, 513), ended.set):
        assert reported.wait(10)
    assert not ended.is_set()


def test_every_worker_of_a_plan_is_held_to_its_memory(tiny, monkeypatch):
    caps = []

    class Noted(MemoryCap):
        def __init__(self, most, slot, exceeded):
            super().__init__(most, slot, exceeded)
            caps.append((most, slot))

    monkeypatch.setattr(worker_bootstrap, "MemoryCap", Noted)
    plan = replace(
        tiny.plan(workers=1, recipes=tiny.recipes[:1]), limits=WorkerLimits(memory=1 << 40)
    )
    with DriverSession(tiny.assignment(plan)) as session:
        part = part_of(Rows.of(*tiny.data.part(plan, 0)), plan)
        session.bootstrap().run(0, "0-0", lambda: part)
        assert session.wait(60)
    assert caps == [(1 << 40, 0)]


@pytest.mark.parametrize(("memory", "streams"), [(None, False), (12_000, False), (11_000, True)])
def test_rows_of_spark_get_half_of_a_workers_memory(tiny, memory, streams):
    """100 rows take 5,600 bytes with their index; there is no disk for others."""
    x = pa.array([[1.0, 2.0, 3.0, 4.0]] * 100, pa.list_(pa.float32()))
    batches = [pa.RecordBatch.from_pydict({"x": x, "y": pa.array(range(100))})]
    plan = replace(tiny.plan(), limits=WorkerLimits(memory=memory))
    reads = _TaskSpec(
        bootstrap=SimpleNamespace(plan=plan, hooks=Hooks()),
        spec=ColumnSpec(features=("x",), label="y", shape=(4,)),
        checks=RowChecks(),
        budget=Budget(memory_bytes=8_000, disk_bytes=0),
        streamed_rows=None,
        amounts={},
        functions={},
    )
    part, found = reads.part(batches, 0)
    assert (part.rows, found) == (100, streams)


def test_a_cap_below_what_the_process_has_at_its_start_is_refused():
    pattern = (
        "memory is less than worker 2 takes before it has any row; got 64 MiB, and 180 MiB taken"
    )
    with pytest.raises(NotReadyError, match=pattern):
        MemoryCap(64 * MIB, 2, print, reading(180))


@linux
def test_what_is_measured_is_the_memory_of_this_process_and_no_file_that_it_maps(tmp_path):
    size = 64 * MIB
    before = anonymous_bytes()
    mapped = np.memmap(tmp_path / "rows", np.uint8, "w+", shape=(size,))
    mapped[:] = 1
    assert anonymous_bytes() - before < size / 4
    own = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    own.write(mapped)
    assert anonymous_bytes() - before > 0.9 * size
    own.close()


def test_a_system_that_does_not_tell_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(memory_cap, "_STATM", tmp_path / "none")
    with pytest.raises(NotReadyError, match="memory= is measured on Linux only"):
        anonymous_bytes()


GROWS = """
import torch

class Net(torch.nn.Linear):
    kept = []

    def forward(self, features):
        self.kept.append(torch.ones(4 << 20))
        return super().forward(features)
"""


def trained(memory, tmp_path, monkeypatch, text=GROWS):
    (tmp_path / "growing.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = ModuleConfig(
        module="growing:Net",
        arguments={"in_features": 2, "out_features": 2},
        batch_size=8,
        epochs=100.0,
    )
    phase = Phase(config=config, strategy=averaging(every=Steps(2), gradients_until=0))
    plan = TrainingPlan(phases=(phase,), workers=2, limits=WorkerLimits(memory=memory))
    rows = ArrayData(np.eye(2, dtype=np.float32).repeat(16, 0), np.arange(2).repeat(16))
    events = []
    run = RunSpec(plan=plan, data=rows, run=bytes(16), emit=events.append)
    return LocalEngine().run(run), events


@linux
@pytest.mark.processes
def test_a_worker_whose_model_grows_ends_the_run_in_one_sentence(tmp_path, monkeypatch):
    """Each of 400 steps keeps 16 MiB: without a cap that would be 6 GiB in each worker."""
    pattern = (
        r"^worker [01] takes more memory than it may; got \d+ MiB of 700 MiB; set memory to more"
    )
    with pytest.raises(RunFailedError, match=pattern):
        trained(700 * MIB, tmp_path, monkeypatch)


@linux
@pytest.mark.processes
def test_a_cap_that_is_too_small_for_python_is_refused_before_training(tmp_path, monkeypatch):
    with pytest.raises(NotReadyError, match=r"before it has any row; got 64 MiB, and \d+ MiB"):
        trained(64 * MIB, tmp_path, monkeypatch)
