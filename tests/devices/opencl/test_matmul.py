"""Every product on an OpenCL device is that of float64, up to the rounding of its sum."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from photinus.devices.opencl.offload import Offload
from photinus.devices.opencl.self_test import check

pytestmark = pytest.mark.numerics

SIZE = st.integers(1, 70)


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def assert_product(engine, x, y):
    with Offload(engine):
        made = x @ y
    exact, most = x.double() @ y.double(), x.abs().double() @ y.abs().double()
    assert made.shape == exact.shape
    assert ((made - exact).abs() <= x.shape[-1] * torch.finfo(torch.float32).eps * most).all()


def test_the_known_answers_are_given_to_the_bit(engine):
    check(engine)


@settings(max_examples=40)
@given(m=SIZE, k=SIZE, n=SIZE, turns=st.tuples(st.booleans(), st.booleans()))
def test_matrices_of_any_size_and_their_transposes(engine, m, k, n, turns):
    x = drawn(k, m).t() if turns[0] else drawn(m, k)
    y = drawn(n, k, seed=1).t() if turns[1] else drawn(k, n, seed=1)
    assert_product(engine, x, y)


@settings(max_examples=15)
@given(batch=st.integers(1, 5), m=SIZE, k=SIZE, n=SIZE, is_turned=st.booleans())
def test_batches_of_matrices(engine, batch, m, k, n, is_turned):
    y = drawn(batch, n, k, seed=1).mT if is_turned else drawn(batch, k, n, seed=1)
    assert_product(engine, drawn(batch, m, k), y)


def test_sums_longer_than_are_packed_at_once(engine):
    assert_product(engine, drawn(9, 2500), drawn(2500, 40, seed=1))


def test_more_columns_than_are_packed_at_once(usual):
    assert_product(usual, drawn(9, 1024), drawn(1024, 3000, seed=1))


def test_columns_of_a_wider_matrix_and_expanded_ones(usual):
    wide = drawn(20, 30)
    assert_product(usual, wide[:, 3:9], wide[:6, 1:])
    assert_product(usual, drawn(1, 7).expand(5, 7), drawn(7, 4))


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_products_without_a_number(usual, shape):
    m, k, n = shape
    with Offload(usual):
        assert torch.equal(torch.ones(m, k) @ torch.ones(k, n), torch.zeros(m, n))


def test_every_form_of_a_product_has_its_scale_and_bias(usual):
    x, y, b, v = drawn(5, 6), drawn(6, 7, seed=1), drawn(7, seed=2), drawn(6, seed=3)
    out = torch.empty(5, 7)

    def forms():
        yield torch.addmm(b, x, y, beta=0.5, alpha=2)
        yield torch.addmm(b, x, y, beta=0, alpha=0.5, out=out).clone()
        yield torch.mm(x, y, out=out).clone()
        yield torch.baddbmm(b, x[None], y[None], beta=3, alpha=2)
        yield torch.bmm(x[None], y[None])
        yield torch.mv(x, v)
        yield torch.addmv(drawn(5), x, v, beta=2, alpha=3)
        yield torch.nn.functional.linear(x[None], y.t(), b)
        yield torch.ops.mkldnn._linear_pointwise(x, y.t(), b, "none", [], "")
        yield torch.einsum("bi,ij->jb", x, y)

    plain = list(forms())
    mode = Offload(usual)
    with mode:
        made = list(forms())
    for one, other in zip(made, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    assert sum(mode.counts.values()) == len(plain)
