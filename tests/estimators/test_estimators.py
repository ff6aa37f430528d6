"""What is trained beside one class a row, and what its models are used for: on a real Spark."""

import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch
from pyspark.ml import Pipeline
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.feature import Imputer, StandardScaler, VectorAssembler
from pyspark.ml.functions import vector_to_array
from pyspark.ml.tuning import CrossValidator
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from sklearn.metrics import (
    confusion_matrix,
    f1_score,
    mean_absolute_error,
    multilabel_confusion_matrix,
    r2_score,
)

from photinus.core.errors import DataError, UsageError
from photinus.core.events import Evaluated
from photinus.core.settings import to_dict
from photinus.estimators.dbn import DBNClassifier
from photinus.estimators.module import (
    TorchClassifier,
    TorchEstimator,
    TorchModel,
    TorchMultiLabelModel,
    TorchRegressionModel,
    TorchRegressor,
)
from photinus.estimators.network import Network
from photinus.models.heads import NUMBERS
from photinus.models.module import ModuleConfig
from photinus.models.schedules import Schedule
from photinus.run.job import Job, Source
from photinus.run.presets import preset
from photinus.run.train import train

pytestmark = pytest.mark.spark

FOLDER = Path(__file__).parent
QUICK = {"numWorkers": 2, "batchSize": 16, "learningRate": 0.1}
LINEAR = {"module": "torch.nn:Linear", **QUICK}
ROWS = 160


@pytest.fixture(scope="module", autouse=True)
def own_module(spark):
    path = FOLDER.parent / "run" / "own.py"
    spark.sparkContext.addPyFile(str(path))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(path.parent))
        yield
    sys.modules.pop("own", None)


@pytest.fixture(scope="module")
def table(spark):
    """Four features, a number that they tell, its class, and two labels."""
    x = np.random.default_rng(0).normal(size=(ROWS, 4)).round(3)
    number = x @ [1.0, -2.0, 0.5, 0.0]
    two_labels = np.stack([number > 0, x[:, 3] > 0], 1).astype(float)
    table = {
        "features": list(x),
        "number": number,
        "label": (number > 0).astype(int),
        "both": list(two_labels),
        "a": np.where(np.arange(ROWS) % 9 == 0, np.nan, x[:, 0]),
        "b": x[:, 1],
    }
    schema = (
        "features array<double>, number double, label int, both array<double>, a double, b double"
    )
    return spark.createDataFrame(pd.DataFrame(table), schema).repartition(2).cache()


def linear(outputs):
    return LINEAR | {"moduleArgs": {"in_features": 4, "out_features": outputs}}


@pytest.fixture(scope="module")
def numbers(table):
    return TorchRegressor(**linear(1), labelCol="number", epochs=20).fit(table)


def test_a_regression_predicts_and_is_measured_as_scikit_learn_does(table, numbers, tmp_path):
    assert type(numbers) is TorchRegressionModel
    scored = numbers.transform(table).select("number", "prediction").toPandas()
    evaluation = numbers.evaluate(table)
    assert evaluation.metrics["r2"] == pytest.approx(r2_score(scored.number, scored.prediction))
    assert evaluation.metrics["mae"] == pytest.approx(
        mean_absolute_error(scored.number, scored.prediction)
    )
    evaluator = RegressionEvaluator(labelCol="number", metricName="rmse")
    assert evaluation.metrics["rmse"] == pytest.approx(evaluator.evaluate(numbers.transform(table)))
    assert evaluation.metrics["r2"] > 0.99
    assert str(evaluation).startswith("rmse 0.")
    numbers.save(str(tmp_path / "model"))
    loaded = TorchRegressionModel.load(str(tmp_path / "model"))
    assert loaded.predict(np.ones(4)) == numbers.predict(np.ones(4)) == pytest.approx(-0.5, abs=0.1)


