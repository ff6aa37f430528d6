"""A long run on a cluster, and what a fault cost it."""

import os
import signal
import subprocess
import sys
import time
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from photinus.core.clock import Steps
from photinus.core.events import RoundClosed, WorkerJoined
from photinus.engine.base import ArrayData
from photinus.models.logistic import LogisticConfig
from photinus.report.journal import read
from photinus.strategies.recipes import averaging
from photinus.testing import Faults
from photinus.training.plan import Phase, TrainingPlan

PHOTINUS = (sys.executable, "-c", "from photinus.cli.main import main; main()")
JOB = """
name = "endless"
workers = 2
strategy = "iterative_reduce"
checkpoint_seconds = 1000.0

[data]
name = "parquet"
path = "rows.parquet"
label = "label"

[model]
kind = "logistic"
features = 50
classes = 10
epochs = 100000.0
batch_size = 20
"""
ROWS, BATCH, FACTOR = 2_000, 20, 15.0


def long_plan(epochs, workers):
    config = LogisticConfig(features=50, classes=10, epochs=epochs, batch_size=BATCH, lr=0.05)
    strategy = averaging(every=Steps(10), codec="fp32")
    return TrainingPlan(phases=(Phase(config=config, strategy=strategy),), workers=workers)


def long_data():
    rng = np.random.default_rng(0)
    features = rng.random((ROWS, 50), dtype=np.float32)
    return ArrayData(features, rng.integers(0, 10, ROWS))


@pytest.fixture
def long_job():
    """What a long run trains, and on which rows."""
    return lambda steps, workers: (
        long_plan(steps * BATCH * workers / ROWS, workers),
        long_data(),
    )


class Run:
    """A long run on a cluster, and what a fault cost it.

    Steps are slowed until the test has seen what it waits for, so that a run outlasts the start of
    an executor; on a quick machine each takes 3 ms: where Spark's patience is waited for they must
    be so many that they outlast that, too.
    """

    def __init__(self, cluster, driver, name, steps, workers, seen):
        self.cluster, self.driver, self.name = cluster, driver, name
        self.workers, self.at, self.seen = workers, 0.0, seen
        self.epochs, slow = steps * BATCH * workers / ROWS, Faults()
        for slot in range(workers):
            slow = slow.slow(slot, FACTOR, until=str(seen))
        plan = long_plan(self.epochs, workers)
        driver.start(self.name, plan, long_data(), faults=slow)
        driver.wait("RoundClosed", self.name, version=20)

    def pid(self, slot):
        joined = self.of("WorkerJoined")
        return [line["pid"] for line in joined if line["slot"] == slot][-1]

    @property
    def version(self):
        return self.of("RoundClosed")[-1]["version"]

    def executor_of(self, slot):
        return self.cluster.executor_of(self.pid(slot))

    def slots_on(self, executor):
        return {s for s in range(self.workers) if self.executor_of(s) == executor}

    def hit(self, number, *pids):
        """Sends a signal; the figures are counted from here."""
        self.at = time.time()
        for pid in pids:
            os.kill(pid, number)

    def back(self, slots, lease=2):
        """Waits until new workers hold these seats."""
        return [self.driver.wait("WorkerJoined", self.name, slot=s, lease=lease) for s in slots]

    def assert_whole(self):
        assert self.of("RoundClosed")[-1]["examples"] >= ROWS * self.epochs

    def of(self, event):
        return self.driver.of(event, self.name)

    @property
    def warnings(self):
        return [line["text"] for line in self.of("Warned")]

    def result(self):
        """Ends the slowing, and waits for the end."""
        self.seen.touch()
        self.driver.result(self.name, seconds=400)

    def ended(self, record_property, slots):
        """Every example is in the result, and everybody's part was in rounds again."""
        self.result()
        self.assert_whole()
        rounds = self.of("RoundClosed")
        others = [r["at"] for r in rounds if r["at"] > self.at and set(r["slots"]) - set(slots)]
        times = [self.at, *others]
        seated = {
            slot: next(
                line["at"]
                for line in self.of("WorkerJoined")
                if line["slot"] == slot and line["at"] > self.at
            )
            for slot in slots
        }
        counts = [
            next(r["at"] for r in rounds if r["at"] > seated[slot] and slot in r["slots"])
            for slot in slots
        ]
        self.gap = max(b - a for a, b in pairwise(times))
        record_property("longest seconds without a round of the others", round(self.gap, 2))
        record_property("seconds to the next round", round(times[1] - self.at, 2))
        record_property("seconds until its seats count", round(max(counts) - self.at, 2))
        without = [r for r in rounds if self.at < r["at"] < min(counts)]
        record_property("rounds meanwhile", len(without))
        return self

    def reasons(self):
        return {line["reason"] for line in self.of("WorkerLost")}


