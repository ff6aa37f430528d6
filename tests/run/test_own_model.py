"""A Model of one's own, frozen parts, a start, and how long a job trains: in virtual time."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix, mean_absolute_error, mean_squared_error, r2_score
from torch import nn

from photinus.core.errors import UsageError
from photinus.core.events import Evaluated, RoundClosed
from photinus.models.module import ModuleConfig
from photinus.run.data import TestRows
from photinus.run.evaluate import load_trained, measure
from photinus.run.job import Job
from photinus.run.train import train
from photinus.strategies.recipes import all_reduce

FOLDER = str(Path(__file__).parent)


@pytest.fixture(autouse=True)
def own(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    yield
    sys.modules.pop("own", None)


def rows(count=64):
    rng = np.random.default_rng(0)
    features = rng.normal(size=(count, 3)).astype(np.float32)
    return features, features @ np.array([1.0, -2.0, 0.5], np.float32)


JOB_FIELDS = ("start", "validation", "patience")


def job(**fields):
    job_fields = {name: fields.pop(name) for name in JOB_FIELDS if name in fields}
    model_fields = {"epochs": 20.0, "optimizer": "sgd", "lr": 0.1, "batch_size": 16, **fields}
    defaults = {"strategy": all_reduce(codec="fp32"), "workers": 2, "engine": "simulate"}
    return Job(model=ModuleConfig(**model_fields), **defaults, **job_fields)


def linear(**fields):
    arguments = {"in_features": 3, "out_features": 1}
    return job(module="torch.nn:Linear", arguments=arguments, loss="mse", **fields)


def count_rounds(job_to_run, data, folder):
    versions = []

    def listen(event):
        if isinstance(event, RoundClosed):
            versions.append(event.version)

    outcome = train(job_to_run, data, folder=folder, callbacks=(listen,))
    return outcome, len(versions)


def test_a_model_of_ones_own_trains_is_measured_and_saved(tmp_path):
    outcome = train(job(module="own:Mean"), rows(), test=rows(), folder=tmp_path / "run")
    np.testing.assert_allclose(outcome.vector, [1.0, -2.0, 0.5], atol=1e-3)
    assert outcome.metrics["loss"] < 1e-5
    trained, _ = load_trained(outcome.folder / "model")
    np.testing.assert_array_equal(trained.vector, outcome.vector)
    with pytest.raises(UsageError, match=r"a photinus.Model of one's own is no torch module"):
        outcome.model()


def test_a_setting_that_a_model_of_ones_own_would_not_look_at_is_refused(tmp_path):
    message = "own:Mean makes a photinus.Model, which has a l2 of its own; got l2={'w': 0.1}"
    with pytest.raises(UsageError, match=message):
        train(job(module="own:Mean", l2={"w": 0.1}), rows(), folder=tmp_path / "run")


@pytest.mark.parametrize(("count", "most"), [(64, 3), (64, 9), (50, 7)])
def test_a_job_ends_after_its_steps(tmp_path, count, most):
    features, labels = rows(count)
    result = count_rounds(linear(max_steps=most), (features, labels[:, None]), tmp_path / "run")
    assert result[1] == most


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("metrics", [("accuracy",), ("top5", "own:near"), ("own:near",)])
def test_under_a_loss_of_ones_own_a_metric_of_classes_says_that_there_are_some(
    outputs, metrics, tmp_path
):
    """Error, interval and confusion matrix are told; of a metric that is none, the loss alone."""
    features, numbers = rows(120)
    labels = np.digitize(numbers, [0] if outputs == 1 else [-1, 1])
    classifier_job = job(
        module="torch.nn:Linear",
        arguments={"in_features": 3, "out_features": outputs},
        loss="own:focal",
        metrics=metrics,
        epochs=2.0,
        validation=0.25,
    )
    events = []
    outcome = train(
        classifier_job,
        (features, labels),
        test=TestRows(features, labels),
        folder=tmp_path / "run",
        callbacks=(events.append,),
    )
    evaluations = [event.metrics for event in events if isinstance(event, Evaluated)]
    loaded, _ = load_trained(outcome.folder / "model")
    model, (test_metrics, details) = loaded.model(), measure(loaded, TestRows(features, labels))
    assert test_metrics == outcome.metrics
    if metrics == ("own:near",):
        assert "error" not in outcome.metrics
        assert not details
        return
    scores = model.outputs(features)
    predictions = scores[:, 0] > 0 if outputs == 1 else scores.argmax(1)
    assert outcome.metrics["error"] == pytest.approx(np.mean(predictions != labels))
    assert details["confusion"] == confusion_matrix(labels, predictions).tolist()
    low, high = outcome.interval
    assert low < outcome.metrics["error"] < high
    assert evaluations
    assert all("error" in metrics for metrics in evaluations)


def test_parts_of_a_step_train_as_the_whole_one_does(tmp_path):
    features, labels = rows()
    vectors = [
        train(linear(accumulate=n), (features, labels[:, None]), folder=tmp_path / str(n)).vector
        for n in (1, 3)
    ]
    np.testing.assert_allclose(vectors[0], vectors[1], rtol=1e-4, atol=1e-6)


def test_a_clipped_gradient_moves_the_weights_less(tmp_path):
    features, labels = rows()
    job = linear(clip=1e-3, lr=1.0, epochs=1.0)
    outcome = train(job, (features, labels[:, None]), folder=tmp_path / "run")
    first = job.model.build((), 0).parameters.trained
    assert 0 < np.linalg.norm(outcome.vector - first) <= 4 * 1e-3 * 1.001


def test_a_file_to_start_from_holds_no_other_names_and_a_saved_model_may(tmp_path):
    first = train(linear(max_steps=1), rows(), folder=tmp_path / "first")
    arguments = {"in_features": 3, "out_features": 1, "bias": False}
    fields = {"module": "torch.nn:Linear", "arguments": arguments, "loss": "mse", "max_steps": 1}
    train(job(**fields, start=str(first.folder)), rows(), folder=tmp_path / "second")
    start = str(first.folder / "model" / "model.safetensors")
    with pytest.raises(UsageError, match=r"start holds names that the module .* have; got bias; "):
        train(job(**fields, start=start), rows(), folder=tmp_path / "third")


def test_frozen_parameters_come_from_the_start_and_stay(tmp_path):
    """They reach the workers, stand in the saved model, and come back after a resume."""
    data = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    first = train(job(module="own:Coder", loss="mse"), data, folder=tmp_path / "first")
    start_state = first.state_dict()
    frozen_job = job(
        module="own:Coder", loss="mse", frozen=("encoder.*",), start=str(first.folder / "model")
    )
    outcome = train(frozen_job, data, test=TestRows(data), folder=tmp_path / "second")
    end_state = outcome.state_dict()
    for name in ("weight", "bias"):
        np.testing.assert_array_equal(end_state[f"encoder.{name}"], start_state[f"encoder.{name}"])
        assert (end_state[f"decoder.{name}"] != start_state[f"decoder.{name}"]).any()
    assert outcome.vector.size == 4 * 2 + 4
    loaded, _ = load_trained(outcome.folder / "model")
    assert measure(loaded, TestRows(data))[0] == outcome.metrics
    assert outcome.metrics["loss"] <= measure(first.trained, TestRows(data))[0]["loss"]


def test_frozen_parameters_of_the_start_are_what_the_workers_compute_with(tmp_path):
    """The decoder alone learns from another encoder's codes: one process with the same numbers."""
    data = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    first = train(job(module="own:Coder", loss="mse"), data, folder=tmp_path / "first")
    start = str(first.folder / "model")
    one_step = job(
        module="own:Coder",
        loss="mse",
        frozen=("encoder.*",),
        start=start,
        max_steps=1,
        batch_size=40,
        lr=0.5,
    )
    outcome = train(one_step, data, folder=tmp_path / "second")
    net = first.model()
    loss = nn.functional.mse_loss(net(torch.from_numpy(data)), torch.from_numpy(data))
    loss.backward()
    expected = net.decoder.weight - 0.5 * net.decoder.weight.grad
    np.testing.assert_allclose(
        outcome.state_dict()["decoder.weight"], expected.detach(), rtol=1e-4, atol=1e-6
    )


