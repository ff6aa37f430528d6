"""A driver is killed, or told to stop: its workers end, and the run continues to the same bits."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from photinus.coordinator import leases, reachability
from photinus.core.clock import Steps
from photinus.engine.base import ArrayData
from photinus.models.module import ModuleConfig
from photinus.models.schedules import Schedule
from photinus.report.event_text import line_of
from photinus.report.journal import read
from photinus.report.ledger import audit
from photinus.run import job as jobs
from photinus.run.job import Job, Source
from photinus.run.train import resume, train
from photinus.strategies.recipes import averaging

pytestmark = [
    pytest.mark.fault,
    pytest.mark.processes,
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waits for processes as Linux does"),
]

PATIENT_SECONDS = 120.0
"""On a machine that has much else to do nobody is lost or late: that would change the bits."""

DRIVER = """
import json
import sys
from dataclasses import replace
import numpy as np
from photinus.coordinator import leases
from photinus.coordinator import reachability
from photinus.core.events import RoundClosed, RunStarted
from photinus.run import job as jobs
from photinus.engine.base import ArrayData
from photinus.engine.local.engine import LocalEngine
from photinus.run.job import Job
from photinus.run.train import train

class Hasty(LocalEngine):
    def run(self, assignment):
        return super().run(replace(assignment, reconnect_seconds=2.0))

def tell(event):
    if isinstance(event, RunStarted):
        print(0, flush=True)
    if isinstance(event, RoundClosed):
        print(event.version, flush=True)

folder, plain, rows, patient = sys.argv[1:]
jobs.LEASE_SECONDS = leases.RETURN_SECONDS = reachability.LATE_SECONDS = float(patient)
held = np.load(rows)
data = ArrayData(held["features"], held["labels"])
job = Job.from_dict(json.loads(plain))
engine = Hasty() if job.engine == "local" else None
try:
    train(job, data, folder=folder, callbacks=(tell,), engine=engine)
except KeyboardInterrupt:
    sys.exit(130)
"""


def job(**fields):
    """Adam inside, so that a worker's own state is part of the bits."""
    model = ModuleConfig(
        module="torch.nn:Linear",
        arguments={"in_features": 6, "out_features": 3},
        epochs=20.0,
        batch_size=8,
        optimizer="adam",
        lr=Schedule.constant(0.01),
    )
    usual = {
        "model": model,
        "data": Source(name="given"),
        "strategy": averaging(every=Steps(4), codec="fp32"),
        "workers": 2,
        "engine": "local",
        "checkpoint_seconds": 0.0,
    }
    return Job(**usual | fields)


@pytest.fixture
def driver(tiny, tmp_path):
    """Starts a driver of its own, and gives it a signal at its n-th round.

    To kill it waits for a checkpoint, too: on a busy machine the first one takes some rounds.
    """
    rows, script = tmp_path / "rows.npz", tmp_path / "driver.py"
    np.savez(rows, features=tiny.features, labels=tiny.labels)
    script.write_text(DRIVER)

    def run(at, sign, **fields):
        plain = json.dumps(job(**fields).to_dict())
        command = [sys.executable, script, tmp_path / "run", plain, rows, str(PATIENT_SECONDS)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            for line in process.stdout:
                checkpoints = (tmp_path / "run" / "checkpoints").glob("phase*/manifest.json")
                if int(line) >= at and (sign != signal.SIGKILL or any(checkpoints)):
                    os.kill(process.pid, sign)
                    break
            _, errors = process.communicate()
        return tmp_path / "run", process.returncode, errors

    return run


def events(folder, kind):
    return [s.event for s in read(folder / "events.jsonl") if type(s.event).__name__ == kind]


@pytest.fixture
def patience(monkeypatch):
    """For what runs in this process."""
    monkeypatch.setattr(jobs, "LEASE_SECONDS", PATIENT_SECONDS)
    monkeypatch.setattr(leases, "RETURN_SECONDS", PATIENT_SECONDS)
    monkeypatch.setattr(reachability, "LATE_SECONDS", PATIENT_SECONDS)


@pytest.mark.usefixtures("patience")
def test_a_killed_driver_leaves_no_worker_and_resumes_to_the_same_bits(
    driver, tiny, tmp_path, assert_ended
):
    folder, code, _ = driver(8, signal.SIGKILL)
    assert code == -signal.SIGKILL
    pids = {e.pid for e in events(folder, "WorkerJoined")}
    assert len(pids) == 2
    assert_ended(pids, 15)
    data = ArrayData(tiny.features, tiny.labels)
    outcome = resume(folder, data)
    assert not events(folder, "WorkerLost"), "the bits are promised where nobody is lost"
    whole = train(
        replace(job(), engine="simulate", checkpoint_seconds=60.0), data, folder=tmp_path / "whole"
    )
    assert np.array_equal(outcome.vector, whole.vector)
    assert audit(folder / "ledger.jsonl").is_exact
    first, second = events(folder, "RunStarted")
    assert (first.term, second.term) == (1, 2)
    assert line_of(second).endswith(f", term 2, resumed from {second.resumed_from}")
    assert [e.state for e in events(folder, "RunEnded")] == ["done"]


def test_ctrl_c_ends_driver_and_workers_and_is_journaled(driver, assert_ended):
    folder, code, errors = driver(5, signal.SIGINT)
    assert code == 130, errors
    assert "Traceback" not in errors
    assert_ended({e.pid for e in events(folder, "WorkerJoined")}, 5)
    [ended] = events(folder, "RunEnded")
    assert ended.state == "stopped"
    assert audit(folder / "ledger.jsonl").is_exact


@pytest.mark.usefixtures("patience")
def test_ctrl_c_makes_a_last_checkpoint(driver, tiny, tmp_path):
    """Which the run continues from, bit for bit."""
    folder, code, errors = driver(5, signal.SIGINT, checkpoint_seconds=3600.0)
    assert code == 130, errors
    assert any("a last checkpoint is made" in e.text for e in events(folder, "Warned"))
    [saved] = events(folder, "CheckpointSaved")
    assert saved.version >= 6, "of the round that was under way, or later"
    data = ArrayData(tiny.features, tiny.labels)
    outcome = resume(folder, data)
    assert events(folder, "RunStarted")[1].resumed_from == saved.name
    whole = train(
        replace(job(), engine="simulate", checkpoint_seconds=60.0), data, folder=tmp_path / "whole"
    )
    assert np.array_equal(outcome.vector, whole.vector)


@pytest.mark.spark
@pytest.mark.usefixtures("quick_java")
@pytest.mark.parametrize("at", [0, pytest.param(5, marks=pytest.mark.slow)])
def test_ctrl_c_on_spark_ends_as_it_does_elsewhere(driver, at, assert_ended):
    """At 0 no worker has come: Java is starting. At 5 it is as SIGTERM of test_driver_stops."""
    folder, code, errors = driver(at, signal.SIGINT, engine="spark", checkpoint_seconds=3600.0)
    assert code == 130, errors
    assert "Traceback" not in errors
    [ended] = events(folder, "RunEnded")
    assert ended.state == "stopped"
    assert len(events(folder, "CheckpointSaved")) == (1 if at else 0)
    assert_ended({e.pid for e in events(folder, "WorkerJoined")}, 15)
