"""From the folder of a run to a model of Spark ML."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from photinus.checkpoint.export import save_model
from photinus.core.errors import UsageError
from photinus.data.columns import InputSpec
from photinus.engine.spark.engine import FrameData
from photinus.estimators.dbn import DBNClassificationModel
from photinus.estimators.module import (
    TorchClassificationModel,
    TorchClassifier,
    TorchModel,
    TorchMultiLabelModel,
    TorchRegressionModel,
)
from photinus.models.dbn import DBN, FineTuning, Pretraining
from photinus.models.logistic import LogisticConfig
from photinus.models.module import ModuleConfig
from photinus.run.job import Job, Source
from photinus.run.train import train

pytestmark = pytest.mark.spark

SCALED = Source(name="given", features=("x",), label="y", scale=0.5)
PAIR = Source(name="given", features=("a", "b"), label="y")
NAMED = Source(name="given", inputs={"item": "item", "price": "a"}, label="y")


@pytest.fixture(scope="module", autouse=True)
def nets(spark):
    spark.sparkContext.addPyFile(str(Path(__file__).with_name("nets_of_runs.py")))


@pytest.fixture(scope="module")
def table(spark):
    """60 rows, in their order in one partition: numbers, arrays of them, and whole numbers."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2)).astype(np.float32)
    rows = [
        (i, row.tolist(), float(row[0]), float(row[1]), i % 9, i % 3, [float(i % 2), 1.0])
        for i, row in enumerate(x)
    ]
    names = "id int, x array<float>, a float, b float, item long, y long, ys array<double>"
    return spark.createDataFrame(rows, names).coalesce(1).cache()


def linear(loss, outputs, **settings):
    arguments = {"in_features": 2, "out_features": outputs}
    settings = {"epochs": 1.0, **settings}
    return ModuleConfig(module="torch.nn:Linear", arguments=arguments, loss=loss, **settings)


def trained(model, source, rows, folder):
    job = Job(model=model, data=source, workers=1, engine="simulate")
    return train(job, rows, folder=folder)


def arrays(table, *names):
    rows = table.toPandas()
    columns = [np.array(rows[name].tolist(), np.float32) for name in names]
    return columns[0] if len(names) == 1 else np.stack(columns, 1)


CASES = {
    "classes": (TorchClassificationModel, linear("cross_entropy", 3), SCALED, "y"),
    "softmax regression": (
        TorchClassificationModel,
        LogisticConfig(features=2, classes=3, epochs=1.0),
        SCALED,
        "y",
    ),
    "two classes": (TorchClassificationModel, linear("binary_cross_entropy", 1), SCALED, "y"),
    "a belief network": (
        DBNClassificationModel,
        DBN(
            inputs=2,
            hidden=(4,),
            classes=3,
            pretraining=Pretraining(epochs=0.0, batch_size=20),
            fine_tuning=FineTuning(epochs=1.0, batch_size=20),
            precision="float32",
        ),
        SCALED,
        "y",
    ),
    "a number": (TorchRegressionModel, linear("mse", 1), SCALED, "y"),
    "of columns": (TorchRegressionModel, linear("poisson", 1), PAIR, "y"),
    "several numbers": (TorchModel, linear("mse", 2), SCALED, "ys"),
    "several labels": (TorchMultiLabelModel, linear("binary_cross_entropy", 2), SCALED, "ys"),
    "a loss of one's own": (
        TorchClassificationModel,
        linear("nets_of_runs:margin", 3),
        SCALED,
        "y",
    ),
}


def by_hand(outcome, x, case):
    """What torch predicts, without photinus."""
    with torch.no_grad():
        z = outcome.model()(torch.from_numpy(x)).numpy()
    if case in ("several numbers", "several labels"):
        return z if case == "several numbers" else (z > 0).astype(float)
    if case == "two classes":
        return (z[:, 0] > 0).astype(float)
    if z.shape[1] == 1:
        return np.exp(z[:, 0]) if case == "of columns" else z[:, 0]
    return z.argmax(1).astype(float)


