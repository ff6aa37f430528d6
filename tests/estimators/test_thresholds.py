"""Thresholds of classes: those of Spark ML, for outputs of a softmax and of one sigmoid."""

import math

import numpy as np
import pytest
from pyspark.ml.classification import LogisticRegression
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.linalg import Vectors
from pyspark.ml.tuning import ParamGridBuilder, TrainValidationSplit

from photinus.core.errors import UsageError
from photinus.core.settings import to_dict
from photinus.estimators.dbn import DBNClassifier
from photinus.estimators.module import (
    TorchClassificationModel,
    TorchClassifier,
    TorchMultiLabelModel,
)
from photinus.estimators.network import Network
from photinus.estimators.thresholds import chosen_classes, to_thresholds
from photinus.models.heads import BINARY, CLASSES, LABELS
from photinus.models.module import ModuleConfig

LOSS_OF_HEAD = {BINARY: "binary_cross_entropy", CLASSES: "cross_entropy"}


def chosen_by_spark(probability, thresholds):
    """As ProbabilisticClassificationModel.probability2prediction of Spark has it."""
    largest, chosen = -math.inf, 0
    for k, (p, t) in enumerate(zip(probability, thresholds, strict=True)):
        scaled = (math.inf if p else math.nan) if t == 0 else p / t
        if scaled > largest:
            largest, chosen = scaled, k
    return chosen


def test_the_class_is_chosen_as_sparks_source_chooses_it():
    rng = np.random.default_rng(0)
    probability = rng.dirichlet([0.3] * 4, 300)
    probability[:40, 2], probability[40:80] = 0.0, 0.25  # none of a class, and ties
    for thresholds in ([1, 1, 1, 1], [0.7, 0.1, 0.1, 0.1], [0.5, 0.5, 0, 0.1], [0, 9, 1e-9, 2]):
        expected = [chosen_by_spark(row, thresholds) for row in probability]
        np.testing.assert_array_equal(chosen_classes(probability, thresholds), expected)


@pytest.mark.parametrize(
    "wrong", [[], [0.0], [0.0, 0.0, 1.0], [-0.1, 1.0], [math.nan, 1.0], [math.inf, 1.0], 0.5, ["a"]]
)
@pytest.mark.parametrize("estimator", [TorchClassifier, DBNClassifier])
def test_thresholds_that_choose_nothing_are_refused(estimator, wrong):
    with pytest.raises(UsageError, match="thresholds must be a number of at least 0 for each cl"):
        estimator(thresholds=wrong)


def test_thresholds_are_kept_as_a_list_of_numbers():
    assert to_thresholds(np.array([0, 1])) == [0.0, 1.0]
    assert TorchClassifier().setThresholds((1, 3)).getThresholds() == [1.0, 3.0]
    assert not TorchClassifier().isDefined("thresholds")


def model_of(weight, bias, head, kind=TorchClassificationModel, **settings):
    """A layer of these numbers."""
    outputs, inputs = weight.shape
    arguments = {"in_features": inputs, "out_features": outputs}
    config = ModuleConfig(module="torch.nn:Linear", arguments=arguments, **settings)
    tensors = {"weight": weight.astype(np.float32), "bias": bias.astype(np.float32)}
    fields = {"shape": (inputs,), "classes": outputs, "head": head}
    return kind(Network(kind="module", settings=to_dict(config), tensors=tensors, **fields))


@pytest.fixture(scope="module")
def table(spark):
    """Three classes that overlap, of which the last one is rare; and whether it is the first."""
    rng = np.random.default_rng(0)
    labels = rng.choice(3, 400, p=[0.6, 0.35, 0.05])
    points = rng.normal(size=(400, 2)) + 1.2 * np.stack([labels == 1, labels == 2], 1)
    rows = [
        (Vectors.dense(point), float(label), float(label == 0))
        for point, label in zip(points, labels, strict=True)
    ]
    return spark.createDataFrame(rows, ["features", "label", "is_first"]).coalesce(2).cache()


def predictions(model, table):
    return [row["prediction"] for row in model.transform(table).select("prediction").collect()]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("family", "label", "thresholds"),
    [
        ("binomial", "is_first", [0.8, 0.2]),
        ("binomial", "is_first", [3.0, 9.0]),
        ("binomial", "is_first", [0.0, 1.0]),
        ("multinomial", "is_first", [0.8, 0.2]),
        ("multinomial", "label", [0.45, 0.45, 0.1]),
        ("multinomial", "label", [1.0, 0.0, 1.0]),
        ("multinomial", "label", [5.0, 5.0, 0.1]),
    ],
)
def test_classes_are_those_of_sparks_logistic_regression(table, family, label, thresholds):
    spark_model = LogisticRegression(family=family, labelCol=label, maxIter=20).fit(table)
    if family == "binomial":
        weight, bias = spark_model.coefficients.toArray()[None], np.array([spark_model.intercept])
    else:
        weight = spark_model.coefficientMatrix.toArray()
        bias = spark_model.interceptVector.toArray()
    model = model_of(weight, bias, BINARY if family == "binomial" else CLASSES)
    assert predictions(model, table) == predictions(spark_model, table)  # without thresholds

    likeliest = predictions(model, table)
    chosen = predictions(model.setThresholds(thresholds), table)
    assert chosen == predictions(spark_model.setThresholds(thresholds), table)
    assert chosen != likeliest
    first = table.first()["features"]
    assert model.predict(first) == chosen[0]
    model.registerFunction("by_thresholds", table.sparkSession)
    of_sql = table.selectExpr("by_thresholds(features).prediction").collect()
    assert [row[0] for row in of_sql] == chosen
    model.clear(model.thresholds)
    assert predictions(model, table) == likeliest


