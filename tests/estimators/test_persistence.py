"""What is told of a path that cannot be written or read: on a real Spark."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from photinus.core.errors import CheckpointError, UsageError
from photinus.core.settings import to_dict
from photinus.embeddings.subwords import Ngrams, SubwordVectors
from photinus.embeddings.vectors import WordVectors
from photinus.estimators import persistence
from photinus.estimators.module import TorchClassificationModel, TorchClassifier
from photinus.estimators.network import Network
from photinus.estimators.persistence import explain_read
from photinus.estimators.vector_models import Word2VecModel
from photinus.models.module import ModuleConfig

pytestmark = pytest.mark.spark


def classifier_model():
    linear = {"in_features": 2, "out_features": 3}
    config = ModuleConfig(module="torch.nn:Linear", arguments=linear)
    tensors = config.build((), 1).parameters.tensors()
    settings = to_dict(config)
    network = Network(kind="module", settings=settings, tensors=tensors, shape=(2,), classes=3)
    return TorchClassificationModel(network)


def word_model():
    return Word2VecModel(WordVectors(["sea", "sky"], np.eye(2, dtype=np.float32)))


MAKERS = [classifier_model, word_model, lambda: TorchClassifier(module="torch.nn:Linear")]
IDS = ["network", "vectors", "estimator"]


def is_one_sentence(error):
    return "\n" not in str(error) and "java" not in str(error)


@pytest.mark.parametrize("make", MAKERS, ids=IDS)
def test_a_path_that_cannot_be_written_is_named_in_one_sentence(spark, make, tmp_path):
    (tmp_path / "file").touch()
    path = f"{tmp_path}/file/saved"
    message = (
        f"^{re.escape(path)} cannot be written; got Parent path is not a directory: .*; name an"
    )
    with pytest.raises(UsageError, match=message) as caught:
        make().save(path)
    assert is_one_sentence(caught.value)


@pytest.mark.parametrize("make", MAKERS, ids=IDS)
def test_what_is_saved_already_is_not_written_over_unasked(spark, make, tmp_path):
    saved, path = make(), f"{tmp_path}/saved"
    saved.save(path)
    message = (
        rf"^{re.escape(path)} already exists; write\(\).overwrite\(\).save\(path\) replaces it$"
    )
    with pytest.raises(UsageError, match=message):
        saved.save(path)
    saved.write().overwrite().save(path)


@pytest.mark.parametrize("reason", ["Permission denied: user=ann", "Connection refused"])
def test_what_may_not_be_read_is_not_to_be_saved_anew(reason):
    message = (
        f"^hdfs://h/saved cannot be read; got {reason}; check the address, and this user's rights$"
    )
    with pytest.raises(CheckpointError, match=message), explain_read("hdfs://h/saved"):
        raise RuntimeError(reason)


@pytest.mark.parametrize("make", MAKERS[:2], ids=IDS[:2])
def test_a_damaged_model_is_named_in_one_sentence(spark, make, tmp_path):
    saved, path = make(), tmp_path / "saved"
    saved.save(str(path))
    message = f"^{re.escape(str(path))} cannot be read; got .*; save it anew, or load a copy of it$"
    for folder in ("data", "metadata"):
        copy = shutil.copytree(path, tmp_path / "copy")
        for part in (path / folder).glob("part-*"):
            with open(part, "r+b") as file:
                file.truncate(100)
        with pytest.raises(CheckpointError, match=message) as caught:
            type(saved).load(str(path))
        assert is_one_sentence(caught.value)
        shutil.rmtree(path)
        copy.rename(path)
    shutil.rmtree(path / "data")
    with pytest.raises(CheckpointError, match=message):
        type(saved).load(str(path))


def test_no_table_of_all_vectors_is_made_where_they_are_loaded(spark, tmp_path, monkeypatch):
    """Java's usual 1 GB has no room for the table that `toPandas` collects."""
    rng = np.random.default_rng(0)
    words = [f"w{i}" for i in range(50)]
    vectors = rng.standard_normal((50, 3), np.float32)
    Word2VecModel(WordVectors(words, vectors, np.arange(50)[::-1])).save(f"{tmp_path}/saved")
    monkeypatch.setattr(type(spark.range(1)), "toPandas", None)
    loaded = Word2VecModel.load(f"{tmp_path}/saved").vectors
    assert list(loaded.words) == words
    assert np.array_equal(loaded.vectors, vectors)
    assert np.array_equal(loaded.counts, np.arange(50)[::-1])


def test_vectors_are_saved_in_a_session_without_arrow_which_is_sparks_usual_one(spark, tmp_path):
    numbers = np.arange(6, dtype=np.float32).reshape(3, 2)
    subwords = SubwordVectors(Ngrams(3, 6, 3), numbers)
    vectors = WordVectors(["sea", "sky"], np.eye(2, dtype=np.float32), None, subwords)
    key, path = "spark.sql.execution.arrow.pyspark.enabled", f"{tmp_path}/saved"
    before = spark.conf.get(key)
    spark.conf.set(key, "false")
    try:
        Word2VecModel(vectors).save(path)
        loaded = Word2VecModel.load(path)
        rows = loaded.getVectors().collect()
    finally:
        spark.conf.set(key, before)
    assert {row.word: row.vector for row in rows} == {"sea": [1.0, 0.0], "sky": [0.0, 1.0]}
    assert np.array_equal(loaded.vectors.subwords.rows, numbers)


def test_weights_are_written_and_read_part_by_part(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(persistence, "_PART_BYTES", 100)
    model, path = classifier_model(), f"{tmp_path}/saved"
    model.save(path)
    lengths = [len(row["bytes"]) for row in spark.read.parquet(f"{path}/data").collect()]
    weights = model.network.weights()
    assert (max(lengths), sum(lengths)) == (100, len(weights))
    assert TorchClassificationModel.load(path).network.weights() == weights
    part = max(Path(path, "data").glob("*.parquet"), key=lambda file: file.stat().st_size)
    part.unlink()
    got = f"{len(lengths) - 1} of {len(lengths)} parts"
    with pytest.raises(CheckpointError, match=f"saved holds no whole model; got {got}; save it"):
        TorchClassificationModel.load(path)


def test_metadata_that_are_cut_off_or_missing_are_a_damaged_estimator(spark, tmp_path):
    path = tmp_path / "saved"
    TorchClassifier(module="torch.nn:Linear").save(str(path))
    for checksum in (path / "metadata").glob(".*.crc"):
        checksum.unlink()
    [part] = (path / "metadata").glob("part-*")
    for content in (part.read_bytes()[:50], b""):
        part.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"saved cannot be read; got .*; save it"):
            TorchClassifier.load(str(path))
    with pytest.raises(CheckpointError, match=r"nothing is saved at that path; got .*none; name"):
        TorchClassifier.load(str(tmp_path / "none"))


def test_a_saved_estimator_keeps_a_default_that_is_none_any_more(spark, tmp_path):
    before = TorchClassifier(module="torch.nn:Linear")
    before._setDefault(epochs=1.0)
    before.save(f"{tmp_path}/saved")
    loaded = TorchClassifier.load(f"{tmp_path}/saved")
    assert loaded.isSet("epochs")
    assert loaded.getEpochs() == 1.0
    assert not loaded.isSet("batchSize")
    before.setEpochs(7.0).write().overwrite().save(f"{tmp_path}/saved")
    assert TorchClassifier.load(f"{tmp_path}/saved").getEpochs() == 7.0
