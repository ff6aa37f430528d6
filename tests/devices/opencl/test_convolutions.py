"""Every convolution and its slopes on an OpenCL device are those of float64."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.nn import functional

from photinus.devices.opencl.offload import Offload

pytestmark = pytest.mark.numerics

EPS = torch.finfo(torch.float32).eps


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def results(compute, x, w, b, slope):
    tensors = [one.detach().clone().requires_grad_() for one in (x, w, b)]
    y = compute(*tensors)
    return [y.detach(), *torch.autograd.grad(y, tensors, slope.to(y.dtype))]


def assert_convolution(engine, x, w, **how):
    convolve = functional.conv1d if x.dim() == 3 else functional.conv2d
    b = drawn(w.shape[0], seed=2)

    def compute(*tensors):
        return convolve(*tensors, **how)

    slope = drawn(*compute(x, w, b).shape, seed=3)
    mode = Offload(engine)
    with mode:
        made = results(compute, x, w, b, slope)
    exact = results(compute, *(one.double() for one in (x, w, b, slope)))
    most = results(compute, *(one.abs().double() for one in (x, w, b, slope)))
    terms = max(w[0].numel(), w[:, 0].numel(), slope[:, 0].numel()) + 1
    for one, other, bound in zip(made, exact, most, strict=True):
        assert one.shape == other.shape
        assert ((one - other).abs() <= terms * EPS * bound).all()
    assert mode.counts == {"aten.convolution.default": 1, "aten.convolution_backward.default": 1}


@settings(max_examples=25)
@given(
    n=st.integers(1, 3),
    channels=st.tuples(st.integers(1, 4), st.integers(1, 9)),
    size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    window=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    by=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    pad=st.tuples(st.integers(0, 5), st.integers(0, 5)),
)
def test_convolutions_of_any_size_stride_and_padding(engine, n, channels, size, window, by, pad):
    assume(all(s + 2 * p >= k for s, p, k in zip(size, pad, window, strict=True)))
    x, w = drawn(n, channels[0], *size), drawn(channels[1], channels[0], *window, seed=1)
    assert_convolution(engine, x, w, stride=by, padding=pad)


@pytest.mark.parametrize(
    ("name", "pad"), [("full", 4), ("same", "same"), ("valid", "valid")], ids=lambda one: str(one)
)
def test_full_same_and_valid_convolutions(engine, name, pad):
    assert_convolution(engine, drawn(2, 3, 8, 8), drawn(4, 3, 5, 5, seed=1), padding=pad)


def test_more_padding_than_the_window_reaches(engine):
    """The slope of the output is then as large as its windows are, but does not begin there."""
    assert_convolution(engine, drawn(1, 1, 1, 1), drawn(1, 1, 1, 2), stride=(1, 2), padding=(0, 2))


def test_convolutions_along_one_dimension(engine):
    x, w = drawn(2, 3, 20), drawn(4, 3, 5, seed=1)
    assert_convolution(engine, x, w, stride=2, padding=3)


def test_images_with_their_channels_last(usual):
    x = drawn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    assert_convolution(usual, x, drawn(4, 3, 3, 3, seed=1), padding=1)


def test_a_batch_without_an_image(usual):
    with Offload(usual):
        y = functional.conv2d(torch.empty(0, 3, 8, 8), drawn(4, 3, 3, 3))
    assert y.shape == (0, 4, 6, 6)
