"""A driver is told to stop by SIGTERM, or killed: what it leaves, and how soon its workers end."""

import json
import os
import select
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from photinus.core.clock import Steps
from photinus.models.module import ModuleConfig
from photinus.models.schedules import Schedule
from photinus.report.journal import read
from photinus.report.ledger import audit
from photinus.run.job import Job, Source
from photinus.strategies.recipes import averaging

pytestmark = [
    pytest.mark.fault,
    pytest.mark.processes,
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waits for processes as Linux does"),
]

DRIVER = """
import json
import os
import signal
import sys
import numpy as np
from photinus.core.events import RoundClosed, RunStarted, Warned
from photinus.engine.base import ArrayData
from photinus.engine.local.engine import LocalEngine
from photinus.run.job import Job
from photinus.run.train import train

def say(word):
    os.write(1, f"{word}\\n".encode())  # whole lines: two threads tell

def tell(event):
    if isinstance(event, (RunStarted, RoundClosed)):
        say(getattr(event, "version", 0))
    if isinstance(event, Warned) and "a last checkpoint is made" in event.text:
        say("stopping")

def kills(slot):
    if slot == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return ()

folder, plain, rows, how = sys.argv[1:]
held = np.load(rows)
data = ArrayData(held["features"], held["labels"])
job = Job.from_dict(json.loads(plain))
engine = LocalEngine(before=kills) if how == "kills" else None
before = signal.getsignal(signal.SIGTERM)
try:
    train(job, data, folder=folder, callbacks=(tell,), engine=engine)
except KeyboardInterrupt:
    assert signal.getsignal(signal.SIGTERM) is before
    sys.exit(130)
"""


def job(**fields):
    model = ModuleConfig(
        module="torch.nn:Linear",
        arguments={"in_features": 6, "out_features": 3},
        epochs=fields.pop("epochs", 4000.0),
        batch_size=8,
        lr=Schedule.constant(0.01),
    )
    usual = {
        "model": model,
        "data": Source(name="given"),
        "strategy": averaging(every=Steps(4), codec="fp32"),
        "workers": 2,
        "engine": "local",
        "checkpoint_seconds": 3600.0,
    }
    return Job(**usual | fields)


ENDLESS = {"strategy": averaging(every=Steps(10**8), gradients_until=0), "epochs": 1e9}
"""A job whose first round ends long after the test."""


class Driver:
    """A process of its own, with a temporary folder of its own."""

    def __init__(self, tiny, folder):
        self.folder, self.rows, self.temp = folder / "run", folder / "rows.npz", folder / "temp"
        self.script = folder / "driver.py"
        np.savez(self.rows, features=tiny.features, labels=tiny.labels)
        self.script.write_text(DRIVER)
        self.temp.mkdir()

    def start(self, how="", **fields):
        plain = json.dumps(job(**fields).to_dict())
        self.process = subprocess.Popen(
            [sys.executable, self.script, self.folder, plain, self.rows, how],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"TMPDIR": str(self.temp)},
            start_new_session=True,
        )
        return self

    def until(self, word):
        """Reads what it says, to the line that is a word, or a version that is as high."""
        for line in self.process.stdout:
            output = line.strip()
            if output == word or (output.isdigit() and word.isdigit() and int(output) >= int(word)):
                return
        code = self.end()
        raise AssertionError(f"it ended with {code} and never said {word}: {self.errors}")

    def end(self):
        _, self.errors = self.process.communicate(timeout=60)
        return self.process.returncode

    def of(self, kind):
        events = (s.event for s in read(self.folder / "events.jsonl"))
        return [event for event in events if type(event).__name__ == kind]

    @property
    def left(self):
        """The files in its temporary folder; PyTorch makes empty folders there."""
        return [path for path in self.temp.rglob("*") if not path.is_dir()]

    @property
    def pids(self):
        return {event.pid for event in self.of("WorkerJoined")}


@pytest.fixture
def driver(tiny, tmp_path):
    process_driver = Driver(tiny, tmp_path)
    yield process_driver
    process_driver.process.kill()
    process_driver.process.communicate()


