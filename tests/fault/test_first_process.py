"""A driver as the first process of a container, told to stop as Kubernetes does it.

Such a process has a PID namespace of its own. The kernel ignores signals to it that have no
handler, gives it the orphans, and kills all others when it ends. After a grace it gets SIGKILL.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

from photinus.cli.main import main
from photinus.core.events import CheckpointSaved, RoundClosed, RunEnded
from photinus.report.journal import read
from photinus.report.ledger import audit

ISOLATED = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
PHOTINUS = str(Path(sys.executable).with_name("photinus"))
TRAIN = f"{PHOTINUS} train job.toml --folder run"
MOST_SECONDS = 10.0
"""From SIGTERM until nothing of the container is left; Kubernetes waits for 30 s by default."""

JOB = """
workers = 2
engine = "{engine}"
checkpoint_seconds = {checkpoint_seconds}

[model]
kind = "logistic"
features = 2
classes = 2
epochs = {epochs}
batch_size = 20

[strategy]
recipe = "averaging"
every = {{steps = 2}}
gradients_until = 0

[data]
name = "parquet"
path = "{folder}/train.parquet"
features = ["x", "y"]
label = "label"
"""


def why_not():
    """Returns why this machine gives no PID namespaces, or nothing."""
    if shutil.which(ISOLATED[0]) is None or not hasattr(os, "pidfd_open"):
        return "needs unshare and pidfd_open"
    completed = subprocess.run([*ISOLATED, "true"], capture_output=True, text=True, check=False)
    return f"no PID namespace: {completed.stderr.strip()[-80:]}" if completed.returncode else ""


class Container:
    """A folder with a job, and the processes of one PID namespace that run it."""

    def __init__(self, folder):
        self.folder = folder
        rng = np.random.default_rng(0)
        labels = rng.integers(0, 2, 400)
        points = rng.normal(scale=0.5, size=(400, 2)) + 2 * labels[:, None] - 1
        columns = {"x": points[:, 0], "y": points[:, 1], "label": labels}
        pq.write_table(pa.table(columns), folder / "train.parquet")

    def start(self, *command, engine="local", checkpoint_seconds=3600.0, epochs=50):
        job = JOB.format(
            engine=engine,
            checkpoint_seconds=checkpoint_seconds,
            epochs=epochs,
            folder=self.folder,
        )
        (self.folder / "job.toml").write_text(job)
        self.engine = engine
        self.process = subprocess.Popen(
            [*ISOLATED, *command],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=os.environ | {"PYSPARK_PYTHON": sys.executable},
        )
        return self

    def events(self, kind):
        journal = self.folder / "run" / "events.jsonl"
        stamped = read(journal) if journal.exists() else ()
        return [s.event for s in stamped if isinstance(s.event, kind)]

    def wait(self, is_there):
        """Nothing is printed when a round closes, or a checkpoint is written: the journal tells."""
        deadline = time.monotonic() + 120
        while not is_there():
            assert self.process.poll() is None, self.process.stderr.read()
            assert time.monotonic() < deadline
            select.select([], [], [], 0.05)

    def wait_for_rounds(self, more=3):
        version = self.version + more
        self.wait(lambda: self.version >= version)

    @property
    def version(self):
        return max((event.version for event in self.events(RoundClosed)), default=0)

    @property
    def first(self):
        """The process that is number 1 inside; signals come to it from outside."""
        pid = self.process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text())

    def signal(self, sign):
        os.kill(self.first, sign)

    @property
    def left(self):
        """All processes of the namespace."""
        return [
            pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._holds(pid)
        ]

    def _holds(self, pid):
        try:
            return Path(f"/proc/{pid}/ns/pid").readlink() == self.namespace
        except OSError:
            return False

    def end(self, sign):
        """Sends a signal; returns the exit code and after how many seconds all was gone."""
        self.namespace = Path(f"/proc/{self.first}/ns/pid").readlink()
        assert len(self.left) >= 3, "the driver and its workers"
        began = time.monotonic()
        self.signal(sign)
        _, self.errors = self.process.communicate(timeout=60)
        took = time.monotonic() - began
        assert self.left == []
        return self.process.returncode, took

    def assert_resumes_to_the_end(self):
        """In this process, unless a Spark would stay in it."""
        command = ["train", "--resume", str(self.folder / "run")]
        if self.engine == "spark":
            completed = subprocess.run([PHOTINUS, *command], capture_output=True, text=True)
            assert completed.returncode == 0, completed.stderr
        else:
            with pytest.raises(SystemExit) as ended:
                main(command)
            assert ended.value.code == 0
        assert [e.state for e in self.events(RunEnded)][-1] == "done"
        assert audit(self.folder / "run" / "ledger.jsonl").is_exact


@pytest.fixture
def container(tmp_path, monkeypatch):
    if reason := why_not():
        pytest.skip(reason)
    monkeypatch.setattr(sys, "path", [*sys.path])  # the command adds a folder to it
    made = Container(tmp_path)
    yield made
    made.process.kill()  # and by --kill-child all that is inside
    made.process.communicate()


pytestmark = [pytest.mark.fault, pytest.mark.processes]

SHELL = ("sh", "-c")
AS_FIRST = {
    "the command itself": TRAIN.split(),
    "a shell that execs it": [*SHELL, f"cd . && exec {TRAIN}"],
}
"""By exec the shell becomes the command: the second is the first, as the image is written."""


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, id=name, marks=pytest.mark.slow if "shell" in name else ())
        for name, command in AS_FIRST.items()
    ],
)
def test_sigterm_to_a_driver_that_is_process_1_saves_the_run_and_ends_all_in_ten_seconds(
    container, command
):
    container.start(*command).wait_for_rounds()
    code, seconds = container.end(signal.SIGTERM)
    assert code == 130, container.errors
    assert seconds < MOST_SECONDS
    assert "Traceback" not in container.errors
    assert [(e.state, e.reason) for e in container.events(RunEnded)] == [("stopped", "SIGTERM")]
    [saved] = container.events(CheckpointSaved)
    assert saved.version >= 3
    container.assert_resumes_to_the_end()


def test_a_shell_that_does_not_exec_swallows_sigterm_and_the_grace_ends_in_sigkill(container):
    container.start(*SHELL, f"{TRAIN}; true").wait_for_rounds()
    container.signal(signal.SIGTERM)
    container.wait_for_rounds()
    code, _ = container.end(signal.SIGKILL)
    assert code != 0
    assert container.events(RunEnded) == container.events(CheckpointSaved) == []
    container.assert_resumes_to_the_end()


@pytest.mark.slow
def test_sigterm_to_process_1_on_local_spark_ends_as_it_does_elsewhere(container):
    container.start(*TRAIN.split(), engine="spark", epochs=150).wait_for_rounds()
    code, seconds = container.end(signal.SIGTERM)
    assert code == 130, container.errors
    assert seconds < MOST_SECONDS
    assert [(e.state, e.reason) for e in container.events(RunEnded)] == [("stopped", "SIGTERM")]
    assert len(container.events(CheckpointSaved)) == 1
    container.assert_resumes_to_the_end()


@pytest.mark.slow
def test_where_spark_submit_is_process_1_java_gets_sigterm_and_an_older_checkpoint_remains(
    container,
):
    """As in the image of Spark itself: Java ends Spark, and the workers with it."""
    script = container.folder / "driver.py"
    script.write_text(f"from photinus.cli.main import main\nmain({TRAIN.split()[1:]})\n")
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    fields = {"engine": "spark", "checkpoint_seconds": 0.5, "epochs": 150}
    container.start(submit, "--master", "local[2]", script, **fields)
    container.wait_for_rounds()
    container.wait(lambda: container.events(CheckpointSaved))
    code, seconds = container.end(signal.SIGTERM)
    assert code == 128 + signal.SIGTERM, container.errors
    assert seconds < MOST_SECONDS
    assert [e.state for e in container.events(RunEnded)] != ["stopped"]
    container.assert_resumes_to_the_end()
