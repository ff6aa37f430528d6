import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from photinus.checkpoint.export import save_model
from photinus.checkpoint.files import to_safetensors
from photinus.checkpoint.initial_parameters import load_initial_tensors
from photinus.core.errors import CheckpointError, UsageError

TENSORS = {"weight": np.arange(6, dtype="f4").reshape(2, 3), "bias": np.ones(2)}


def spark_ml(folder, data, size=50):
    """Writes what a model of the estimators leaves, its later rows first."""
    (folder / "metadata").mkdir(parents=True)
    (folder / "data").mkdir()
    (folder / "data" / "_SUCCESS").touch()
    rows = list(enumerate(data[at : at + size] for at in range(0, len(data), size)))
    for file, chunk in (("part-0", rows[1::2]), ("part-1", rows[::2])):
        columns = {"part": [n for n, _ in chunk], "bytes": [part for _, part in chunk]}
        pq.write_table(pa.table(columns), folder / "data" / f"{file}.parquet")
    return folder


def test_a_run_a_saved_model_and_one_of_the_estimators_are_starts(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "job.json").touch()
    own = save_model(run / "model", TENSORS, {})
    theirs = spark_ml(tmp_path / "theirs", to_safetensors(TENSORS))
    for start in (run, own, own / "model.safetensors", theirs, f"file://{theirs}"):
        for is_mapped in (False, True):
            tensors = load_initial_tensors(start, is_mapped=is_mapped)
            assert set(tensors) == set(TENSORS)
            assert all(np.array_equal(tensors[name], TENSORS[name]) for name in TENSORS)


def test_a_run_without_a_model_is_told_from_one_that_is_done(tmp_path):
    (tmp_path / "job.json").touch()
    with pytest.raises(UsageError, match="holds no model yet; photinus train --resume"):
        load_initial_tensors(tmp_path)


def test_a_folder_of_spark_that_holds_no_network_is_refused(tmp_path):
    (tmp_path / "words" / "metadata").mkdir(parents=True)
    (tmp_path / "words" / "data").mkdir()
    pq.write_table(pa.table({"word": ["a"]}), tmp_path / "words" / "data" / "a.parquet")
    with pytest.raises(UsageError, match="holds no network's weights"):
        load_initial_tensors(tmp_path / "words")
    cut = spark_ml(tmp_path / "cut", to_safetensors(TENSORS)[:-9])
    with pytest.raises(CheckpointError, match="no safetensors file"):
        load_initial_tensors(cut)
