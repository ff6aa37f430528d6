"""Real processes are killed, frozen, cut off and spoiled: a run continues, and counts exactly."""

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from photinus.core.clock import Steps
from photinus.core.errors import RunFailedError
from photinus.core.events import RoundClosed, Warned, WorkerJoined, WorkerLost
from photinus.engine.local.engine import LocalEngine
from photinus.report.ledger import audit
from photinus.run.ledger_writer import LedgerWriter
from photinus.strategies.recipes import averaging
from photinus.testing import Faults

pytestmark = pytest.mark.fault
EPOCHS = 1500.0


class Watch:
    """Follows a run in which worker 1 suffers."""

    def __init__(self, tiny, folder, epochs=EPOCHS, lease_seconds=5.0, **fields):
        self.path, self.run = folder / "ledger.jsonl", os.urandom(16)
        self.book, self.events = LedgerWriter(self.path, self.run), []
        self.diary, self.epochs = folder / "diary.jsonl", epochs
        recipe = averaging(every=Steps(20), codec="fp32")
        plan = tiny.plan(recipes=(recipe,), epochs=epochs, lease_seconds=lease_seconds)
        self.assignment = tiny.assignment(
            plan, run=self.run, emit=self.events.append, enter=self.book.enter, **fields
        )

    def trained(self, engine_of, faults, dropped=0):
        """Every example is in the result, but for those that were `dropped`."""
        result = engine_of(faults.noted_in(str(self.diary))).run(self.assignment)
        self.book.close()
        assert np.isfinite(result.vectors[0]).all()
        self.audit = audit(self.path)
        assert self.audit.is_exact, self.audit.offences
        assert self.of(RoundClosed)[-1].examples >= 90 * self.epochs - dropped
        return self

    def of(self, kind):
        return [e for e in self.events if isinstance(e, kind)]

    @property
    def warnings(self):
        return [e.text for e in self.of(Warned)]

    @property
    def happened(self):
        notes = [json.loads(line) for line in self.diary.read_text().splitlines()]
        return [(n["kind"], n["slot"], n["step"], n["lease"]) for n in notes]

    def leases(self, slot):
        return [e.lease for e in self.of(WorkerJoined) if e.slot == slot]

    def pids(self, slot):
        return {e.pid for e in self.of(WorkerJoined) if e.slot == slot}


def assert_went_on(watch):
    """The seat was taken again with a higher lease, and nobody else was troubled."""
    assert watch.leases(0) == [1]
    assert watch.leases(1) == [1, 2]
    assert [e.slot for e in watch.of(WorkerLost)] == [1]


@pytest.mark.processes
def test_a_killed_process_takes_its_seat_again(tiny, tmp_path):
    watch = Watch(tiny, tmp_path).trained(LocalEngine, Faults().kill(slot=1, step=107))
    assert watch.happened == [("kill", 1, 107, 1)]
    assert_went_on(watch)
    assert watch.warnings == ["worker 1 ended; got signal SIGKILL; its slot is started again"]


@pytest.mark.processes
def test_a_process_that_is_cut_off_for_long_loses_its_seat_and_comes_back(tiny, tmp_path):
    faults = Faults().cut(slot=1, step=107, seconds=3.0)
    watch = Watch(tiny, tmp_path).trained(LocalEngine, faults)
    assert watch.happened == [("cut", 1, 107, 1)]
    assert_went_on(watch)
    assert len(watch.pids(1)) == 1, "the same process"
    assert any(e.slots == (0,) for e in watch.of(RoundClosed)), "rounds closed without it"


@pytest.mark.processes
def test_a_process_that_is_cut_off_for_a_moment_keeps_its_seat(tiny, tmp_path):
    faults = Faults().cut(slot=1, step=107, seconds=0.2)
    watch = Watch(tiny, tmp_path, epochs=300.0).trained(LocalEngine, faults)
    assert watch.happened == [("cut", 1, 107, 1)]
    assert watch.leases(1) == [1]
    assert not watch.warnings


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_process_whose_gradient_is_no_number_heals(tiny, tmp_path):
    faults = Faults().nan(slot=1, step=107)
    watch = Watch(tiny, tmp_path, epochs=300.0).trained(LocalEngine, faults, dropped=20 * 8)
    dropped, unused = watch.warnings
    assert dropped.startswith("worker 1 pushed values that are not finite")
    assert "examples of worker 1 were not used" in unused
    assert len(watch.pids(1)) == 1


@pytest.mark.processes
def test_a_process_that_the_system_kills_again_and_again_ends_the_run_in_words(tiny, tmp_path):
    """As when memory runs out: the kernel sends the same signal."""
    faults = Faults().kill(slot=1, step=5).kill(slot=1, step=5, lease=2)
    watch = Watch(tiny, tmp_path, restarts=1)
    with pytest.raises(RunFailedError) as failed:
        LocalEngine(faults).run(watch.assignment)
    watch.book.close()
    assert str(failed.value) == (
        "worker 1 ended too often; got signal SIGKILL; if nobody killed it, memory ran out: "
        "use a smaller batch, or fewer workers"
    )


