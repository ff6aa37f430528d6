"""A function of a notebook reaches the workers in Spark's closure, where the user consents."""

import sys
import types

import numpy as np
import pytest

from photinus import Job, ModuleConfig, TorchClassifier, by_value, train
from photinus.core.errors import NotReadyError, UsageError
from photinus.core.events import RoundClosed
from photinus.core.factories import resolve_user_code
from photinus.engine.spark.engine import SparkEngine
from photinus.engine.spark.sent_code import check_sent
from photinus.strategies.recipes import from_plain

pytestmark = pytest.mark.spark

FIT = """
from photinus import TorchClassifier, by_value, spark_session

spark = spark_session(2)
table = spark.createDataFrame([("aa", 1), ("bcd", 0)] * 100, "text string, label int")
clf = TorchClassifier(
    module=by_value(Net),
    loss=by_value(smooth),
    inputs={"x": "text"},
    encoders={"x": by_value(words)},
    collate=by_value(halved),
    numWorkers=2,
    epochs=4,
    learningRate=0.05,
)
scored = clf.fit(table).transform(table)
print("right:", scored.where("prediction = label").count())
spark.stop()
"""

POINTS = np.eye(4, dtype=np.float32)[np.arange(48) % 4], np.arange(48) % 2


def notebook_job(cells, engine):
    """Two workers, twelve steps."""
    linear = {"in_features": 4, "out_features": 2}
    config = ModuleConfig(module="torch.nn:Linear", arguments=linear, epochs=2, batch_size=8)
    strategy = from_plain(by_value(cells["thrice"]))
    return Job(model=config, strategy=strategy, workers=2, engine=engine)


@pytest.fixture(scope="module")
def table(spark, texts):
    return spark.createDataFrame(texts, "text string, label int").repartition(2)


def test_module_loss_and_encoder_of_a_notebook_train_and_score(cells, table, tmp_path):
    clf = TorchClassifier(
        module=by_value(cells["Net"]),
        loss=by_value(cells["smooth"]),
        inputs={"x": "text"},
        encoders={"x": by_value(cells["words"])},
        numWorkers=2,
        epochs=4,
        learningRate=0.05,
    )
    model = clf.fit(table)
    assert model.evaluate(table).metrics["loss"] < 0.5
    assert model.transform(table).where("prediction = label").count() == 200
    for unsaved, kind in ((model, "a model"), (clf, "an estimator")):
        with pytest.raises(UsageError, match=f"{kind} to be saved names code that is sent by val"):
            unsaved.write().save(str(tmp_path / "saved"))
    assert not (tmp_path / "saved").exists()


def test_a_collate_of_a_notebook_makes_the_batches_of_training_and_scoring(cells, table):
    clf = TorchClassifier(
        module=by_value(cells["Net"]),
        inputs={"x": "text"},
        encoders={"x": by_value(cells["words"])},
        collate=by_value(cells["halved"]),
        numWorkers=2,
        epochs=4,
        learningRate=0.05,
    )
    model = clf.fit(table)
    rows = model.transform(table).select("text", "rawPrediction").distinct().collect()
    features = {row.text: cells["words"]([row.text])[0] for row in rows}
    for row in rows:
        plain = model.module()(cells["torch"].tensor([features[row.text]]) / 2)[0]
        np.testing.assert_allclose(row.rawPrediction, plain.tolist(), rtol=1e-5)


def test_a_strategy_of_a_notebook_decides_when_the_workers_agree(cells, spark, tmp_path):
    job, events = notebook_job(cells, "spark"), []
    train(
        job, POINTS, folder=tmp_path / "run", engine=SparkEngine(spark), callbacks=[events.append]
    )
    assert sum(isinstance(event, RoundClosed) for event in events) == 4


def test_the_local_engine_refuses_code_of_a_notebook_before_it_makes_a_folder(cells, tmp_path):
    message = 'a job with engine="local" names code that is sent by value; got .*thrice'
    with pytest.raises(UsageError, match=message):
        train(notebook_job(cells, "local"), POINTS, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_cells_of_a_jupyter_notebook_train_and_score(notebook, executed):
    output = executed(lambda v4: v4.new_notebook(cells=[*map(v4.new_code_cell, (notebook, FIT))]))
    assert "right: 200" in output


def test_code_that_uses_the_session_is_refused_before_a_run_begins(cells, spark):
    cells["session"] = spark
    message = r"^asks_spark cannot be sent by value; got .*; use no Spark session, DataFrame, lock"
    with pytest.raises(UsageError, match=message):
        check_sent(spark, {"__main__:asks_spark_12ab": cells["asks_spark"]})


def test_code_whose_helper_the_workers_lack_is_refused_before_a_run_begins(
    cells, table, monkeypatch
):
    helper = types.ModuleType("beside_the_notebook")
    helper.net = cells["Net"]
    monkeypatch.setitem(sys.modules, helper.__name__, helper)
    cells["helper"] = helper
    clf = TorchClassifier(
        module=by_value(cells["asks_a_helper"]),
        inputs={"x": "text"},
        encoders={"x": by_value(cells["words"])},
        numWorkers=2,
    )
    message = "got ModuleNotFoundError: No module named 'beside_the_notebook'; install the module"
    with pytest.raises(NotReadyError, match=message):
        clf.fit(table)


def test_without_consent_a_function_of_a_notebook_is_not_sent(cells):
    with pytest.raises(UsageError, match=r"or send it by value: module=photinus.by_value\(Net\)"):
        TorchClassifier(module=cells["Net"])


def test_what_can_be_imported_is_not_sent_by_value():
    with pytest.raises(UsageError, match="got 'collections:OrderedDict'; give its name"):
        by_value(__import__("collections").OrderedDict)


def test_a_name_of_another_program_says_where_the_function_belongs():
    with pytest.raises(UsageError, match="was defined in another program; define it in a file"):
        resolve_user_code("__main__:net_1234", "module")
