"""Arrays as tensors, without a copy where torch can share the memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import Tensor

from photinus.core.errors import DataError
from photinus.core.parameters import Vector


def to_memory_format(x: Tensor, memory: str) -> Tensor:
    """Returns inputs [B, ...] in a memory format; channels can be last in images [B, C, H, W]."""
    is_image = memory == "channels_last" and x.ndim == 4
    return x.contiguous(memory_format=torch.channels_last) if is_image else x


class WorkBuffers:
    """Tensors to work in, made once a name and shape: fresh memory costs as much as the work.

    Args:
        device: where they lie.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self._buffers: dict[tuple[str, tuple[int, ...], torch.dtype], Tensor] = {}

    def get(self, name: str, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """Returns the tensor of that name; what the last user left is in it."""
        key = (name, tuple(shape), dtype)
        if key not in self._buffers:
            self._buffers[key] = torch.empty(key[1], dtype=dtype, device=self.device)
        return self._buffers[key]


def tensor_of(array: Vector | Tensor) -> Tensor:
    """Returns the array as a tensor; shares its memory unless it is read-only, reversed or foreign.

    A tensor is returned as it is.

    Raises:
        DataError: torch has no such type.
    """
    if isinstance(array, Tensor):
        return array
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise DataError(
            "an array must hold numbers", got=array.dtype, do="cast the column to float or integer"
        ) from error


def as_rows(features: Vector, width: int) -> Tensor:
    """Returns features [B, ...] as rows [B, width].

    Raises:
        DataError: an example has another number of values.
    """
    rows = tensor_of(features.reshape(len(features), int(np.prod(features.shape[1:]))))
    if rows.shape[1] != width:
        raise wrong_width(features.shape, width)
    return rows


def wrong_width(shape: Sequence[int], width: int) -> DataError:
    """Returns the error for features of another width than the model's."""
    return DataError(
        f"the model reads rows of {width} numbers",
        got=list(shape),
        do="name the features' column, or change the model's inputs",
    )


def type_advice(types: Collection[torch.dtype]) -> str:
    """Returns what to do where the trainable parameters are of such types, or there are none.

    Example:
        >>> type_advice([])
        'give it a layer to train, or set requires_grad on its parameters'
    """
    if not types:
        return "give it a layer to train, or set requires_grad on its parameters"
    if any(dtype.is_complex for dtype in types):
        do = "hold a complex parameter as two of float32"
        return f"{do}, and use torch.complex(real, imaginary) in forward"
    return "make it in float32, as by .float(); lower precision belongs inside its forward pass"
