"""Each operator against TensorFlow's formulas, written out in numpy; SAME padding included."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from photinus.models.cnn import quick, tutorial
from photinus.models.module_model import Learning, ModuleModel
from photinus.testing import check_model

pytestmark = pytest.mark.numerics

L2 = {"local[34].weight": 0.004}


def same(x, size, stride, fill):
    """Pads [B, C, H, W] as TensorFlow's SAME: what is odd goes behind."""
    side = x.shape[2]
    total = max((-(-side // stride) - 1) * stride + size - side, 0)
    before = total // 2
    pads = (before, total - before)
    return np.pad(x, ((0, 0), (0, 0), pads, pads), constant_values=fill)


def windows(x, size, stride):
    view = np.lib.stride_tricks.sliding_window_view(x, (size, size), (2, 3))
    return view[:, :, ::stride, ::stride]  # [B, C, H', W', size, size]


def conv(x, w, b):
    return np.einsum("bchwij,ocij->bohw", windows(same(x, 5, 1, 0), 5, 1), w) + b[:, None, None]


def max_pool(x):
    return windows(same(x, 3, 2, -np.inf), 3, 2).max((4, 5))


def norm(x):
    y = np.empty_like(x)
    for c in range(x.shape[1]):
        squares = (x[:, max(0, c - 4) : c + 5] ** 2).sum(1)
        y[:, c] = x[:, c] / (1.0 + 0.001 / 9.0 * squares) ** 0.75
    return y


def forward(tensors, x):
    """The tutorial's `inference`, in its order: ReLU before the first pool."""
    t, out = tensors, {}
    x = np.maximum(conv(x, t["conv1.weight"], t["conv1.bias"]), 0)
    x = out["norm1"] = norm(max_pool(x))
    x = norm(np.maximum(conv(x, t["conv2.weight"], t["conv2.bias"]), 0))
    x = out["pool2"] = max_pool(x)
    x = x.reshape(len(x), -1)
    for name in ("local3", "local4"):
        x = out[name] = np.maximum(x @ t[f"{name}.weight"].T + t[f"{name}.bias"], 0)
    out["logits"] = x @ t["softmax_linear.weight"].T + t["softmax_linear.bias"]
    return out


def total_loss(tensors, x, labels):
    """Its `loss`: mean sparse softmax cross-entropy, and 0.004 · Σ w² / 2 of both dense layers."""
    z = forward(tensors, x)["logits"]
    z = z - z.max(1, keepdims=True)
    entropy = np.log(np.exp(z).sum(1)) - z[np.arange(len(z)), labels]
    decay = sum(0.004 * (tensors[f"{name}.weight"] ** 2).sum() / 2 for name in ("local3", "local4"))
    return entropy.mean() + decay


def batch(rows=3, side=8):
    rng = np.random.default_rng(0)
    features = rng.standard_normal((rows, 3, side, side))
    return SimpleNamespace(features=features, labels=rng.integers(0, 10, rows))


def model(side=8, **how):
    torch.manual_seed(0)
    net = tutorial(side=side).double()
    return ModuleModel(net, "cross_entropy", Learning(l2=L2, **how))


@pytest.mark.parametrize("layer", ["norm1", "pool2", "logits"])
def test_the_tutorial_net_is_tensorflows_formulas(layer):
    ours, examples = model(), batch()
    expected = forward(dict(ours.parameters.tensors()), examples.features)[layer]
    outputs = ours.outputs(examples.features, "" if layer == "logits" else layer)
    np.testing.assert_allclose(outputs, expected, rtol=1e-9, atol=1e-12)


def test_the_loss_is_tensorflows_with_its_weight_decay():
    ours, examples = model(), batch()
    expected = total_loss(dict(ours.parameters.tensors()), examples.features, examples.labels)
    assert ours.learn(examples, 0)[1]["loss"] == pytest.approx(expected, rel=1e-12)


def test_the_tutorial_net_keeps_the_models_contract():
    check_model(model, batch())


def test_the_first_weights_are_the_tutorials():
    torch.manual_seed(0)
    net = tutorial()
    for name, deviation, bias in (
        ("conv1", 0.05, 0.0),
        ("conv2", 0.05, 0.1),
        ("local3", 0.04, 0.1),
        ("local4", 0.04, 0.1),
        ("softmax_linear", 1 / 192, 0.0),
    ):
        weight, constant = net.get_submodule(name).parameters()
        assert float(weight.detach().abs().max()) <= 2 * deviation + 1e-6
        # of a normal distribution cut at two deviations .8796 of the deviation are left
        assert float(weight.detach().std()) == pytest.approx(0.8796 * deviation, rel=0.05)
        assert (constant == bias).all()


@pytest.mark.parametrize(
    ("memory", "precision", "close"),
    [
        ("channels_last", "float32", 16 * 24 * 24 * 2.0**-23),  # the longest sum, of eps each
        ("contiguous", "bfloat16", 0.05),
        ("channels_last", "bfloat16", 0.05),
    ],
)
def test_the_fast_paths_equal_the_plain_one_within_their_precision(memory, precision, close):
    examples = batch(16, 24)
    examples.features = examples.features.astype(np.float32)

    def gradient(**how):
        torch.manual_seed(0)
        made = ModuleModel(tutorial(), "cross_entropy", Learning(l2=L2, **how))
        slope, metrics = made.learn(examples, 0)
        return slope.copy(), metrics["loss"]

    plain, loss = gradient()
    fast, fast_loss = gradient(memory=memory, precision=precision)
    assert np.linalg.norm(fast - plain) < close * np.linalg.norm(plain)
    assert fast_loss == pytest.approx(loss, rel=close / 10)


def caffe_mean_pool(x):
    """Windows of 3 every 2, cut at the border; each mean is over what lies inside."""
    side = x.shape[2]
    out = -(-(side - 3) // 2) + 1
    y = np.empty((*x.shape[:2], out, out))
    for i in range(out):
        for j in range(out):
            y[:, :, i, j] = x[:, :, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3].mean((2, 3))
    return y


def test_the_quick_net_is_caffes_formulas():
    torch.manual_seed(0)
    ours = ModuleModel(quick(side=16).double(), "cross_entropy")
    t, examples = dict(ours.parameters.tensors()), batch(2, 16)
    t["conv1.weight"] *= 1000  # at 1e-4 nothing would be seen to go wrong
    x = np.maximum(max_pool(conv(examples.features, t["conv1.weight"], t["conv1.bias"])), 0)
    for name in ("conv2", "conv3"):
        x = caffe_mean_pool(np.maximum(conv(x, t[f"{name}.weight"], t[f"{name}.bias"]), 0))
    for name in ("ip1", "ip2"):
        x = x.reshape(len(x), -1) @ t[f"{name}.weight"].T + t[f"{name}.bias"]
    np.testing.assert_allclose(ours.outputs(examples.features), x, rtol=1e-9, atol=1e-12)
