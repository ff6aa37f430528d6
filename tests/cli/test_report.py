"""`evaluate` on a saved model that no run stands behind."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from photinus.checkpoint.export import save_model
from photinus.cli.evaluate import rows_to_measure_on
from photinus.cli.main import main
from photinus.core.errors import PhotinusError


@pytest.fixture
def model(tmp_path):
    """A rule for two numbers: class 1 where the first is the larger."""
    settings = {"features": 2, "classes": 2}
    from photinus.models.logistic import LogisticConfig

    names = LogisticConfig(features=2, classes=2).build((), 0).parameters.tensors()
    weights = np.float32([[-1, 1], [1, -1], [0, 0]])
    flat = dict(
        zip(
            names,
            np.split(weights.ravel(), np.cumsum([t.size for t in names.values()])[:-1]),
            strict=True,
        )
    )
    tensors = {name: flat[name].reshape(t.shape) for name, t in names.items()}
    data = {"name": "parquet", "path": "train.parquet", "features": ["x", "y"], "label": "label"}
    return save_model(
        tmp_path / "net", tensors, {"kind": "logistic", "settings": settings, "data": data}
    )


def run_command(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return ended.value.code, capsys.readouterr()


def test_a_model_is_measured_on_the_rows_that_are_named(model, tmp_path, capsys):
    rows = {"x": [1.0, 0.0, 2.0, 0.0], "y": [0.0, 1.0, 1.0, 3.0], "label": [1, 0, 1, 1]}
    pq.write_table(pa.table(rows), tmp_path / "test.parquet")
    code, output = run_command(capsys, "evaluate", model, "--data", tmp_path / "test.parquet")
    assert code == 0
    assert "4 rows" in output.out
    assert "25.00%" in output.out


@pytest.mark.parametrize("name", ["cifar10", "films"])
def test_rows_of_a_published_data_set_are_those_that_are_named(name, tmp_path):
    with pytest.raises(PhotinusError, match="nowhere"):
        rows_to_measure_on({"name": name}, str(tmp_path / "nowhere"))


def test_a_model_without_rows_asks_for_them(model, capsys):
    code, output = run_command(capsys, "evaluate", model)
    assert code == 2
    assert "--data PATH" in output.err


def test_a_folder_without_a_model_is_a_wrong_word_as_it_is_for_a_report(tmp_path, capsys):
    for command, place in (("evaluate", tmp_path), ("evaluate", "memory://nowhere/run")):
        code, output = run_command(capsys, command, place)
        assert code == 2
        assert f"{place} holds no model; name the folder" in output.err


def test_a_run_without_a_model_is_to_be_gone_on_with(tmp_path, capsys):
    (tmp_path / "job.json").touch()
    code, output = run_command(capsys, "evaluate", tmp_path)
    assert code == 2
    assert "photinus train --resume" in output.err
