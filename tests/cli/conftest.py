"""A command line in a folder of its own, and a job there."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from photinus.cli.main import main

JOB = """
name = "blobs"
workers = 2
engine = "simulate"
strategy = "all_reduce"

[model]
kind = "logistic"
features = 2
classes = 2
epochs = 3

[data]
name = "parquet"
path = "train.parquet"
test = "test.parquet"
features = ["x", "y"]
label = "label"
"""


@pytest.fixture
def call(capsys, tmp_path, monkeypatch):
    """Runs a command in a folder of its own; returns its exit code and what it said."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        output = capsys.readouterr()
        return ended.value.code, output.out, output.err

    return run


@pytest.fixture
def job(tmp_path):
    """A job on two clouds of points, as files."""
    rng = np.random.default_rng(0)
    for name, rows in (("train", 400), ("test", 100)):
        labels = rng.integers(0, 2, rows)
        points = rng.normal(scale=0.5, size=(rows, 2)) + 2 * labels[:, None] - 1
        columns = {"x": points[:, 0], "y": points[:, 1], "label": labels}
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    (tmp_path / "job.toml").write_text(JOB)
    return "job.toml"
