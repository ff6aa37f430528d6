"""torch's optimizers without what `torch.compile` needs.

torch imports its compiler at the first step of a process, two seconds of a processor, only to keep
it from tracing that step. No optimizer is compiled here, so each worker saves that import.
"""

from __future__ import annotations

import inspect

import torch

__all__ = ["eager"]


def eager(optimizer: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """Returns an optimizer whose functions are the same, without the decorators of the compiler.

    Args:
        optimizer: one of torch's own.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(1))
        >>> weight.grad = torch.ones(1)
        >>> eager(torch.optim.SGD)([weight], lr=0.5).step()
        >>> weight.item()
        0.5
    """
    namespace = {
        "add_param_group": inspect.unwrap(optimizer.add_param_group),
        "step": torch.no_grad()(inspect.unwrap(optimizer.step)),
    }
    return type(optimizer.__name__, (optimizer,), namespace)
