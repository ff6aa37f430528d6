"""How long a silent worker is waited for, as a job has it."""

import json
from dataclasses import replace

import numpy as np
import pytest

from photinus.core.events import RoundClosed, Warned, WorkerLost
from photinus.engine.base import ArrayData
from photinus.engine.simulation.cluster import SimulatedCluster
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.models.logistic import LogisticConfig
from photinus.run.job import Job
from photinus.run.train import resume, train
from photinus.strategies.recipes import averaging
from photinus.testing import Faults

JOB = Job(
    model=LogisticConfig(features=3, classes=2, epochs=40.0, batch_size=12),
    workers=3,
    engine="simulate",
    strategy=averaging(gradients_until=0.0),
)
DATA = ArrayData(np.random.default_rng(0).random((120, 3), np.float32), np.arange(120) % 2)


@pytest.mark.parametrize(("lease_seconds", "waited"), [(None, 5), (2.0, 2), (7, 7), (20.0, None)])
def test_a_round_waits_for_a_frozen_worker_as_long_as_its_lease_lasts(
    lease_seconds, waited, tmp_path
):
    events = []
    engine = SimulatedEngine(SimulatedCluster(faults=Faults().freeze(1, step=60, seconds=9.0)))
    train(
        replace(JOB, lease_seconds=lease_seconds), DATA, folder=tmp_path / "run", engine=engine,
        callbacks=[events.append], verbose=False,
    )  # fmt: skip
    lost = [event.reason for event in events if isinstance(event, WorkerLost)]
    assert lost == ([f"no sign of life from it for {waited} s"] if waited else [])
    assert sum(isinstance(event, RoundClosed) for event in events) >= 8


def test_a_run_continues_with_another_lease(tmp_path):
    def stop(event):
        if isinstance(event, RoundClosed) and event.version == 4:
            raise InterruptedError

    job = replace(JOB, checkpoint_seconds=0.0)
    with pytest.raises(InterruptedError):
        train(job, DATA, folder=tmp_path / "run", callbacks=[stop], verbose=False)
    path = tmp_path / "run/job.json"
    saved = json.loads(path.read_text())
    saved["job"]["lease_seconds"] = 9.0
    path.write_text(json.dumps(saved))
    started = []
    resume(tmp_path / "run", DATA, callbacks=[started.append], verbose=False)
    assert not [event for event in started if isinstance(event, Warned)]
    assert min(event.version for event in started if isinstance(event, RoundClosed)) > 3
