"""A user's factory may take its time and have side effects: it runs once in each process."""

import os
from collections import Counter

import numpy as np
import pytest

from photinus.core.clock import Steps
from photinus.data.checks import RowChecks
from photinus.engine.base import ArrayData
from photinus.engine.local.engine import LocalEngine
from photinus.models.module import ModuleConfig
from photinus.run.data import TestRows
from photinus.run.evaluate import load_trained, measure
from photinus.run.job import Job, Source
from photinus.run.train import train
from photinus.strategies.recipes import averaging

FACTORY = """
import os
import torch

def net(calls):
    with open(calls, "a") as file:
        file.write(f"{os.getpid()}\\n")
    return torch.nn.Linear(4, 2)
"""
WORKERS = 2


@pytest.fixture
def factory(tmp_path, monkeypatch):
    """A module that workers import, too, and the file in which it counts its calls."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "counted_factory.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(str(home))
    return home / "counted_factory.py", tmp_path / "calls"


def make_config(calls):
    return ModuleConfig(
        module="counted_factory:net", arguments={"calls": str(calls)}, batch_size=8, epochs=2
    )


def make_rows():
    features = np.random.default_rng(0).random((64, 4), np.float32)
    return features, (features[:, 0] > 0.5).astype(np.int64)


def call_counts(file):
    """Returns how often the factory ran: here, and in each other process."""
    calls = Counter(int(line) for line in file.read_text().split())
    own_calls = calls.pop(os.getpid(), 0)
    return own_calls, sorted(calls.values())


def make_job(calls, engine):
    return Job(
        model=make_config(calls),
        data=Source(name="given", features=("features",), label="label"),
        workers=WORKERS,
        strategy=averaging(every=Steps(2)),
        engine=engine,
    )


@pytest.mark.processes
def test_a_factory_runs_once_in_each_local_worker_and_in_the_driver(factory, tmp_path):
    _, calls = factory
    features, labels = make_rows()
    data = ArrayData(features, labels, checks=RowChecks(classes=2))
    test = TestRows(features, labels)
    train(make_job(calls, "local"), data, test=test, folder=tmp_path / "run", engine=LocalEngine())
    assert call_counts(calls) == (1, [1] * WORKERS)


def test_a_saved_model_is_measured_with_one_call(factory, tmp_path):
    _, calls = factory
    features, labels = make_rows()
    folder = tmp_path / "run"
    train(make_job(calls, "simulate"), ArrayData(features, labels), folder=folder)
    calls.unlink()
    trained, _ = load_trained(folder / "model")
    measure(trained, TestRows(features, labels))
    assert call_counts(calls) == (1, [])


@pytest.mark.spark
def test_a_factory_runs_once_in_each_task_and_in_the_driver_of_an_estimator(
    factory, spark, nothing_left
):
    from photinus.estimators.module import TorchClassifier

    path, calls = factory
    spark.sparkContext.addPyFile(str(path))
    features, labels = make_rows()
    table = [(row.tolist(), int(label)) for row, label in zip(features, labels, strict=True)]
    frame = spark.createDataFrame(table, "features array<float>, label long").repartition(2)
    clf = TorchClassifier(
        module="counted_factory:net",
        moduleArgs={"calls": str(calls)},
        batchSize=8,
        epochs=2,
        numWorkers=WORKERS,
        strategy=averaging(every=Steps(2)),
    )
    clf.fit(frame)
    driver_calls, worker_calls = call_counts(calls)
    assert (driver_calls, sum(worker_calls)) == (1, WORKERS)
