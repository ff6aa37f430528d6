"""Batches of one row: BatchNorm has no variance to take, and `squeeze` takes the batch itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from photinus.models.losses import Outputs


class OneRowNorms:
    """Normalizes one row by the running statistics, where it has no variance of its own.

    That is so in each BatchNorm1d, and in one of images where a channel has a single number, as
    behind a global pooling.

    Args:
        module: whose layers they are.

    Example:
        >>> import torch
        >>> net = nn.BatchNorm2d(3)
        >>> with OneRowNorms(net).using(1):
        ...     net(torch.zeros(1, 3, 1, 1)).flatten().tolist()
        [0.0, 0.0, 0.0]
        >>> net.training
        True
    """

    def __init__(self, module: nn.Module) -> None:
        self._norms = [layer for layer in module.modules() if isinstance(layer, _BatchNorm)]

    @contextmanager
    def using(self, rows: int) -> Iterator[None]:
        """Does so meanwhile, for a batch of so many rows."""
        norms = [norm for norm in self._norms if norm.training] if rows == 1 else []
        with ExitStack() as stack:
            for norm in norms:
                stack.callback(norm.train)
                if isinstance(norm, nn.BatchNorm1d):
                    norm.eval()
                else:  # the forward pass shows how large its images are
                    stack.callback(norm.register_forward_pre_hook(_still_single_numbers).remove)
            yield


def _still_single_numbers(norm: nn.Module, inputs: tuple[Any, ...]) -> None:
    """Stops a norm's learning where each channel has one number."""
    if inputs and inputs[0].numel() == inputs[0].shape[1]:
        norm.eval()


def unsqueezed(out: Outputs, rows: int) -> Outputs:
    """Returns what a module returned, its batch of one row again a batch.

    `layer(x).squeeze()` is [B] of several rows, and [] of one.

    Args:
        out: what a module returned.
        rows: how many it has read.

    Example:
        >>> import torch
        >>> unsqueezed(torch.ones(3), 1).shape, unsqueezed(torch.ones(3), 3).shape
        (torch.Size([1, 3]), torch.Size([3]))
    """
    is_squeezed = rows == 1 and isinstance(out, Tensor) and (not out.ndim or len(out) != 1)
    return out.unsqueeze(0) if is_squeezed else out
