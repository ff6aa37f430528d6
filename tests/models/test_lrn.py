import numpy as np
import pytest
import torch
from torch import nn

from photinus.models.lrn import LRN

pytestmark = pytest.mark.numerics


def images(dtype=torch.float32, channels=16, seed=0):
    torch.manual_seed(seed)
    return (4 * torch.randn(3, channels, 5, 7)).to(dtype)


def by_the_formula(x, radius, alpha, beta, k):
    """TensorFlow's: sqr_sum[c] = Σ input[c - r .. c + r]², output = input / (k + α sqr_sum)^β."""
    y = np.empty_like(x)
    for c in range(x.shape[1]):
        near = x[:, max(0, c - radius) : c + radius + 1]
        y[:, c] = x[:, c] / (k + alpha * (near**2).sum(1)) ** beta
    return y


@pytest.mark.parametrize(
    ("radius", "alpha", "beta", "k"), [(4, 0.001 / 9, 0.75, 1), (2, 0.5, 0.5, 2)]
)
def test_it_is_tensorflows_formula(radius, alpha, beta, k):
    x = images(torch.float64)
    ours = LRN(16, radius, alpha, beta, k)(x).numpy()
    np.testing.assert_allclose(ours, by_the_formula(x.numpy(), radius, alpha, beta, k), rtol=1e-12)


@pytest.mark.parametrize("beta", [0.75, 0.6])
def test_the_way_back_is_the_true_gradient(beta):
    x = images(torch.float64, 6)[:1, :, :2, :2].clone().requires_grad_()
    assert torch.autograd.gradcheck(LRN(6, 2, 0.3, beta, 1.5), x)


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
def test_it_equals_torchs_own_within_its_precision(memory, dtype, close):
    plain = nn.LocalResponseNorm(9, alpha=0.02, beta=0.75, k=1.0)
    x, slope = images(channels=64), images(channels=64, seed=1)
    exact = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(plain(exact), exact, slope)
    inputs = x.to(dtype).contiguous(memory_format=memory).requires_grad_()
    outputs = LRN(64, 4, 0.02 / 9)(inputs)
    (gradient,) = torch.autograd.grad(outputs, inputs, slope.to(dtype))
    assert outputs.dtype == gradient.dtype == dtype
    assert outputs.is_contiguous(memory_format=memory)
    for one, other in ((outputs, plain(x)), (gradient, expected)):
        difference = (one.float() - other).detach().norm() / other.detach().norm()
        assert difference < close


def test_autocast_computes_in_the_type_that_comes_in():
    x = images(torch.bfloat16)
    plain = LRN(16)(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(LRN(16)(x), plain)
        assert LRN(16)(x.float()).dtype == torch.float32
