from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from photinus.models.average import Average
from photinus.models.module_model import Learning, ModuleModel
from photinus.testing import check_model

pytestmark = pytest.mark.numerics


def model(decay=0.9, dtype=torch.float32):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).to(torch.float32)
    module = module if dtype == torch.float32 else nn.Linear(4, 3).to(dtype)
    return ModuleModel(module, "cross_entropy", Learning(average=decay))


def batch():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((8, 4)).astype(np.float32)
    return SimpleNamespace(features=features, labels=rng.integers(0, 3, 8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_follows_tensorflows_formula(dtype):
    ours, rng = model(0.4, dtype), np.random.default_rng(1)
    expected = ours.parameters.trained.astype(np.float64)
    for n in range(8):
        ours.learn(batch(), 0)
        if n:
            d = min(0.4, (1 + n) / (10 + n))
            expected = d * expected + (1 - d) * ours.parameters.trained
        shadow = ours.parameters.floats[-expected.size :]
        np.testing.assert_allclose(shadow, expected, rtol=2e-6)
        ours.parameters.trained += rng.standard_normal(expected.size).astype("f4")
    assert ours.parameters.integers[-1] == 8


def test_it_lies_behind_the_buffers_and_is_what_is_measured():
    ours = model()
    names = ours.parameters.layout.names()
    assert names[-2:] == ("average.1.bias", "average.steps")
    ours.learn(batch(), 0)
    plain = ours.measure(batch())
    ours.parameters.trained += 1.0
    assert ours.measure(batch()) == plain
    assert np.array_equal(ours.outputs(batch().features), ours.outputs(batch().features))
    with ours.shown():
        assert np.array_equal(
            ours.parameters.view("0.bias"), ours.parameters.view("average.0.bias")
        )
    assert not np.array_equal(
        ours.parameters.view("0.bias"), ours.parameters.view("average.0.bias")
    )


def test_a_model_with_an_average_keeps_the_contract():
    check_model(model, batch())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_on_a_card_it_follows_the_same_formula_to_the_bit(dtype):
    trained, decay = torch.zeros(50, dtype=dtype), 0.9
    pairs = [(torch.zeros(50), torch.zeros(1, dtype=torch.int64)) for _ in range(2)]
    on_host, on_card = (Average(trained, *buffers, decay) for buffers in pairs)
    for _ in range(30):
        trained += torch.randn(50, dtype=dtype)
        on_host.step()
        on_card._step_on_device()
        assert torch.equal(pairs[0][0], pairs[1][0])
    assert pairs[0][1] == pairs[1][1] == 30
