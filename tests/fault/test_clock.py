"""A run whose clock of the day is set to and fro, on all its processes at once."""

import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.fault, pytest.mark.processes]

JUMPS = """
import datetime, itertools, time
days = itertools.cycle((0, 460, -460, 0.05, -0.05))
real, real_ns = time.time, time.time_ns
time.time = lambda: real() + 86_400 * next(days)
time.time_ns = lambda: real_ns() + int(86_400e9 * next(days))

class Jumping(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return super().now(tz) + datetime.timedelta(days=next(days))

datetime.datetime = Jumping
"""
"""Each look at the clock gives another day."""

DRIVER = """
import sys, time
assert abs(time.time() - time.time()) > 60, "the clock jumps"
import numpy as np
import photinus as ph
from photinus.core.events import CheckpointSaved, Warned, WorkerLost
from photinus.engine.base import ArrayData
from photinus.models.logistic import LogisticConfig
from photinus.run.job import Source

chance = np.random.default_rng(0)
data = ArrayData(chance.random((400, 6), dtype=np.float32), chance.integers(0, 3, 400))
model = LogisticConfig(features=6, classes=3, epochs=6.0, batch_size=8)

def trained(engine, transport):
    job = ph.Job(
        model=model, data=Source(name="given"), workers=2, engine=engine, transport=transport,
        strategy=ph.averaging(every=ph.Steps(4), codec="fp32", gradients_until=0.0),
        checkpoint_seconds=0.0,
    )
    events = []
    outcome = ph.train(job, data, folder=f"run-{engine}", callbacks=(events.append,))
    told = [e for e in events if isinstance(e, (Warned, WorkerLost))]  # not of a busy machine
    print([e for e in told if "workers came within" not in getattr(e, "text", "")])
    print(any(isinstance(e, CheckpointSaved) for e in events))
    return outcome.vector

ours = trained("local", sys.argv[1])
print(np.array_equal(ours, trained("simulate", "sockets")))
"""


@pytest.mark.parametrize("transport", ["sockets", "folder"])
def test_a_clock_that_is_set_to_and_fro_ends_no_lease_and_changes_no_bit(tmp_path, transport):
    (tmp_path / "jumps").mkdir()
    (tmp_path / "jumps" / "sitecustomize.py").write_text(JUMPS)
    (tmp_path / "driver.py").write_text(DRIVER)
    if transport == "folder":
        transport = str(tmp_path / "transport")
        os.mkdir(transport)
    completed = subprocess.run(
        [sys.executable, "driver.py", transport],
        env=os.environ | {"PYTHONPATH": str(tmp_path / "jumps")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert completed.stdout.split("\n") == ["[]", "True", "[]", "True", "True", ""], (
        completed.stderr[-3000:]
    )
