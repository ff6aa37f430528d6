from types import SimpleNamespace

import numpy as np
import pytest
from torch import nn

from photinus.core.errors import UsageError
from photinus.core.parameters import TRAINED, Layout, Parameters
from photinus.models.base import Model
from photinus.models.mlp import MLP, Dense
from photinus.models.module import ModuleConfig
from photinus.models.module_model import ModuleModel
from photinus.models.rbm import RBM, ContrastiveDivergence, first_parameters
from photinus.testing import check_model

pytestmark = pytest.mark.numerics


def batch(rows=12, width=6, classes=3):
    rng = np.random.default_rng(0)
    features = rng.random((rows, width), np.float32)
    return SimpleNamespace(features=features, labels=rng.integers(0, classes, rows))


def network(**settings):
    model = MLP(Dense(sizes=(6, 5, 3), **settings))
    model.randomize(1)
    return model


def module(factory="Linear", **arguments):
    arguments = arguments or {"in_features": 6, "out_features": 3}
    return ModuleConfig(module=f"torch.nn:{factory}", arguments=arguments).build((), seed=4)


MODELS = {
    "mlp": (network, True),
    "mlp dropout": (lambda: network(dropout=(0.2, 0.5)), True),
    "mlp autoencoder": (
        lambda: MLP(Dense(sizes=(6, 4, 6), loss="reconstruction_mse", reconstructs=True)),
        True,
    ),
    "mlp bfloat16": (lambda: network(products="bfloat16"), False),
    "module": (module, True),
    "rbm": (lambda: RBM(first_parameters(6, 4, 1)), False),
    "rbm bfloat16": (
        lambda: RBM(first_parameters(6, 4, 1), ContrastiveDivergence(products="bfloat16")),
        False,
    ),
    "rbm all options": (
        lambda: RBM(
            first_parameters(6, 4, 1),
            ContrastiveDivergence(
                steps=3, persistent=True, samples_inputs=True, samples_visible=True
            ),
        ),
        False,
    ),
    "rbm gaussian": (
        lambda: RBM(
            first_parameters(6, 4, 1),
            ContrastiveDivergence(visible="gaussian", samples_visible=True),
        ),
        False,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_model_keeps_the_contract(name):
    make, is_gradient = MODELS[name]
    check_model(make, batch(), is_gradient=is_gradient)


def test_a_batch_norm_module_keeps_the_contract():
    def make():
        return ModuleModel(_normed(), "cross_entropy")

    check_model(make, batch())


def _normed():
    import torch

    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))


class Square(Model):
    """½ |w|² of two numbers, with faults on demand."""

    def __init__(self, fault=""):
        self.fault, self.seen = fault, 0
        self.parameters = Parameters(Layout.of([("w", (2,), TRAINED)]))
        self.parameters.trained += 1

    def load(self, trained, floats=None, integers=None):
        if self.fault != "load":
            super().load(trained, floats, integers)

    def learn(self, batch, seed):
        self.seen += 1
        w = self.parameters.trained
        if self.fault == "moves":
            w *= 0.5
        gradient = 2 * w if self.fault == "slope" else w.copy()
        if self.fault == "length":
            gradient = gradient[:1]
        if self.fault == "chance":
            gradient = gradient + np.random.default_rng().random(2, np.float32)
        return gradient, {"loss": float(w @ w) / 2}

    def measure(self, batch):
        return {"examples": 0.0 if self.fault == "count" else float(len(batch.features))}


def test_a_sound_model_of_ones_own_passes():
    check_model(Square, batch())


@pytest.mark.parametrize("fault", ["moves", "slope", "length", "chance", "count", "load"])
def test_check_model_finds_each_fault(fault):
    with pytest.raises(AssertionError, match=r"."):
        check_model(lambda: Square(fault), batch())


def test_a_vector_of_another_length_is_refused():
    with pytest.raises(UsageError, match=r"the trained vector must have 2 numbers; got \[3\]"):
        Square().load(np.zeros(3, np.float32))


def test_rows_set_aside_are_measured_after_each_pass_or_twenty_times_where_nothing_is_set():
    settings = {"module": "torch.nn:Linear"}
    assert ModuleConfig(**settings).trials(200.0) == 20
    assert ModuleConfig(**settings).trials(4.0) == 4
    assert ModuleConfig(**settings, epochs=200.0).trials(200.0) == 200
    assert ModuleConfig(**settings, max_steps=10).trials(50.0) == 50


def test_a_seed_of_more_than_64_bits_draws_first_parameters_as_any_other():
    config = ModuleConfig(module="torch.nn:Linear", arguments={"in_features": 2, "out_features": 2})
    first, again, other = (
        config.build((), s).parameters.trained for s in (2**70 + 1, 2**70 + 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other).all()
