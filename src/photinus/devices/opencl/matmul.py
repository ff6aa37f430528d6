"""Products of matrices, as PyTorch's operators ask for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from photinus.devices.opencl.engine import Axis, NoKernelError, OpenCLEngine, Operand, ProductShape


def multiply(engine: OpenCLEngine, x: Tensor, y: Tensor) -> Tensor:
    """Returns x y for [m, k] and [k, n], or for batches [b, m, k] and [b, k, n]."""
    x, y = x.detach(), y.detach()
    m, k, n, batch = x.shape[-2], x.shape[-1], y.shape[-1], x.shape[0] if x.dim() == 3 else 1
    shape = (*x.shape[:-1], n)
    if not (m and n and k and batch):
        return torch.zeros(shape)
    result = engine.new(shape)
    out = Operand(result.memory, Axis.plain(n), Axis.plain(1), step=m * n)
    engine.product(_matrix(engine, x)[0], _matrix(engine, y)[1], out, ProductShape(m, n, k, batch))
    return engine.fetch(result)


def _matrix(engine: OpenCLEngine, x: Tensor) -> tuple[Operand, Operand]:
    """Returns x [..., i, j] by rows i, and by columns j; a transpose is not copied."""
    *_, i, j = x.shape
    if not x.is_contiguous() and x.mT.is_contiguous():
        memory, by_i, by_j = engine.memory(x.mT), Axis.plain(1), Axis.plain(i)
    else:
        memory, by_i, by_j = engine.memory(x.contiguous()), Axis.plain(j), Axis.plain(1)
    return Operand(memory, by_i, by_j, step=i * j), Operand(memory, by_j, by_i, step=i * j)


def add_product(
    engine: OpenCLEngine, bias: Tensor, x: Tensor, y: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """Returns beta bias + alpha x y."""
    result = multiply(engine, x, y)
    if alpha != 1:
        result.mul_(alpha)
    return result.add_(bias.detach(), alpha=beta) if beta else result


def multiply_vector(engine: OpenCLEngine, x: Tensor, v: Tensor) -> Tensor:
    """Returns x v for [m, k] and [k]."""
    return multiply(engine, x, v[:, None])[:, 0]


def add_vector_product(
    engine: OpenCLEngine, bias: Tensor, x: Tensor, v: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """Returns beta bias + alpha x v."""
    return add_product(engine, bias[..., None], x, v[:, None], beta=beta, alpha=alpha)[:, 0]


def onednn_linear(
    engine: OpenCLEngine, x: Tensor, w: Tensor, bias: Tensor | None, fused: str, *_: object
) -> Tensor:
    """Returns x wᵀ + b for [..., i] and [o, i].

    Raises:
        NoKernelError: a function is fused.
    """
    if fused != "none":
        raise NoKernelError(f"{fused} is fused")
    result = multiply(engine, x.reshape(-1, x.shape[-1]), w.mT)
    result = result if bias is None else result.add_(bias.detach())
    return result.view(*x.shape[:-1], -1)


def into(compute: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns the same with the argument `out`."""

    def write(engine: OpenCLEngine, *args: Any, out: Tensor, **kwargs: Any) -> Tensor:  # noqa: ANN401
        return out.copy_(compute(engine, *args, **kwargs))

    return write
