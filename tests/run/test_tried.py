"""What a job's module and loss say of two rows, before there is a run folder."""

import re
from dataclasses import replace

import numpy as np
import pytest

from photinus.core.clock import Steps
from photinus.core.errors import DataError, RunFailedError, UsageError
from photinus.core.events import PhaseStarted, Warned
from photinus.data.base import Batch
from photinus.data.checks import RowChecks
from photinus.engine.base import ArrayData
from photinus.models.module import ModuleConfig
from photinus.models.schedules import Schedule
from photinus.run.evaluate import LazyModel
from photinus.run.job import Job
from photinus.run.module_check import classes_tried
from photinus.run.train import resume, train
from photinus.strategies.recipes import all_reduce, averaging

OWN = """
from torch import nn

from photinus.nn import ShardedEmbedding

class LookedUp(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = ShardedEmbedding(5, 3)

    def forward(self, x):
        return self.table(x).sum(1).softmax(1)

class Late(nn.Module):
    def __init__(self):
        super().__init__()
        self.line, self.last = nn.Linear(6, 3), None

    def forward(self, x):
        self.last = self.last or nn.Linear(3, 3)
        return self.last(self.line(x))

def each(outputs, labels):
    return (outputs - labels[:, None]) ** 2

def no_number(outputs, labels):
    return (outputs - labels[:, None]).square().mean() + (-outputs.detach().abs() - 1).log().mean()

def picky(outputs, labels):
    if not (abs(labels) == 1).all():
        raise ValueError("labels are 1 and -1")
    return ((outputs - labels[:, None]) ** 2).mean()

def ends_with(layer, outputs):
    return nn.Sequential(nn.Linear(4, outputs), getattr(nn, layer)())
"""


