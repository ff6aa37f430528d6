"""A function of a notebook reaches the workers in Spark's closure, where the user consents."""

import numpy as np
import pytest

from photinus import TorchClassifier, by_value
from photinus.core.errors import UsageError
from photinus.core.factories import code_named

pytestmark = pytest.mark.spark

NOTEBOOK = """
import torch
from torch import nn

WIDTH = 8

def words(texts):
    return [[len(text), text.count("a")] for text in texts]

class Net(nn.Module):
    def __init__(self, classes=2):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, WIDTH), nn.ReLU(), nn.Linear(WIDTH, classes))

    def forward(self, x):
        return self.layers(x.float())

def smooth(outputs, labels):
    return nn.functional.cross_entropy(outputs, labels, label_smoothing=0.01)
"""


@pytest.fixture(scope="module")
def cells():
    """What the cells of a notebook define."""
    defined = {"__name__": "__main__"}
    exec(NOTEBOOK, defined)
    return defined


@pytest.fixture(scope="module")
def table(spark):
    labels = np.random.default_rng(0).integers(0, 2, 200).tolist()
    rows = [("aa" if label else "bcd", label) for label in labels]
    return spark.createDataFrame(rows, "text string, label int").repartition(2)


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
    for unsaved, what in ((model, "a model"), (clf, "an estimator")):
        with pytest.raises(UsageError, match=f"{what} to be saved names code that was sent by val"):
            unsaved.write().save(str(tmp_path / "saved"))
    assert not (tmp_path / "saved").exists()


def test_without_consent_a_function_of_a_notebook_is_not_sent(cells):
    with pytest.raises(UsageError, match=r"or send it by value: module=photinus.by_value\(Net\)"):
        TorchClassifier(module=cells["Net"])


def test_what_can_be_imported_is_not_sent_by_value():
    with pytest.raises(UsageError, match="got 'collections:OrderedDict'; give its name"):
        by_value(__import__("collections").OrderedDict)


def test_a_name_of_another_program_says_where_the_function_belongs():
    with pytest.raises(UsageError, match="was defined in another program; define it in a file"):
        code_named("__main__:net_1234", "module")