@pytest.mark.parametrize("case", CASES)
def test_the_model_of_a_run_predicts_what_its_torch_module_does(table, tmp_path, case):
    kind, config, source, label = CASES[case]
    labels = np.array(table.toPandas()[label].tolist())
    labels = labels % 2 if case == "two classes" else labels
    x = arrays(table, *source.features)
    outcome = trained(config, source, (x, labels), tmp_path / "run")
    read = x * np.float32(source.scale or 1.0)
    expected = by_hand(outcome, read, case)

    model = kind.fromRun(tmp_path / "run")
    scored = model.transform(table)
    np.testing.assert_array_equal(np.array(scored.toPandas()["prediction"].tolist()), expected)

    model.write().overwrite().save(str(tmp_path / "model"))
    again = kind.load(str(tmp_path / "model"))
    assert again.transform(table).select("prediction").collect() == (
        scored.select("prediction").collect()
    )
    assert (model.numFeatures, again.getLabelCol()) == (2, "y")


def test_a_run_on_spark_notes_how_long_a_row_was(table, tmp_path):
    source = Source(name="given", features=("x",), label="y", scale=0.5)
    job = Job(model=linear("cross_entropy", 3), data=source, workers=1, engine="spark")
    outcome = train(job, table, folder=tmp_path / "run")
    with torch.no_grad():
        expected = outcome.model()(torch.from_numpy(arrays(table, "x") * np.float32(0.5)))
    model = TorchClassificationModel.fromRun(tmp_path / "run")
    predicted = model.transform(table).toPandas()["prediction"]
    np.testing.assert_array_equal(predicted.to_numpy(), expected.argmax(1).numpy())


@pytest.mark.parametrize(
    "inputs", [None, InputSpec(columns={"input": ("a", "b")})], ids=["one", "by names"]
)
def test_the_columns_of_a_table_that_was_handed_over_are_noted(table, tmp_path, inputs):
    """The job names another one, which a table that is scored may have, too."""
    columns = {"features": "x"} if inputs is None else {"inputs": inputs}
    data = FrameData(frame=table, label="y", **columns)
    job = Job(model=linear("cross_entropy", 3), workers=1, engine="spark")
    outcome = train(job, data, folder=tmp_path / "run")
    with torch.no_grad():
        expected = outcome.model()(torch.from_numpy(arrays(table, "a", "b")))
    others = table.withColumn("features", F.array(F.lit(9.0), F.lit(9.0)))
    model = TorchClassificationModel.fromRun(tmp_path / "run", others)
    predicted = model.transform(others).toPandas()["prediction"]
    np.testing.assert_array_equal(predicted.to_numpy(), expected.argmax(1).numpy())


