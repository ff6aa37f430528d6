"""Columns of every kind reach `forward`, on a real Spark."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pyspark.ml.linalg import Vectors
from pyspark.sql import Row

from photinus.estimators.module import TorchClassificationModel, TorchClassifier

pytestmark = pytest.mark.spark

NETS = "nets_of_inputs"
QUICK = {"batchSize": 8, "epochs": 1, "numWorkers": 2, "learningRate": 0.01}


@pytest.fixture(scope="module")
def sent(spark):
    spark.sparkContext.addPyFile(str(Path(__file__).with_name("nets_of_inputs.py")))
    return spark


def image(i, size=(4, 3)):
    out = io.BytesIO()
    Image.new("RGB", size, (i, 2 * i, 3 * i)).save(out, "PNG")
    return out.getvalue()


def image_row(i):
    return Row(origin="", height=2, width=3, nChannels=3, mode=16, data=bytes([i] * 18))


VALUES = {
    "whole": lambda i: i,
    "number": lambda i: i / 2,
    "truth": lambda i: i % 3 == 0,
    "tokens": lambda i: [i % 7 + 1] * (1 + i % 5),
    "floats": lambda i: [i / 4] * (1 + i % 5),
    "matrix": lambda i: [[1.0, 2.0, 3.0]] * (1 + i % 4),
    "sparse": lambda i: Vectors.sparse(6, {i % 6: 1.0}) if i % 2 else Vectors.dense([1.0] * 6),
    "raw": lambda i: bytes([i] * 4),
    "picture": image_row,
    "png": image,
    "text": lambda i: "abc"[: 1 + i % 3],
    "label": lambda i: i % 2,
    "other": lambda i: i % 3 / 2,
    "weight": lambda i: 1.0 + i % 2,
}


@pytest.fixture(scope="module")
def frame(sent):
    rows = [Row(**{name: value(i) for name, value in VALUES.items()}) for i in range(40)]
    return sent.createDataFrame(rows).repartition(2).cache()


def trained(frame, module, arguments=None, **params):
    settings = QUICK | params
    made = TorchClassifier(module=f"{NETS}:{module}", moduleArgs=arguments or {}, **settings)
    return made.fit(frame)


def test_a_column_of_each_kind_reaches_forward_in_training_and_scoring(frame):
    names = ("whole", "number", "truth", "raw", "picture", "png")
    of_any_length = ("tokens", "floats", "matrix", "text")
    inputs = {name: name for name in (*of_any_length, *names)}
    inputs |= {"vector": "sparse", "pair": ["whole", "number"]}
    encoders = {"png": "image", "text": f"{NETS}:letters"}
    model = trained(frame, "All", inputs=inputs, encoders=encoders, weightCol="weight")
    assert model.transform(frame).where("prediction >= 0").count() == 40


def test_an_encoder_may_return_several_inputs(frame):
    encoders = {"t": f"{NETS}:worded"}
    model = trained(frame, "Bag", {"others": 1}, inputs={"t": "text"}, encoders=encoders)
    assert model.transform(frame).count() == 40


def test_two_inputs_learn_what_neither_tells_alone_and_keep_it_when_saved(sent, tmp_path):
    chance = np.random.default_rng(0)
    rows = []
    for i in range(600):
        tokens = chance.integers(0, 25, chance.integers(1, 12)) + 25 * (i % 2)
        rows.append(([int(t) for t in tokens], float(i // 2 % 2), (i % 2) ^ (i // 2 % 2)))
    frame = sent.createDataFrame(rows, "ids array<int>, amount double, label int")
    tuned = {"epochs": 40, "learningRate": 0.05, "batchSize": 32, "moduleArgs": {"others": 1}}
    inputs = {"tokens": "ids", "price": "amount"}
    clf = TorchClassifier(module=f"{NETS}:Bag", inputs=inputs, numWorkers=2, **tuned)
    model = clf.fit(frame)
    said = [row.prediction for row in model.transform(frame).collect()]
    path = str(tmp_path / "model")
    model.write().save(path)
    loaded = TorchClassificationModel.load(path)
    assert [row.prediction for row in loaded.transform(frame).collect()] == said
