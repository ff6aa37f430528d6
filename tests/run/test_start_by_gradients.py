"""The start of a training in which all workers agree on the gradient of every step."""

from dataclasses import replace

import numpy as np
import pytest

from photinus.core.events import Warned
from photinus.engine.base import ArrayData
from photinus.models.module import ModuleConfig
from photinus.models.schedules import Schedule
from photinus.run.job import Job, Source
from photinus.run.train import train
from photinus.strategies.recipes import averaging, diloco, post_local


@pytest.mark.parametrize(
    ("optimizer", "peak", "falls_by"),
    [("sgd", 0.1, 0.75), ("adamw", 1e-3, 1.0), ("Adagrad", 1e-2, 1.0), ("asgd", 1e-2, 0.75)],
)
def test_the_usual_rate_falls_before_workers_train_alone_or_as_for_one_process_if_adaptive(
    optimizer, peak, falls_by, tmp_path
):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((800, 4)).astype(np.float32)
    rows = ArrayData(x, (x[:, 0] > 0).astype(np.int64))

    def train_vector(lr, workers, until=0.75):
        arguments = {"in_features": 4, "out_features": 2}
        sizes = {"epochs": 2.0, "batch_size": 4}  # 400 steps, of which 300 are by gradients
        sizes["optimizer"] = optimizer
        model = ModuleConfig(module="torch.nn:Linear", arguments=arguments, lr=lr, **sizes)
        fields = {"strategy": averaging(gradients_until=until), "data": Source(name="given")}
        job = Job(model=model, workers=workers, engine="simulate", **fields)
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        return train(job, rows, folder=folder, verbose=False).vector

    usual = Schedule.usual(peak)
    two, one = train_vector(None, 2), train_vector(None, 1)
    assert np.array_equal(two, train_vector(usual, 2))
    assert np.array_equal(two, train_vector(usual.until(falls_by), 2))
    assert not np.array_equal(two, train_vector(usual.until(1.75 - falls_by), 2))
    assert np.array_equal(one, train_vector(usual.until(1.0), 1))
    short = train_vector(None, 2, "auto")
    assert np.array_equal(short, train_vector(usual.until(1.0), 2, 1.0)), (
        "400 steps are all together"
    )


@pytest.mark.parametrize(("recipe", "count"), [(diloco(), 1), (averaging(), 0), (post_local(), 0)])
def test_a_recipe_that_a_short_training_leaves_no_step_is_named(recipe, count, small, tmp_path):
    events = []
    job = replace(small.job(), strategy=recipe, workers=2)
    train(job, small.data(), folder=tmp_path / "run", callbacks=[events.append], verbose=False)
    warnings = [
        event for event in events if isinstance(event, Warned) and "none is of" in event.text
    ]
    assert len(warnings) == count
    if count:
        assert "none is of diloco; got " in warnings[0].text
        assert "set gradients_until=0" in warnings[0].text


@pytest.mark.parametrize(("verbose", "count"), [(None, 1), (False, 0)])
def test_a_warning_that_no_view_shows_is_logged(verbose, count, small, tmp_path, caplog):
    job = replace(small.job(), strategy=diloco(), workers=2)
    train(job, small.data(), folder=tmp_path / "run", verbose=verbose)
    assert len([text for text in caplog.messages if "none is of diloco" in text]) == count


@pytest.mark.parametrize(
    ("optimizer", "lr", "until", "is_warned"),
    [
        ("sgd", 0.05, 0.5, True),
        ("sgd", Schedule.constant(0.05), 0.5, True),
        ("sgd", Schedule.cosine(0.05), 0.5, False),
        ("sgd", None, 0.5, False),
        ("adamw", 0.05, 0.5, False),
        ("sgd", 0.05, 1, False),
        ("sgd", 0.05, "auto", False),  # all steps are of all workers
    ],
)
def test_a_rate_that_does_not_fall_where_workers_train_alone_is_warned_of(
    optimizer, lr, until, is_warned, tmp_path
):
    """With SGD at .05 and 16 workers it cost 4.8 points; with the usual rate none."""
    x = np.random.default_rng(0).standard_normal((80, 4)).astype(np.float32)
    arguments, events = {"in_features": 4, "out_features": 2}, []
    model = ModuleConfig(
        module="torch.nn:Linear",
        arguments=arguments,
        optimizer=optimizer,
        lr=lr,
        batch_size=4,
        epochs=1.0,
    )
    fields = {"strategy": averaging(gradients_until=until), "data": Source(name="given")}
    job = Job(model=model, workers=2, engine="simulate", **fields)
    rows = ArrayData(x, (x[:, 0] > 0).astype(np.int64))
    train(job, rows, folder=tmp_path / "run", verbose=False, callbacks=[events.append])
    texts = [e.text for e in events if isinstance(e, Warned) and "does not fall" in e.text]
    assert texts == is_warned * [
        "train: workers train alone from now on, each on its part of a batch, and the learning rate"
        " does not fall; got 0.05 to the end; set lr=photinus.Schedule.usual(0.05), or"
        " gradients_until=1"
    ]
