"""With many features a product's bits depend on its threads: every engine computes with the job's.

The machine's own number is another one, in the caller's process and in what workers inherit.
"""

import os

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from photinus.core.clock import Steps
from photinus.engine.base import ArrayData, RunSpec
from photinus.engine.local.engine import LocalEngine
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.engine.spark.engine import SparkEngine
from photinus.models.logistic import LogisticConfig
from photinus.strategies.recipes import averaging
from photinus.training.plan import Phase, TrainingPlan

FEATURES = {5_000: (32,), 20_000: (8, 32)}
"""Where OpenBLAS shares a product among threads, by the batch: some of these on any processor."""


def assignment(features):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((128, features), dtype=np.float32)
    phases = [
        Phase(
            config=LogisticConfig(
                features=features,
                classes=10,
                name=f"{batch}-{dtype}",
                epochs=1.0,
                batch_size=batch,
                dtype=dtype,
            ),
            strategy=averaging(every=Steps(2), codec="fp32"),
        )
        for batch in FEATURES[features]
        for dtype in ("float32", "float64")
    ]
    data = ArrayData(rows, rng.integers(0, 10, len(rows)))
    return RunSpec(
        plan=TrainingPlan(phases=tuple(phases), workers=2), data=data, run=os.urandom(16)
    )


@pytest.fixture
def two_threads():
    """The caller's process as on a machine of two cores; it must be so afterwards, too."""
    before = torch.get_num_threads()
    with threadpool_limits(2):
        torch.set_num_threads(2)
        yield
        assert {library["num_threads"] for library in threadpool_info()} == {2}
        assert torch.get_num_threads() == 2
        torch.set_num_threads(before)


def same_bits(ours, theirs):
    return all(np.array_equal(a, b) for a, b in zip(ours.vectors, theirs.vectors, strict=True))


@pytest.mark.processes
@pytest.mark.numerics
@pytest.mark.parametrize(("features", "inherited"), [(5_000, None), (20_000, None), (20_000, "2")])
def test_processes_give_the_simulators_bits(features, inherited, two_threads, monkeypatch):
    if inherited is not None:
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", inherited)
        monkeypatch.setenv("MKL_NUM_THREADS", inherited)
    job = assignment(features)
    assert same_bits(LocalEngine().run(job), SimulatedEngine().run(job))


@pytest.mark.spark
def test_spark_tasks_give_the_simulators_bits(spark, two_threads):
    job = assignment(20_000)
    assert same_bits(SparkEngine(spark).run(job), SimulatedEngine().run(job))
