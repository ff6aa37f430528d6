"""Buffers that `forward` assigns are those of the flat vectors, as if it wrote into them."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from photinus.core.errors import UsageError
from photinus.models.module import ModuleConfig
from photinus.models.module_model import Learning, ModuleModel
from photinus.training.placement import fresh


class Running(nn.Module):
    """Keeps a running mean, the one before it, and how many rows there were."""

    def __init__(self, is_assigned=True):
        super().__init__()
        self.line, self.is_assigned = nn.Linear(4, 3), is_assigned
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("before", torch.ones(4))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        if self.training:
            new = 0.9 * self.mean + 0.1 * x.mean(0)
            if self.is_assigned:
                self.mean, self.before, self.seen = new, self.mean, self.seen + len(x)
            else:
                self.before.copy_(self.mean)
                self.mean.copy_(new)
                self.seen += len(x)
        return self.line(x - self.mean)


def batch(number=0):
    rng = np.random.default_rng(number)
    x = rng.standard_normal((16, 4)).astype(np.float32) + 3
    return SimpleNamespace(features=x, labels=rng.integers(0, 3, 16))


def trained(device, **arguments):
    config = ModuleConfig(module=f"{__name__}:Running", arguments=arguments, lr=0.01)
    model, inner = fresh(config, (), 3, device)
    for number in range(4):
        gradient, _ = model.learn(batch(number), number)
        inner.step(model.parameters.trained, gradient, 0.0)
    p = model.parameters
    model.to_host(p.trained, p.floats, p.integers)
    return model, [p.trained, p.floats, p.integers, model.outputs(batch().features)]


@pytest.mark.parametrize("device", ["cpu", "stand-in"])
def test_what_is_assigned_is_learnt_as_what_is_written_in_place(device):
    (model, assigned), (_, written) = (trained(device, is_assigned=a) for a in (True, False))
    for mine, theirs in zip(assigned, written, strict=True):
        assert np.array_equal(mine, theirs)
    assert model.parameters.view("mean").all()
    assert not np.array_equal(model.parameters.view("mean"), model.parameters.view("before"))
    assert int(model.parameters.view("seen")) == 64


@pytest.mark.parametrize("device", ["cpu", "stand-in"])
def test_numbers_that_arrive_after_a_step_are_the_modules_next_ones(device):
    model, _ = trained(device)
    p = model.parameters
    p.floats[:] = 5
    model.to_device(p.floats)
    model.learn(batch(), 0)
    model.to_host(p.floats)
    np.testing.assert_allclose(p.view("before"), 5)


def test_measuring_keeps_what_forward_assigns_then_as_what_it_writes():
    class Counting(nn.Linear):
        def __init__(self):
            super().__init__(4, 3)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls = self.calls + 1
            return super().forward(x)

    model = ModuleModel(Counting(), "cross_entropy")
    model.measure(batch())
    assert model.parameters.floats.tolist() == [1]


def test_a_budget_is_measured_without_what_is_assigned_meanwhile():
    how = Learning(activation_memory="offload", activation_bytes=1 << 20)
    model = ModuleModel(Running(), "cross_entropy", how)
    model.learn(batch(), 0)
    assert int(model.parameters.view("seen")) == 16


class Growing(nn.Module):
    """Assigns a buffer of another shape."""

    def __init__(self, persistent):
        super().__init__()
        self.line = nn.Linear(4, 3)
        self.register_buffer("last", torch.zeros(4), persistent=persistent)

    def forward(self, x):
        self.last = x
        return self.line(x)


def test_a_buffer_of_another_shape_is_refused():
    wrong = r"must keep its shape and its type: last; got float32\[16, 4\]; assign float32\[4\], or"
    with pytest.raises(UsageError, match=wrong):
        ModuleModel(Growing(persistent=True), "cross_entropy").learn(batch(), 0)


def test_a_cache_that_is_not_saved_may_have_any_shape():
    model = ModuleModel(Growing(persistent=False), "cross_entropy")
    model.learn(batch(), 0)
    model.move("stand-in")
    model.learn(batch(), 1)
    assert model.module.last.shape == (16, 4)


def test_running_statistics_of_float64_are_refused():
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double()
    with pytest.raises(UsageError, match=r"must be float32: 1\.running_mean; got float64"):
        ModuleModel(module, "cross_entropy", Learning())
