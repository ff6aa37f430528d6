"""With nothing set but the model and the workers, K workers learn what one process learns."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from photinus.engine.base import ArrayData
from photinus.models.module import ModuleConfig
from photinus.run.data import TestRows
from photinus.run.job import Job, Source
from photinus.run.train import train
from photinus.strategies.recipes import RECIPES

TRAIN, EPOCHS = 1200, 12.0
AS_PUBLISHED = {"full_gradient", "iterative_reduce"}
POINTS = 1.5
"""Percent of 597 digits, of which one is 0.17: what another seed changes by itself."""


def network():
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))


def with_norms():
    return torch.nn.Sequential(
        torch.nn.Linear(64, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Linear(32, 10)
    )


def error(folder, workers, make="network", **named):
    features, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    features, labels = (features[order] / 16).astype(np.float32), labels[order]
    model = ModuleConfig(module=f"{__name__}:{make}", epochs=EPOCHS)
    job = Job(model=model, data=Source(name="given"), workers=workers, engine="simulate", **named)
    rows = ArrayData(features[:TRAIN], labels[:TRAIN])
    test = TestRows(features[TRAIN:], labels[TRAIN:])
    return 100 * train(job, rows, test=test, folder=folder).metrics["error"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return error(tmp_path_factory.mktemp("alone") / "run", 1)


def test_seven_workers_with_no_recipe_named_are_as_good_as_one(tmp_path, alone):
    assert error(tmp_path / "run", 7) <= alone + POINTS


@pytest.mark.parametrize("name", sorted(RECIPES.keys() - AS_PUBLISHED))
def test_so_are_those_of_each_recipe_by_its_name(tmp_path, alone, name):
    assert error(tmp_path / "run", 7, strategy=RECIPES[name].build()) <= alone + POINTS


def test_workers_that_normalize_their_own_rows_are_as_good_as_one(tmp_path):
    """Of 32 rows on 16 workers each would take mean and variance of two."""
    alone = error(tmp_path / "alone", 1, "with_norms")
    assert error(tmp_path / "run", 16, "with_norms") <= alone + POINTS
