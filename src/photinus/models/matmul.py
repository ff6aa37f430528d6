"""Matrix products by the fastest library here, in bfloat16 where that is faster.

torch sends float32 products to MKL, which on some processors runs at less than half of what oneDNN
reaches on the same core. Which one is taken is decided by a short measurement, never by a name,
and shipped as a plain setting: a run's workers all compute alike. Seconds are the processor's, of
this thread, so that other work on the machine does not decide.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from photinus.core.errors import UsageError
from photinus.models.cpu_time import cpu_seconds
from photinus.models.tensors import WorkBuffers

PRODUCTS = ("mkl", "onednn", "bfloat16")
"""How a product is computed: float32 by torch's default, float32 by oneDNN, or in bfloat16."""

PRECISIONS = ("float32", "bfloat16", "auto")

_GAIN = 1.5
"""bfloat16 is taken by itself only where it is this much faster: it costs digits."""


def dtype_of(products: str) -> torch.dtype:
    """Returns the type that a product's operands have."""
    return torch.bfloat16 if products == "bfloat16" else torch.float32


def linear(
    x: Tensor, w: Tensor, b: Tensor | None, products: str, out: Tensor | None = None
) -> Tensor:
    """Returns x w + b in the operands' type.

    Args:
        x: [B, i].
        w: [i, o], which may be a transposed view.
        b: [o] or None.
        products: one of `PRODUCTS`.
        out: [B, o]; used where the library can write into it.
    """
    if _is_onednn(products, x):
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, w.t(), b, "none", [], "")
        return result
    return torch.mm(x, w, out=out) if b is None else torch.addmm(b, x, w, out=out)


def outer(
    x: Tensor, y: Tensor, scale: float, out: Tensor, backend: tuple[str, WorkBuffers]
) -> Tensor:
    """Writes scale · xᵀ y into `out`.

    Args:
        x: [B, i].
        y: [B, o], of the same type.
        scale: a factor on the sum over the batch.
        out: float32 [i, o].
        backend: one of `PRODUCTS`, and buffers for what is in between.
    """
    products, buffers = backend
    if _is_onednn(products, x):
        return torch.mul(linear(x.t(), y, None, products), scale, out=out)
    if x.dtype == out.dtype:
        return torch.addmm(out, x.t(), y, beta=0, alpha=scale, out=out)
    # two plain operands and one pass to float32 take less than the transposed product alone
    x_transposed = buffers.get("rows", x.t().shape, x.dtype).copy_(x.t())  # [i, B]
    product = buffers.get("outer", out.shape, x.dtype)
    return out.copy_(torch.addmm(product, x_transposed, y, beta=0, alpha=scale, out=product))


def _is_onednn(products: str, x: Tensor) -> bool:
    return products == "onednn" and x.dtype == torch.float32 and x.device.type == "cpu"


def gigaflops(products: str, shape: tuple[int, int, int], seconds: float = 0.02) -> float:
    """Measures the best rate of one product [B, i] x [i, o] in GFLOP/s.

    Args:
        products: one of `PRODUCTS`.
        shape: (B, i, o).
        seconds: how long to try.
    """
    b, i, o = shape
    x = torch.randn(b, i).to(dtype_of(products))
    w = torch.randn(i, o).to(dtype_of(products))
    linear(x, w, None, products)
    best, end = float("inf"), time.thread_time() + seconds
    while time.thread_time() < end:
        best = min(best, cpu_seconds(lambda: linear(x, w, None, products)))
    return 2e-9 * b * i * o / best


def choose(shapes: Sequence[tuple[int, int, int]]) -> str:
    """Returns "mkl" or "onednn": by which the float32 products [B, i] x [i, o] take less time.

    Args:
        shapes: (B, i, o) of each product.
    """
    if not _has_onednn():
        return "mkl"
    seconds = {name: _seconds(name, shapes) for name in ("mkl", "onednn")}
    return min(seconds, key=seconds.__getitem__)


def resolve(precision: str, shapes: Sequence[tuple[int, int, int]]) -> str:
    """Returns which of `PRODUCTS` a precision means on this machine.

    Args:
        precision: "float32", "bfloat16", or "auto" (bfloat16 where it is 1.5 times faster).
        shapes: (B, i, o) of the products that matter.

    Raises:
        UsageError: the precision is unknown.
    """
    if precision in PRODUCTS:
        return precision
    if precision not in PRECISIONS:
        raise UsageError("precision must be one of " + ", ".join(PRECISIONS), got=repr(precision))
    float32_products = choose(shapes)
    if precision == "float32":
        return float32_products
    gain = _seconds(float32_products, shapes) / _seconds("bfloat16", shapes)
    return "bfloat16" if gain >= _GAIN else float32_products


def _has_onednn() -> bool:
    available = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return bool(available) and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _seconds(products: str, shapes: Sequence[tuple[int, int, int]]) -> float:
    return sum(b * i * o / gigaflops(products, (b, i, o)) for b, i, o in shapes)
