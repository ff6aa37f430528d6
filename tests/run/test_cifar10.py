"""The CIFAR-10 jobs from a folder to a measured model, in virtual time."""

from dataclasses import replace

import numpy as np
import pytest

from photinus.core.events import RoundClosed
from photinus.data.cifar import FILES, RECORD_BYTES
from photinus.engine.base import ArrayData
from photinus.run.evaluate import load_trained
from photinus.run.job import Source
from photinus.run.presets import preset
from photinus.run.train import train
from photinus.strategies.recipes import averaging


def make_images(count):
    """Smooth pictures in sixteen patches of colour, of which the class decides two."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, count).astype(np.uint8)
    patches = rng.integers(40, 160, (count, 3, 4, 4))
    patches[np.arange(count), labels % 3, labels % 4] += 60
    images = np.kron(patches, np.ones((1, 1, 8, 8), int))
    images += rng.integers(0, 20, images.shape)
    return images.reshape(count, -1).astype(np.uint8), labels


def losses_per_round(folder, workers, dtype, steps, batch):
    """The loss of each of the first steps."""
    images, labels = make_images(steps * batch)
    job = replace(preset("cifar10", workers), engine="simulate", is_shared=True)
    model = replace(
        job.model,
        arguments={"dtype": dtype},
        epochs=1.0,
        batch_size=batch,
        precision="float32",
        memory="channels_last",
    )
    losses = []

    def listen(event):
        if isinstance(event, RoundClosed):
            losses.append(event.metrics["loss"])

    job = replace(job, model=model, data=Source(name="given"))
    train(job, ArrayData(images, labels), folder=folder / str(workers), callbacks=(listen,))
    assert len(losses) == steps
    return np.array(losses)


@pytest.mark.parametrize(("dtype", "close"), [("float32", 1e-4), ("float64", 1e-9)])
@pytest.mark.parametrize(
    ("steps", "batch"), [(3, 12), pytest.param(20, 120, marks=pytest.mark.slow)]
)
def test_the_loss_is_on_one_line_however_many_workers(tmp_path, dtype, close, steps, batch):
    alone = losses_per_round(tmp_path, 1, dtype, steps, batch)
    assert alone[0] == pytest.approx(4.68, abs=0.1)  # ln 10, and the weights' penalty
    for workers in (2, 3, 4):
        together = losses_per_round(tmp_path, workers, dtype, steps, batch)
        np.testing.assert_allclose(together, alone, rtol=close)


@pytest.fixture
def folder(tmp_path):
    images, labels = make_images(6 * 16)
    records = np.concatenate((labels[:, None], images), 1)
    assert records.shape[1] == RECORD_BYTES
    for part, name in zip(np.split(records, 6), (*FILES["train"], *FILES["test"]), strict=True):
        part.tofile(tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("name", ["cifar10", "cifar10-quick"])
@pytest.mark.parametrize("how", ["all_reduce", "averaging"])
def test_a_job_trains_from_a_folder_and_measures_its_test_images(folder, name, how):
    job = preset(name, 2)
    job = replace(job, engine="simulate", data=Source(name="cifar10", path=str(folder)))
    if how == "averaging":
        job = replace(job, strategy=averaging())
    plain = {"precision": "float32", "memory": "contiguous"}
    job = replace(job, model=replace(job.model, epochs=2.0, batch_size=8, **plain))
    outcome = train(job, folder=folder / "run")
    assert 0 <= outcome.metrics["error"] <= 1
    assert np.isfinite(outcome.vector).all()
    trained, _ = load_trained(folder / "run" / "model")
    np.testing.assert_array_equal(trained.vector, outcome.vector)
    assert bool(trained.model().outputs(np.zeros((2, 3072), np.uint8)).shape == (2, 10))


def test_the_published_schedule_is_the_tutorials():
    job = preset("cifar10-published", 4)
    model = job.model
    assert model.epochs * 50_000 / model.batch_size == 1_000_000
    for epoch, rate in ((349, 0.1), (351, 0.01), (701, 0.001)):
        assert model.lr.at(epoch / model.epochs) == pytest.approx(rate)
    assert (model.average, dict(model.l2)) == (0.9999, {"local[34].weight": 0.004})
