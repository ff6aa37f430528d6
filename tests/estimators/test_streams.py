"""A stream is refused where rows are read to their end, and scored as any table."""

import numpy as np
import pytest

import photinus as ph
from photinus.core.errors import UsageError
from photinus.estimators.dbn import DBNClassifier
from photinus.estimators.module import TorchClassificationModel
from photinus.estimators.network import Network
from photinus.estimators.word2vec import Word2Vec
from photinus.models.module import ModuleConfig

pytestmark = pytest.mark.spark
LINEAR = {"in_features": 2, "out_features": 3}
NO_END = "^these rows are a stream, and have no end; got a streaming table; read the same source"


@pytest.fixture(scope="module")
def stream(spark):
    rate = spark.readStream.format("rate").load()
    features = "array(cast(value as float), 1f) as features"
    return rate.selectExpr(features, "0 as label", "array('a', 'b') as words")


@pytest.fixture(scope="module")
def model():
    tensors = {"weight": np.eye(3, 2, dtype=np.float32), "bias": np.zeros(3, np.float32)}
    settings = {"module": "torch.nn:Linear", "arguments": LINEAR}
    network = Network(kind="module", settings=settings, tensors=tensors, shape=(2,), classes=3)
    return TorchClassificationModel(network)


@pytest.mark.parametrize(
    "estimator", [DBNClassifier(), Word2Vec(inputCol="words")], ids=lambda e: type(e).__name__
)
def test_an_estimator_refuses_a_stream(estimator, stream):
    with pytest.raises(UsageError, match=NO_END):
        estimator.fit(stream)


def test_a_job_refuses_a_stream(stream, tmp_path):
    job = ph.Job(model=ModuleConfig(module="torch.nn:Linear", arguments=LINEAR))
    with pytest.raises(UsageError, match=NO_END):
        ph.train(job, stream, folder=tmp_path / "run")


def test_a_model_measures_no_stream_but_scores_one(model, stream):
    with pytest.raises(UsageError, match=NO_END):
        model.evaluate(stream)
    assert model.transform(stream).isStreaming
