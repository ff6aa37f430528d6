"""An epoch is a pass: each row is used as often as the epochs say, whatever the partitions' sizes.

Counted in the model, with every recipe's own shares; see `counted`.
"""

import itertools

import counted
import numpy as np
import pytest
from cases import RECIPES, Trial

from photinus.coordinator.coordinator import Coordinator
from photinus.core.clock import Epochs, Examples, Seconds, Steps
from photinus.data.arrays import PartitionFeed
from photinus.data.rows import Rows
from photinus.engine.simulation.cluster import SimulatedCluster
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.engine.simulation.simulator import Simulation
from photinus.strategies.outer import Sgd
from photinus.strategies.recipes import averaging, downpour, elastic, gossip, publish
from photinus.testing import Faults
from photinus.training.worker_loop import WorkerData

SHARES = {
    "equal": (40, 40, 40),
    "two thirds": (80, 20, 20),
    "a twentieth": (114, 6, 0),
    "odd": (57, 44, 19),
}
"""Rows of each partition; 28,517, 1,483 and 0 of an issue among them, scaled down."""
EXACT = {"outer": Sgd(), "merge": "uniform", "codec": "fp32"}
TRIGGERED = {
    "averaging by the clock": averaging(every=Seconds(0.05), **EXACT),
    "averaging, whichever comes first": averaging(every=Steps(5) | Seconds(0.03), **EXACT),
    "averaging by examples": averaging(every=Examples(12), **EXACT),
    "averaging by epochs": averaging(every=Epochs(0.5), **EXACT),
    "averaging with a quorum": averaging(every=Steps(3), quorum=0.6, **EXACT),
    "downpour by the clock": downpour(every=Seconds(0.03), codec="fp32"),
    "elastic by the clock": elastic(every=Seconds(0.03), codec_down="fp32"),
    "publish by the clock": publish(every=Seconds(0.03), exact_every=2),
    "gossip by the clock": gossip(every=Seconds(0.03), exact_every=2),
}
STRATEGIES = {name: make(3) for name, make in RECIPES.items()} | TRIGGERED


class Partitioned(SimulatedEngine):
    """A simulator whose workers hold partitions of given sizes, one row number after the other."""

    def __init__(self, shares, cluster):
        super().__init__(cluster)
        edges = np.cumsum((0, *shares))
        self.numbers = [np.arange(a, b) for a, b in itertools.pairwise(edges)]

    def run(self, assignment):
        parts = []
        for numbers in self.numbers:
            rows = Rows.of(numbers[:, None].astype(float), None)
            parts.append(WorkerData(len(rows), lambda order, rows=rows: PartitionFeed(rows, order)))
        coordinator = Coordinator(assignment.plan, assignment)
        simulation = Simulation(assignment.plan, parts, self.cluster, coordinator=coordinator)
        return simulation.run()


def trained(strategy, shares, folder, *, speeds=(0.01,), epochs=2, faults=None):
    cluster = SimulatedCluster(step_seconds=speeds, faults=faults or Faults())
    engine = Partitioned(shares, cluster)
    trial = Trial(strategy, folder, rows=sum(shares), epochs=epochs)
    return engine, trial.train(engine)


def assert_passes(engine, verdict):
    """Each row twice, but for one mini-batch a worker; and so it is with all examples."""
    apart = np.abs(verdict.count.times - 2)
    for slot, numbers in enumerate(engine.numbers):
        assert apart[numbers].sum() <= counted.BATCH, f"rows of worker {slot}"
    rows, workers = len(apart), len(engine.numbers)
    assert verdict.of("PhaseStarted")[0].budget == 2 * rows
    assert verdict.of("PhaseEnded")[0].examples <= 2 * rows + counted.BATCH * workers


@pytest.mark.parametrize("shares", SHARES)
@pytest.mark.parametrize("name", STRATEGIES)
def test_every_row_is_used_as_often_as_the_epochs_say_but_for_one_mini_batch_a_worker(
    name, shares, tmp_path
):
    assert_passes(*trained(STRATEGIES[name], SHARES[shares], tmp_path))


@pytest.mark.parametrize("name", STRATEGIES)
def test_so_it_is_where_one_worker_is_four_times_as_slow(name, tmp_path):
    speeds = (0.01, 0.01, 0.04)
    assert_passes(*trained(STRATEGIES[name], SHARES["odd"], tmp_path, speeds=speeds))


@pytest.mark.parametrize("name", [n for n in STRATEGIES if n != "streaming"])
def test_a_worker_that_is_killed_three_times_has_its_rows_used_like_the_others(name, tmp_path):
    faults = Faults()
    for lease in (1, 2, 3):
        faults = faults.kill(1, at_seconds=0.04, lease=lease, back_seconds=0.1)
    _, verdict = trained(STRATEGIES[name], SHARES["equal"], tmp_path, epochs=4, faults=faults)
    apart = np.abs(verdict.count.times - 4).reshape(3, 40).sum(1)
    assert (apart <= counted.BATCH).all(), f"by worker: {apart.tolist()}"