@pytest.mark.spark
@pytest.mark.parametrize(
    ("outputs", "head", "label", "thresholds"),
    [(1, BINARY, "is_first", [0.8, 0.2]), (3, CLASSES, "label", [0.45, 0.45, 0.1])],
)
def test_evaluate_counts_the_classes_that_transform_predicts(
    table, outputs, head, label, thresholds
):
    weight = np.random.default_rng(2).normal(size=(outputs, 2))
    own = {"loss": LOSS_OF_HEAD[head], "metrics": ("accuracy",)}
    model = model_of(weight, np.zeros(outputs), head, **own)
    model.setLabelCol(label).setMetrics(["recall"])
    likeliest = model.evaluate(table)
    measured = model.setThresholds(thresholds).evaluate(table)

    true = np.array([row[0] for row in table.select(label).collect()]).astype(int)
    said = np.array(predictions(model, table)).astype(int)
    classes = len(thresholds)
    confusion = [
        [int(((true == t) & (said == s)).sum()) for s in range(classes)] for t in range(classes)
    ]
    assert measured.confusion == confusion != likeliest.confusion
    assert measured.error == pytest.approx((true != said).mean())
    assert measured.metrics["accuracy"] == pytest.approx((true == said).mean())
    recall = np.mean([confusion[k][k] / sum(confusion[k]) for k in range(classes)])
    assert measured.metrics["recall"] == pytest.approx(recall)
    assert measured.metrics["loss"] == pytest.approx(likeliest.metrics["loss"])


@pytest.mark.spark
def test_a_model_keeps_them_when_it_is_saved(table, tmp_path):
    model = model_of(np.eye(3, 2), np.zeros(3), CLASSES).setThresholds([0.1, 0.2, 0.7])
    model.write().save(str(tmp_path / "model"))
    loaded = TorchClassificationModel.load(str(tmp_path / "model"))
    assert loaded.getThresholds() == [0.1, 0.2, 0.7]
    assert predictions(loaded, table) == predictions(model, table)
    assert predictions(loaded, table) != predictions(model.setThresholds([1, 1, 1]), table)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("model", "thresholds", "words"),
    [
        (model_of(np.ones((3, 2)), np.zeros(3), CLASSES), [0.5, 0.5], "got 2 for 3 classes"),
        (model_of(np.ones((1, 2)), np.zeros(1), BINARY), [0.5], "got 1 for 2 classes"),
        (
            model_of(np.ones((2, 2)), np.zeros(2), LABELS, TorchMultiLabelModel),
            [0.5, 0.5],
            "one class for each row; got several labels a row",
        ),
    ],
)
def test_thresholds_that_do_not_fit_the_classes_are_refused_before_a_query(
    table, model, thresholds, words
):
    with pytest.raises(UsageError, match=words):
        model.setThresholds(thresholds).transform(table)


SMALL = {
    "module": "torch.nn:Linear",
    "moduleArgs": {"in_features": 2, "out_features": 3},
    "learningRate": 0.1,
    "batchSize": 20,
    "epochs": 3,
    "numWorkers": 2,
}


@pytest.mark.spark
def test_fit_refuses_too_few_before_it_trains_and_hands_the_others_on(table, tmp_path):
    classifier = TorchClassifier(**SMALL, thresholds=[0.5, 0.5], runDir=str(tmp_path / "runs"))
    with pytest.raises(UsageError, match="a number for each class; got 2 for 3 classes"):
        classifier.fit(table)
    assert list((tmp_path / "runs").rglob("job.json")) == []
    model = classifier.setThresholds([5, 5, 1e-9]).fit(table)
    assert model.getThresholds() == [5.0, 5.0, 1e-9]
    assert set(predictions(model, table)) == {2.0}


@pytest.mark.spark
def test_a_grid_of_thresholds_is_searched(table):
    classifier = TorchClassifier(**SMALL)
    grid = ParamGridBuilder().addGrid(classifier.thresholds, [[9, 9, 0.001], [1, 1, 1]]).build()
    evaluator = MulticlassClassificationEvaluator(metricName="accuracy")
    search = TrainValidationSplit(
        estimator=classifier, estimatorParamMaps=grid, evaluator=evaluator, seed=1
    )
    chosen = search.fit(table)
    assert chosen.bestModel.getThresholds() == [1.0, 1.0, 1.0]
    assert chosen.validationMetrics[0] < 0.2 < 0.4 < chosen.validationMetrics[1]
