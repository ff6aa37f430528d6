"""Rows that are handed to `train`: what the run folder says of them, and the commands do."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import TensorDataset

from photinus.cli.main import main
from photinus.run.compare import compare
from photinus.run.job import Job, Source
from photinus.run.remote_resume import job_in
from photinus.run.train import resume, train
from photinus.strategies.recipes import averaging

SOURCES = (
    Source(),
    Source(name="mnist", path="my/mnist"),
    Source(name="parquet", path="rows", features=("a", "b")),
    Source(name="images", path="pictures", test="others"),
)


@pytest.fixture
def run_command(capsys):
    """Runs a command; returns its exit code and what it said of an error."""

    def run_main(*arguments):
        with pytest.raises(SystemExit) as exited:
            main([str(argument) for argument in arguments])
        return exited.value.code, capsys.readouterr().err

    return run_main


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name + source.path)
def test_a_job_whose_rows_were_handed_over_is_saved_as_such(small, tmp_path, source):
    job = small.job(data=source)
    train(job, (small.features, small.labels), folder=tmp_path / "run")
    saved = json.loads((tmp_path / "run" / "job.json").read_text())["job"]["data"]
    assert (saved["name"], saved["path"], saved["test"]) == ("given", "", "")
    assert tuple(saved["features"]) == source.features
    assert job.data is source


def test_a_job_without_data_that_was_stopped_continues_with_the_rows_handed_over_again(
    small, tmp_path, breaking, run_command
):
    job, rows = replace(small.job(), data=Job().data), small.data()
    with pytest.raises(KeyboardInterrupt) as stopped:
        train(job, rows, folder=tmp_path / "run", engine=breaking(9))
    assert str(stopped.value).endswith(
        f"continue with: photinus.resume({str(tmp_path / 'run')!r}, data)"
    )
    code, err = run_command("train", "--resume", tmp_path / "run")
    assert (code, "hand them over again: photinus.resume(RUN, data)" in err) == (2, True)
    whole = train(job, rows, folder=tmp_path / "whole")
    assert np.array_equal(resume(tmp_path / "run", rows).vector, whole.vector)


def test_a_model_whose_rows_were_handed_over_is_not_measured_on_others(
    small, tmp_path, run_command
):
    job = small.job(data=Source())
    train(job, (small.features, small.labels), test=small.test, folder=tmp_path / "run")
    code, err = run_command("evaluate", tmp_path / "run")
    assert (code, "a program handed its rows over; hand rows over: --data PATH" in err) == (2, True)
    columns = {"features": list(small.features), "label": small.labels}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    assert run_command("evaluate", tmp_path / "run", "--data", tmp_path / "rows.parquet")[0] == 0


def test_rows_that_the_job_itself_names_stay_named_in_a_comparison(small, tmp_path):
    columns = {"features": list(small.features), "label": small.labels}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    job = small.job(data=Source(name="parquet", path=str(tmp_path / "rows.parquet")))
    (tmp_path / "all").mkdir()
    compare(job, [averaging()], folder=tmp_path / "all")
    assert job_in(tmp_path / "all" / "00-averaging").data == job.data


def test_tensors_and_a_data_set_of_them_are_rows_as_arrays_are(small, tmp_path):
    features, labels = small.features, small.labels
    tensors = torch.from_numpy(features), torch.from_numpy(labels)
    half = torch.from_numpy(features).to(torch.bfloat16)
    rows_of = {
        "arrays": (features, labels),
        "tensors": tensors,
        "a data set": TensorDataset(*tensors),
        "bfloat16": (half, tensors[1]),
        "the same in float32": (half.float().numpy(), labels),
    }
    vectors = {
        name: train(small.job(), rows, folder=tmp_path / name, test=tensors).vector.tobytes()
        for name, rows in rows_of.items()
    }
    assert vectors["arrays"] == vectors["tensors"] == vectors["a data set"]
    assert vectors["bfloat16"] == vectors["the same in float32"] != vectors["arrays"]