def test_the_params_of_an_estimator_are_those_of_its_model_and_of_the_saved_one(table, tmp_path):
    regressor = TorchRegressor(**linear(1), labelCol="number", epochs=1.0)
    model = regressor.fit(table)
    model.save(str(tmp_path / "model"))
    for trained in (model, TorchRegressionModel.load(str(tmp_path / "model"))):
        assert trained.uid == regressor.uid
        assert trained.transform(table, {regressor.predictionCol: "zz"}).columns[-1] == "zz"
        assert trained.getOrDefault(regressor.labelCol) == "number"


def test_a_model_is_a_function_of_sql(spark, table, numbers):
    numbers.registerFunction("estimated", spark)
    table.createOrReplaceTempView("estimated_rows")
    estimates = spark.sql("SELECT estimated(features).prediction AS said, * FROM estimated_rows")
    scored = numbers.transform(estimates)
    assert scored.where(F.abs(F.col("said") - F.col("prediction")) > 1e-6).count() == 0


def test_an_onnx_file_scores_as_the_model_does(table, numbers, tmp_path):
    file = str(tmp_path / "model.onnx")
    numbers.toOnnx(file)
    scored = numbers.transform(table).toPandas()
    rows = np.stack(scored.features).astype(np.float32)
    (outputs,) = onnxruntime.InferenceSession(file).run(None, {"features": rows})
    np.testing.assert_allclose(outputs[:, 0], scored.prediction, atol=1e-5)


def test_rows_with_several_labels_are_learnt_and_measured(table):
    clf = TorchClassifier(**linear(2), labelCol="both", loss="binary_cross_entropy", epochs=10)
    model = clf.setMetrics(["f1"]).fit(table)
    assert type(model) is TorchMultiLabelModel
    scored = model.transform(table).toPandas()
    predictions, true = np.stack(scored.prediction), np.stack(scored.both)
    assert (predictions == true).mean() > 0.9
    chances = np.stack([row.toArray() for row in scored.probability])
    assert ((chances > 0.5) == predictions).all()
    assert model.evaluate(table).metrics["f1"] == pytest.approx(
        f1_score(true, predictions, average="macro")
    )


def test_evaluate_tells_a_metric_of_ones_own_that_fit_was_given(table, caplog):
    regressor = TorchRegressor(**linear(1), labelCol="number", metrics=["own:near"], epochs=1.0)
    model = regressor.fit(table)
    scored, evaluation = model.transform(table).toPandas(), model.evaluate(table)
    near = ((scored.prediction - scored.number).abs() < 0.5).mean()
    assert evaluation.metrics["own:near"] == pytest.approx(near)
    assert "leaves metrics" not in caplog.text


@pytest.mark.parametrize("loss", ["binary_cross_entropy", "own:labelled"])
def test_each_label_of_several_is_counted_whatever_the_loss(table, loss):
    model = TorchClassifier(**linear(2), labelCol="both", loss=loss, epochs=2).fit(table)
    scored, evaluation = model.transform(table).toPandas(), model.evaluate(table)
    predictions, true = np.stack(scored.prediction), np.stack(scored.both)
    tables = multilabel_confusion_matrix(true, predictions)  # [L, 2, 2]
    assert evaluation.labels == [[t[1, 1], t[0, 1], t[1, 0], t[0, 0]] for t in tables]
    assert "true positives" in str(evaluation)
    with pytest.raises(UsageError, match="read labels, the counts of each label"):
        _ = evaluation.error


@pytest.mark.parametrize(
    ("loss", "said"),
    [("poisson", "at least 0, as poisson counts"), ("binary_cross_entropy", "0..1")],
)
def test_a_number_that_the_loss_of_a_regression_does_not_take_is_refused(table, loss, said):
    regressor = TorchRegressor(**linear(1), labelCol="wrong", loss=loss)
    with pytest.raises(DataError, match=f"row 0 column wrong: -2, expected {said}"):
        regressor.fit(table.withColumn("wrong", F.lit(-2.0)))


