"""Maxima of windows, and the slopes that go back through them."""

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
    window, by, pad, dilation, ceil_mode = (*rest, *_USUAL[len(rest) - 1 :])
    if any(one != 1 for one in dilation):
        raise NoKernelError(f"its dilation is {list(dilation)}")
    by = by or window
    meta = torch.empty(x.shape, device="meta")  # only PyTorch knows the size under ceil_mode
    found = torch.ops.aten.max_pool2d_with_indices(meta, window, by, pad, dilation, ceil_mode)[0]
    values, places = engine.new(found.shape), engine.new(found.shape, torch.int64)
    if found.numel():
        pairs = [np.array([one[0], one[-1]], np.int32) for one in (window, by, pad)]
        sizes = ints(*x.shape[-2:], *found.shape[-2:])
        memory, lines = engine.memory(x.detach().contiguous()), found.shape[:-1].numel()
        engine.lines("pool", lines, memory, *sizes, *pairs, values.memory, places.memory)
    return engine.fetched(values), engine.fetched(places)


_USUAL: tuple[Any, ...] = ((), (0,), (1,), False)
"""The operator's defaults of stride, padding, dilation and ceil_mode."""


def pool_back(engine: OpenCLEngine, slope: Tensor, x: Tensor, *rest: Any) -> Tensor:  # noqa: ANN401 - as the operator has them
    """Returns the slope of x [..., h, w]; the places are the last argument."""
    made = engine.new(x.shape)
    if made.tensor.numel():
        read = engine.memory(slope.detach().contiguous()), engine.memory(rest[-1].contiguous())
        sizes = ints(slope.shape[-2:].numel(), x.shape[-2:].numel())
        engine.planes("pool_backward", x.shape[:-2].numel(), *read, *sizes, made.memory)
    return engine.fetched(made)