@pytest.fixture(autouse=True)
def own_losses(tmp_path, monkeypatch):
    (tmp_path / "tried_losses.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))


def config(**fields):
    arguments = {"in_features": 6, "out_features": 3}
    return ModuleConfig(module="torch.nn:Linear", arguments=arguments, **fields)


@pytest.mark.parametrize("loss", ["cross_entropy", "multi_margin"])
def test_a_label_beyond_the_modules_outputs_is_named_with_its_row(small, tmp_path, loss):
    labels = small.labels.copy()
    labels[77] = 10
    message = (
        "row 77 column label: label 10 outside 0..2; "
        "give the module 11 outputs or more, or mend the row"
    )
    for rows in ((small.features, labels), ArrayData(small.features, labels)):
        with pytest.raises(DataError, match=message):
            train(small.job(model=config(loss=loss)), rows, folder=tmp_path / str(type(rows)))


def test_such_a_label_of_rows_to_measure_on_is_named_before_training(small, tmp_path):
    test = small.features[:9], np.full(9, 3)
    with pytest.raises(DataError, match=r"rows to measure on: .* row 0 .*label 3 outside 0..2"):
        train(small.job(model=config()), small.data(), test=test, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("label", "advice"),
    [(7, "give the module 8 outputs"), (5_000_000_000, "number the classes 0, 1, 2, ")],
)
def test_a_label_that_is_met_in_training_is_named_too(label, advice):
    model = config().build((), 0)
    batch = Batch(np.zeros((4, 6), "f4"), np.array([0, 1, label, 2]))
    message = rf"got label {label:g} outside 0..2 in its example 2; {advice}".replace("+", r"\+")
    with pytest.raises(DataError, match=message):
        model.learn(batch, 0)


def test_a_loss_that_returns_a_vector_is_refused_before_there_is_a_run_folder(small, tmp_path):
    job = small.job(model=config(loss="tried_losses:each"))
    with pytest.raises(UsageError, match="must return one number; got a tensor of shape"):
        train(job, small.data(), folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_layer_that_forward_makes_is_refused_before_there_is_a_run_folder(small, tmp_path):
    job = small.job(model=ModuleConfig(module="tried_losses:Late"))
    with pytest.raises(UsageError, match=r"Late makes layers in forward; got last\.weight"):
        train(job, small.data(), folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_loss_that_is_no_number_is_warned_of_once_and_trains_on(small, tmp_path, workers):
    events, strategy = [], averaging(every=Steps(3), gradients_until=0.5)
    model = config(loss="tried_losses:no_number")
    job = small.job(model=model, workers=workers, strategy=strategy)
    outcome = train(job, small.data(), folder=tmp_path / "run", callbacks=[events.append])
    texts = [event.text for event in events if isinstance(event, Warned)]
    assert len([text for text in texts if "train: the loss is not finite" in text]) == 1
    assert len([event for event in events if isinstance(event, PhaseStarted)]) == workers
    assert np.isfinite(outcome.vector).all()


@pytest.mark.parametrize(("loss", "far"), [("mse", 1), ("l1", 1), ("huber", 1), ("poisson", 0)])
def test_labels_far_from_the_modules_outputs_are_warned_of_once(small, tmp_path, loss, far):
    arguments, strategy = {"in_features": 6, "out_features": 1}, averaging(every=Steps(2))
    model = ModuleConfig(module="torch.nn:Linear", arguments=arguments, loss=loss, epochs=2.0)
    texts = {}
    for name, labels in (("near", small.labels), ("far", small.labels * 1000 + 1000)):
        job, events = small.job(model=model, strategy=strategy), []
        data = replace(small.data(), labels=labels, checks=RowChecks())
        train(job, data, folder=tmp_path / name, callbacks=[events.append])
        texts[name] = [e.text for e in events if isinstance(e, Warned) and "far from" in e.text]
    assert (len(texts["near"]), len(texts["far"])) == (0, far)
    for text in texts["far"]:
        assert re.search(
            r"train: the first loss is large, as that of labels far from the outputs; got \S+; "
            r"from there it learns slowly; scale the labels, as \(label - mean\) / deviation; "
            "if they are small, lower the rate$",
            text,
        )


@pytest.mark.parametrize(
    ("factors", "loss", "warned"),
    [
        ([1, 1, 1, 1, 1, 1e7], "cross_entropy", 1),
        ([1, 1, 1, 1, 1, 1e7], "binary_cross_entropy", 1),
        ([255 / 4] * 6, "cross_entropy", 0),
        ([1] * 6, "cross_entropy", 0),
    ],
)
def test_features_that_are_not_scaled_are_warned_of_once_and_pixels_are_not(
    small, tmp_path, factors, loss, warned
):
    is_binary, events = loss == "binary_cross_entropy", []
    arguments = {"in_features": 6, "out_features": 1 if is_binary else 3}
    model = ModuleConfig(module="torch.nn:Linear", arguments=arguments, loss=loss, epochs=2.0)
    job = small.job(model=model, strategy=averaging(every=Steps(2)))
    labels = small.labels % 2 if is_binary else small.labels
    features = small.features * np.array(factors, np.float32)
    data = replace(small.data(features), labels=labels, checks=RowChecks())
    train(job, data, folder=tmp_path / "run", callbacks=[events.append])
    texts = [e.text for e in events if isinstance(e, Warned) and "the first loss" in e.text]
    assert len(texts) == warned
    for text in texts:
        assert re.search(
            r"train: the first loss is large, as that of features that are not scaled; got \S+, "
            r"and features from -\d.*e\+07 to \d.*e\+07; from there it learns slowly; "
            r"scale each feature, as Spark's StandardScaler does; if they are small, lower the "
            r"rate$",
            text,
        )


def test_large_weights_of_rows_are_not_taken_for_features_that_are_not_scaled(small, tmp_path):
    events, job = [], small.job(model=config(epochs=2.0))
    data = replace(small.data(), weights=np.full(len(small.labels), 1000.0))
    train(job, data, folder=tmp_path / "run", callbacks=[events.append])
    assert not [e.text for e in events if isinstance(e, Warned) and "the first loss" in e.text]


@pytest.mark.parametrize("workers", [1, 2])
def test_rows_whose_weights_are_all_0_are_refused(small, tmp_path, workers):
    job = small.job(model=config(), workers=workers)
    data = replace(small.data(), weights=np.zeros(len(small.labels), "f4"))
    message = "the weights of all rows are 0; look at the column of weights, or train without it"
    with pytest.raises(DataError, match=message):
        train(job, data, folder=tmp_path / "run")


def test_a_single_row_with_a_weight_is_trained_on(small, tmp_path):
    weights = np.zeros(len(small.labels), "f4")
    weights[5] = 1
    job = small.job(model=config(), workers=2)
    outcome = train(job, replace(small.data(), weights=weights), folder=tmp_path / "run")
    assert outcome.vector.any()


def test_trying_changes_no_row_and_reads_only_two(small):
    class Two(np.ndarray):
        def __getitem__(self, rows):
            assert rows == slice(0, 2)
            return np.asarray(super().__getitem__(rows))

    features = small.features.copy().view(Two)
    data = ArrayData(small.features, small.labels, scale=2.0)
    object.__setattr__(data, "features", features)
    assert classes_tried(LazyModel(small.job(model=config())), data) == 3
    assert np.array_equal(np.asarray(features), small.features)


def test_a_loss_of_ones_own_is_tried_on_the_labels_of_the_rows(small, tmp_path):
    job = small.job(model=config(loss="tried_losses:picky"))
    signs = np.where(small.labels == 0, -1, 1)
    outcome = train(job, ArrayData(small.features, signs), folder=tmp_path / "run")
    assert outcome.folder.is_dir()
    assert classes_tried(LazyModel(job), ArrayData(small.features, signs)) is None


def test_fewer_classes_that_the_job_names_stay_the_limit(small, tmp_path):
    labels = np.full(len(small.labels), 2)
    data = ArrayData(small.features, labels, checks=RowChecks(classes=2))
    with pytest.raises(DataError, match=r"label 2 outside 0..1"):
        train(small.job(model=config()), data, folder=tmp_path / "run")


def test_a_resume_names_such_a_label_too(small, tmp_path, breaking):
    job = small.job(model=config(epochs=4))
    with pytest.raises(KeyboardInterrupt):
        train(
            job,
            ArrayData(small.features, small.labels),
            folder=tmp_path / "run",
            engine=breaking(5),
        )
    with pytest.raises(DataError, match=r"row 0 column label: label 7 outside 0..2"):
        resume(tmp_path / "run", ArrayData(small.features, small.labels + 5))


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (None, "cross_entropy needs labels, and the rows have none; name their column"),
        (np.zeros((40, 1)), r"one of the classes; got \[40, 1\]; .* labels.ravel"),
        (np.eye(3, dtype=np.int64)[np.zeros(40, np.int64)], r"got \[40, 3\]; .*labels.argmax"),
    ],
)
def test_labels_that_are_no_classes_are_told_before_there_is_a_run(small, tmp_path, labels, said):
    signed = np.linspace(-1, 1, 120, dtype=np.float32).reshape(40, 3)  # no probabilities
    three = ModuleConfig(module="torch.nn:Linear", arguments={"in_features": 3, "out_features": 3})
    with pytest.raises(DataError, match=said):
        train(small.job(model=three), ArrayData(signed, labels), folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_probabilities_of_classes_are_labels_and_may_be_the_features_themselves(small):
    shares = np.full((4, 3), 1 / 3, np.float32)
    three = ModuleConfig(module="torch.nn:Linear", arguments={"in_features": 3, "out_features": 3})
    for labels in (shares, None):
        draft = LazyModel(small.job(model=three))
        assert classes_tried(draft, ArrayData(shares, labels)) is None


@pytest.mark.spark
def test_a_table_of_columns_of_numbers_is_tried_without_asking_for_a_row(small, spark, tmp_path):
    from photinus.engine.spark.engine import FrameData

    table = spark.createDataFrame([(1.0, 2.0, 10)], "a double, b double, label int")
    two = ModuleConfig(module="torch.nn:Linear", arguments={"in_features": 2, "out_features": 3})
    rows = FrameData(frame=table, features=["a", "b"], label="label")
    job_ids = spark.sparkContext.statusTracker().getJobIdsForGroup(None)
    assert classes_tried(LazyModel(small.job(model=two)), rows) == 3
    assert spark.sparkContext.statusTracker().getJobIdsForGroup(None) == job_ids
    lists = FrameData(frame=table.selectExpr("array(a, b) features", "label"), label="label")
    assert classes_tried(LazyModel(small.job(model=two)), lists) is None, "its width is not known"


def test_a_training_by_epochs_is_refused_before_it_begins(tmp_path):
    arguments = {"in_features": 2, "out_features": 2}
    rate = Schedule(((0, 0.1), (10, 0.1), (30, 0.01)))
    model = ModuleConfig(module="torch.nn:Linear", arguments=arguments, epochs=60.0, lr=rate)
    rows = ArrayData(np.zeros((8, 2), np.float32), np.zeros(8, np.int64))
    with pytest.raises(UsageError, match=r"lr of ModuleConfig goes by progress.*a point at 30"):
        train(Job(model=model, engine="simulate"), rows, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("ignore:Implicit dimension choice for softmax")
@pytest.mark.parametrize(
    ("layer", "outputs", "loss", "warning"),
    [
        ("Softmax", 2, "cross_entropy", "tried_losses:ends_with returns probabilities"),
        ("Identity", 2, "cross_entropy", ""),
        ("Sigmoid", 1, "binary_cross_entropy", "tried_losses:ends_with ends with a sigmoid"),
        ("Sigmoid", 1, "mse", ""),
    ],
)
def test_a_module_whose_end_its_loss_computes_itself_is_warned_of(
    tmp_path, layer, outputs, loss, warning
):
    arguments = {"layer": layer, "outputs": outputs}
    model = ModuleConfig(module="tried_losses:ends_with", arguments=arguments, loss=loss)
    labels = (np.arange(64) % 2).astype(np.int64 if outputs == 2 else np.float32)
    warned = []

    def listen(event):
        if isinstance(event, Warned) and "itself" in event.text:
            warned.append(event.text)

    data, folder = (np.ones((64, 4), np.float32), labels), tmp_path / "run"
    train(Job(model=model, engine="simulate"), data, folder=folder, callbacks=(listen,))
    assert [text[: len(warning)] for text in warned] == [warning] * bool(warning)


@pytest.mark.parametrize(
    ("loss", "label", "expected"),
    [("poisson", -1.0, "at least 0, as poisson"), ("binary_cross_entropy", 2.0, "expected 0..1")],
)
def test_a_label_that_a_loss_does_not_take_is_refused_with_its_row(tmp_path, loss, label, expected):
    model = ModuleConfig(
        module="torch.nn:Linear", arguments={"in_features": 4, "out_features": 1}, loss=loss
    )
    labels = np.zeros(64, np.float32)
    labels[5] = label
    job, rows = Job(model=model, engine="simulate"), (np.ones((64, 4), np.float32), labels)
    with pytest.raises(DataError, match=rf"row \d+ column label: {label:g}.*{expected}"):
        train(job, rows, folder=tmp_path / "run")


def test_where_no_workers_values_are_finite_the_return_is_not_laid_on_lost_workers(tmp_path):
    warned, rng = [], np.random.default_rng(0)
    model = config(loss="mse", optimizer="sgd", lr=1e30, batch_size=32, epochs=5.0)
    rows = rng.normal(size=(600, 6)).astype("f4"), rng.normal(size=(600, 3)).astype("f4")
    job = Job(model=model, workers=3, engine="simulate")

    def listen(event):
        if isinstance(event, Warned):
            warned.append(event.text)

    with pytest.raises(RunFailedError, match="every worker's values are not finite"):
        train(job, rows, folder=tmp_path / "run", callbacks=(listen,))
    assert any(text.startswith("no worker's values were finite; the run went") for text in warned)
    assert not any("lost" in text for text in warned)


@pytest.mark.parametrize("strategy", [averaging(every=Steps(4)), all_reduce()])
def test_a_module_of_sharded_tables_that_ends_with_a_softmax_is_warned_of(tmp_path, strategy):
    warned = []
    model = ModuleConfig(module="tried_losses:LookedUp", epochs=1.0)
    job = Job(model=model, workers=2, strategy=strategy, engine="simulate")

    def listen(event):
        if isinstance(event, Warned) and "itself" in event.text:
            warned.append(event.text)

    data = np.ones((64, 4), np.int64), np.arange(64) % 3
    train(job, data, folder=tmp_path / "run", callbacks=(listen,))
    [text] = warned
    assert text.startswith("tried_losses:LookedUp returns probabilities, and cross_entropy takes")