def test_named_metrics_are_measured_on_the_rows_set_aside(tmp_path):
    features, labels = rows(200)
    metrics = []

    def listen(event):
        if isinstance(event, Evaluated):
            metrics.append(event.metrics)

    job = linear(metrics=("mae", "r2"), validation=0.3, epochs=3.0)
    train(job, (features, labels[:, None]), folder=tmp_path / "run", callbacks=(listen,))
    assert [sorted(names) for names in metrics] == [["loss", "mae", "r2"]] * 3
    assert metrics[-1]["r2"] > metrics[0]["r2"]


def test_a_regression_is_measured_as_scikit_learn_does(tmp_path):
    features, labels = rows()
    outcome = train(
        linear(epochs=1.0),
        (features, labels[:, None]),
        test=(features, labels[:, None]),
        folder=tmp_path / "run",
    )
    predictions = outcome.model()(torch.from_numpy(features)).detach().numpy()[:, 0]
    assert outcome.metrics["rmse"] == pytest.approx(mean_squared_error(labels, predictions) ** 0.5)
    assert outcome.metrics["mae"] == pytest.approx(mean_absolute_error(labels, predictions))
    assert outcome.metrics["r2"] == pytest.approx(r2_score(labels, predictions))


@pytest.mark.parametrize("how", ["cross_entropy", "binary_cross_entropy"])
def test_every_classifier_has_its_confusion_matrix(tmp_path, how):
    features, labels = rows()
    classes = (labels > 0).astype(np.int64)
    outputs = 2 if how == "cross_entropy" else 1
    config = ModuleConfig(
        module="torch.nn:Linear",
        arguments={"in_features": 3, "out_features": outputs},
        loss=how,
        epochs=1.0,
    )
    trained = train(
        Job(model=config, workers=2, engine="simulate"),
        (features, classes),
        folder=tmp_path / "run",
    ).trained
    metrics, extra = measure(trained, TestRows(features, classes))
    scores = trained.module()(torch.from_numpy(features)).detach().numpy()
    predictions = scores.argmax(1) if outputs == 2 else scores[:, 0] > 0
    assert extra["confusion"] == confusion_matrix(classes, predictions).tolist()
    assert metrics["error"] == pytest.approx(np.mean(predictions != classes))