@pytest.mark.parametrize("is_remote", [False, True])
def test_the_run_of_a_fit_gives_the_model_that_the_fit_returned(
    table, tmp_path, is_remote, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    folder = "memory://fits" if is_remote else str(tmp_path / "fits")
    module = {"module": "torch.nn:Linear", "moduleArgs": {"in_features": 2, "out_features": 3}}
    columns = {"featuresCol": ["a", "b"], "labelCol": "y", "scale": 0.5}
    settings = {"numWorkers": 1, "runDir": folder, "learningRate": 0.1, "epochs": 1.0}
    fitted = TorchClassifier(**module, **columns, **settings).fit(table)
    assert str(fitted.summary.folder).startswith(f"{folder}/TorchClassifier_")
    assert (tmp_path / "fits").exists() is not is_remote
    assert not list(tmp_path.glob("memory*"))
    model = TorchClassificationModel.fromRun(fitted.summary.folder)
    assert model.network.meta() == fitted.network.meta()
    names = ("probability", "prediction")
    expected = fitted.transform(table).select(*names).collect()
    assert model.transform(table).select(*names).collect() == expected


def test_rows_show_how_long_a_row_is_where_the_run_did_not_note_it(table, tmp_path):
    data = table.toPandas()
    features = {"item": data["item"].to_numpy(), "price": data["a"].to_numpy()}
    config = ModuleConfig(module="nets_of_runs:Basket", loss="mse", epochs=1.0)
    outcome = trained(config, NAMED, (features, data["y"].to_numpy(float)), tmp_path / "run")
    with pytest.raises(UsageError, match=r"run does not say how long a row is; fromRun\(FOLDER, r"):
        TorchRegressionModel.fromRun(tmp_path / "run")
    model = TorchRegressionModel.fromRun(tmp_path / "run", table)
    with torch.no_grad():
        inputs = {name: torch.from_numpy(array) for name, array in features.items()}
        expected = outcome.model()(**inputs).numpy()[:, 0]
    predicted = model.transform(table).toPandas()["prediction"]
    np.testing.assert_array_equal(predicted.to_numpy(), expected)


def test_arrays_by_names_are_read_from_columns_of_these_names(table, tmp_path):
    rows = table.withColumnRenamed("a", "price").toPandas()
    features = {"item": rows["item"].to_numpy(), "price": rows["price"].to_numpy()}
    config = ModuleConfig(module="nets_of_runs:Basket", loss="mse", epochs=1.0)
    trained(config, Source(name="given"), (features, rows["y"].to_numpy(float)), tmp_path / "run")
    with pytest.raises(UsageError, match="price"):
        TorchModel.fromRun(tmp_path / "run", table)
    model = TorchModel.fromRun(tmp_path / "run", table.withColumnRenamed("a", "price"))
    assert model.network.input_spec.columns == {"item": "item", "price": "price"}


def test_images_keep_the_shape_that_they_were_trained_in(table, tmp_path):
    x = arrays(table, "x").reshape(60, 1, 1, 2)
    labels = np.arange(60) % 3
    arguments = {"in_channels": 1, "out_channels": 2, "kernel_size": [1, 2]}
    config = ModuleConfig(module="torch.nn:Conv2d", arguments=arguments, loss="mse", epochs=1.0)
    outcome = trained(config, SCALED, (x, np.stack([labels, labels], 1)), tmp_path / "run")
    model = TorchModel.fromRun(tmp_path / "run")
    with torch.no_grad():
        expected = outcome.model()(torch.from_numpy(x * np.float32(0.5))).numpy().reshape(60, 2)
    predicted = np.array(model.transform(table).toPandas()["prediction"].tolist())
    np.testing.assert_array_equal(predicted, expected)


def test_the_other_loader_takes_the_folder_of_a_run_too(table, tmp_path):
    x, labels = arrays(table, "x"), np.arange(60) % 3
    trained(linear("cross_entropy", 3), SCALED, (x, labels), tmp_path / "run")
    model = TorchClassificationModel.load(str(tmp_path / "run"))
    assert (model.numClasses, model.getFeaturesCol()) == (3, "x")
    shutil.rmtree(tmp_path / "run" / "model")
    with pytest.raises(UsageError, match=r"holds no model yet; photinus train --resume"):
        TorchClassificationModel.load(str(tmp_path / "run"))


def test_a_model_of_another_kind_is_refused_with_the_class_that_takes_it(table, tmp_path):
    x, labels = arrays(table, "x"), np.arange(60) % 3
    trained(linear("cross_entropy", 3), SCALED, (x, labels), tmp_path / "run")
    with pytest.raises(UsageError, match=r"of classes; TorchClassificationModel\.fromRun"):
        TorchRegressionModel.fromRun(tmp_path / "run")
    with pytest.raises(
        UsageError, match=r"DBNC.*; got a run of a torch module; TorchClassif.*Run$"
    ):
        DBNClassificationModel.fromRun(tmp_path / "run")
    with pytest.raises(UsageError, match="name the folder of a run or of a model"):
        TorchRegressionModel.fromRun(tmp_path)


def test_word_vectors_are_no_model_of_rows(tmp_path):
    save_model(tmp_path / "run", {"vectors": np.zeros((9, 8), np.float32)}, {"kind": "word2vec"})
    with pytest.raises(UsageError, match="word vectors, which score no rows"):
        TorchModel.fromRun(tmp_path / "run")


def test_a_run_from_elsewhere_that_names_code_is_refused_unless_it_is_trusted(
    table, tmp_path, monkeypatch
):
    x, labels = arrays(table, "x"), np.arange(60) % 3
    trained(linear("nets_of_runs:margin", 3), SCALED, (x, labels), tmp_path / "run")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another machine"))
    with pytest.raises(UsageError, match="names code, and no run of yours"):
        TorchClassificationModel.fromRun(tmp_path / "run")
    model = TorchClassificationModel.load(str(tmp_path / "run"), trust_code=True)
    assert model.transform(table).count() == 60