def test_a_label_of_several_beside_0_and_1_is_refused_by_its_row(table):
    clf = TorchClassifier(**linear(2), labelCol="wrong", loss="binary_cross_entropy")
    wrong = table.withColumn("wrong", F.array(F.lit(0), F.lit(2)))
    message = r"row 0 column wrong: 2 at 1, expected 1 where the row has the label and 0 elsewhere"
    with pytest.raises(DataError, match=message):
        clf.fit(wrong)


@pytest.mark.parametrize(
    ("softmax", "loss", "warned"),
    [(True, "cross_entropy", True), (True, "own:focal", False), (False, "cross_entropy", False)],
)
def test_probabilities_under_a_loss_that_makes_them_itself_are_warned_of(
    table, caplog, softmax, loss, warned
):
    settings = {"module": "own:softmaxed", "moduleArgs": {"softmax": softmax}, "loss": loss}
    TorchClassifier(**QUICK | settings, epochs=1.0).fit(table)
    warning = "own:softmaxed returns probabilities, and cross_entropy takes the softmax itself"
    assert (warning in caplog.text) == warned


@pytest.mark.parametrize(
    ("estimator", "label", "outputs", "loss", "warned"),
    [
        (TorchClassifier, "label", 1, "binary_cross_entropy", True),
        (TorchClassifier, "both", 2, "binary_cross_entropy", True),
        (TorchEstimator, "", 4, "reconstruction_mse", True),
        (TorchEstimator, "number", 1, "mse", False),
    ],
)
def test_a_sigmoid_under_a_loss_that_takes_it_itself_is_warned_of(
    table, caplog, estimator, label, outputs, loss, warned
):
    settings = {"module": "own:squashed", "moduleArgs": {"outputs": outputs}, "loss": loss}
    estimator(**QUICK | settings, labelCol=label, epochs=1.0).fit(table)
    warning = f"own:squashed ends with a sigmoid, and {loss} takes one itself; no result "
    assert (warning in caplog.text) == warned


def test_one_output_tells_two_classes_apart(table):
    clf = TorchClassifier(**linear(1), loss="binary_cross_entropy", epochs=5)
    model = clf.fit(table)
    scored = model.transform(table).withColumn("p", vector_to_array("probability")).toPandas()
    evaluation = model.evaluate(table)
    assert evaluation.confusion == confusion_matrix(scored.label, scored.prediction).tolist()
    assert evaluation.interval[0] <= evaluation.error < evaluation.interval[1]
    np.testing.assert_allclose(np.stack(scored.p).sum(1), 1.0)
    assert ((np.stack(scored.p)[:, 1] > 0.5) == scored.prediction).all()


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_classifier_under_a_loss_of_ones_own_has_its_error_and_confusion(table, outputs):
    model = TorchClassifier(**linear(outputs), loss="own:focal", epochs=5).fit(table)
    scored, evaluation = model.transform(table).toPandas(), model.evaluate(table)
    assert evaluation.confusion == confusion_matrix(scored.label, scored.prediction).tolist()
    assert evaluation.error == pytest.approx((scored.label != scored.prediction).mean())
    assert evaluation.interval[0] <= evaluation.error < evaluation.interval[1]
    assert str(evaluation).startswith("error ")


def test_labels_that_are_smoothed_away_tell_no_classes_apart(table):
    model = TorchClassifier(**linear(2), labelSmoothing=1.0, epochs=10).fit(table)
    scored = model.transform(table).withColumn("p", vector_to_array("probability")).toPandas()
    assert np.abs(np.stack(scored.p) - 0.5).max() < 0.25


def test_a_memory_format_reaches_the_module_in_training(table):
    settings = {"reads": "own:images", "memoryFormat": "channels_last", "epochs": 1.0}
    model = TorchClassifier(module="own:LastChannels", **settings, **QUICK).fit(table)
    assert model.evaluate(table).examples == ROWS


