"""What a notebook defines, sent by value over Spark Connect."""

import sys

import numpy as np
import pytest

from photinus import TorchClassifier, by_value
from photinus.core.errors import UsageError

pytestmark = pytest.mark.spark

NOTEBOOK = """
import numpy as np
from torch import nn

class Net(nn.Module):
    def __init__(self, classes=2):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, classes))

    def forward(self, x):
        return self.layers(x.float())

def words(texts):
    return [[len(text), text.count("a")] for text in texts]

def smooth(outputs, labels):
    return nn.functional.cross_entropy(outputs, labels, label_smoothing=0.01)

def halved(rows):
    return {"x": np.stack([row["x"] for row in rows]) / 2}

def asks_spark():
    return Net() if session.version else None
"""


@pytest.fixture(scope="module")
def cells():
    main = vars(sys.modules["__main__"])
    before = dict(main)
    exec(compile(NOTEBOOK, "<cell 1>", "exec"), main)
    yield main
    main.clear()
    main.update(before)


@pytest.fixture(scope="module")
def table(connected):
    labels = np.random.default_rng(0).integers(0, 2, 200).tolist()
    rows = [("aa" if label else "bcd", label) for label in labels]
    return connected.createDataFrame(rows, "text string, label int")


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
