"""A driver is killed, or told to stop: its workers end, and the run goes on to the same bits."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from photinus.core.clock import Steps
from photinus.engine.base import ArrayData
from photinus.models.module import ModuleStage
from photinus.models.schedules import Schedule
from photinus.report.journal import read
from photinus.report.ledger import audit
from photinus.run.job import Job, Source
from photinus.run.train import resume, train
from photinus.strategies.recipes import averaging

pytestmark = [pytest.mark.fault, pytest.mark.processes, pytest.mark.slow]

DRIVER = """
import json
import sys
from dataclasses import replace
import numpy as np
from photinus.core.events import RoundClosed
from photinus.engine.base import ArrayData
from photinus.engine.local import LocalEngine
from photinus.run.job import Job
from photinus.run.train import train

class Hasty(LocalEngine):
    def run(self, assignment):
        return super().run(replace(assignment, lost_seconds=2.0))

def tell(event):
    if isinstance(event, RoundClosed):
        print(event.version, flush=True)

folder, plain, rows = sys.argv[1:]
held = np.load(rows)
data = ArrayData(held["features"], held["labels"])
job = Job.from_dict(json.loads(plain))
try:
    train(job, data, folder=folder, sinks=(tell,), engine=Hasty())
except KeyboardInterrupt:
    sys.exit(130)
"""


def job():
    """Adam inside, so that a worker's own state is part of the bits."""
    model = ModuleStage(
        module="torch.nn:Linear",
        arguments={"in_features": 6, "out_features": 3},
        epochs=20.0,
        batch_size=8,
        optimizer="adam",
        lr=Schedule.constant(0.01),
    )
    return Job(
        model=model,
        data=Source(name="given"),
        strategy=averaging(every=Steps(4), codec="fp32"),
        workers=2,
        engine="local",
        checkpoint_seconds=0.0,
    )


def is_running(pid):
    """Tells whether a process lives; one that nobody has waited for yet does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def ended_within(pids, seconds):
    deadline = time.monotonic() + seconds
    while any(map(is_running, pids)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.fixture
def driver(tiny, tmp_path):
    """Starts a driver of its own, and gives it a signal at its n-th round."""
    rows, script = tmp_path / "rows.npz", tmp_path / "driver.py"
    np.savez(rows, features=tiny.features, labels=tiny.labels)
    script.write_text(DRIVER)

    def run(at, sign):
        plain = json.dumps(job().to_dict())
        command = [sys.executable, script, tmp_path / "run", plain, rows]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            for line in process.stdout:
                if int(line) >= at:
                    os.kill(process.pid, sign)
                    break
            process.stdout.read()
            errors = process.stderr.read()
        return tmp_path / "run", process.returncode, errors

    return run


def events(folder, kind):
    return [s.event for s in read(folder / "events.jsonl") if type(s.event).__name__ == kind]


def test_a_killed_driver_leaves_no_worker_and_resumes_to_the_same_bits(driver, tiny, tmp_path):
    folder, code, _ = driver(8, signal.SIGKILL)
    assert code == -signal.SIGKILL
    pids = {e.pid for e in events(folder, "WorkerJoined")}
    assert len(pids) == 2
    assert ended_within(pids, 15), "workers that lost their driver end by themselves"
    data = ArrayData(tiny.features, tiny.labels)
    outcome = resume(folder, data)
    whole = train(
        replace(job(), engine="simulate", checkpoint_seconds=60.0), data, folder=tmp_path / "whole"
    )
    assert np.array_equal(outcome.vector, whole.vector)
    assert audit(folder / "ledger.jsonl").is_exact
    first, second = events(folder, "RunStarted")
    assert (first.term, second.term) == (1, 2)
    assert second.resumed_from
    assert [e.state for e in events(folder, "RunEnded")] == ["done"]


def test_ctrl_c_ends_driver_and_workers_and_is_journaled(driver):
    folder, code, errors = driver(5, signal.SIGINT)
    assert code == 130, errors
    assert "Traceback" not in errors
    assert ended_within({e.pid for e in events(folder, "WorkerJoined")}, 5)
    [ended] = events(folder, "RunEnded")
    assert ended.state == "stopped"
    assert audit(folder / "ledger.jsonl").is_exact
