"""The coordinator as a guest of slot 0: here each task is a thread, and no Spark is needed."""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from photinus.checkpoint.folder import RunFolder
from photinus.core.errors import DataError, LinkLostError, RunFailedError, UsageError
from photinus.core.events import CheckpointSaved, RoundClosed, Warned
from photinus.data.rows import Rows
from photinus.engine.base import ArrayData, part_of
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.engine.spark.connect.client import ConnectSession
from photinus.report.ledger import audit
from photinus.run.ledger_writer import LedgerWriter
from photinus.testing import Faults


class Tasks:
    """What Spark does: a task a slot, each in a thread."""

    def __init__(self, spec, data):
        self.spec, self.data, self.errors = spec, data, {}
        self.threads = []

    def start(self, *slots):
        for slot in slots or range(self.spec.plan.workers):
            self.threads.append(threading.Thread(target=self._run, args=(slot,), daemon=True))
            self.threads[-1].start()

    def _part(self, slot):
        features, labels, _ = self.data.part(self.spec.plan, slot)
        return part_of(Rows.of(features, labels), self.spec.plan)

    def _run(self, slot):
        try:
            self.spec.run(slot, f"attempt-{len(self.threads)}", lambda: self._part(slot))
        except Exception as error:
            self.errors[slot] = error

    def end(self):
        for thread in self.threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in self.threads)


def until_over(client, tasks):
    deadline = time.monotonic() + 60
    while not client.wait(0.05):
        assert time.monotonic() < deadline, tasks.errors
        assert len(tasks.errors) < len(tasks.threads), tasks.errors


def until_told(client, events, kind):
    while not any(isinstance(event, kind) for event in events):
        assert not client.wait(0.02)


@pytest.fixture
def assignment(tiny, tmp_path):
    """Builds the tiny job for a run folder."""
    place = RunFolder(tmp_path / "run")

    def make(**fields):
        usual = {
            "folder": str(place.path),
            "term": place.claim_term(),
            "security": "none",
            "reconnect_seconds": 5.0,
        }
        plan = tiny.plan(recipes=(tiny.recipes[0], tiny.recipes[3]))
        return tiny.assignment(**{"plan": plan} | usual | fields)

    return make


def test_the_result_comes_back_through_the_folder_and_nothing_stays_there(assignment, tmp_path):
    events = []
    book = LedgerWriter(tmp_path / "ledger.jsonl", bytes(16))
    expected = SimulatedEngine().run(assignment())
    job = assignment(emit=events.append, enter=book.enter, security="tls")
    with ConnectSession(job) as client:
        tasks = Tasks(client.coordinator_spec(Faults(), "127.0.0.1"), job.data)
        tasks.start()
        until_over(client, tasks)
        result = client.result()
        tasks.end()
    for ours, theirs in zip(result.vectors, expected.vectors, strict=True):
        assert np.array_equal(ours, theirs)
    assert tasks.errors == {}
    assert sum(type(event).__name__ == "PhaseEnded" for event in events) == 2
    assert (audit(tmp_path / "ledger.jsonl").is_exact, book.counts["applied"] > 0) == (True, True)
    assert list(tmp_path.glob("run/connect-*")) == []
    book.close()


def test_a_coordinator_that_was_overtaken_is_fenced_and_another_continues_from_its_checkpoint(
    assignment, tiny, tmp_path
):
    events, place = [], RunFolder(tmp_path / "run", resume=True)
    book = LedgerWriter(tmp_path / "ledger.jsonl", bytes(16))
    plan = tiny.plan(recipes=tiny.recipes[:1], epochs=600.0)
    fields = {"checkpoint_seconds": 0.1, "emit": events.append, "enter": book.enter}
    job = assignment(plan=plan, **fields)
    with ConnectSession(job) as client:
        tasks = Tasks(client.coordinator_spec(Faults(), "127.0.0.1"), job.data)
        tasks.start()
        until_told(client, events, CheckpointSaved)
        overtaking = place.claim_term({"client": job.term})
        until_over(client, tasks)
        client.result()
        tasks.end()
    book.close()
    warnings = [event.text for event in events if isinstance(event, Warned)]
    assert any(f"back as term {overtaking + 1}, from phase000" in text for text in warnings), (
        warnings
    )
    assert tasks.errors == {}
    assert audit(tmp_path / "ledger.jsonl").is_exact


def test_an_error_of_a_worker_reaches_the_client_in_its_own_class(assignment, tiny):
    labels = tiny.labels.copy()
    labels[41] = 10
    job = assignment(data=ArrayData(tiny.features, labels))
    with ConnectSession(job) as client:
        tasks = Tasks(client.coordinator_spec(Faults(), "127.0.0.1"), job.data)
        tasks.start()
        until_over(client, tasks)
        tasks.end()
        with pytest.raises(RunFailedError, match="IndexError: index 10 is out of bounds"):
            client.result()
    assert tasks.errors == {}


