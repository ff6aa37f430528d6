"""Trackers: one run of theirs for a whole run, and never in the way of training."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from photinus.core.errors import NotReadyError
from photinus.core.events import CheckpointSaved, RoundClosed, RunStarted
from photinus.engine.base import ArrayData
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.models.logistic import LogisticConfig
from photinus.report.trackers import base
from photinus.report.trackers.mlflow import MLflowCallback
from photinus.report.trackers.tensorboard import TensorBoardCallback
from photinus.report.trackers.trackio import TrackioCallback
from photinus.run.data import TestRows
from photinus.run.job import Job
from photinus.run.train import resume, train

# what the trackers' packages use of Python that is about to change is not ours
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning",
    "ignore::UserWarning", "ignore::ResourceWarning")  # fmt: skip

WORKERS = 8
LIFE = """
import os, signal, sys
import numpy as np
from photinus.core.events import CheckpointSaved
from photinus.engine.base import ArrayData
from photinus.testing import Faults
from photinus.engine.local.engine import LocalEngine
from photinus.models.logistic import LogisticConfig
from photinus.report.trackers import mlflow, tensorboard, trackio
from photinus.run.job import Job
from photinus.run.train import resume, train

kind, folder, life = sys.argv[1:]
chance = np.random.default_rng(0)
data = ArrayData(chance.normal(size=(4000, 6)).astype("f4"), chance.integers(0, 3, 4000))
model = LogisticConfig(features=6, classes=3, epochs=12, batch_size=80)
job = Job(name="tracked", model=model, workers=8, engine="local", checkpoint_seconds=0.0)
made = {"mlflow": mlflow.MLflowCallback, "tensorboard": tensorboard.TensorBoardCallback,
        "trackio": trackio.TrackioCallback}[kind]()
saved = []

def killer(event):
    if life == "first" and isinstance(event, CheckpointSaved):
        saved.append(event)
        if len(saved) == 3:
            os.kill(os.getpid(), signal.SIGKILL)

kills = Faults()
for slot, step in ((1, 8), (2, 12), (3, 16), (4, 20), (5, 24)):
    kills = kills.kill(slot, step)
engine = LocalEngine(kills)
if life == "first":
    train(job, data, folder=folder, callbacks=[made, killer], engine=engine)
else:
    resume(folder, data, callbacks=[made], engine=engine)
"""


def data():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 480)
    features = rng.normal(size=(480, 6)).astype("f4") + np.tile(np.eye(3, dtype="f4")[labels], 2)
    return ArrayData(features, labels)


def job():
    model = LogisticConfig(features=6, classes=3, epochs=4, batch_size=48)
    return Job(name="tracked", model=model, workers=WORKERS, engine="simulate")


class Stopping(SimulatedEngine):
    """Ends at the tenth round, as Ctrl-C would."""

    def run(self, assignment):
        emit = assignment.emit

        def emit_then_stop(event):
            emit(event)
            if isinstance(event, RoundClosed) and event.version == 10:
                raise KeyboardInterrupt

        object.__setattr__(assignment, "emit", emit_then_stop)
        return super().run(assignment)


def train_and_resume(callback, folder):
    """Trains, is stopped, and continues: two lives of one run."""
    rows = data()
    test = TestRows(rows.features, rows.labels)
    with pytest.raises(KeyboardInterrupt):
        train(job(), rows, test=test, folder=folder, callbacks=[callback()], engine=Stopping())
    return resume(folder, rows, test=test, callbacks=[callback()])


@pytest.fixture
def mlruns(tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/mlruns")
    from mlflow import MlflowClient

    return lambda: MlflowClient(tracking_uri=f"file:{tmp_path}/mlruns")


def runs_of(client):
    place = client.get_experiment_by_name("photinus").experiment_id
    return client.search_runs([place])


def test_mlflow_has_one_run_of_eight_workers_through_a_stop_and_a_resume(mlruns, tmp_path):
    outcome = train_and_resume(MLflowCallback, tmp_path / "run")
    client = mlruns()
    [run] = runs_of(client)
    assert run.info.status == "FINISHED"
    assert run.data.params["model.epochs"] == "4"
    assert run.data.metrics["test/error"] == pytest.approx(outcome.metrics["error"])
    steps = [m.step for m in client.get_metric_history(run.info.run_id, "loss")]
    assert steps[-1] == 40
    artifacts = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert {"report.html", "model"} <= artifacts


def test_tensorboard_has_one_folder_and_metrics_by_step(tmp_path):
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    outcome = train_and_resume(TensorBoardCallback, tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").rglob("*tensorboard")] == ["tensorboard"]
    accumulator = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert accumulator.Scalars("loss")[-1].step == 40
    error = accumulator.Scalars("test/error")[-1].value
    assert error == pytest.approx(outcome.metrics["error"], abs=1e-6)


def test_trackio_has_one_run(tmp_path, monkeypatch):
    pytest.importorskip("trackio", reason="the extra trackio is not installed")
    from trackio import utils
    from trackio.sqlite_storage import SQLiteStorage

    monkeypatch.setattr(utils, "TRACKIO_DIR", tmp_path / "kept", raising=False)
    monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", tmp_path / "kept", raising=False)
    train_and_resume(TrackioCallback, tmp_path / "run")
    [name] = SQLiteStorage.get_runs("photinus")
    logs = SQLiteStorage.get_logs("photinus", name)
    assert max(log["step"] for log in logs if "loss" in log) == 40


def test_a_missing_package_is_told_before_training(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(NotReadyError, match=r"pip install 'photinus\[mlflow\]'"):
        train(job(), data(), folder=tmp_path / "run", callbacks=[MLflowCallback()])


class Broken(TensorBoardCallback):
    def _begin(self, run, settings):
        raise OSError(28, "No space left on device")


def test_a_tracker_that_fails_ends_no_training_and_is_told_of_once(tmp_path, caplog):
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    outcome = train(job(), data(), folder=tmp_path / "run", callbacks=[Broken()])
    assert outcome.vector.size
    [message] = [record.message for record in caplog.records if "tracker" in record.message]
    assert message == (
        "the tracker tensorboard has failed; got No space left on device; "
        "training continues without it"
    )


def test_an_event_waits_for_no_tracker(tmp_path):
    slow = TensorBoardCallback()
    slow._feed = lambda: None  # one that takes nothing
    slow._connect = lambda: None
    (tmp_path / "events.jsonl").touch()
    slow.open(tmp_path)
    for n in range(10_000):
        slow(RoundClosed(phase=0, version=n, slots=(0,), examples=n, progress=0.0, seconds=0.0))
    assert slow._queue.qsize() == 10_000
    assert base.Point(1, {}).step == 1


class RecordingTracker(base.Tracker):
    """Notes what it is sent."""

    name = "noting"

    def __init__(self):
        super().__init__()
        self.sent, self.states, self.has_kept = [], [], threading.Event()

    def _connect(self):
        pass

    def _begin(self, run, settings):
        pass

    def _send(self, points):
        self.sent += [list(points)] if points else []

    def _log_artifact(self, path, kind, metrics):
        self.has_kept.set()

    def _end(self, state):
        self.states.append(state)


def test_a_run_that_fails_before_it_begins_leaves_nothing_in_a_tracker(tmp_path, caplog):
    tracker = RecordingTracker()
    (tmp_path / "events.jsonl").touch()
    tracker.open(tmp_path)
    tracker.close()
    assert (tracker.states, caplog.records) == ([], [])


BEGUN = RunStarted(run="a run", term=1, engine="simulate", workers=1)


def round_closed(version):
    sizes = {"seconds": 0.0, "bytes_up": 1}
    return RoundClosed(phase=0, version=version, slots=(0,), examples=8, progress=0.0, **sizes)


def test_rounds_are_sent_together_and_none_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(base, "_SEND_SECONDS", 3600.0)
    tracker = RecordingTracker()
    (tmp_path / "events.jsonl").touch()
    tracker.open(tmp_path)
    tracker(BEGUN)
    for version in range(1, 501):
        tracker(round_closed(version))
    tracker.close()
    assert len(tracker.sent) <= 2  # the second: what was held back for a point of its own
    points = [point for points in tracker.sent for point in points]
    assert sum(point.metrics["bytes_up"] for point in points) == 500
    assert points[-1].step == 500


def test_a_checkpoint_is_sent_at_once_with_the_rounds_before_it(tmp_path, monkeypatch):
    monkeypatch.setattr(base, "_SEND_SECONDS", 3600.0)
    tracker = RecordingTracker()
    (tmp_path / "events.jsonl").touch()
    tracker.open(tmp_path)
    tracker(BEGUN)
    tracker(round_closed(1))
    tracker(CheckpointSaved(name="first", phase=0, version=1, seconds=0.0))
    assert tracker.has_kept.wait(120)
    tracker.close()
    assert tracker.sent[0][0].step == 1


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.fault
@pytest.mark.parametrize("kind", ["mlflow", "tensorboard", "trackio"])
def test_one_run_of_eight_workers_through_five_kills_a_driver_kill_and_a_resume(
    kind, request, tmp_path
):
    pytest.importorskip(kind, reason=f"the extra {kind} is not installed")
    mlruns = request.getfixturevalue("mlruns") if kind == "mlflow" else None
    for life in ("first", "second"):
        environment = {**os.environ, "TRACKIO_DIR": str(tmp_path / "kept")}
        process = subprocess.run(
            [sys.executable, "-c", LIFE, kind, str(tmp_path / "run"), life],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert process.returncode == {"first": -signal.SIGKILL, "second": 0}[life], process.stderr[
            -3000:
        ]
    if kind == "mlflow":
        [run] = runs_of(mlruns())
        assert run.info.status == "FINISHED"
        workers = [name for name in run.data.metrics if name.endswith("examples_per_second")]
        assert len(workers) == WORKERS
        artifacts = [file.path for file in mlruns().list_artifacts(run.info.run_id)]
        assert "checkpoints" in artifacts
    elif kind == "tensorboard":
        assert len(list(tmp_path.rglob("events.out.*"))) == 2
        assert len({file.parent for file in tmp_path.rglob("events.out.*")}) == 1
    else:
        import sqlite3

        [file] = Path(tmp_path / "kept").glob("*.db")
        with sqlite3.connect(file) as db:
            names = db.execute("select distinct run_name from metrics").fetchall()
        assert len(names) == 1
