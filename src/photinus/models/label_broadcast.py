"""Finds losses that compare each output with every label, where one of them was meant."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class _BroadcastDetector(TorchDispatchMode):
    """Notes an operation that broadcasts outputs [B, 1] and labels [B] to [B, B]."""

    def __init__(self, outputs: Tensor, labels: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rows = len(labels)
        self._outputs, self._labels = {_storage_address(outputs)}, {_storage_address(labels)}
        self.is_paired = False

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - as torch has it
        types: Sequence[Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        result = func(*args, **(kwargs or {}))
        tensors = [a for a in args if isinstance(a, Tensor)]
        outputs = [a for a in tensors if _storage_address(a) in self._outputs]
        labels = [a for a in tensors if _storage_address(a) in self._labels]
        if outputs and labels:
            shapes = tuple(outputs[0].shape), tuple(labels[0].shape)
            square, flat, column = (self._rows,) * 2, (self._rows,), (self._rows, 1)
            is_loss = "loss" in str(func)  # which torch expands both for
            self.is_paired |= shapes == (column, flat) or (is_loss and shapes == (square, square))
        elif isinstance(result, Tensor):  # such as labels in the outputs' type, or less their mean
            for storages, matching in ((self._outputs, outputs), (self._labels, labels)):
                others = [
                    a for a in tensors if a.numel() > 1 and _storage_address(a) not in storages
                ]
                if matching and not others and result.shape == matching[0].shape:
                    storages.add(_storage_address(result))
        return result


def _storage_address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def is_paired(loss: Callable[[Tensor, Tensor], Any], outputs: Tensor, labels: Tensor) -> bool:
    """Returns whether a loss makes B² numbers of B outputs [B, 1] and B labels [B].

    torch does so where `outputs - labels` was meant to be B differences.

    Example:
        >>> outputs, labels = torch.zeros(2, 1), torch.ones(2, dtype=torch.float64)
        >>> is_paired(lambda o, l: ((o - l) ** 2).mean(), outputs, labels)
        True
        >>> is_paired(lambda o, l: ((o[:, 0] - l) ** 2).mean(), outputs, labels)
        False
    """
    if outputs.shape != (len(labels), 1) or labels.ndim != 1 or len(labels) < 2:
        return False
    with torch.no_grad(), _BroadcastDetector(outputs, labels) as detector:
        loss(outputs, labels)
    return bool(detector.is_paired)
