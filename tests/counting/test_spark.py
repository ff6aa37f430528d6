"""Each row is in the model as often as it was asked for: tasks of a local Spark."""

import os
import signal
from pathlib import Path

import cases
import counted
import numpy as np
import pytest
from cases import (
    BOTH_PARTS,
    RECIPES,
    Trial,
    epochs_of,
    killed_driver,
    lost_of,
    real,
    tasks_of_spark,
)

from photinus.estimators.deepdist import DeepDist
from photinus.estimators.iterate import iterate
from photinus.report.ledger import audit
from photinus.testing import Faults

pytestmark = [pytest.mark.spark, pytest.mark.fault]
SLOW = [name for name in (*RECIPES, *BOTH_PARTS) if name not in ("averaging", "streaming")]
ROWS, PARTITIONS = 60, 5


@pytest.fixture(scope="module")
def session(spark):
    """Its tasks import the model by its name."""
    for module in (counted, cases):
        spark.sparkContext.addPyFile(str(Path(module.__file__)))
    return spark


@pytest.fixture
def by_value(session):
    """Sends the functions of this file by value."""
    from pyspark import cloudpickle

    module = __import__("sys").modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    yield
    cloudpickle.unregister_pickle_by_value(module)


@pytest.mark.parametrize(
    "recipe", ["averaging", *(pytest.param(r, marks=pytest.mark.slow) for r in SLOW)]
)
def test_killed_and_frozen_tasks_lose_no_row_and_double_none(session, recipe, tmp_path):
    from photinus.engine.spark.engine import SparkEngine

    trial = Trial(recipe, tmp_path, epochs=epochs_of(recipe))
    verdict = trial.train(SparkEngine(session, real(recipe)))
    assert (verdict.lost, verdict.doubled) == (0, 0)
    assert verdict.audited.is_exact, verdict.audited.offences
    assert {event.slot for event in verdict.of("WorkerLost")} >= lost_of(recipe)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_one_to_seven_tasks_count_alike_though_one_is_killed(tmp_path):
    recipes = ["averaging", "iterative_reduce", "all_reduce", "downpour", "publish"]
    results = tasks_of_spark(tmp_path, recipes, [1, 2, 7])
    assert results == [[recipe, count, 0, 0, True] for recipe in recipes for count in (1, 2, 7)]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "recipe", ["averaging", "all_reduce", "iterative_reduce", "downpour", "averaging, both parts"]
)
def test_a_driver_of_spark_that_is_killed_and_resumed_loses_no_row_and_doubles_none(
    session, recipe, tmp_path
):
    from photinus.engine.spark.engine import SparkEngine

    trial = killed_driver(recipe, tmp_path, "spark")
    verdict = trial.resumed(SparkEngine(session))
    assert (trial.resumed_in, trial.resumed_from) > (0, 0)
    assert (verdict.lost, verdict.doubled) == (0, 0)
    assert verdict.audited.is_exact, verdict.audited.offences


@pytest.mark.slow
def test_on_a_folder_transport_tasks_lose_no_row_and_double_none(session, tmp_path):
    from photinus.engine.spark.engine import SparkEngine

    (tmp_path / "transport").mkdir()
    fields = {"transport": str(tmp_path / "transport")}
    trial = Trial("averaging", tmp_path / "run", epochs=3, lease_seconds=4.0, fields=fields)
    verdict = trial.train(SparkEngine(session, Faults().kill(slot=1, step=5)))
    assert (verdict.lost, verdict.doubled) == (0, 0)


def died_once():
    """The first attempt at a partition's work is killed, for every other partition."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context.partitionId() % 2 and context.attemptNumber() == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def gradient(model, rows):
    used = np.bincount([int(row) for row in rows], minlength=ROWS)
    died_once()
    return used.astype(float)


def descent(model, used):
    model["used"] += used


def test_deepdist_applies_each_row_once_an_epoch_though_tasks_are_killed(
    session, by_value, tmp_path
):
    model = {"used": np.zeros(ROWS)}
    rows = session.sparkContext.parallelize(range(ROWS), PARTITIONS)
    with DeepDist(model, folder=tmp_path) as trained:
        trained.train(rows, gradient, descent, epochs=2)
    assert model["used"].tolist() == [2.0] * ROWS
    assert audit(tmp_path / "ledger.jsonl").is_exact


def part(state, rows):
    if state["round"] == 2:
        died_once()
    return np.bincount(rows.features[:, 0].astype(int), minlength=ROWS).astype(float)


def update(state, used):
    later = {"used": state["used"] + used, "round": state["round"] + 1}
    return later, later["round"] == 5


def test_iterate_applies_each_row_once_a_round_though_a_task_is_killed(session, by_value, tmp_path):
    frame = session.createDataFrame([(float(n),) for n in range(ROWS)], "id double")
    result = iterate(
        frame,
        part,
        sum,
        update,
        start={"used": np.zeros(ROWS), "round": 0},
        features=["id"],
        workers=3,
        folder=tmp_path,
    )
    assert result.rounds == 5
    assert result.state["used"].tolist() == [5.0] * ROWS
    assert audit(tmp_path / "ledger.jsonl").is_exact
