"""Modules with sharded tables, on a real Spark."""

from pathlib import Path

import numpy as np
import pytest
import torch
from pyspark.sql import functions as F  # noqa: N812

from photinus.core.errors import PhotinusError, UsageError
from photinus.core.events import Evaluated
from photinus.estimators.module import TorchClassificationModel, TorchClassifier
from photinus.strategies.recipes import averaging

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def table(spark):
    """Events of a user, two items and a price; whether both kinds agree."""
    spark.sparkContext.addPyFile(str(Path(__file__).with_name("nets_of_tables.py")))
    rng = np.random.default_rng(0)
    rows = [
        (int(u), [int(i), int(i)], float(p), int(u % 2 == i % 2))
        for u, i, p in zip(
            rng.integers(0, 60, 3000),
            rng.integers(0, 40, 3000),
            rng.random(3000),
            strict=True,
        )
    ]
    frame = spark.createDataFrame(rows, ["user", "item", "price", "label"])
    return frame.repartition(3).cache()


SETTINGS = {
    "module": "nets_of_tables:Scores",
    "inputs": {"user": "user", "item": "item", "price": "price"},
    "numWorkers": 3,
    "epochs": 4,
    "learningRate": 0.01,
}


def train_classifier(table, **params):
    return TorchClassifier(**{**SETTINGS, **params}).fit(table)


def test_an_estimator_trains_scores_and_saves_a_module_with_sharded_tables(table, tmp_path):
    model = train_classifier(table)
    error = model.evaluate(table).error
    assert error < 0.05
    scored = model.transform(table).select("label", "prediction", "user", "item", "price")
    wrong = scored.where("label != prediction").count()
    assert wrong / table.count() == pytest.approx(error)
    model.write().save(str(tmp_path / "saved"))
    loaded = TorchClassificationModel.load(str(tmp_path / "saved"))
    assert loaded.transform(table).where("label != prediction").count() == wrong
    rows, module = scored.limit(50).toPandas(), model.module()
    with torch.no_grad():
        predictions = module(
            torch.tensor(rows["user"]),
            torch.tensor(np.stack(rows["item"])),
            torch.tensor(rows["price"]).float(),
        ).argmax(1)
    assert predictions.tolist() == rows["prediction"].astype(int).tolist()
    assert all(parameter.requires_grad for parameter in module.parameters())
    shapes = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    assert (shapes["users.weight"], shapes["items.weight"]) == ((60, 4), (40, 4))


def test_marked_rows_are_measured_while_no_worker_holds_the_tables(table):
    marked, events = table.withColumn("aside", F.col("price") > 0.8), []
    classifier = TorchClassifier(
        **SETTINGS, validationIndicatorCol="aside", patience=20, strategy=averaging(codec="fp32")
    )
    classifier.callbacks = (events.append,)
    model = classifier.fit(marked)
    aside = marked.where("aside")
    measured = [event for event in events if isinstance(event, Evaluated)]
    assert {event.examples for event in measured} == {aside.count()}
    best = [event.metrics["error"] for event in measured if event.extra.get("best")][-1]
    assert model.evaluate(aside).error == pytest.approx(best)
    assert best < 0.06


def test_an_id_beyond_the_table_is_named_with_its_column(table):
    with pytest.raises(PhotinusError, match=r"users\.weight has rows 0 to 9, and no row"):
        train_classifier(table, moduleArgs={"users": 10}, epochs=1)


def test_an_estimator_trains_them_by_the_gradient_of_every_step(table):
    model = train_classifier(table, strategy="all_reduce")
    assert model.evaluate(table).error < 0.05


def test_a_strategy_that_needs_whole_tables_is_one_sentence(table):
    wrong = "on sharded tables by averaging, diloco, downpour or all_reduce; got publish"
    with pytest.raises(UsageError, match=wrong):
        train_classifier(table, strategy="publish")
