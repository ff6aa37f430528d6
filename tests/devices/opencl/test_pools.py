"""Max-pools on an OpenCL device choose and add up as PyTorch does, to the bit."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from photinus.devices.opencl.offload import Offload


def drawn(*shape):
    """Returns few different numbers, so that many are equal."""
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(0)).float()


def results(x, *how, **named):
    x = x.detach().clone().requires_grad_()
    y = functional.max_pool2d(x, *how, **named)
    slope = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    return [y.detach(), *torch.autograd.grad(y, x, slope)]


def assert_pool(engine, x, *how, **named):
    mode = Offload(engine)
    with mode:
        made = results(x, *how, **named)
    for one, other in zip(made, results(x, *how, **named), strict=True):
        assert torch.equal(one, other)
    assert sum(mode.counts.values()) == 2


@settings(max_examples=25)
@given(
    size=st.tuples(st.integers(5, 12), st.integers(5, 12)),
    window=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    by=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    pads=st.booleans(),
    is_ceil=st.booleans(),
)
def test_pools_of_any_window_stride_and_padding(engine, size, window, by, pads, is_ceil):
    pad = tuple(side // 2 for side in window) if pads else 0
    assert_pool(engine, drawn(2, 3, *size), window, by, pad, ceil_mode=is_ceil)


def test_windows_beside_each_other_are_usual(usual):
    assert_pool(usual, drawn(2, 3, 8, 8), 2)


def test_images_with_their_channels_last(usual):
    assert_pool(usual, drawn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last), 3, 2)


def test_what_is_no_number_is_the_largest(usual):
    x = drawn(1, 1, 4, 4)
    x[0, 0, 1, 2] = torch.nan
    with Offload(usual):
        y = functional.max_pool2d(x, 2)
    assert y.isnan().flatten().tolist() == [False, True, False, False]


def test_pools_along_one_dimension(usual):
    x = drawn(2, 3, 12).requires_grad_()
    with Offload(usual):
        y = functional.max_pool1d(x, 3, 2)
    assert torch.equal(y, functional.max_pool1d(x, 3, 2))


@pytest.mark.parametrize("shape", [(0, 3, 4, 4), (3, 4, 4)])
def test_no_image_and_an_image_alone(usual, shape):
    with Offload(usual):
        assert torch.equal(
            functional.max_pool2d(torch.ones(shape), 2), torch.ones(*shape[:-2], 2, 2)
        )
