"""Spark's resources on Spark Connect: the server's executors hand out invented GPUs."""

import numpy as np
import pytest

from photinus.core.clock import Steps
from photinus.core.events import WorkerJoined
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.engine.spark.engine import SparkEngine
from photinus.models.module import ModuleConfig
from photinus.strategies.recipes import averaging
from photinus.training.plan import Phase, TrainingPlan

pytestmark = pytest.mark.spark

SCRIPT = """#!/bin/sh
echo '{"name": "gpu", "addresses": ["5", "MIG-GPU-8f6e2a3c/1/0"]}'
"""


@pytest.fixture
def with_gpus(tmp_path, start_server):
    from pyspark.sql import SparkSession

    script = tmp_path / "gpus"
    script.write_text(SCRIPT)
    script.chmod(0o755)
    settings = {
        "spark.executor.memory": "512m",
        "spark.executor.cores": "2",
        "spark.worker.resource.gpu.amount": "2",
        "spark.worker.resource.gpu.discoveryScript": str(script),
        "spark.executor.resource.gpu.amount": "2",
    }
    with start_server(tmp_path, "local-cluster[1,2,1024]", **settings) as address:
        session = SparkSession.builder.remote(address).create()
        yield session
        session.stop()


def test_each_worker_of_a_client_has_a_gpu_of_its_own(with_gpus, assignment, tiny):
    events = []
    config = ModuleConfig(
        module="torch.nn:Linear",
        arguments={"in_features": 6, "out_features": 3},
        epochs=2.0,
        batch_size=16,
    )
    phase = Phase(config=config, strategy=averaging(every=Steps(3), gradients_until=0.0))
    how = {"workers": 2, "devices": ("stand-in",), "resources": {"gpu": 1}}
    plan = TrainingPlan(phases=(phase,), **how)
    result = SparkEngine(with_gpus).run(assignment(plan, emit=events.append))
    joined = {event.slot: event.device for event in events if isinstance(event, WorkerJoined)}
    assert sorted(joined.values()) == ["stand-in:5", "stand-in:MIG-GPU-8f6e2a3c/1/0"]
    expected = SimulatedEngine().run(tiny.assignment(plan))
    for ours, theirs in zip(result.vectors, expected.vectors, strict=True):
        assert np.array_equal(ours, theirs)
