"""Maxima of windows, and the gradients that go back through them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from photinus.devices.opencl.engine import NoKernelError, OpenCLEngine, ints


def pool(engine: OpenCLEngine, x: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401 - as the operator has them
    """Returns the maxima of windows of [..., h, w], and where in its plane each lies.

    Raises:
        NoKernelError: the windows have holes.
    """
    window, stride, pad, dilation, ceil_mode = (*rest, *_DEFAULTS[len(rest) - 1 :])
    if any(factor != 1 for factor in dilation):
        raise NoKernelError(f"its dilation is {list(dilation)}")
    stride = stride or window
    meta = torch.empty(x.shape, device="meta")  # only PyTorch knows the size under ceil_mode
    outputs = torch.ops.aten.max_pool2d_with_indices(
        meta, window, stride, pad, dilation, ceil_mode
    )[0]
    values, indices = engine.new(outputs.shape), engine.new(outputs.shape, torch.int64)
    if outputs.numel():
        pairs = [np.array([pair[0], pair[-1]], np.int32) for pair in (window, stride, pad)]
        sizes = ints(*x.shape[-2:], *outputs.shape[-2:])
        memory, lines = engine.memory(x.detach().contiguous()), outputs.shape[:-1].numel()
        engine.lines("pool", lines, memory, *sizes, *pairs, values.memory, indices.memory)
    return engine.fetch(values), engine.fetch(indices)


_DEFAULTS: tuple[Any, ...] = ((), (0,), (1,), False)
"""The operator's defaults of stride, padding, dilation and ceil_mode."""


def pool_back(engine: OpenCLEngine, gradient: Tensor, x: Tensor, *rest: Any) -> Tensor:  # noqa: ANN401 - as the operator has them
    """Returns the gradient of x [..., h, w]; the indices are the last argument."""
    result = engine.new(x.shape)
    if result.tensor.numel():
        inputs = engine.memory(gradient.detach().contiguous()), engine.memory(rest[-1].contiguous())
        sizes = ints(gradient.shape[-2:].numel(), x.shape[-2:].numel())
        engine.planes("pool_backward", x.shape[:-2].numel(), *inputs, *sizes, result.memory)
    return engine.fetch(result)
