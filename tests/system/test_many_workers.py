"""Eight and sixteen workers on real images: asynchronous training is as good as averaging."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from photinus.core.clock import Steps
from photinus.data.arrays import FeedOrder, PartitionFeed
from photinus.data.rows import Rows
from photinus.engine.base import ArrayData, part_of
from photinus.engine.simulation.cluster import SimulatedCluster
from photinus.engine.simulation.simulator import Simulation
from photinus.models.module import ModuleConfig
from photinus.models.schedules import Schedule
from photinus.strategies.outer import DelayedNesterov, Sgd
from photinus.strategies.phase_defaults import PhaseFacts
from photinus.strategies.recipes import averaging, downpour, elastic
from photinus.training.plan import Phase, TrainingPlan

TRAIN, EPOCHS, BATCH = 1440, 12, 8


def network():
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))


def trained(strategy, workers, speeds=0.01):
    """The test error (%) of what is agreed in the end; the guard is asked as in a job."""
    features, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    features, labels = (features[order] / 16).astype(np.float32), labels[order]
    config = ModuleConfig(
        module=f"{__name__}:network",
        optimizer="sgd",
        lr=Schedule.cosine(0.05),
        settings={"momentum": 0.9},
        epochs=EPOCHS,
        batch_size=BATCH * workers,
    )
    strategy, _ = strategy.settled(PhaseFacts(workers=workers, steps=TRAIN * EPOCHS // BATCH))
    plan = TrainingPlan(phases=(Phase(config=config, strategy=strategy),), workers=workers)
    data = ArrayData(features[:TRAIN], labels[:TRAIN])
    parts = [part_of(Rows.of(*data.part(plan, s)), plan) for s in range(workers)]
    result = Simulation(plan, parts, SimulatedCluster(step_seconds=speeds)).run()
    model = config.build((), 0)
    model.load(result.vectors[-1], result.floats, result.integers)
    rows = Rows.of(features[TRAIN:], labels[TRAIN:])
    sums = model.measure(next(iter(PartitionFeed(rows, FeedOrder(batch_size=len(rows))))))
    return 100 * sums["errors"] / sums["examples"]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [8, 16])
def test_asynchronous_workers_are_as_good_as_averaging(workers):
    together = trained(averaging(every=Steps(10), outer=Sgd()), workers)
    assert trained(downpour(), workers) < together + 1.5
    delayed = averaging(every=Steps(10), release="immediate", outer=DelayedNesterov())
    assert trained(delayed, workers) < together + 1.5
    assert trained(elastic(), workers) < together + 6
    speeds = (0.04, *(0.01,) * (workers - 1))
    assert trained(downpour(), workers, speeds) < together + 3, "one is four times slower"


@pytest.mark.slow
def test_a_gain_of_four_does_not_train_and_the_guard_does_not_let_it():
    assert trained(downpour(outer=Sgd(4.0), gain="unsafe"), 8) > 50
    assert trained(downpour(outer=Sgd(4.0)), 8) == trained(downpour(), 8) < 10
