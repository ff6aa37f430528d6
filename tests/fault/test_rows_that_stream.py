"""Rows that fit neither in memory nor on disk: every pass over them is a Spark job of its own."""

import os
import signal
import threading

import numpy as np
import pytest

from photinus.core.clock import Steps
from photinus.core.errors import DataError, NotReadyError
from photinus.data.checks import RowChecks
from photinus.data.spool import Budget
from photinus.engine.base import ArrayData
from photinus.engine.spark.engine import FrameData, SparkEngine, frame_of
from photinus.models.module import ModuleConfig
from photinus.models.schedules import Schedule
from photinus.report.ledger import audit
from photinus.run.data import TestRows
from photinus.run.job import Job, Source
from photinus.run.train import train
from photinus.strategies.recipes import averaging, full_gradient

pytestmark = [pytest.mark.fault, pytest.mark.spark, pytest.mark.slow]

EPOCHS = 4


def job(strategy=None):
    model = ModuleConfig(
        module="torch.nn:Linear",
        arguments={"in_features": 6, "out_features": 3},
        epochs=float(EPOCHS),
        batch_size=8,
        optimizer="adam",
        lr=Schedule.constant(0.05),
    )
    strategy = strategy or averaging(every=Steps(4), codec="fp32")
    return Job(model=model, data=Source(name="given"), strategy=strategy, workers=2)


def rows(spark, tiny, **changes):
    """45 rows in each of two partitions, of 32 bytes a row: none fits into the budget."""
    features = tiny.features.copy()
    for row, value in changes.get("features", {}).items():
        features[row, 0] = value
    data = ArrayData(features, tiny.labels)
    frame = frame_of(spark, [data.part(tiny.plan(), slot) for slot in range(2)])
    return FrameData(
        frame=frame,
        features="features",
        label="label",
        checks=RowChecks(classes=3),
        budget=Budget(memory_bytes=256, disk_bytes=512),
    )


def test_it_learns_and_counts_every_push_once(spark, tiny, tmp_path):
    events = []
    test = TestRows(tiny.features, tiny.labels)
    outcome = train(
        job(),
        rows(spark, tiny),
        test=test,
        folder=tmp_path / "run",
        engine=SparkEngine(spark),
        callbacks=(events.append,),
    )
    of = {kind: [e for e in events if type(e).__name__ == kind] for kind in map(_kind, events)}
    assert outcome.metrics["error"] < 0.2, "guessing errs in 2 of 3"
    assert of["PhaseEnded"][0].examples == EPOCHS * 90
    assert len(of["WorkerJoined"]) == 2 * EPOCHS, "a life for each pass"
    assert [e.text for e in of["Warned"] if "Spark job of its own" in e.text]
    assert "WorkerLost" not in of
    report = audit(tmp_path / "run" / "ledger.jsonl")
    assert report.is_exact, report


def test_a_worker_killed_in_a_pass_continues_in_it(spark, tiny, tmp_path):
    killed = []

    def kill(event):
        if _kind(event) == "WorkerJoined" and event.lease == 2 and event.slot == 1:
            killed.append(event.pid)
            threading.Timer(0.0, os.kill, (event.pid, signal.SIGKILL)).start()

    train(
        job(),
        rows(spark, tiny),
        folder=tmp_path / "run",
        engine=SparkEngine(spark),
        callbacks=(kill,),
    )
    assert killed
    report = audit(tmp_path / "run" / "ledger.jsonl")
    assert report.is_exact, report


def test_a_wrong_row_at_the_end_of_a_stream_is_found_before_any_training(spark, tiny, tmp_path):
    events = []
    with pytest.raises(DataError, match="partition"):
        train(
            job(),
            rows(spark, tiny, features={89: np.nan}),
            folder=tmp_path / "run",
            engine=SparkEngine(spark),
            callbacks=(events.append,),
        )
    assert "RoundClosed" not in map(_kind, events)


def test_a_step_that_is_a_whole_partition_is_refused(spark, tiny, tmp_path):
    with pytest.raises(NotReadyError, match="takes them in one step"):
        train(
            job(full_gradient()),
            rows(spark, tiny),
            folder=tmp_path / "run",
            engine=SparkEngine(spark),
        )


def _kind(event):
    return type(event).__name__
