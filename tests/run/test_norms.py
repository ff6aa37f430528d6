"""Workers normalize their own rows of a step: a batch that leaves them too few is made larger."""

import json

import pytest
from torch import nn

from photinus.models.dbn import DBN
from photinus.models.module import ModuleConfig
from photinus.models.schedules import Schedule
from photinus.run.batch_norm import LEAST_IMAGES, LEAST_ROWS, with_rows_to_normalize
from photinus.run.evaluate import LazyModel
from photinus.run.job import Job, Source
from photinus.run.train import resume, train

MODULE = __name__


def normed():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def of_images():
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)),
        nn.Conv2d(1, 2, 1),
        nn.BatchNorm2d(2),
        nn.Flatten(),
        nn.Linear(12, 3),
    )


def of_both():
    return nn.Sequential(*of_images()[:-1], nn.BatchNorm1d(12), nn.Linear(12, 3))


def job(workers=8, module="normed", **fields):
    model = ModuleConfig(module=f"{MODULE}:{module}", **fields)
    return Job(model=model, data=Source(name="given"), workers=workers, engine="simulate")


def model_and_warning(normed_job):
    draft, warning = with_rows_to_normalize(LazyModel(normed_job))
    return draft.job.model, warning


def test_the_batch_and_the_usual_rate_grow_together():
    model, warning = model_and_warning(job(8))
    assert model.batch_size == 8 * LEAST_ROWS == 128
    before, after = job(8).model.rate(), model.rate()
    assert after.at(0.0) == before.at(0.0), "it warms up"
    assert after.at(0.05) == pytest.approx(4 * before.at(0.05))
    assert warning == (
        "BatchNorm1d needs 16 rows of a step on each worker; got batch_size 32 for 8 workers; "
        "batch_size is 128 now, and the learning rate 4 times the usual one; "
        "use fewer workers, or GroupNorm, to keep your batch_size"
    )


def test_images_need_fewer_rows_since_each_has_many_positions():
    model, warning = model_and_warning(job(16, "of_images"))
    assert model.batch_size == 16 * LEAST_IMAGES == 64
    assert warning.startswith(
        "BatchNorm2d needs 4 rows of a step on each worker; got batch_size 32"
    )
    both, warning = model_and_warning(job(16, "of_both"))
    assert both.batch_size == 16 * LEAST_ROWS
    assert warning.startswith("BatchNorm1d needs 16 rows")


@pytest.mark.parametrize(
    "fields", [{"lr": Schedule.constant(0.01)}, {"settings": {"lr": 0.01}}, {"lr_scale": "sqrt"}]
)
def test_a_rate_of_ones_own_stays_what_it_says(fields):
    original = job(8, **fields).model
    model, warning = model_and_warning(job(8, **fields))
    assert model.batch_size == 128
    assert (model.lr, model.lr_scale) == (original.lr, original.lr_scale)
    assert "learning rate" not in warning


def test_a_rate_that_stays_has_fewer_steps_and_the_warning_says_which_rate_to_try():
    """Of 1,000 rows and 16 workers, Adam at 0.001 ended 10 points above a plain loop; with the root
    of the batch's factor .8."""
    _, warning = model_and_warning(job(8, lr=0.01))
    assert warning == (
        "BatchNorm1d needs 16 rows of a step on each worker; got batch_size 32 for 8 workers; "
        "batch_size is 128 now, and your rate has 4 times fewer steps to learn in; "
        "try 2 times that rate, or use fewer workers, or GroupNorm, to keep your batch_size"
    )
    _, warning = model_and_warning(job(8, lr_scale="linear"))
    assert "rate" not in warning, "it follows the batch"


def test_a_batch_of_fewer_rows_than_workers_has_a_row_for_each_and_a_warning():
    model, warning = model_and_warning(job(16, "plain", batch_size=8))
    assert model.batch_size == 16
    assert model.rate().at(0.5) == pytest.approx(2 * job(16, "plain").model.rate().at(0.5))
    assert warning == (
        "each worker takes a row of each step; got batch_size 8 for 16 workers; batch_size is 16"
        " now, and the learning rate 2 times the usual one; use fewer workers to keep your"
        " batch_size"
    )


@pytest.mark.parametrize(
    "made",
    [
        job(1),
        job(2),
        job(8, batch_size=128),
        job(8, module="of_images"),
        job(8, module="plain"),
        job(8, module="plain", batch_size=8),
        Job(model=DBN(hidden=(4,)), workers=8),
    ],
    ids=[
        "one worker",
        "rows enough",
        "a large batch",
        "images",
        "no normalization",
        "a row for each",
        "DBN",
    ],
)
def test_all_else_stays_as_it_is(made):
    draft = LazyModel(made)
    assert with_rows_to_normalize(draft) == (draft, "")


def plain():
    return nn.Sequential(nn.Linear(6, 8), nn.GroupNorm(2, 8), nn.Linear(8, 3))


def test_a_run_says_it_once_and_keeps_it_for_a_resume(small, tmp_path):
    original = job(4, epochs=3.0)
    warnings = []

    def stop(event):
        if type(event).__name__ == "Warned" and "BatchNorm1d" in event.text:
            warnings.append(event.text)
        if type(event).__name__ == "RoundClosed" and event.version == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(original, small.data(), folder=tmp_path / "run", callbacks=(stop,))
    assert len(warnings) == 1
    saved = Job.from_dict(json.loads((tmp_path / "run/job.json").read_text())["job"])
    assert saved.model.batch_size == 64
    outcome = resume(tmp_path / "run", small.data())
    assert outcome.vector.size == saved.model.build((), 0).parameters.trained.size
    assert len(warnings) == 1
