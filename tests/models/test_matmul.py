import pytest
import torch

from photinus.core.errors import UsageError
from photinus.models import matmul
from photinus.models.matmul import PRODUCTS, choose, dtype_of, linear, outer, resolve
from photinus.models.tensors import WorkBuffers

pytestmark = pytest.mark.numerics

needs_onednn = pytest.mark.skipif(not matmul._has_onednn(), reason="torch without oneDNN")
EVERY = [pytest.param(p, marks=needs_onednn if p == "onednn" else ()) for p in PRODUCTS]


def operands(kind, *shapes):
    torch.manual_seed(0)
    return [torch.randn(shape).to(dtype_of(kind)) for shape in shapes]


def close(result, x, w, kind):
    """Each sum is off by an eps for each of its terms at most; bfloat16 rounds the result, too."""
    x, w = x.double(), w.double()
    plain, eps = x @ w, torch.finfo(torch.float32).eps
    most = (x.shape[1] + 1) * eps * (x.abs() @ w.abs())
    if kind == "bfloat16":
        most += torch.finfo(torch.bfloat16).eps * plain.abs()
    assert ((result.double() - plain).abs() <= most).all()


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("shape", [(1, 3, 2), (10, 784, 50), (100, 33, 17)])
def test_each_path_gives_the_plain_product(kind, shape):
    b, i, o = shape
    x, w, bias = operands(kind, (b, i), (i, o), (o,))
    ones = torch.ones(b, 1)
    with_bias = torch.cat([x, ones.to(x.dtype)], 1), torch.cat([w, bias[None]])
    close(linear(x, w, bias, kind), *with_bias, kind)
    close(linear(x, w, None, kind), x, w, kind)


@pytest.mark.parametrize("kind", EVERY)
def test_each_path_reads_transposed_weights(kind):
    x, w, bias = operands(kind, (20, 30), (40, 30), (40,))
    with_bias = torch.cat([x, torch.ones(20, 1).to(x.dtype)], 1), torch.cat([w.t(), bias[None]])
    close(linear(x, w.t(), bias, kind), *with_bias, kind)


@pytest.mark.parametrize("kind", EVERY)
def test_each_path_gives_the_plain_outer_product_in_float32(kind):
    x, y = operands(kind, (100, 31), (100, 20))
    out = torch.full((31, 20), 7.0)
    assert outer(x, y, 0.01, out, (kind, WorkBuffers())) is out
    close(out / 0.01, x.t(), y, kind)


def test_the_choice_is_measured(monkeypatch):
    rates = {"mkl": 100.0, "onednn": 220.0, "bfloat16": 300.0}
    monkeypatch.setattr(matmul, "gigaflops", lambda kind, shape: rates[kind])
    monkeypatch.setattr(matmul, "_has_onednn", lambda: True)
    assert choose([(10, 10, 10)]) == "onednn"
    assert resolve("float32", [(10, 10, 10)]) == "onednn"
    assert resolve("auto", [(10, 10, 10)]) == "onednn"  # 1.36 times faster is not enough
    rates["bfloat16"] = 400.0
    assert resolve("auto", [(10, 10, 10)]) == "bfloat16"
    rates["mkl"] = 230.0
    assert choose([(10, 10, 10)]) == "mkl"


def test_without_onednn_the_default_is_taken(monkeypatch):
    monkeypatch.setattr(matmul, "_has_onednn", lambda: False)
    assert choose([(10, 10, 10)]) == "mkl"


@pytest.mark.parametrize("kind", EVERY)
def test_a_plain_setting_is_taken_as_it_is(kind):
    assert resolve(kind, []) == kind
    assert matmul.gigaflops(kind, (8, 8, 8), seconds=0.001) > 0


def test_an_unknown_precision_is_refused():
    with pytest.raises(UsageError, match="precision must be one of float32, bfloat16, auto"):
        resolve("float8", [])