@pytest.mark.processes
def test_a_frozen_process_is_left_out_fenced_and_comes_back(tiny, tmp_path):
    faults = Faults().freeze(slot=1, step=107, seconds=7.0)
    watch = Watch(tiny, tmp_path, epochs=4000.0).trained(LocalEngine, faults)
    assert watch.happened == [("freeze", 1, 107, 1)]
    assert_went_on(watch)
    assert len(watch.pids(1)) == 1, "the same process"
    assert any(e.slots == (0,) for e in watch.of(RoundClosed)), "rounds closed without it"
    assert watch.book.counts["fenced"] >= 1, "what it said when it woke"


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("kind", ["kill", "freeze"])
def test_a_worker_lost_on_a_folder_transport_takes_its_seat_again(tiny, tmp_path, kind):
    """A folder closes no connection: of a dead process its engine tells, of others silence."""
    faults = {
        "kill": Faults().kill(slot=1, step=107),
        "freeze": Faults().freeze(slot=1, step=107, seconds=9.0),
    }
    with TemporaryDirectory(dir="/dev/shm") as transport:
        lease_seconds = {"kill": 60.0, "freeze": 4.0}[kind]
        watch = Watch(tiny, tmp_path, lease_seconds=lease_seconds, transport=transport)
        watch.trained(LocalEngine, faults[kind])
        assert list(Path(transport).iterdir()) == []
    assert_went_on(watch)
    reason = {"kill": "its process ended", "freeze": "no sign of life from it for 4 s"}[kind]
    assert [e.reason for e in watch.of(WorkerLost)] == [reason]
    assert any(e.slots == (0,) for e in watch.of(RoundClosed)), "rounds closed without it"
    assert len(watch.pids(1)) == (2 if kind == "kill" else 1)


@pytest.mark.spark
def test_a_killed_worker_of_spark_takes_its_seat_again(spark, tiny, tmp_path):
    from photinus.engine.spark.engine import SparkEngine

    def engine(faults):
        return SparkEngine(spark, faults)

    watch = Watch(tiny, tmp_path).trained(engine, Faults().kill(slot=1, step=107))
    assert watch.happened == [("kill", 1, 107, 1)]
    assert_went_on(watch)


@pytest.mark.spark
def test_a_killed_worker_of_spark_loses_its_lease_at_once_on_a_folder_transport(
    spark, tiny, tmp_path
):
    """Spark knows of its end; signs of life would be waited for for a minute."""
    from photinus.engine.spark.engine import SparkEngine

    with TemporaryDirectory() as transport:
        watch = Watch(tiny, tmp_path, epochs=300.0, lease_seconds=60.0, transport=transport)
        watch.trained(lambda faults: SparkEngine(spark, faults), Faults().kill(slot=1, step=107))
    assert_went_on(watch)
    assert [e.reason for e in watch.of(WorkerLost)] == ["its process ended"]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_every_fault_that_has_a_name_happens_to_a_worker_of_spark(spark, tiny, tmp_path):
    """One life after the other: spoiled, cut off, frozen, killed; another worker is slow."""
    from photinus.engine.spark.engine import SparkEngine

    faults = Faults().slow(slot=0, factor=1.5).nan(slot=1, step=47)
    faults = faults.cut(slot=1, step=107, seconds=3.0, lease=2)
    faults = faults.freeze(slot=1, step=107, seconds=7.0, lease=3).kill(slot=1, step=107, lease=4)
    watch = Watch(tiny, tmp_path, epochs=4000.0)
    watch.trained(lambda faults: SparkEngine(spark, faults), faults, dropped=20 * 8)
    assert watch.happened == [
        ("nan", 1, 47, 1),
        ("cut", 1, 107, 2),
        ("freeze", 1, 107, 3),
        ("kill", 1, 107, 4),
    ]
    assert (watch.leases(0), watch.leases(1)) == ([1], [1, 2, 3, 4, 5])
    assert [e.reason for e in watch.of(WorkerLost)] == [
        "its connection closed and did not come back",
        "no sign of life from it for 5 s",
        "its process ended",
    ]
    expected = "worker 1 pushed values that are not finite; the push was dropped (1 of 3); "
    expected += "look at its rows, or lower the learning rate"
    warned = [text for text in watch.warnings if not text.startswith("Spark gives a task")]
    unused = [text for text in warned if "examples of worker 1 were not used" in text]
    assert warned == [expected, *unused]
    assert len(unused) == 1, "what was dropped is not made up"
    assert watch.book.counts["fenced"] >= 1, "what it said when it woke"