@pytest.fixture
def runs(field, request, tmp_path):
    """Starts a long run on the file's cluster, and follows it."""

    def start(steps, workers=4):
        return Run(*field, request.node.name, steps, workers, tmp_path / "seen")

    return start


class Submitted:
    """`photinus submit` of a job that does not end; its executors have what is installed here."""

    def __init__(self, cluster, folder, before, settings):
        self.cluster, self._journal = cluster, folder / "run" / "events.jsonl"
        data = long_data()
        rows = {"features": list(data.features), "label": data.labels}
        pq.write_table(pa.table(rows), folder / "rows.parquet")
        (folder / "job.toml").write_text(JOB)
        usual = {n: v for n, v in os.environ.items() if not n.startswith(("PYSPARK", "SPARK"))}
        usual |= {"SPARK_CONF_DIR": str(cluster.folder / "conf"), "OMP_NUM_THREADS": "1"}
        command = [*before, *PHOTINUS, "submit", "job.toml", "--master", cluster.url]
        command += ["--environment", "installed", "--python", sys.executable, "--folder", "run"]
        for name, value in {"spark.executor.memory": "512m", **settings}.items():
            command += ["--conf", f"{name}={value}"]
        self._said = folder / "said"
        with self._said.open("w") as output:
            self.process = subprocess.Popen(
                command, cwd=folder, env=usual, stdout=output, stderr=output
            )

    def of(self, kind):
        stamped = read(self._journal) if self._journal.exists() else []
        return [s.event for s in stamped if isinstance(s.event, kind)]

    def trains_on(self):
        """Waits for four rounds more."""
        before = len(self.of(RoundClosed))

        def closed():
            assert self.process.poll() is None, self._said.read_text()
            return len(self.of(RoundClosed)) >= before + 4

        self.cluster.until(closed, "rounds close")

    def is_seated_apart_from(self, executors):
        """Tells whether workers that live hold both seats, none in one of these executors."""
        try:
            return executors.isdisjoint(self.executors()[0])
        except AssertionError:  # one of those that were there last is gone
            return False

    def executors(self):
        """Processes of its executors: (Java's, Python's)."""
        joined = set({event.slot: event.pid for event in self.of(WorkerJoined)}.values())
        java = {self.cluster.executor_of(pid)[1] for pid in joined}
        python = {pid for executor in java for pid in self.cluster.below(executor)}
        assert len(java) == len(joined) == 2
        assert joined < python
        return java, python

    def driver(self):
        """All its processes, Python and Java."""
        return [self.process.pid, *self.cluster.below(self.process.pid)]

    def hit(self, number):
        for pid in self.driver():
            os.kill(pid, number)

    def ends_without_its_driver(self):
        """Waits until its executors are gone; returns after how many seconds Java's were."""
        began, (java, python) = time.time(), self.executors()
        self.cluster.until(lambda: self.cluster.are_over(java), "its executors end", 60)
        seconds = round(time.time() - began, 1)
        self.cluster.until(lambda: self.cluster.are_over(python), "their workers end", 1)
        return seconds


@pytest.fixture
def submitted(tmp_path):
    """Starts `photinus submit` on a cluster, and ends it with the test."""
    started = []

    def start(cluster, *, before=(), settings=()):
        started.append(Submitted(cluster, tmp_path, before, dict(settings)))
        return started[-1]

    yield start
    for run in started:
        run.hit(signal.SIGKILL)
        run.process.wait()