def test_transform_scores_as_many_rows_at_once_as_it_is_told(table):
    settings = to_dict(ModuleConfig(module="own:BatchRows", loss="mse", epochs=1.0))
    network = Network(
        kind="module",
        settings=settings,
        tensors={"none": np.zeros(1, np.float32)},
        shape=(4,),
        classes=1,
        head=NUMBERS,
    )
    scored = TorchModel(network).setPredictBatchSize(7).transform(table).toPandas()
    assert scored.prediction.max() == 7


def test_a_fit_is_shown_where_that_is_asked_for(table, capsys):
    TorchRegressor(**linear(1), labelCol="number", verbose=True, epochs=1.0).fit(table)
    assert "done" in capsys.readouterr().out


def test_an_autoencoder_gives_its_codes_and_its_error(table):
    coder = TorchEstimator(module="own:Coder", labelCol="", epochs=3, **QUICK).fit(table)
    coded = coder.withLayer(coder.transform(table), "encoder", "codes").toPandas()
    rows = torch.tensor(np.stack(coded.features), dtype=torch.float32)
    module = coder.module()
    with torch.no_grad():
        np.testing.assert_allclose(
            np.stack(coded.codes), module.encoder(rows), rtol=1e-4, atol=1e-6
        )
        loss = torch.nn.functional.mse_loss(module(rows), rows)
    assert coder.evaluate(table).metrics["loss"] == pytest.approx(float(loss), rel=1e-5)


def test_a_loss_of_ones_own_ranks(table):
    ranker = TorchEstimator(**linear(1), loss="own:pairwise", labelCol="number", epochs=5)
    scored = ranker.fit(table).transform(table)
    assert scored.corr("prediction", "number") > 0.95


def test_a_model_of_ones_own_trains_and_scores(table):
    estimator = TorchEstimator(
        module="own:Mean",
        moduleArgs={"width": 4},
        labelCol="number",
        optimizer="sgd",
        epochs=20,
        **QUICK,
    )
    model = estimator.fit(table)
    assert model.transform(table).corr("prediction", "number") > 0.99


def test_rows_that_a_column_sets_aside_are_measured_on_and_not_trained_on(table, caplog):
    """They are of another line: whoever trains on them, or on others measures, is found out."""
    shifted = F.col("number") + F.when(F.col("b") > 0, 100).otherwise(0)
    marked = table.withColumn("number", shifted).withColumn("aside", F.col("b") > 0)
    events = []
    regressor = TorchRegressor(
        **linear(1), labelCol="number", validationIndicatorCol="aside", patience=1, epochs=3
    )
    regressor.callbacks = (events.append,)
    model = regressor.fit(marked)
    metrics = model.evaluate(marked.where("not aside")).metrics
    assert metrics["rmse"] < 10
    measured = [event for event in events if isinstance(event, Evaluated)]
    assert {event.examples for event in measured} == {marked.where("aside").count()}
    assert all(event.metrics["loss"] > 1000 for event in measured)
    model.setMetrics(["mae", "own:apart"])
    assert "mae" in model.evaluate(marked).metrics
    message = "evaluate leaves metrics of your own out that fit was not given; got own:apart"
    assert message in caplog.text


def test_a_layer_of_a_deep_belief_network_is_a_column(table):
    dbn = DBNClassifier(
        hiddenSizes=[5], preTrainEpochs=1, fineTuneEpochs=1, precision="float32", numWorkers=2
    )
    model = dbn.fit(table.withColumn("features", F.transform("features", lambda x: x / 8 + 0.5)))
    scored = model.withLayer(table, "1", "hidden").toPandas()
    rows = torch.tensor(np.stack(scored.features), dtype=torch.float32)
    np.testing.assert_allclose(
        np.stack(scored.hidden), model.module()[:2](rows).detach(), rtol=1e-4, atol=1e-6
    )
    with pytest.raises(UsageError, match="unknown layer; got '9'"):
        model.withLayer(table, "9", "hidden")


