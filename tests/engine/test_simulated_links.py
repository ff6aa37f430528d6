"""How long the simulator's links take for what workers send to each other."""

import numpy as np
import pytest

from photinus.engine.base import ArrayData
from photinus.engine.simulation.cluster import SimulatedCluster
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.models.logistic import LogisticConfig
from photinus.run.job import Job
from photinus.run.train import train
from photinus.strategies.recipes import all_reduce

FEATURES, CLASSES, RATE = 2000, 10, 1e6
VECTOR_SECONDS = (FEATURES + 1) * CLASSES * 4 / RATE


def seconds_of_a_step(strategy, tmp_path):
    """All rows are one batch, and steps take no time: what is left is sending."""
    rng, taken = np.random.default_rng(0), []
    data = ArrayData(rng.random((20, FEATURES), np.float32), np.arange(20) % CLASSES)
    for epochs in (2.0, 6.0):
        model = LogisticConfig(features=FEATURES, classes=CLASSES, epochs=epochs, batch_size=20)
        cluster = SimulatedCluster(step_seconds=0.0, latency_seconds=0.0, bytes_per_second=RATE)
        engine = SimulatedEngine(cluster)
        job = Job(model=model, workers=2, strategy=strategy)
        train(job, data, folder=tmp_path / f"{strategy.owners}-{epochs}", engine=engine)
        taken.append(engine.seconds)
    return (taken[1] - taken[0]) / 4


def test_a_vector_goes_up_and_comes_down_one_after_the_other(tmp_path):
    assert seconds_of_a_step(all_reduce(), tmp_path) == pytest.approx(2 * VECTOR_SECONDS, rel=0.05)


def test_a_frame_of_another_worker_leaves_its_link_and_passes_ones_own_at_the_same_time(tmp_path):
    # each sends half of its vector, then the half that it has merged
    seconds = seconds_of_a_step(all_reduce(owners=2), tmp_path)
    assert seconds == pytest.approx(VECTOR_SECONDS, rel=0.05)


def test_speeds_in_a_list_are_one_of_each_worker():
    assert SimulatedCluster(step_seconds=[0.01, 0.04]).step(1) == 0.04
