"""Products and convolutions in fewer bits: torch's autocast, and scaled losses for float16."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

LOW_PRECISION_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_SCALES = tuple(2.0**power for power in (16, 12, 8, 4, 0))
"""Of a loss in float16, whose smallest number is 2⁻²⁴: gradients below that would be 0."""


def autocast(device: str, precision: str) -> AbstractContextManager[Any]:
    """Returns the context of a forward pass on a kind of device, such as "cpu", in a precision."""
    dtype = LOW_PRECISION_DTYPES.get(precision)
    return nullcontext() if dtype is None else torch.autocast(device, dtype)


def gradients(loss: Tensor, inputs: Sequence[Tensor], precision: str) -> Sequence[Tensor | None]:
    """Returns ∂loss/∂input for each input, None for those that it does not depend on.

    In float16 it is ∂(s·loss)/∂input / s, with the largest of five scales s at which all are
    finite. The scale follows from the batch alone, so a step has the same bits after a resume.
    torch's own scaler leaves out a step that overflows; here every row counts.

    Source: Micikevicius et al., Mixed Precision Training, 2018.
    """
    if precision != "float16":
        return torch.autograd.grad(loss, inputs, allow_unused=True)
    for scale in _SCALES:
        scaled_grads = torch.autograd.grad(
            loss * scale, inputs, allow_unused=True, retain_graph=scale != _SCALES[-1]
        )
        if scale == _SCALES[-1] or _are_finite(scaled_grads):
            break
    return [None if grad is None else grad / scale for grad in scaled_grads]


def _are_finite(grads: Sequence[Tensor | None]) -> bool:
    norms = [torch.linalg.vector_norm(_values(grad)) for grad in grads if grad is not None]
    return not norms or bool(torch.stack(norms).isfinite().all())  # waits for the device once


def _values(grad: Tensor) -> Tensor:
    return grad.coalesce().values() if grad.is_sparse else grad