def test_two_params_are_chosen_between_behind_stages_that_clean(table):
    imputer = Imputer(inputCols=["a", "b"], outputCols=["a", "b"])
    assembler = VectorAssembler(inputCols=["a", "b"], outputCol="joined")
    scaler = StandardScaler(inputCol="joined", outputCol="scaled")
    regressor = TorchRegressor(
        module="torch.nn:Linear",
        moduleArgs={"in_features": 2, "out_features": 1},
        featuresCol="scaled",
        labelCol="number",
        numWorkers=2,
        epochs=4,
    )
    rate, batch = regressor.learningRate, regressor.batchSize
    grid = [{rate: 1e-5, batch: 160}, {rate: 0.2, batch: 16}]
    validator = CrossValidator(
        estimator=Pipeline(stages=[imputer, assembler, scaler, regressor]),
        estimatorParamMaps=grid,
        evaluator=RegressionEvaluator(labelCol="number"),
        numFolds=2,
        seed=1,
    )
    validated = validator.fit(table)
    assert validated.avgMetrics[1] < validated.avgMetrics[0]
    settings = validated.bestModel.stages[-1].network.settings
    assert (settings["batch_size"], settings["lr"]["points"][1][1]) == (16, 0.2)
    assert validated.transform(table).corr("prediction", "number") > 0.9


def test_what_a_fit_brings_to_the_driver_does_not_grow_with_the_rows(spark, table):
    """Spark counts the bytes of all results of its tasks."""

    def result_bytes():
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(10_000)
        doubles = spark.sparkContext._gateway.new_array(spark._jvm.double, 0)
        store = spark.sparkContext._jsc.sc().statusStore()
        stages = store.stageList(None, False, False, doubles, None)
        return sum(stages.apply(i).resultSize() for i in range(stages.size()))

    regressor = TorchRegressor(**linear(1), labelCol="number", epochs=1.0)
    sizes = []
    for times in (1, 100):
        many = table.crossJoin(spark.range(times)).select("features", "number")
        before = result_bytes()
        regressor.copy({regressor.batchSize: 16 * times}).fit(many)
        sizes.append(result_bytes() - before)
    assert 20 * sizes[1] < 100 * ROWS * 5 * 8, sizes
    assert sizes[1] < 2 * sizes[0], sizes


def test_the_tutorials_recipe_trains_by_the_estimator_to_the_bits_of_its_job(spark, tmp_path):
    rng = np.random.default_rng(0)
    rows = [
        (bytearray(rng.integers(0, 256, 3072, np.uint8).tobytes()), int(i % 10)) for i in range(48)
    ]
    frame = spark.createDataFrame(rows, "features binary, label long").repartition(2).cache()
    frame.count()
    job = preset("cifar10", 2)
    # "auto" times both formats, and where they are near each other two trainings may differ.
    measured = {"precision": "float32", "memory": "channels_last"}
    short = {"epochs": 1.0, "batch_size": 16, **measured}
    model = type(job.model)(**{**vars(job.model), **short})
    outcome = train(
        Job(model=model, data=Source(name="given"), workers=2, strategy=job.strategy),
        frame,
        folder=tmp_path / "run",
    )
    clf = TorchClassifier(
        module="photinus.models.cnn:tutorial",
        phase="cifar10",
        epochs=1.0,
        batchSize=16,
        memoryFormat="channels_last",
        reads="photinus.models.images:crops",
        optimizer="sgd",
        learningRate=Schedule.stairs(0.1, 0.1, 0.6, 0.85),
        l2={"local[34].weight": 0.004},
        movingAverage=0.999,
        strategy="all_reduce",
        numWorkers=2,
    )
    trained = clf.fit(frame)
    for name, tensor in outcome.trained.tensors().items():
        np.testing.assert_array_equal(trained.network.tensors[name], tensor, err_msg=name)
