"""What an OpenCL device computes of a step, what it refuses, and the step's gradient."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from photinus.core.errors import UsageError
from photinus.devices.opencl.offload import _HEAVY, Offload
from photinus.models.cnn import quick, tutorial
from photinus.models.dbn import DBN
from photinus.models.mlp import MLP, Dense
from photinus.models.rbm import RBM, ContrastiveDivergence, first_parameters

CLOSE = 1e-5
"""Of a gradient's norm: what two orders of the sums may differ by."""
POOL = torch.ops.aten.max_pool2d_with_indices.default


class Choices(TorchDispatchMode):
    """Has the host's pools choose as the device's did, where the values are as good as equal."""

    def __init__(self, places):
        super().__init__()
        self.places = iter(places)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        if func is not POOL:
            return found
        places = next(self.places)
        chosen = args[0].flatten(2).gather(2, places.flatten(2)).view(places.shape)
        torch.testing.assert_close(chosen, found[0], rtol=1e-4, atol=1e-5)
        return chosen, places


class Kept(Offload):
    """Keeps where its pools chose."""

    def __init__(self, engine):
        super().__init__(engine)
        self.places = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = super().__torch_dispatch__(func, types, args, kwargs)
        if func is POOL:
            self.places.append(found[1])
        return found


def slopes(net, x, labels):
    loss = functional.cross_entropy(net(x), labels)
    return torch.autograd.grad(loss, list(net.parameters()))


def assert_close(made, plain):
    for one, other in zip(made, plain, strict=True):
        assert (one - other).norm() <= CLOSE * other.norm()


@pytest.mark.numerics
@pytest.mark.parametrize(("make", "side"), [(tutorial, 24), (quick, 32)])
def test_a_steps_gradient_of_the_cifar_networks_is_the_hosts(usual, make, side):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net, x = make(), torch.randn(8, 3, side, side)
    labels = torch.arange(8)
    mode = Kept(usual)
    with mode:
        made = slopes(net, x, labels)
    with Choices(mode.places):
        plain = slopes(net, x, labels)
    assert_close(made, plain)
    assert mode.counts["aten.convolution_backward.default"] == sum(
        isinstance(part, nn.Conv2d) for part in net
    )
    assert mode.counts["aten.max_pool2d_with_indices_backward.default"] == len(mode.places) > 0


@pytest.mark.parametrize("products", ["mkl", "onednn"])
def test_a_step_of_a_machine_is_the_hosts(usual, products):
    images = np.random.default_rng(0).random((50, 40), np.float32)
    batch = SimpleNamespace(features=images, labels=None)
    steps = []
    for mode in (Offload(usual), torch.no_grad()):
        machine = RBM(first_parameters(40, 30, seed=1), ContrastiveDivergence(products=products))
        with mode:
            steps.append(torch.from_numpy(machine.learn(batch, 8)[0].copy()))
    assert_close(steps[:1], steps[1:])


def test_a_step_of_a_deep_belief_networks_fine_tuning_is_the_hosts(usual):
    images = np.random.default_rng(0).random((50, 40), np.float32)
    batch = SimpleNamespace(features=images, labels=np.arange(50) % 10)
    steps, mode = [], Offload(usual)
    for context in (mode, torch.enable_grad()):
        net = MLP(Dense(sizes=(40, 30, 20, 10), dropout=(0.2,)))
        net.randomize(0)
        with context:
            steps.append(torch.from_numpy(net.learn(batch, 8)[0].copy()))
    assert_close(steps[:1], steps[1:])
    assert sum(mode.counts.values()) == 3 * 3 - 1, "each layer thrice; the first has no slope"


def test_every_config_of_a_deep_belief_network_computes_there(usual):
    batch = SimpleNamespace(features=np.ones((4, 6), np.float32), labels=np.zeros(4, np.int64))
    configs = DBN(inputs=6, hidden=(5,), classes=2, precision="float32").configs()
    for config, history in zip(configs, ((), (np.zeros(6 * 5 + 6 + 5, np.float32),)), strict=True):
        mode = Offload(usual)
        with mode:
            config.build(history, 0).learn(batch, 0)
        assert mode.counts


def test_attention_is_computed_as_products(usual):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    x = torch.randn(2, 5, 8)
    mode = Offload(usual)
    with mode:
        made = torch.autograd.grad(layer(x).square().sum(), list(layer.parameters()))
    plain = torch.autograd.grad(layer(x).square().sum(), list(layer.parameters()))
    for one, other in zip(made, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    assert mode.counts["aten.bmm.default"] > 2


@pytest.mark.parametrize(
    ("compute", "said"),
    [
        (lambda x: functional.conv2d(x, torch.ones(2, 4, 3, 3), dilation=2), "its dilation is"),
        (lambda x: functional.conv2d(x, torch.ones(4, 2, 3, 3), groups=2), "it has 2 groups"),
        (lambda x: functional.conv_transpose2d(x, torch.ones(4, 2, 3, 3)), "it is transposed"),
        (lambda x: functional.conv3d(x[None], torch.ones(1, 1, 3, 3, 3)), "of one or two dimens"),
        (lambda x: functional.max_pool2d(x, 2, dilation=2), "its dilation is"),
        (lambda x: functional.adaptive_max_pool2d(x, 2), "it has no kernel for it"),
        (lambda x: x[0].double() @ x[0].double(), "OpenCL devices compute in float32"),
        (lambda x: x[0].bfloat16() @ x[0].bfloat16(), "OpenCL devices compute in float32"),
        (lambda x: x[0].long() @ x[0].long(), "OpenCL devices compute in float32"),
        (lambda x: torch._int_mm(x[0, 0].to(torch.int8), x[0, 0].to(torch.int8)), "no kernel"),
    ],
)
def test_what_the_device_cannot_compute_is_refused_and_never_the_hosts(usual, compute, said):
    x = torch.ones(1, 4, 9, 9)[:, :, :8, :8]
    mode = Offload(usual)
    with mode, pytest.raises(UsageError, match=rf"opencl:\d+:\d+ does not compute .*{said}"):
        compute(x.contiguous())
    assert not mode.counts


def test_every_heavy_operator_of_pytorch_is_known_by_its_name():
    heavy = {name for name in dir(torch.ops.aten) if _HEAVY.search(name)}
    assert {
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "mv",
        "convolution",
        "max_pool2d_with_indices",
        "linalg_matrix_exp",
    } <= heavy
    assert {"_int_mm", "_scaled_dot_product_flash_attention_for_cpu", "mkldnn_rnn_layer"} <= heavy
    light = {"mvlgamma", "lgamma", "igamma", "_standard_gamma", "cummax", "upsample_bilinear2d"}
    assert not heavy & {*light, "dot", "mul", "sum", "avg_pool2d", "_thnn_fused_lstm_cell"}


def test_what_comes_after_the_context_runs_on_the_host(usual):
    mode = Offload(usual)
    with mode:
        torch.ones(2, 2) @ torch.ones(2, 2)
    torch.ones(2, 2) @ torch.ones(2, 2)
    assert mode.counts == {"aten.mm.default": 1}
