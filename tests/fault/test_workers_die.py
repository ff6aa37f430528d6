"""Real processes are killed and frozen in the middle of a run: it goes on, and counts exactly."""

import os
import signal
import threading

import numpy as np
import pytest

from photinus.core.clock import Steps
from photinus.core.events import RoundClosed, WorkerJoined, WorkerLost
from photinus.engine.local import LocalEngine
from photinus.report.ledger import audit
from photinus.run.book import Book
from photinus.strategies.recipes import averaging

pytestmark = pytest.mark.fault


class Watch:
    """Follows a run; at its n-th round does something to worker 1."""

    def __init__(self, tiny, folder, *, at, do, epochs=1500.0):
        self.path, self.run = folder / "ledger.jsonl", os.urandom(16)
        self.book = Book(self.path, self.run)
        self.at, self.do, self.events, self.pids = at, do, [], {}
        recipe = averaging(every=Steps(20), codec="fp32")
        program = tiny.program(recipes=(recipe,), epochs=epochs)
        self.assignment = tiny.assignment(
            program, run=self.run, emit=self.emit, enter=self.book.enter
        )

    def emit(self, event):
        self.events.append(event)
        if isinstance(event, WorkerJoined):
            self.pids[event.slot] = event.pid
        if isinstance(event, RoundClosed) and event.version == self.at:
            self.do(self.pids[1])

    def trained(self, engine):
        result = engine.run(self.assignment)
        self.book.close()
        assert np.isfinite(result.vectors[0]).all()
        self.audit = audit(self.path)
        assert self.audit.is_exact, self.audit.offences
        return self

    def of(self, kind):
        return [e for e in self.events if isinstance(e, kind)]

    def leases(self, slot):
        return [e.lease for e in self.of(WorkerJoined) if e.slot == slot]


def killed(pid):
    os.kill(pid, signal.SIGKILL)


def frozen(pid):
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(7.0, os.kill, (pid, signal.SIGCONT)).start()


def assert_went_on(watch):
    """The seat was taken again with a higher lease, and every example is in the result."""
    assert watch.leases(0) == [1]
    assert watch.leases(1) == [1, 2]
    assert [e.slot for e in watch.of(WorkerLost)] == [1]
    last = watch.of(RoundClosed)[-1]
    assert last.slots == (0, 1) or last.slots == (1,), "the one that came back does its share"
    assert last.examples >= 90 * 1500


@pytest.mark.processes
def test_a_killed_process_takes_its_seat_again(tiny, tmp_path):
    watch = Watch(tiny, tmp_path, at=5, do=killed).trained(LocalEngine())
    assert_went_on(watch)
    [warned] = [e.text for e in watch.events if type(e).__name__ == "Warned"]
    assert warned == "worker 1 ended; got signal SIGKILL; its slot is started again"


@pytest.mark.slow
@pytest.mark.processes
def test_a_frozen_process_is_left_out_fenced_and_comes_back(tiny, tmp_path):
    watch = Watch(tiny, tmp_path, at=5, do=frozen, epochs=4000.0).trained(LocalEngine())
    assert watch.leases(1) == [1, 2]
    assert len({e.pid for e in watch.of(WorkerJoined) if e.slot == 1}) == 1, "the same process"
    assert any(e.slots == (0,) for e in watch.of(RoundClosed)), "rounds closed without it"
    assert watch.book.counts["fenced"] >= 1, "what it said when it woke"


@pytest.mark.slow
@pytest.mark.spark
def test_a_killed_worker_of_spark_takes_its_seat_again(spark, tiny, tmp_path):
    from photinus.engine.spark import SparkEngine

    watch = Watch(tiny, tmp_path, at=5, do=killed).trained(SparkEngine(spark))
    assert_went_on(watch)
