"""What a user calls, with a DataFrame of Spark Connect."""

import shutil

import numpy as np
import pytest

from photinus.core.clock import Steps
from photinus.core.errors import NotReadyError, UsageError
from photinus.data.checks import RowChecks
from photinus.engine.spark.engine import FrameData, SparkEngine
from photinus.estimators.dbn import DBNClassificationModel, DBNClassifier
from photinus.estimators.deepdist import DeepDist
from photinus.estimators.iterate import iterate
from photinus.estimators.module import TorchClassifier
from photinus.models.logistic import LogisticConfig
from photinus.models.schedules import Schedule
from photinus.models.text import text_classifier
from photinus.run.job import Job, Source
from photinus.run.train import train
from photinus.strategies.recipes import averaging

pytestmark = pytest.mark.spark

SMALL = {
    "hiddenSizes": [16],
    "preTrainEpochs": 2,
    "fineTuneEpochs": 30,
    "preTrainBatchSize": 10,
    "batchSize": 10,
    "learningRate": 0.1,
    "inputDropout": 0.0,
    "hiddenDropout": [0.0],
    "precision": "float32",
    "numWorkers": 2,
}


def refused():
    return pytest.raises(NotReadyError, match=r"^Spark Connect has no RDDs, .*; use a classic")


@pytest.fixture(scope="module")
def digits(connected):
    """Three classes of 6 numbers in 0..1, as a DataFrame of arrays."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 300)
    rows = np.clip(0.2 * rng.random((300, 6)) + np.tile(np.eye(3)[labels], 2), 0, 1)
    rows_with_labels = [(row.tolist(), int(label)) for row, label in zip(rows, labels, strict=True)]
    return connected.createDataFrame(rows_with_labels, "features array<double>, label int").cache()


def test_a_dbn_is_fitted_scored_saved_and_loaded(connected, digits, tmp_path):
    model = DBNClassifier(**SMALL, runDir=str(tmp_path / "runs")).fit(digits)
    assert model.summary.state.state == "done"
    assert model.evaluate(digits).error < 0.5
    scored = model.transform(digits).select("prediction", "probability", "rawPrediction")
    assert len(scored.collect()) == 300
    path = str(tmp_path / "model")
    model.write().overwrite().save(path)
    model.write().overwrite().save(path)
    back = DBNClassificationModel.load(path)
    again = back.transform(digits).select("prediction").collect()
    assert [r[0] for r in again] == [r[0] for r in scored.select("prediction").collect()]


def test_train_runs_a_job_and_leaves_a_whole_run_folder(connected, digits, tmp_path):
    config = LogisticConfig(features=6, classes=3, epochs=4, batch_size=8, dtype="float64")
    source = Source(name="given")
    job = Job(model=config, data=source, strategy=averaging(every=Steps(3)), workers=2)
    data = FrameData(frame=digits, features="features", label="label", checks=RowChecks(classes=3))
    outcome = train(job, data, folder=tmp_path / "run", engine=SparkEngine(connected))
    names = {path.name for path in outcome.folder.iterdir()}
    assert {"events.jsonl", "ledger.jsonl", "model", "report.html", "checkpoints"} <= names
    assert not [name for name in names if name.startswith("connect-")]


@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft asks for what will be renamed
def test_an_encoder_is_fine_tuned_on_a_text_column_with_weights_and_rows_set_aside(
    connected, small_encoder, tmp_path
):
    for name in ("config.json", "tokenizer.json"):  # the weights are the client's alone
        shutil.copy(small_encoder / name, tmp_path)
    words = ["dull", "weak"], ["lovely", "grand"]
    labels = np.random.default_rng(0).integers(0, 2, 160).tolist()
    texts = [f"a {words[y][n // 2 % 2]} film" + " and" * (n % 4) for n, y in enumerate(labels)]
    # a sixth of the rows is wrong, weighs nothing, and must not be learned from
    rows = [
        (t, y if n % 6 else 1 - y, float(n % 6 > 0), n % 7 == 1)
        for n, (t, y) in enumerate(zip(texts, labels, strict=True))
    ]
    schema = "text string, label int, counts double, aside boolean"
    frame, net = connected.createDataFrame(rows, schema), text_classifier(str(small_encoder))
    clf = TorchClassifier(
        module="photinus.models.text:text_classifier",
        moduleArgs={"base": str(tmp_path), "weights": False},
        start=net.state_dict(),
        frozen=["*.base_layer.*", "*embeddings*", "*LayerNorm*", "*original_module*"],
        inputs={"input_ids": "text"},
        encoders={"input_ids": str(tmp_path)},
        weightCol="counts",
        validationIndicatorCol="aside",
        patience=20,
        metrics=["f1"],
        learningRate=Schedule.cosine(0.01),
        movingAverage=0.5,
        epochs=6,
        numWorkers=2,
        runDir=str(tmp_path / "runs"),
    )
    model = clf.fit(frame)
    true = connected.createDataFrame(
        list(zip(texts, labels, strict=True)), "text string, label int"
    )
    evaluation = model.evaluate(true)
    assert evaluation.error < 0.1
    assert evaluation.metrics["f1"] > 0.9
    events = (model.summary.folder / "events.jsonl").read_text()
    assert '"validation"' in events, "rows were set aside and measured on"
    trained = dict(model.module().named_parameters())
    for name, parameter in net.named_parameters():
        assert parameter.requires_grad or parameter.equal(trained[name]), name


def test_deepdist_says_in_one_sentence_that_it_needs_rdds(digits):
    with DeepDist({"mean": np.zeros(3)}) as dd, refused():
        dd.train(digits, lambda model, rows: None, lambda model, update: None)


def test_iterate_says_the_same(digits):
    with refused():
        iterate(digits, lambda s, b: s, lambda p: p[0], lambda s, t: (t, True), start=np.zeros(3))


def test_doctor_says_what_it_can(connected, tmp_path, monkeypatch):
    from photinus.engine.spark.diagnostics import diagnose

    monkeypatch.chdir(tmp_path)
    findings = {finding.name: finding for finding in diagnose(connected, 2)}
    assert findings["way"].state == "ok", findings["way"]
    assert not [name for name, finding in findings.items() if finding.is_needed], findings
    assert "Spark Connect" in findings["Spark"].found


def test_a_deadline_takes_the_fewest_tasks_that_are_fast_enough(digits, tmp_path):
    events = []
    shape = {"in_features": 6, "out_features": 3}
    estimator = TorchClassifier(
        module="torch.nn:Linear",
        moduleArgs=shape,
        batchSize=20,
        epochs=3.0,
        numWorkers=2,
        deadlineSeconds=600.0,
        runDir=str(tmp_path / "run"),
    )
    estimator.callbacks = (events.append,)
    estimator.fit(digits)
    (started,) = (e for e in events if type(e).__name__ == "RunStarted")
    (ended,) = (e for e in events if type(e).__name__ == "PhaseEnded")
    assert (started.workers, ended.examples) == (1, 3 * 300)
    estimator.setParams(epochs=100_000.0, deadlineSeconds=20.0)
    with pytest.raises(UsageError, match=r"it cannot end in time; got deadline_seconds=20"):
        estimator.fit(digits)
