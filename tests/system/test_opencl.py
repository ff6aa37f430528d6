"""Workers that train on an OpenCL device, as tasks of a real Spark."""

from dataclasses import replace

import numpy as np
import pytest

from photinus.core.clock import Steps
from photinus.core.errors import NotReadyError
from photinus.engine.base import ArrayData, RunSpec
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.engine.spark.engine import SparkEngine
from photinus.models.dbn import DBN, FineTuning, Pretraining
from photinus.models.module import ModuleConfig
from photinus.strategies.recipes import averaging
from photinus.training.plan import TrainingPlan, phases_of

CIFAR = ModuleConfig(
    module="photinus.models.cnn:tutorial",
    reads="photinus.models.images:crops",
    batch_size=8,
    max_steps=4,
    optimizer="sgd",
    lr=0.01,
)
ROWS = 32


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (ROWS, 3072)).astype(np.uint8)
    return ArrayData(images, rng.integers(0, 10, ROWS))


def run(engine, data, device, emit, configs=(CIFAR,)):
    strategy = averaging(every=Steps(2), gradients_until=0.0)
    phases = tuple(phase for config in configs for phase in phases_of(config, strategy, 2))
    plan = TrainingPlan(phases=phases, workers=2, devices=(device,))
    return engine.run(RunSpec(plan=plan, data=data, run=bytes(16), emit=emit)).vectors


@pytest.mark.spark
def test_workers_on_spark_train_the_cifar_network_on_an_opencl_device(opencl, spark, data):
    events = []
    [there] = run(SparkEngine(spark), data, opencl.name, events.append)
    joined = [e.device for e in events if type(e).__name__ == "WorkerJoined"]
    assert joined == [opencl.name] * 2
    logs = [e.text for e in events if type(e).__name__ == "Log"]
    step = f"device {opencl.name}: a step computes 3 addmm, 6 convolution, 2 convolution_backward, "
    assert sum(step in text and text.endswith("none of them here") for text in logs) == 2
    [here] = run(SimulatedEngine(), data, "cpu", events.append)
    np.testing.assert_allclose(there, here, atol=1e-4)


@pytest.mark.spark
def test_workers_on_spark_train_a_belief_network_on_an_opencl_device(opencl, spark, data):
    shape = {"inputs": 3072, "hidden": (20,), "classes": 10, "precision": "mkl"}
    layers, network = Pretraining(epochs=2, batch_size=8), FineTuning(epochs=2, batch_size=8)
    configs = DBN(**shape, pretraining=layers, fine_tuning=network).configs()
    data, events = replace(data, scale=1 / 255), []
    there = run(SparkEngine(spark), data, opencl.name, events.append, configs)
    logs = [e.text for e in events if type(e).__name__ == "Log"]
    assert sum(f"device {opencl.name}: a step computes" in text for text in logs) == 4
    here = run(SimulatedEngine(), data, "cpu", events.append, configs)
    for mine, theirs in zip(there, here, strict=True):  # a unit at its threshold may be drawn else
        assert np.linalg.norm(mine - theirs) < 1e-3 * np.linalg.norm(theirs)


@pytest.mark.spark
def test_a_device_that_no_worker_has_ends_the_run_before_training(opencl, spark, data):
    events = []
    with pytest.raises(NotReadyError, match=r"there is no device opencl:9:0 on .*; got opencl"):
        run(SparkEngine(spark), data, "opencl:9:0", events.append)
    assert not [e for e in events if type(e).__name__ == "RoundClosed"]
