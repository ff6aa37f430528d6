from __future__ import annotations

import threading

import numpy as np
import pytest

from photinus.checkpoint.background import Saver
from photinus.checkpoint.store import Store
from photinus.core.errors import CheckpointError
from photinus.core.events import CheckpointFailed, CheckpointSaved


def files(array):
    return {"model": {"w": array}}


def test_the_copy_is_taken_at_once(tmp_path):
    gate = threading.Event()
    store = Store(tmp_path, step=lambda _: gate.wait() and None)
    outcomes: list = []
    saver = Saver(store, outcomes.append)
    vector = np.ones(4)
    saver.save("1", {"phase": 2, "version": 5}, files(vector))
    vector[:] = -1
    gate.set()
    saver.close()
    assert store.latest().files["model"]["w"].tolist() == [1, 1, 1, 1]
    (saved,) = outcomes
    assert isinstance(saved, CheckpointSaved)
    assert (saved.name, saved.phase, saved.version) == ("1", 2, 5)
    assert saved.bytes == sum(f.stat().st_size for f in (tmp_path / "1").iterdir())


def test_of_those_that_wait_only_the_newest_is_written(tmp_path):
    gate, started = threading.Event(), threading.Event()

    def step(_: str) -> None:
        started.set()
        gate.wait()

    store = Store(tmp_path, step=step)
    outcomes: list = []
    saver = Saver(store, outcomes.append)
    saver.save("1", {}, files(np.ones(1)))
    started.wait()
    for name in ("2", "3", "4"):
        saver.save(name, {}, files(np.ones(1)))
    gate.set()
    saver.close()
    assert [o.name for o in outcomes] == ["1", "4"]
    assert store.names() == ("1", "4")


def test_a_failure_is_reported_and_the_next_save_is_tried(tmp_path):
    faults = [OSError(28, "No space left on device"), ValueError("odd")]

    def step(_: str) -> None:
        if faults:
            raise faults.pop(0)

    outcomes: list = []
    reported = threading.Semaphore(0)

    def report(outcome) -> None:
        outcomes.append(outcome)
        reported.release()

    saver = Saver(Store(tmp_path, step=step), report)
    for name in ("1", "2", "3"):
        saver.save(name, {}, files(np.ones(1)))
        reported.acquire()
    saver.close()
    assert [type(o) for o in outcomes] == [CheckpointFailed, CheckpointFailed, CheckpointSaved]
    assert "No space left" in outcomes[0].reason
    with pytest.raises(CheckpointError, match="the saver is closed; got 4"):
        saver.save("4", {}, {})
    saver.close()


def test_copies_in_memory_used_again_equal_fresh_ones(tmp_path):
    store = Store(tmp_path, keep=9)
    reported = threading.Semaphore(0)
    saver = Saver(store, lambda _: reported.release())
    shapes = [(3,), (3,), (2, 2), (2, 2), (3,)]
    for n, shape in enumerate(shapes):
        kind = np.float64 if n == 1 else np.float32
        arrays = {"w": np.full(shape, n, kind), f"x{n % 2}": np.arange(n)}
        saver.save(str(n), {}, {"model": arrays, f"slot-{n}": arrays})
        reported.acquire()
    saver.close()
    for n, shape in enumerate(shapes):
        loaded = store.load(str(n)).files
        assert sorted(loaded) == ["model", f"slot-{n}"]
        assert sorted(loaded["model"]) == ["w", f"x{n % 2}"]
        assert loaded["model"]["w"].tolist() == np.full(shape, n).tolist()
        assert loaded["model"]["w"].dtype == (np.float64 if n == 1 else np.float32)


def test_the_best_is_pinned_and_no_newer_one_takes_its_place(tmp_path):
    gate, started = threading.Event(), threading.Event()

    def step(_: str) -> None:
        started.set()
        gate.wait()

    store = Store(tmp_path, keep=1, step=step)
    saver = Saver(store, lambda _: None)
    saver.save("1", {}, files(np.ones(1)))
    started.wait()
    saver.save("2", {}, files(np.ones(1)), is_best=True)
    for name in ("3", "4"):
        saver.save(name, {}, files(np.ones(1)))
    gate.set()
    saver.close()
    assert store.pinned() == "2"
    assert store.names() == ("2", "4")


def test_what_a_report_raises_is_raised_by_the_next_save_and_the_thread_continues(tmp_path):
    reported = threading.Semaphore(0)

    def report(outcome):
        reported.release()
        raise SystemExit(f"of {outcome.name}")

    saver = Saver(Store(tmp_path), report)
    saver.save("first", {"phase": 0, "version": 1}, files(np.zeros(3)))
    assert reported.acquire(timeout=30)
    saver.close()  # the thread is not dead: it ends as it is told
    with pytest.raises(SystemExit, match="of first"):
        saver.save("second", {"phase": 0, "version": 2}, files(np.zeros(3)))
