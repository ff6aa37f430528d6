"""What a notebook defines, sent by value over Spark Connect."""

import pytest

from photinus import TorchClassifier, by_value
from photinus.core.errors import UsageError

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def table(connected, texts):
    return connected.createDataFrame(texts, "text string, label int")


def classifier(cells, folder, module):
    return TorchClassifier(
        module=by_value(module),
        loss=by_value(cells["smooth"]),
        inputs={"x": "text"},
        encoders={"x": by_value(cells["words"])},
        collate=by_value(cells["halved"]),
        numWorkers=2,
        epochs=4,
        learningRate=0.05,
        runDir=str(folder),
    )


def test_module_loss_encoder_and_collate_of_a_notebook_train_and_score(cells, table, tmp_path):
    model = classifier(cells, tmp_path, cells["Net"]).fit(table)
    assert model.evaluate(table).metrics["loss"] < 0.5
    assert model.transform(table).where("prediction = label").count() == 200


def test_code_that_uses_the_session_is_refused_before_a_run_begins(cells, table, tmp_path):
    cells["session"] = table.sparkSession
    clf = classifier(cells, tmp_path, cells["asks_spark"])
    wrong = r"a worker cannot load asks_spark, .*; got .*session.*; use no Spark session, DataFrame"
    with pytest.raises(UsageError, match=wrong):
        clf.fit(table)
