from types import SimpleNamespace

import numpy as np
import pytest
import torch

from photinus.core.errors import DataError, UsageError
from photinus.models import matmul
from photinus.models.matmul import PRODUCTS
from photinus.models.mlp import MLP, Dense

pytestmark = pytest.mark.numerics

SIZES = (6, 9, 7, 3)
needs_onednn = pytest.mark.skipif(not matmul._has_onednn(), reason="torch without oneDNN")
EVERY = [pytest.param(p, marks=needs_onednn if p == "onednn" else ()) for p in PRODUCTS]


def batch(rows=40):
    rng = np.random.default_rng(0)
    features = rng.random((rows, 6), np.float32)
    return SimpleNamespace(features=features, labels=rng.integers(0, 3, rows))


def network(**settings):
    model = MLP(Dense(sizes=SIZES, **settings))
    model.randomize(1)
    model.parameters.view("W3")[...] *= 100  # the last layer starts small: let slopes pass
    return model


def autograd(model, b):
    """The same network as a plain torch module; its gradient in the flat layout."""
    module = model.module()
    labels = torch.from_numpy(b.labels)
    loss = torch.nn.functional.cross_entropy(
        module(torch.from_numpy(b.features)), labels, label_smoothing=0.1
    )
    loss.backward()
    slopes = [p.grad.t().numpy().reshape(-1) for p in module.parameters()]
    return float(loss.detach()), np.concatenate(slopes)


@pytest.mark.parametrize("kind", EVERY)
def test_the_backward_pass_is_autograds(kind, rounding):
    model, b = network(label_smoothing=0.1, products=kind), batch()
    gradient, metrics = model.learn(b, 0)
    loss, expected = autograd(model, b)
    tolerance = 2e-2 if kind == "bfloat16" else rounding(*SIZES, len(b.features))
    assert metrics["loss"] == pytest.approx(loss, rel=tolerance)
    np.testing.assert_allclose(gradient, expected, rtol=0, atol=tolerance * np.abs(expected).max())


def test_dropout_leaves_the_mean_of_the_first_layer_alone():
    model, b = network(dropout=(0.5, 0.0)), batch()
    inputs = torch.from_numpy(np.ones((2000, 6), np.float32))
    from photinus.models.random import RandomStream

    read, masks = model._forward(inputs, RandomStream(0))
    assert masks[0] is not None
    assert masks[1] is None
    assert abs(float(read[0].mean()) - 1) < 0.05
    plain, again = model.learn(b, 1)[0].copy(), model.learn(b, 1)[0]
    assert np.array_equal(plain, again)


def test_measure_leaves_nothing_out_and_sums():
    model, b = network(dropout=(0.5, 0.5)), batch()
    sums = model.measure(b)
    outputs = model.outputs(b.features)
    assert sums["errors"] == float((outputs.argmax(1) != b.labels).sum())
    assert sums["loss"] / 40 == pytest.approx(network().learn(b, 0)[1]["loss"], rel=1e-5)


def test_a_deeper_layer_takes_the_last_rate():
    settings = Dense(sizes=SIZES, dropout=(0.1, 0.2))
    assert [settings.rate(layer) for layer in range(3)] == [0.1, 0.2, 0.2]


def test_the_module_gives_the_same_outputs_and_is_taken_back(rounding):
    model, b = network(), batch()
    module = model.module()
    theirs = module(torch.from_numpy(b.features)).detach().numpy()
    close = rounding(*SIZES, scale=np.abs(theirs).max())
    np.testing.assert_allclose(model.outputs(b.features), theirs, atol=close)
    other = MLP(Dense(sizes=SIZES))
    other.load_tensors({n: t.numpy() for n, t in module.state_dict().items()})
    assert np.array_equal(other.parameters.trained, model.parameters.trained)


def test_anothers_state_dict_is_refused():
    with pytest.raises(UsageError, match="another network's"):
        network().load_tensors({"0.weight": np.zeros((3, 3))})


def test_regression_trains_too():
    model, b = network(loss="mse"), batch()
    b.labels = np.stack([b.features.sum(1)] * 3, 1)
    assert model.learn(b, 0)[1]["loss"] > 0
    assert sorted(model.measure(b)) == ["examples", "loss"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"labels": None}, "has no labels"),
        ({"labels": np.full(40, 3)}, "does not take these labels"),
        ({"labels": np.zeros(7, int)}, "does not take these labels"),
        ({"features": np.zeros((40, 5), np.float32)}, "rows of 6 numbers"),
    ],
)
def test_a_batch_that_does_not_fit_is_one_clear_sentence(change, says):
    b = batch()
    vars(b).update(change)
    with pytest.raises(DataError, match=says):
        network().learn(b, 0)


@pytest.mark.parametrize(
    "settings", [{"sizes": (3,)}, {"dropout": (1.0,)}, {"dropout": ()}, {"products": "fp8"}]
)
def test_wrong_settings_are_refused(settings):
    with pytest.raises(UsageError, match="of Dense must be"):
        Dense(**{"sizes": SIZES, **settings})
