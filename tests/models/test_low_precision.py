"""Products in float16: gradients that would vanish or overflow are those of float32, scaled."""

import numpy as np
import pytest
import torch
from torch import nn

from photinus.core.errors import UsageError
from photinus.data.base import Batch
from photinus.models.cnn import tutorial
from photinus.models.low_precision import gradients
from photinus.models.module import ModuleConfig
from photinus.models.module_model import Learning, ModuleModel
from photinus.run.job import Job

CLOSE = 0.01
"""Of a gradient's norm: float16 rounds each number to 2⁻¹¹ of itself."""


class Net(nn.Module):
    def __init__(self, scale=1.0):
        super().__init__()
        self.scale = scale
        self.layers = nn.Sequential(
            nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3)
        )

    def forward(self, x):
        return self.layers(x) * self.scale


def learnt(precision, scale=1.0, make=Net, **how):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = make(scale) if make is Net else make()
    rng = np.random.default_rng(0)
    x = rng.random((12, 6) if make is Net else (12, 3, 24, 24), np.float32)
    model = ModuleModel(net, "cross_entropy", Learning(precision=precision, **how))
    slope, metrics = model.learn(Batch(x, np.arange(12) % 3), 0)
    return slope.copy(), metrics["loss"]


def assert_near(low, plain):
    assert np.linalg.norm(low[0] - plain[0]) <= CLOSE * np.linalg.norm(plain[0])
    assert low[1] == pytest.approx(plain[1], rel=CLOSE)


@pytest.mark.numerics
def test_a_convolutional_networks_step_in_float16_is_that_of_float32_within_its_rounding():
    assert_near(learnt("float16", make=tutorial), learnt("float32", make=tutorial))


@pytest.mark.numerics
@pytest.mark.parametrize("scale", [1.0, 64.0])
@pytest.mark.parametrize(
    "how",
    [{}, {"accumulate": 3}, {"activation_memory": "recompute"}, {"activation_memory": "offload"}],
)
def test_so_it_is_where_the_first_scale_is_too_large_however_activations_are_kept(scale, how):
    assert_near(learnt("float16", scale, **how), learnt("float32", scale, **how))


@pytest.mark.numerics
@pytest.mark.parametrize("power", [-22, -12, 12])
def test_gradients_neither_vanish_nor_overflow(power):
    x = torch.linspace(0.5, 1.0, 8).view(2, 4)
    weights = torch.full((4, 4), 0.5, requires_grad=True)
    with torch.autocast("cpu", torch.float16):
        outputs = x @ weights
    loss = outputs.float().sum() * 2.0**power
    (slope,) = gradients(loss, [weights], "float16")
    expected = x.sum(0)[:, None].expand(4, 4) * 2.0**power
    torch.testing.assert_close(slope, expected, rtol=2e-3, atol=0.0)


def test_what_is_not_finite_at_any_scale_is_returned_as_it_is():
    weights = torch.ones(2, requires_grad=True)
    (slope,) = gradients((weights * float("inf")).sum(), [weights], "float16")
    assert not torch.isfinite(slope).all()


def test_the_same_step_has_the_same_bits_whatever_was_before():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = ModuleModel(Net(), "cross_entropy", Learning(precision="float16"))
    rng = np.random.default_rng(1)
    batch = Batch(rng.random((12, 6), np.float32), np.arange(12) % 3)
    huge = Batch(1e4 * rng.random((12, 6), np.float32), np.arange(12) % 3)
    first = model.learn(batch, 0)[0].copy()
    model.learn(huge, 1)
    np.testing.assert_array_equal(model.learn(batch, 0)[0], first)


def test_rows_that_a_batch_does_not_name_stay_out_of_a_sparse_tables_gradient():
    table = nn.Embedding(10, 4, sparse=True)
    slopes = gradients(table(torch.tensor([1, 3])).sum(), [table.weight], "float16")
    assert sorted(slopes[0].coalesce().indices()[0].tolist()) == [1, 3]


def test_opencl_refuses_float16():
    config = ModuleConfig(module="torch.nn:Linear", precision="float16")
    with pytest.raises(UsageError, match="OpenCL devices compute in float32; got float16"):
        Job(model=config, device="opencl")
