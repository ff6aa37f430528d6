"""A classifier of each token of a row, on a real Spark."""

from pathlib import Path

import numpy as np
import pytest
import torch

from photinus.core.errors import DataError, UsageError
from photinus.estimators.from_run import open_run
from photinus.estimators.model import model_of_run
from photinus.estimators.module import TorchClassifier, TorchRegressor, TorchTokenModel
from photinus.models.module import ModuleConfig
from photinus.run.job import Job, Source
from photinus.run.train import train

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def frame(spark):
    spark.sparkContext.addPyFile(str(Path(__file__).with_name("nets_of_tokens.py")))
    rng = np.random.default_rng(0)
    words = [rng.integers(0, 30, 4 + i % 9).tolist() for i in range(120)]
    rows = [(i, row, [-100, *(word % 3 for word in row[1:])]) for i, row in enumerate(words)]
    return spark.createDataFrame(rows, "id int, words array<int>, tags array<int>").cache()


def classifier(net="Tagger", **params):
    settings = {"batchSize": 16, "epochs": 2.0, "numWorkers": 2, "learningRate": 0.01}
    settings |= {"inputs": {"words": "words"}, "labelCol": "tags", "loss": "token_cross_entropy"}
    return TorchClassifier(module=f"nets_of_tokens:{net}", **settings | params)


def test_each_token_has_a_prediction_and_a_saved_model_has_the_same(frame, tmp_path):
    model = classifier().fit(frame)
    assert type(model) is TorchTokenModel
    rows = model.transform(frame).orderBy("id").collect()
    module, wrong, count = model.module(), 0, 0
    for row in rows:
        scores = module(torch.tensor([row.words]))[0]  # [T, 3]
        assert row.prediction == scores.argmax(-1).tolist()
        wrong += sum(p != tag for p, tag in zip(row.prediction[1:], row.tags[1:], strict=True))
        count += len(row.tags) - 1
    measured = model.evaluate(frame)
    assert measured.error == pytest.approx(wrong / count)
    assert (measured.examples, np.sum(measured.confusion)) == (count, count)
    assert f"on {count} tokens" in str(measured)
    assert model.predict(rows[0].words).tolist() == rows[0].prediction
    model.save(str(tmp_path / "model"))
    loaded = TorchTokenModel.load(str(tmp_path / "model"))
    assert loaded.transform(frame).orderBy("id").collect() == rows


def test_predictions_are_as_long_as_the_input_that_has_the_tokens(spark, frame):
    framed = frame.selectExpr("id", "tags", "words", "array(1, 2) frame")
    inputs = {"frame": "frame", "words": "words"}
    model = classifier("Framed", inputs=inputs, epochs=1.0).fit(framed)
    crossed = [([1, 2, 3, 4, 5], [6, 7]), ([1], [2, 3, 4, 5, 6])]  # both are padded to 5
    with pytest.raises(UsageError, match=r"a dict of the model's inputs; got list; predict\(\{"):
        model.predict([1, 2])
    assert len(model.predict({"words": crossed[0][0], "frame": crossed[0][1]})) == 5
    rows = spark.createDataFrame(crossed, "words array<int>, frame array<int>").coalesce(1)
    assert [len(row.prediction) for row in model.transform(rows).collect()] == [5, 1]


def test_rows_of_one_length_need_no_inputs(spark, frame):
    rows = [([float(i % 3), 1.0, 0.0, 2.0], [i % 3, 1, 0, -100]) for i in range(60)]
    signals = spark.createDataFrame(rows, "signal array<double>, tags array<int>")
    params = {"featuresCol": "signal", "inputs": {}, "learningRate": 0.05}
    model = classifier("Levels", **params).fit(signals)
    assert [len(row.prediction) for row in model.transform(signals).take(3)] == [4, 4, 4]
    measured = model.evaluate(signals)
    assert measured.examples == 180
    assert measured.confusion[1][1] > 0


def test_a_run_of_train_is_read_as_a_model_of_tokens(frame, tmp_path):
    source = Source(name="given", inputs={"words": "words"}, label="tags")
    config = ModuleConfig(module="nets_of_tokens:Tagger", loss="token_cross_entropy", epochs=1.0)
    outcome = train(Job(model=config, data=source, workers=2), frame, folder=tmp_path / "run")
    model = TorchTokenModel.fromRun(outcome.folder, frame)
    assert model.network.classes == 3
    row = model.transform(frame).first()
    of_predict = model_of_run(open_run(outcome.folder, trust_code=False), "run", frame)
    assert of_predict.transform(frame).first() == row
    assert row.prediction == outcome.model()(torch.tensor([row.words]))[0].argmax(-1).tolist()


def test_a_module_that_puts_the_classes_first_is_refused_before_training(frame):
    expected = r"must return as many tokens as a row has; got outputs of shape \[2, 3, 5\]"
    with pytest.raises(UsageError, match=expected):
        classifier(moduleArgs={"is_transposed": True}).fit(frame)


def test_a_module_of_one_class_a_row_is_refused_before_training(frame):
    with pytest.raises(UsageError, match="one number for each class, of each token"):
        classifier("Whole").fit(frame)


def test_fewer_outputs_than_numclasses_are_refused_before_training(frame):
    expected = r"for each of 5 classes, of each token; got outputs of shape \[2, 5, 3\]"
    with pytest.raises(UsageError, match=expected):
        classifier(numClasses=5).fit(frame)


def test_labels_of_tokens_under_the_loss_of_rows_name_the_loss_to_set(frame):
    with pytest.raises(UsageError, match="or loss='token_cross_entropy' for one of each token"):
        classifier(loss="cross_entropy").fit(frame.where("id in (0, 9, 18)"))


def test_thresholds_are_refused(frame):
    with pytest.raises(UsageError, match="thresholds choose one class for each row"):
        classifier(thresholds=[0.5, 0.2, 0.3]).fit(frame)


@pytest.mark.parametrize("tag", [3, -1])
def test_a_row_with_a_label_that_is_no_class_is_named(frame, tag):
    wrong = f"if(id = 7, transform(tags, (x, i) -> if(i = 2, {tag}, x)), tags) tags"
    expected = rf"row \d+ column tags: label {tag} outside 0\.\.2; "
    expected += "give the module 4 outputs or more" if tag == 3 else "number the classes"
    with pytest.raises(DataError, match=expected):
        classifier().fit(frame.selectExpr("id", "words", wrong))


def test_a_row_with_fewer_labels_than_tokens_is_named(frame):
    cut = frame.selectExpr("id", "words", "if(id = 7, slice(tags, 1, 5), tags) tags")
    expected = "column tags: 5 labels, expected one for each of 11 tokens"
    with pytest.raises(DataError, match=expected):
        classifier().fit(cut)


def test_without_a_column_of_labels_the_loss_of_tokens_is_refused(frame):
    with pytest.raises(UsageError, match="needs a label for each token; got labelCol=''; name a"):
        classifier(labelCol="").fit(frame)


def test_an_estimator_of_numbers_refuses_the_loss_of_tokens(frame):
    settings = {"inputs": {"words": "words"}, "labelCol": "tags", "loss": "token_cross_entropy"}
    regressor = TorchRegressor(module="nets_of_tokens:Tagger", numWorkers=2, **settings)
    with pytest.raises(UsageError, match="got TorchRegressor; use TorchClassifier"):
        regressor.fit(frame)


def test_labels_that_are_words_are_refused_with_how_to_number_them(frame):
    named = frame.selectExpr("words", "transform(tags, tag -> string(tag)) tags")
    with pytest.raises(DataError, match=r"column tags: labels must be numbers; got text; number"):
        classifier().fit(named)
