"""The estimators on a real Spark: 1797 handwritten digits of 8x8, two workers, some epochs."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.functions import array_to_vector, vector_to_array
from pyspark.ml.linalg import Vectors
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder
from pyspark.sql.functions import expr
from sklearn.datasets import load_digits

from photinus.core.errors import CheckpointError, DataError, PhotinusError, UsageError
from photinus.core.events import WorkerJoined
from photinus.core.settings import to_dict
from photinus.data.base import Batch
from photinus.estimators.dbn import DBNClassificationModel, DBNClassifier
from photinus.estimators.module import TorchClassificationModel, TorchClassifier
from photinus.estimators.network import Network
from photinus.models.module import ModuleConfig

pytestmark = pytest.mark.spark

DIGITS = {
    "hiddenSizes": [64, 64],
    "preTrainEpochs": 2,
    "fineTuneEpochs": 6,
    "preTrainBatchSize": 20,
    "batchSize": 20,
    "learningRate": 0.01,
    "inputDropout": 0.0,
    "hiddenDropout": [0.0],
    "scale": 1 / 16,
    "precision": "float32",
    "numWorkers": 2,
}
SMALL = {
    "module": "torch.nn:Linear",
    "moduleArgs": {"in_features": 2, "out_features": 2},
    "learningRate": 0.1,
    "batchSize": 10,
    "epochs": 12,
    "numWorkers": 2,
}
LOAD = """
import sys
from pyspark.ml import PipelineModel
from photinus.engine.spark.session import spark_session
flags = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
plain = {"spark.python.daemon.module": "pyspark.daemon"}  # for one fork it is the quicker one
spark = spark_session(1, extra=flags | plain)
model = PipelineModel.load(sys.argv[1])
df = spark.createDataFrame([(2.0, 0.5), (-2.0, 0.5)], ["a", "b"])
print([row.prediction for row in model.transform(df).collect()])
"""


@pytest.fixture(scope="module")
def digits(spark):
    features, labels = load_digits(return_X_y=True)
    table = {
        "list": list(features.astype(np.float32)),
        "pixels": [row.astype(np.uint8).tobytes() for row in features],
        "label": labels,
        "test": np.random.default_rng(0).permutation(len(labels)) % 5 == 0,
    }
    schema = "list array<float>, pixels binary, label long, test boolean"
    frame = spark.createDataFrame(pd.DataFrame(table), schema).repartition(2)
    frame = frame.withColumn("features", array_to_vector("list")).cache()
    return frame.where("not test"), frame.where("test")


@pytest.fixture(scope="module")
def trained(digits):
    return DBNClassifier(**DIGITS).fit(digits[0])


@pytest.fixture(scope="module")
def points(spark):
    """Two classes that a line parts."""
    coordinates = np.random.default_rng(1).normal(size=(200, 2))
    table = {
        "a": coordinates[:, 0],
        "b": coordinates[:, 1],
        "label": (coordinates[:, 0] > 0).astype(int),
    }
    return spark.createDataFrame(pd.DataFrame(table)).repartition(2).cache()


@pytest.fixture(scope="module")
def line(points):
    assembler = VectorAssembler(inputCols=["a", "b"], outputCol="features")
    return Pipeline(stages=[assembler, TorchClassifier(**SMALL)]).fit(points)


def test_two_workers_learn_almost_what_one_learns(digits, trained):
    train, test = digits
    alone = DBNClassifier(**DIGITS | {"numWorkers": 1}).fit(train).evaluate(test)
    together = trained.evaluate(test)
    largest_class = max(row["count"] for row in test.groupBy("label").count().collect())
    assert together.error < 0.2 < 1 - largest_class / test.count()
    assert together.error < alone.error + 0.05
    assert together.interval[0] < together.error < together.interval[1]


def test_the_columns_agree_with_the_module(digits, trained):
    rows = digits[1].limit(50)
    scored = trained.transform(rows).select(
        "label",
        vector_to_array("features").alias("x"),
        vector_to_array("rawPrediction").alias("raw"),
        vector_to_array("probability").alias("p"),
        "prediction",
    )
    table = scored.toPandas()
    module = trained.module()
    assert not module.training
    with torch.no_grad():
        x = torch.tensor(np.stack(table.x), dtype=torch.float32) / 16
        outputs = module(x)
    np.testing.assert_allclose(np.stack(table.raw), outputs, rtol=1e-4, atol=1e-5)
    chances = torch.softmax(outputs, 1)
    np.testing.assert_allclose(np.stack(table.p), chances, rtol=1e-4, atol=1e-5)
    assert (table.prediction == outputs.argmax(1).numpy()).all()
    first = rows.first()
    assert trained.predict(first.features) == table.prediction[0]
    np.testing.assert_allclose(trained.predictRaw(first.features), table.raw[0], rtol=1e-4)
    assert (trained.numFeatures, trained.numClasses) == (64, 10)


def test_bytes_and_arrays_are_scored_like_vectors(digits, trained):
    expected = trained.transform(digits[1]).select("prediction").collect()
    for name in ("pixels", "list"):
        model = trained.copy({trained.featuresCol: name})
        assert model.transform(digits[1]).select("prediction").collect() == expected


def test_a_column_without_a_name_is_left_out_and_no_row_runs_twice(digits, trained):
    model = trained.copy({trained.rawPredictionCol: "", trained.probabilityCol: ""})
    assert model.transform(digits[1]).columns == [*digits[1].columns, "prediction"]
    plan = trained.transform(digits[1])._jdf.queryExecution().executedPlan().toString()
    assert plan.count("EvalPython") == 1
    rows = model.transform(digits[1]).select("prediction").collect()
    assert rows == trained.transform(digits[1]).select("prediction").collect()


def test_spark_before_arrow_udfs_scores_alike(digits, trained, monkeypatch):
    names = ("rawPrediction", "probability", "prediction")
    expected = trained.transform(digits[1]).select(*names).collect()
    monkeypatch.delattr("pyspark.sql.functions.arrow_udf", raising=False)
    for column in ("features", "pixels"):
        model = trained.copy({trained.featuresCol: column})
        model._score_functions = {}
        assert model.transform(digits[1]).select(*names).collect() == expected
    probability_model = trained.copy({trained.rawPredictionCol: "", trained.predictionCol: ""})
    probability_model._score_functions = {}
    rows = probability_model.transform(digits[1]).select("probability").collect()
    assert rows == [(row.probability,) for row in expected]


def test_the_summary_tells_the_run(trained, capsys):
    summary = trained.summary
    stages = [p.name.partition(", ")[0] for p in summary.state.phases.values()]
    assert list(dict.fromkeys(stages)) == ["rbm1", "rbm2", "fine-tune"]
    assert summary.state.state == "done"
    tuned = [row["loss"] for row in summary.history if row["phase"].startswith("fine-tune")]
    assert tuned[-1] < tuned[0]
    assert summary.seconds > 0
    assert summary.bytes == sum(row["bytes"] for row in summary.history) > 0
    assert summary.lostWorkers == []
    assert summary.folder is None
    summary.show()
    assert "fine-tune" in capsys.readouterr().out


def test_a_saved_model_is_the_same_without_pickle(digits, trained, tmp_path):
    path = str(tmp_path / "model")
    trained.save(path)
    with pytest.raises(Exception, match="already exists"):
        trained.save(path)
    trained.write().overwrite().save(path)
    loaded = DBNClassificationModel.load(path)
    assert loaded.uid == trained.uid
    assert loaded.summary is None
    assert loaded.extractParamMap() == trained.extractParamMap()
    for name, tensor in trained.network.tensors.items():
        np.testing.assert_array_equal(loaded.network.tensors[name], tensor)
    assert loaded.evaluate(digits[1]) == trained.evaluate(digits[1])
    kinds = {file.suffix for file in tmp_path.rglob("*") if not file.name.startswith((".", "_"))}
    assert kinds <= {"", ".txt", ".parquet"}


def test_a_saved_estimator_is_the_same(spark, tmp_path):
    first = DBNClassifier(**DIGITS, strategy="diloco", fineTuneStrategy="all_reduce")
    first.write().overwrite().save(str(tmp_path / "estimator"))
    second = DBNClassifier.load(str(tmp_path / "estimator"))
    assert second.uid == first.uid
    assert {p.name: v for p, v in second.extractParamMap().items()} == {
        p.name: v for p, v in first.extractParamMap().items()
    }
    assert json.loads(second.getFineTuneStrategy()) == {"recipe": "all_reduce"}


@pytest.mark.parametrize(("batch", "workers"), [(32, 4), (2, 2)])
def test_without_num_workers_all_free_slots_train_but_no_more_than_a_batch_has_rows(
    spark, batch, workers
):
    rows = [([float(n % 7), float(n % 3)], n % 2) for n in range(80)]
    events = []
    linear = {"in_features": 2, "out_features": 2}
    classifier = TorchClassifier(
        module="torch.nn:Linear",
        moduleArgs=linear,
        batchSize=batch,
        callbacks=[events.append],
        epochs=1.0,
    )
    classifier.fit(spark.createDataFrame(rows, "features array<double>, label int"))
    assert {event.slot for event in events if isinstance(event, WorkerJoined)} == set(
        range(workers)
    )


def test_another_models_folder_is_refused(tmp_path, spark):
    path = str(tmp_path / "assembler")
    VectorAssembler(inputCols=["a"]).save(path)
    message = r"holds no DBNClassificationModel; got .*; load it with the class that saved it"
    with pytest.raises(CheckpointError, match=message):
        DBNClassificationModel.load(path)
    DBNClassifier(**DIGITS).save(str(tmp_path / "estimator"))
    with pytest.raises(CheckpointError, match=r"holds no TorchClassifier; got .*DBNClassifier"):
        TorchClassifier.load(str(tmp_path / "estimator"))


def test_a_fit_starts_from_a_saved_model(line, points, tmp_path):
    first, frame = line.stages[-1], line.stages[0].transform(points)
    first.save(str(tmp_path / "model"))
    settings = SMALL | {"maxSteps": 1, "learningRate": 1e-9, "start": str(tmp_path / "model")}
    tensors = TorchClassifier(**settings).fit(frame).network.tensors
    for name, array in first.network.tensors.items():
        np.testing.assert_allclose(tensors[name], array, rtol=1e-5)


def test_a_module_in_a_pipeline_is_loaded_by_a_fresh_process(line, points, tmp_path):
    assert line.stages[-1].evaluate(line.stages[0].transform(points)).error < 0.1
    line.write().overwrite().save(str(tmp_path / "line"))
    assert isinstance(
        PipelineModel.load(str(tmp_path / "line")).stages[-1], TorchClassificationModel
    )
    command = [sys.executable, "-c", LOAD, str(tmp_path / "line")]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "[1.0, 0.0]"


def test_what_another_user_saved_calls_no_code_of_its_own(line, points, tmp_path, monkeypatch):
    """The model and the estimator name `torch.nn:Linear`, which is code, harmless as it is."""
    model, frame = line.stages[-1], line.stages[0].transform(points)
    model.save(str(tmp_path / "model"))
    TorchClassifier(**SMALL).save(str(tmp_path / "estimator"))
    line.write().overwrite().save(str(tmp_path / "line"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    loaders = {
        "model": lambda path, **options: TorchClassificationModel.load(path, **options),
        "estimator": lambda path, **options: TorchClassifier.load(path, **options),
        "line": lambda path: PipelineModel.load(path),
    }
    for name, load in loaders.items():
        with pytest.raises(UsageError, match=r"names code, and no run of yours .*torch.nn:Linear"):
            load(str(tmp_path / name))
    assert loaders["model"](str(tmp_path / "model"), trust_code=True).evaluate(frame).error < 0.1
    loaded = loaders["estimator"](str(tmp_path / "estimator"), trust_code=True)
    assert loaded.getModule() == "torch.nn:Linear"
    monkeypatch.setenv("PHOTINUS_TRUST_CODE", "1")
    assert PipelineModel.load(str(tmp_path / "line")).stages[-1].numClasses == 2


def test_a_saved_model_that_names_a_command_runs_none(line, spark, tmp_path, monkeypatch):
    file, path = tmp_path / "was_run", str(tmp_path / "model")
    line.stages[-1].save(path)
    [part] = (tmp_path / "model" / "metadata").glob("part-*")
    metadata = json.loads(part.read_text())
    settings = {"module": "subprocess:getoutput", "arguments": {"cmd": f"touch {file}"}}
    metadata["network"]["settings"] |= settings
    part.write_text(json.dumps(metadata) + "\n")
    (part.parent / f".{part.name}.crc").unlink()
    with pytest.raises(UsageError, match="names code, and no run of yours"):
        TorchClassificationModel.load(path)
    loaded = TorchClassificationModel.load(path, trust_code=True)
    with pytest.raises(UsageError, match="must be the user's own code"):
        loaded.module()
    assert not file.exists()


def test_a_cross_validator_is_fitted_and_saved(points, tmp_path):
    frame = VectorAssembler(inputCols=["a", "b"], outputCol="features").transform(points)
    clf = TorchClassifier(**SMALL, runDir=str(tmp_path / "runs"))
    grid = ParamGridBuilder().addGrid(clf.learningRate, [0.1]).build()
    evaluator = MulticlassClassificationEvaluator(metricName="accuracy")
    validator = CrossValidator(
        estimator=clf,
        estimatorParamMaps=grid,
        evaluator=evaluator,
        numFolds=2,
        parallelism=2,
        seed=3,
    )
    chosen = validator.fit(frame)
    assert chosen.avgMetrics[0] > 0.9
    assert chosen.bestModel.summary.folder.parent == tmp_path / "runs"
    assert (chosen.bestModel.summary.folder / "report.html").exists()
    assert len(list((tmp_path / "runs").iterdir())) == 3
    chosen.write().overwrite().save(str(tmp_path / "chosen"))
    loaded = type(chosen).load(str(tmp_path / "chosen"))
    assert evaluator.evaluate(loaded.transform(frame)) == evaluator.evaluate(
        chosen.transform(frame)
    )


@pytest.mark.parametrize(
    ("params", "change", "error", "said"),
    [
        (
            {"featuresCol": "feature"},
            {},
            UsageError,
            "unknown column; got 'feature'; did you mean 'features'?",
        ),
        ({}, {"label": "'seven'"}, DataError, "column label holds text"),
        (
            {"numClasses": 9},
            {},
            DataError,
            "column label: label 9 outside 0..8; set numClasses to 10 or more, or mend the row",
        ),
        (
            {"numClasses": 10},
            {"label": "label - 0.5"},
            DataError,
            "outside 0..9 (no whole number); number the classes 0, 1, 2, ... (StringIndexer does)",
        ),
        ({"numClasses": 10}, {"label": "-label - 1"}, DataError, "outside 0..9; number the class"),
        (
            {"numClasses": 10},
            {"label": "cast(null as int)"},
            DataError,
            "column label: null; mend the row",
        ),
        (
            {},
            {"label": "label - 0.5"},
            DataError,
            "column label: labels must be whole numbers from 0; got -0.5",
        ),
        ({}, {"label": "cast(null as int)"}, DataError, "got null"),
        (
            {},
            {"label": "label + 5000000000"},
            DataError,
            "column label: a number this large is none of a class; got 5000000009; number the",
        ),
        ({"numWorkers": 5}, {}, UsageError, "5 workers need 5 slots at the same time; got 4"),
        ({"numWorkers": 5}, {"label": "label - 0.5"}, UsageError, "5 workers need 5 slots"),
        ({"batchSize": 0}, {"label": "label - 0.5"}, UsageError, "batchSize must be a whole"),
    ],
)
def test_bad_input_is_one_clear_sentence(nothing_left, digits, params, change, error, said):
    changed = {name: expr(text) for name, text in change.items()}
    with pytest.raises(error) as caught:
        DBNClassifier(**DIGITS | params).fit(digits[0].withColumns(changed))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_rows_are_named(nothing_left, digits):
    with pytest.raises(DataError, match="column features: there are no rows, or nulls only"):
        DBNClassifier(**DIGITS).fit(digits[0].where("false"))


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"module": ""}, "TorchClassifier needs a module"),
        ({"moduleArgs": {"in_features": 3, "out_features": 2}}, "does not take rows of shape (2,)"),
        ({"moduleArgs": {"in_features": 2, "out_features": 1}}, "one number for each of 2 classes"),
        ({"device": ["cpu", "gpu"]}, "device must be auto, cpu, cuda, "),
        ({"loss": "entropy"}, "unknown loss; got 'entropy'; did you mean 'cross_entropy'?"),
    ],
)
def test_a_wrong_module_is_found_before_any_work(nothing_left, points, params, said):
    frame = VectorAssembler(inputCols=["a", "b"], outputCol="features").transform(points)
    with pytest.raises(PhotinusError) as caught:
        TorchClassifier(**SMALL | params).fit(frame)
    assert said in str(caught.value)


def test_bytes_without_scale_are_told_to_set_it(nothing_left, digits):
    pixels = {"featuresCol": "pixels", "labelCol": "label"}
    network = {"module": "torch.nn:Linear", "moduleArgs": {"in_features": 64, "out_features": 10}}
    with pytest.raises(UsageError, match=r"got Byte and Float; bytes .* set scale=1/255"):
        TorchClassifier(**SMALL | network | pixels).fit(digits[0])


@pytest.mark.parametrize("device", ["stand-in", ["cpu", "stand-in"]], ids=["all", "one"])
def test_a_fit_on_the_stand_in_device_scores_as_the_processors(nothing_left, points, line, device):
    frame = VectorAssembler(inputCols=["a", "b"], outputCol="features").transform(points)
    model = TorchClassifier(**SMALL, device=device, activationMemory="offload").fit(frame)
    columns = ["a", "b", "rawPrediction"]
    rows = model.transform(frame).select(columns).orderBy("a").collect()
    assert rows == line.transform(points).select(columns).orderBy("a").collect()


def test_a_row_of_another_size_ends_the_query_with_a_sentence(spark, trained):
    wrong = spark.createDataFrame([(Vectors.dense([1.0, 2.0]),)], ["features"])
    with pytest.raises(Exception, match="column features: a row of size 2, expected 64"):
        trained.transform(wrong).collect()
    with pytest.raises(UsageError, match="got 'features'; did you mean 'featurs'"):
        trained.transform(wrong.withColumnRenamed("features", "featurs")).collect()


def test_a_row_that_is_not_finite_ends_scoring_as_it_ends_measuring(spark, line):
    rows = [(1.0, 2.0, 1), (1.0, float("nan"), 0)]
    frame = spark.createDataFrame(rows, "a double, b double, label int")
    message = "column features: nan at 1, expected finite numbers; mend the row, or leave it out"
    assembler = line.stages[0].copy().setHandleInvalid("keep")
    assembled = assembler.transform(frame)
    for score in (
        lambda: line.stages[1].transform(assembled).collect(),
        lambda: line.stages[1].evaluate(assembled),
    ):
        with pytest.raises(Exception, match=message):
            score()


def test_a_layers_features_are_a_column(spark):
    config = ModuleConfig(
        module="photinus.models.cnn:tutorial",
        reads="photinus.models.images:crops",
        average=0.9,
        precision="bfloat16",
        epochs=1.0,
    )
    model = config.build((), 3)
    model.learn(Batch(np.zeros((2, 3072), np.uint8), np.array([0, 1])), 0)
    model.parameters.trained += 0.01
    tensors = {name: array.copy() for name, array in model.parameters.tensors().items()}
    network = Network(
        kind="module", settings=to_dict(config), tensors=tensors, shape=(3072,), classes=10
    )
    trained = TorchClassificationModel(network)
    rows = np.random.default_rng(0).integers(0, 256, (6, 3072)).astype(np.uint8)
    frame = spark.createDataFrame([(row.tobytes(),) for row in rows], ["features"])
    scored = trained.withLayer(trained.transform(frame), "local4", "hidden").toPandas()
    exact = replace(config, precision="float32").build((), 3)
    exact.load(model.parameters.trained, model.parameters.floats, model.parameters.integers)
    close = {"rtol": 1e-4, "atol": 1e-5}
    np.testing.assert_allclose(np.stack(scored.hidden), exact.outputs(rows, "local4"), **close)
    assert scored.prediction.tolist() == exact.outputs(rows).argmax(1).tolist()
    with pytest.raises(UsageError, match="unknown layer; got 'local5'; did you mean 'local"):
        trained.withLayer(frame, "local5", "hidden")
