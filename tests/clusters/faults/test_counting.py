"""Each row is in the model as often as it was asked for, whatever dies on a cluster.

The ledger is not asked: see `tests/counting`.
"""

import os
import signal
import sys
from pathlib import Path

import pytest

from photinus.core.clock import Epochs, Steps
from photinus.run.ledger_writer import LedgerWriter
from photinus.strategies.outer import Sgd
from photinus.strategies.recipes import all_reduce, averaging, downpour, iterative_reduce
from photinus.testing import Faults

sys.path.insert(0, str(Path(__file__).parents[2] / "counting"))

from cases import Trial

pytestmark = [pytest.mark.spark, pytest.mark.fault, pytest.mark.slow]
SETTINGS = {
    "spark.cores.max": "6",
    "spark.speculation": "true",
    "spark.speculation.interval": "500ms",
    "spark.speculation.task.duration.threshold": "3s",
}
"""Of two tasks, which one executor could hold, Spark makes copies on another host."""
RECIPES = {
    "averaging": averaging(every=Steps(20), outer=Sgd(), merge="uniform", codec="fp32"),
    "downpour": downpour(every=Steps(20), outer=Sgd(), codec="fp32"),
    "all_reduce": all_reduce(codec="fp32"),
    "iterative_reduce": iterative_reduce(
        every=Epochs(1), outer=Sgd(), merge="uniform", codec="fp32"
    ),
}
EPOCHS = 300


@pytest.fixture(scope="module")
def field(clusters, applications):
    cluster = clusters(SETTINGS, workers=3, installed=True)
    return cluster, applications(cluster)


class Counting:
    """A run of the counting model on the cluster, slow until what died is back."""

    def __init__(self, field, recipe, name, folder):
        self.cluster, self.driver = field
        self.name = f"{name}-{recipe}"
        self.trial = Trial(RECIPES[recipe], folder, workers=2, epochs=EPOCHS)
        book = LedgerWriter(folder / "unused.jsonl", self.trial.run)
        assignment = self.trial.assignment(book)
        book.close()
        self.is_back = folder / "is-back"
        faults = Faults()
        for slot in (0, 1):
            faults = faults.slow(slot, 15.0, until=str(self.is_back))
        self.driver.start(self.name, assignment.plan, assignment.data, faults=faults)
        self.driver.wait("RoundClosed", self.name, version=20)

    def pid(self, slot=1):
        joined = self.driver.of("WorkerJoined", self.name)
        return [line["pid"] for line in joined if line["slot"] == slot][-1]

    def back(self, slot=1):
        self.driver.wait("WorkerJoined", self.name, slot=slot, lease=2)
        self.is_back.touch()

    def assert_whole(self):
        [model] = self.driver.result(self.name, seconds=400)
        self.trial.ledger = self.driver.folder / self.name / "ledger.jsonl"
        verdict = self.trial.evaluation_sums(model)
        assert verdict.count.times.tolist() == [EPOCHS] * 120
        assert verdict.audited.is_exact


@pytest.mark.parametrize("recipe", ["averaging", "downpour"])
def test_a_killed_executor_loses_no_row_and_doubles_none(field, recipe, tmp_path):
    run = Counting(field, recipe, "executor", tmp_path)
    os.kill(run.cluster.executor_of(run.pid())[1], signal.SIGKILL)
    run.back()
    run.assert_whole()


@pytest.mark.parametrize("recipe", ["averaging", "downpour"])
def test_a_killed_python_daemon_loses_no_row_and_doubles_none(field, recipe, tmp_path):
    """Its worker outlives it, and is killed too, so that another daemon has to come."""
    run = Counting(field, recipe, "daemon", tmp_path)
    worker = run.pid()
    _, executor = run.cluster.executor_of(worker)
    daemons = [pid for pid in run.cluster.below(executor) if worker in run.cluster.below(pid)]
    is_left = worker not in run.cluster.below(executor)
    assert daemons or is_left, "a worker is forked from a daemon, or its daemon was killed before"
    for pid in (*daemons, worker):
        os.kill(pid, signal.SIGKILL)
    run.back()
    run.assert_whole()


@pytest.mark.parametrize("recipe", RECIPES)
def test_copies_that_spark_makes_lose_no_row_and_double_none(field, recipe, tmp_path):
    """Two copies stand by; one takes over when its worker dies."""
    run = Counting(field, recipe, "copies", tmp_path)

    def are_copied():
        return run.cluster.waiting((run.pid(0), run.pid(1))) >= 2

    run.cluster.until(are_copied, "two copies wait beside two workers")
    os.kill(run.pid(), signal.SIGKILL)
    run.back()
    run.assert_whole()