def test_ctrl_c_saves_and_ends_the_tasks(assignment, tiny, tmp_path):
    events = []
    plan = tiny.plan(recipes=tiny.recipes[:1], epochs=100_000.0)
    job = assignment(plan=plan, emit=events.append)
    with ConnectSession(job) as client:
        tasks = Tasks(client.coordinator_spec(Faults(), "127.0.0.1"), job.data)
        tasks.start()
        until_told(client, events, RoundClosed)
        client.stop_on_signal("stopped by Ctrl-C")
        tasks.end()
        with pytest.raises(RunFailedError, match="stopped by Ctrl-C"):
            client.result()
    assert any(isinstance(event, CheckpointSaved) for event in events)


def test_slots_of_spark_connect_cannot_be_taken(assignment):
    with (
        ConnectSession(assignment()) as client,
        pytest.raises(UsageError, match="of the same application; got Spark Connect; use"),
    ):
        client.coordinator_spec(Faults().take_slots(1, seconds=1.0), "127.0.0.1")


def test_tasks_end_by_themselves_when_the_client_is_lost(assignment, tiny):
    plan = tiny.plan(recipes=tiny.recipes[:1], epochs=100_000.0)
    job = assignment(plan=plan, reconnect_seconds=2.0)
    with ConnectSession(job) as client:
        tasks = Tasks(client.coordinator_spec(Faults(), "127.0.0.1"), job.data)
        tasks.start()
        tasks.end()
        with pytest.raises(RunFailedError, match="the client is lost"):
            client.result()


def test_tasks_wait_for_a_coordinator_as_long_as_the_client_lives(assignment):
    job = assignment(reconnect_seconds=2.0)
    with ConnectSession(job) as client:
        tasks = Tasks(client.coordinator_spec(Faults(), "127.0.0.1"), job.data)
        tasks.start(1)
        deadline = time.monotonic() + 3.0
        while time.monotonic() < deadline:
            assert not client.wait(0.05)
        tasks.start(0)
        until_over(client, tasks)
        tasks.end()
    assert tasks.errors == {}


def test_a_later_attempt_of_slot_0_stands_by_while_the_coordinator_lives(
    assignment, tiny, tmp_path
):
    plan = tiny.plan(recipes=tiny.recipes[:1], epochs=600.0)
    events = []
    job = assignment(plan=plan, emit=events.append)
    with ConnectSession(job) as client:
        tasks = Tasks(client.coordinator_spec(Faults(), "127.0.0.1"), job.data)
        tasks.start()
        until_told(client, events, RoundClosed)
        tasks.start(0)
        until_over(client, tasks)
        tasks.end()
    assert tasks.errors == {}
    assert RunFolder(tmp_path / "run", resume=True).newest_term() == job.term


def test_tasks_of_a_client_whose_run_was_resumed_leave_it_alone(assignment, tmp_path):
    job = assignment()
    with ConnectSession(job) as client:
        RunFolder(tmp_path / "run", resume=True).claim_term()
        tasks = Tasks(client.coordinator_spec(Faults(), "127.0.0.1"), job.data)
        tasks.start()
        tasks.end()
    assert [type(error) for error in tasks.errors.values()] == [LinkLostError] * 2


def test_a_run_without_a_folder_is_refused(tiny):
    with pytest.raises(UsageError, match="needs a folder that client and executors share"):
        ConnectSession(tiny.assignment())


def test_the_corner_is_for_its_owner_only_and_holds_no_key(assignment, tmp_path):
    job = assignment(security="tls")
    with ConnectSession(job) as client:
        key = client.coordinator_spec(Faults(), "127.0.0.1").key
        run_directory = next(tmp_path.glob("run/connect-*"))
        assert run_directory.stat().st_mode & 0o777 == 0o700
        files = [path for path in run_directory.rglob("*") if path.is_file()]
        assert files
        for path in files:
            assert path.stat().st_mode & 0o777 == 0o600
            data = path.read_bytes()
            assert not any(secret in data for secret in (key.secret, key.seal, key.password))


def test_the_corner_holds_no_weights_that_others_can_read(assignment, tmp_path):
    job, weights = assignment(security="tls"), np.arange(1, 100, dtype="f4")
    job = replace(job, plan=replace(job.plan, start={"a phase": (weights,)}))
    with ConnectSession(job):
        files = [path for path in tmp_path.glob("run/connect-*/**/*") if path.is_file()]
        data = b"".join(path.read_bytes() for path in files)
        assert len(data) > weights.nbytes
        assert weights.tobytes()[:32] not in data


def test_a_failure_is_told_while_slot_0_is_busy_with_its_own_rows(assignment):
    busy = threading.Event()

    class Busy(Tasks):
        def _part(self, slot):
            if slot:
                raise DataError("row 3 is wrong")
            assert busy.wait(60)
            return super()._part(slot)

    job = assignment()
    with ConnectSession(job) as client:
        tasks = Busy(client.coordinator_spec(Faults(), "127.0.0.1"), job.data)
        tasks.start()
        until_over(client, tasks)
        with pytest.raises(DataError, match=r"^row 3 is wrong$"):
            client.result()
        busy.set()
        tasks.end()
    assert tasks.errors == {}