def test_sigterm_makes_a_last_checkpoint_is_journaled_and_ends_the_workers(driver, assert_ended):
    driver.start().until("3")
    began = time.monotonic()
    driver.process.terminate()
    assert driver.end() == 130, driver.errors
    assert_ended(driver.pids, 10.0 - (time.monotonic() - began))
    assert "Traceback" not in driver.errors
    [ended] = driver.of("RunEnded")
    assert (ended.state, ended.reason) == ("stopped", "SIGTERM")
    [saved] = driver.of("CheckpointSaved")
    assert saved.version >= 4
    assert driver.of("Warned")[-1].text.startswith("stopped by SIGTERM; a last checkpoint is made")
    assert audit(driver.folder / "ledger.jsonl").is_exact
    assert driver.left == []


def test_sigterm_to_all_processes_of_the_run_at_once_saves_it_too(driver):
    """As a service manager does that ends the whole group."""
    driver.start().until("3")
    for pid in (*driver.pids, driver.process.pid):
        os.kill(pid, signal.SIGTERM)
    assert driver.end() == 130, driver.errors
    assert [e.state for e in driver.of("RunEnded")] == ["stopped"]
    assert len(driver.of("CheckpointSaved")) == 1
    assert not driver.of("WorkerLost")


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once_and_is_journaled(driver, second, assert_ended):
    driver.start(**ENDLESS).until("0")
    wait_for_workers(driver)
    driver.process.terminate()
    driver.until("stopping")
    began = time.monotonic()
    os.kill(driver.process.pid, second)
    assert driver.end() == 130, driver.errors
    assert time.monotonic() - began < 5.0, "it did not wait for the end of the round"
    assert_ended(driver.pids, 10.0)
    assert [e.state for e in driver.of("RunEnded")] == ["stopped"]


def wait_for_workers(driver):
    """Nothing is printed when workers come: the journal tells."""
    deadline = time.monotonic() + 60
    while len(driver.pids) < 2:
        assert time.monotonic() < deadline
        select.select([driver.process.stderr], [], [], 0.1)


def test_workers_in_an_endless_round_are_gone_within_ten_seconds_of_sigterm(driver, assert_ended):
    driver.start(**ENDLESS).until("0")
    wait_for_workers(driver)
    began = time.monotonic()
    driver.process.terminate()
    assert_ended(driver.pids, 10.0)
    assert driver.end() == 130, driver.errors
    assert time.monotonic() - began < 15.0
    assert [e.state for e in driver.of("RunEnded")] == ["stopped"]


@pytest.mark.spark
@pytest.mark.usefixtures("quick_java")
def test_sigterm_on_spark_ends_as_it_does_elsewhere(driver, assert_ended):
    driver.start(engine="spark").until("3")
    driver.process.terminate()
    assert driver.end() == 130, driver.errors
    assert "Traceback" not in driver.errors
    assert_ended(driver.pids, 10.0)
    assert [(e.state, e.reason) for e in driver.of("RunEnded")] == [("stopped", "SIGTERM")]
    assert len(driver.of("CheckpointSaved")) == 1


def test_local_workers_of_a_killed_driver_are_gone_within_thirty_seconds(driver, assert_ended):
    """With the settings that nobody changed: a process sees its parent's end at once."""
    driver.start().until("3")
    pids = driver.pids
    assert len(pids) == 2
    driver.process.kill()
    assert_ended(pids, 30.0)
    assert driver.end() == -signal.SIGKILL
    assert driver.left == []


def test_a_driver_killed_while_rows_are_given_to_its_children_leaves_none(driver):
    """Killed between the first child and the second; without a trace in the temporary folder."""
    driver.start(how="kills")
    assert driver.end() == -signal.SIGKILL, driver.errors
    assert driver.left == []


def test_a_process_killed_while_its_keys_are_loaded_leaves_none(tmp_path):
    plan = """
import os, signal, ssl
from photinus.transport.credentials import Credentials
ssl.SSLContext.load_cert_chain = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
Credentials.make(bytes(16)).server_context()
"""
    completed = subprocess.run(
        [sys.executable, "-c", plan], env=os.environ | {"TMPDIR": str(tmp_path)}, timeout=120
    )
    assert completed.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []
