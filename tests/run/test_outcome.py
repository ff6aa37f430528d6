"""Rows as users have them go in; a torch module comes out."""

import itertools
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from photinus.checkpoint.files import FolderFormat
from photinus.checkpoint.folder import RunFolder
from photinus.core.errors import CheckpointError, RunFailedError, UsageError
from photinus.models.dbn import DBN
from photinus.models.logistic import LogisticConfig
from photinus.models.module import ModuleConfig
from photinus.run.job import Job, Source
from photinus.run.remote_resume import saved_job
from photinus.run.train import resume, train


@pytest.fixture
def job_and_points():
    """Two classes of points, and a job for them."""
    points = np.random.default_rng(0).normal(size=(64, 2)).astype(np.float32)
    arguments = {"in_features": 2, "out_features": 2}
    net = ModuleConfig(module="torch.nn:Linear", arguments=arguments, epochs=20.0, lr=0.05)
    job = Job(model=net, workers=2, engine="simulate", data=Source(name="given", scale=0.5))
    return job, points, (points[:, 0] > 0).astype(np.int64)


def test_an_outcome_gives_the_trained_module_its_numbers_and_the_report(job_and_points, tmp_path):
    job, points, labels = job_and_points
    outcome = train(job, (points, labels), test=(points, labels), folder=tmp_path / "run")
    net = outcome.model()
    assert type(net) is torch.nn.Linear
    assert not net.training
    with torch.no_grad():
        predictions = net(torch.from_numpy(points * np.float32(0.5))).argmax(1).numpy()
    assert np.mean(predictions != labels) == outcome.metrics["error"] < 0.1
    assert torch.equal(outcome.state_dict()["weight"], net.weight)
    net.weight.data.zero_()
    assert outcome.state_dict()["weight"].any(), "the module is the caller's own"
    assert outcome.report == tmp_path / "run" / "report.html"
    assert outcome.report.is_file()


@pytest.mark.parametrize("model", ["dbn", "logistic", "averaged"])
def test_every_kind_of_model_comes_back_as_a_module(job_and_points, model, tmp_path):
    job, points, labels = job_and_points
    kinds = {
        "dbn": DBN(inputs=2, hidden=(3,), classes=2, precision="mkl"),
        "logistic": LogisticConfig(features=2, classes=2, epochs=20.0),
        "averaged": replace(job.model, average=0.9),
    }
    rows = np.abs(points).clip(0, 1), labels
    outcome = train(replace(job, model=kinds[model]), rows, test=rows, folder=tmp_path / "run")
    net = outcome.model()
    with torch.no_grad():
        inputs = torch.from_numpy(rows[0] * np.float32(0.5)).to(next(net.parameters()).dtype)
        predictions = net(inputs).argmax(1).numpy()
    assert np.mean(predictions != labels) == pytest.approx(outcome.metrics["error"])


def test_arrays_and_a_path_of_parquet_files_train_alike(job_and_points, tmp_path):
    job, points, labels = job_and_points
    pq.write_table(
        pa.table({"x": points[:, 0], "y": points[:, 1], "inside": labels}), tmp_path / "rows"
    )
    job = replace(job, data=replace(job.data, features=("x", "y"), label="inside"))
    arrays = train(job, (points, labels), folder=tmp_path / "arrays")
    files = train(job, tmp_path / "rows", test=(points, labels), folder=tmp_path / "files")
    assert np.array_equal(arrays.vector, files.vector)
    assert set(files.metrics) == {"error", "loss"}
    saved, _ = saved_job(tmp_path / "files", str(tmp_path / "files"))
    assert saved.data.path == str(tmp_path / "rows"), "a resume reads the same rows"


@pytest.mark.spark
def test_a_dataframe_trains_by_its_columns(job_and_points, spark, tmp_path):
    job, points, labels = job_and_points
    table = [(float(x), float(y), int(k)) for (x, y), k in zip(points, labels, strict=True)]
    frame = spark.createDataFrame(table, "x double, y double, inside int")
    source = replace(job.data, features=("x", "y"), label="inside")
    job = replace(job, data=source, engine="spark")
    outcome = train(job, frame, test=(points, labels), folder=tmp_path / "run")
    assert outcome.metrics["error"] < 0.1


def test_what_is_no_rows_is_refused_with_what_would_do(job_and_points, tmp_path):
    job, points, labels = job_and_points
    with pytest.raises(UsageError, match="rows to train on must be a DataFrame of Spark, arrays"):
        train(job, [points, labels], folder=tmp_path / "run")
    with pytest.raises(UsageError, match="labels must be a NumPy array; got list"):
        train(job, (points, labels.tolist()), folder=tmp_path / "run2")


@pytest.mark.parametrize("model", [torch.nn.Linear(2, 2), torch.nn.Linear])
def test_a_module_for_a_model_is_told_how_to_be_given(model):
    message = r'the torch module Linear; ModuleConfig\(module="torch.nn:Linear", argum'
    with pytest.raises(UsageError, match=message):
        Job(model=model)
    name = "torch.nn:Linear"
    config = ModuleConfig(module=name, arguments={"in_features": 2, "out_features": 2}, epochs=1.0)
    assert isinstance(config.build((), 0).module, torch.nn.Linear), "the name that is told works"


@pytest.mark.parametrize("model", [torch.nn.Sequential(), torch.nn.ModuleList])
def test_layers_in_a_container_must_be_made_by_a_function(model):
    message = (
        r'put a function that returns it into a file .*: ModuleConfig\(module="mynets:make"\)$'
    )
    with pytest.raises(UsageError, match=message):
        Job(model=model)


def test_a_module_typed_in_a_notebook_must_go_into_a_file(monkeypatch):
    class Net(torch.nn.Module):
        pass

    monkeypatch.setattr(Net, "__module__", "__main__")
    message = r'put its class into a file .*: ModuleConfig\(module="mynets:Net"'
    with pytest.raises(UsageError, match=message):
        Job(model=Net())


@pytest.mark.parametrize("is_there", [False, True], ids=["new", "empty"])
@pytest.mark.parametrize(
    ("owner", "name", "whole_calls", "error"),
    [
        (Path, "mkdir", 2, UsageError),
        (os, "fsync", 0, UsageError),  # of the job
        (os, "fsync", 1, CheckpointError),  # of the term
    ],
)
def test_a_run_that_a_full_disk_refuses_leaves_nothing_and_may_be_tried_again(
    job_and_points, tmp_path, monkeypatch, owner, name, whole_calls, error, is_there
):
    job, points, labels = job_and_points
    whole, folder = getattr(owner, name), tmp_path / "run"
    calls = itertools.count(int(is_there and name == "mkdir"))  # the folder itself is not made

    def fill(*arguments, **settings):
        if next(calls) < whole_calls:
            return whole(*arguments, **settings)
        raise OSError(28, "No space left on device")

    if is_there:
        folder.mkdir()
    with monkeypatch.context() as full:
        full.setattr(owner, name, fill)
        with pytest.raises(error, match="got No space left on device"):
            train(job, (points, labels), folder=folder)
    assert list(tmp_path.rglob("*")) == [folder] * is_there
    assert (train(job, (points, labels), folder=folder).folder / "model").is_dir()


def test_of_two_drivers_that_begin_at_once_in_one_folder_one_trains(
    job_and_points, tmp_path, monkeypatch
):
    job, points, labels = job_and_points
    folder, save_job = tmp_path / "run", RunFolder.save_job

    def save_as_another_does(self, text):
        monkeypatch.undo()
        save_job(RunFolder(folder), text)
        save_job(self, text)

    monkeypatch.setattr(RunFolder, "save_job", save_as_another_does)
    with pytest.raises(UsageError, match="holds a run already; resume it, or name another folder"):
        train(job, (points, labels), folder=folder)
    assert {path.name for path in folder.iterdir()} == {"job.json", "logs", "checkpoints"}
    with pytest.raises(UsageError, match="holds a run already; resume it"):
        train(job, (points, labels), folder=folder)
    resumed = resume(folder, (points, labels))  # as if the other one was killed before its term
    assert (resumed.folder / "model").is_dir()


def test_a_model_that_a_full_disk_does_not_take_is_saved_as_the_run_is_resumed(
    job_and_points, tmp_path, monkeypatch
):
    job, points, labels = job_and_points

    def fill(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(FolderFormat, "write", fill)
        advice = r"got No space left on device; make room there, then resume the run$"
        with pytest.raises(RunFailedError, match=advice):
            train(job, (points, labels), folder=tmp_path / "run")
    whole = train(job, (points, labels), folder=tmp_path / "whole")
    outcome = resume(tmp_path / "run", (points, labels))
    assert np.array_equal(outcome.vector, whole.vector)
    assert (outcome.folder / "model" / "model.safetensors").is_file()
