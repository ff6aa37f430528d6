"""Batches as a torch module reads them: whole, in parts, by names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from photinus.core.errors import UsageError
from photinus.core.factories import resolve_user_code
from photinus.core.masks import mask_of
from photinus.core.parameters import Vector
from photinus.core.settings import unknown_name
from photinus.models.base import BatchLike
from photinus.models.losses import Outputs
from photinus.models.placement import DeviceParameters
from photinus.models.tensors import tensor_of, to_memory_format

Features = Any
"""[B, ...], or a dict of such arrays by the names of `forward`'s parameters."""
ModuleInput = Tensor | dict[str, Tensor]
CHUNK_ROWS = 1000
_WANTS_A_SHAPE = re.compile(
    r"[45]D \(batched\) input to conv|expected [345]D input \(got 2D|expected input\[1, "
)
"""torch on a flat row before a convolution or a normalization of channels; of one dimension, the
rows are taken for channels."""
_SHAPED = "begin forward with x = x.unflatten(1, (channels, height, width))"


def advice_for_input(features: Any, error: Exception) -> str:  # noqa: ANN401 - a tensor or a dict
    """Returns what to do where a module does not take what it reads, or nothing.

    That is of bytes, indices and flat rows, and of a parameter that is read as complex numbers.

    Args:
        features: what the module was called with: an array or a tensor, or a dict of them.
        error: what it raised; torch names the type in it.

    Example:
        >>> city = {"city": torch.tensor([2, 4])}
        >>> advice_for_input(city, IndexError("index out of range in self"))
        'give nn.Embedding as many rows as the largest index + 1; here are city 2..4'
    """
    if "storage_offset divisible by 2" in str(error):  # parameters lie one behind the other
        return "use torch.complex(w[..., 0], w[..., 1]) in the place of torch.view_as_complex(w)"
    if "index out of range in self" in str(error):  # says neither which index nor which table
        return "give nn.Embedding as many rows as the largest index + 1" + _index_ranges(features)
    if _WANTS_A_SHAPE.search(str(error)) and len(np.shape(features)) == 2:
        return f"a row is a list of {np.shape(features)[1]} numbers: {_SHAPED}"
    is_bytes = str(getattr(features, "dtype", "")).removeprefix("torch.") == "uint8"
    text = str(error)
    if not is_bytes or "scalar types" in text or not ("Byte" in text or "unsigned char" in text):
        return ""
    return "bytes stay bytes without scale: set scale=1/255 (of a Job: of its data)"


def _index_ranges(features: Any) -> str:  # noqa: ANN401 - a tensor or a dict
    named = features if isinstance(features, Mapping) else {"features": features}
    arrays = {
        name: np.asarray(values.cpu() if isinstance(values, Tensor) else values)
        for name, values in named.items()
    }
    ranges = [
        f"{name} {x.min()}..{x.max()}"
        for name, x in arrays.items()
        if x.dtype.kind in "iu" and x.size
    ]
    return f"; here are {', '.join(ranges)}" if ranges else ""


@dataclass(frozen=True, slots=True)
class FeatureReading:
    """How a module reads features."""

    parameter_names: frozenset[str]
    """The parameters of its `forward`."""
    dtype: torch.dtype
    reads: Callable[..., Any] | None
    memory: str
    to_device: Callable[[Tensor], Tensor]
    """Brings a tensor to where the module lies."""
    tensors: Callable[[Tensor, Tensor | None], ModuleInput] | None
    """`reads` as a device computes it, from one array of features; None: the host does."""

    @classmethod
    def of(
        cls,
        module: nn.Module,
        dtype: torch.dtype,
        reads: str = "",
        memory: str = "contiguous",
        storage: DeviceParameters | None = None,
    ) -> FeatureReading:
        """Returns how a module reads them, by the fields of `Learning`, on its device."""
        parameter_names = frozenset(inspect.signature(module.forward).parameters)
        function = resolve_user_code(reads, "function") if reads else None
        to_device = Tensor.detach if storage is None else storage.on_device
        can_use_device = storage is not None and storage.is_on_device and storage.has_float64
        tensors = _own_tensors(function) if can_use_device else None
        return cls(parameter_names, dtype, function, memory, to_device, tensors)

    def __call__(self, features: Features, draws: Vector | None = None) -> ModuleInput:
        """Returns features [B, ...] as the module reads them, where it lies."""
        inputs = self.host_inputs(features, draws)
        if isinstance(inputs, dict):
            return self.convert({name: self.to_device(x) for name, x in inputs.items()})
        device_draws = self.device_draws(draws)
        return self.convert(
            self.to_device(inputs), None if device_draws is None else self.to_device(device_draws)
        )

    def device_draws(self, draws: Vector | None) -> Tensor | None:
        """Returns the draws [B] as int64, where `reads` is computed on a device."""
        return None if self.tensors is None or draws is None else tensor_of(draws.view(np.int64))

    def host_inputs(self, features: Features, draws: Vector | None = None) -> ModuleInput:
        """Returns what is sent to a module of features [B, ...], still on the host."""
        is_deferred = self.reads is None or self.tensors is not None
        inputs = features if is_deferred else self.reads(features, draws)  # type: ignore[misc]
        if isinstance(inputs, Mapping):
            return {
                name: tensor_of(a)
                for name, a in _select_inputs(inputs, self.parameter_names).items()
            }
        return tensor_of(np.asarray(inputs))

    def convert(self, inputs: ModuleInput, draws: Tensor | None = None) -> ModuleInput:
        """Returns what the module reads, in its type and memory format.

        Args:
            inputs: as `host_inputs` returned them, sent to the module.
            draws: as `device_draws` returned them, likewise.
        """
        if isinstance(inputs, dict):
            if self.tensors is not None:
                wrong = f"{_name(self.reads)}.tensors takes one array of features"
                raise UsageError(wrong, got=", ".join(inputs), do="leave .tensors out")
            return {name: self._convert_tensor(x) for name, x in inputs.items()}
        converted = inputs if self.tensors is None else self.tensors(inputs, draws)
        if isinstance(converted, dict):
            return {name: self._convert_tensor(x) for name, x in converted.items()}
        return self._convert_tensor(converted)

    def _convert_tensor(self, tensor: Tensor) -> Tensor:
        x = tensor.to(self.dtype) if tensor.is_floating_point() else tensor
        return to_memory_format(x, self.memory)


def _own_tensors(function: object) -> Any:  # noqa: ANN401 - a function, or None
    """Returns a function's `tensors`; not those that `functools.wraps` took from another one."""
    tensors = getattr(function, "tensors", None)
    wrapped = getattr(function, "__wrapped__", None)
    return None if tensors is getattr(wrapped, "tensors", None) else tensors


def _name(function: object) -> str:
    return getattr(function, "__qualname__", repr(function))


def layer_of(module: nn.Module, name: str) -> nn.Module:
    """Returns a submodule by its name, the whole module by "".

    Raises:
        UsageError: there is none.
    """
    layers: dict[str, nn.Module] = dict(module.named_modules())
    if name not in layers:
        raise unknown_name("layer", name, [known for known in layers if known])
    return layers[name]


def output_of(layer: str, out: Outputs) -> Tensor:
    """Returns a copy of what a layer returned: the next one may write over it.

    Several tensors stand side by side in it, each as [B, n], in their order.

    Raises:
        UsageError: it is no tensor, and no tuple or dict of tensors of equally many rows.
    """
    if isinstance(out, Tensor):
        return out.clone()
    parts = list(out.values() if isinstance(out, dict) else out) if _is_collection(out) else [out]
    is_valid = all(isinstance(part, Tensor) and part.ndim for part in parts)
    if not is_valid or len({len(part) for part in parts}) != 1:
        wrong = f"the layer {layer!r}" if layer else "the module"
        got = type(out).__name__
        if _is_collection(out):
            got += " of " + ", ".join(_describe(part) for part in parts)
        do = "return a tensor, or a tuple or dict of tensors, each with a row for each example"
        raise UsageError(f"{wrong} must return tensors [B, ...]", got=got, do=do)
    return torch.cat([part.flatten(1) if part.ndim > 1 else part[:, None] for part in parts], 1)


def main_output(out: Outputs, loss: str) -> Outputs:
    """Returns the `logits` of an output by names, as a classifier of transformers returns it.

    The others, as those of GoogLeNet's auxiliary classifiers in training, take no part. A loss of
    the user's own reads all of it.

    Args:
        out: what a module returned.
        loss: its loss.

    Example:
        >>> main_output({"logits": torch.zeros(1), "hidden": torch.ones(1)}, "cross_entropy")
        tensor([0.])
    """
    if ":" in loss:
        return out
    if "logits" in getattr(out, "_fields", ()):  # a named tuple, as torchvision's networks return
        return out.logits
    return out["logits"] if isinstance(out, dict) and "logits" in out else out


def cast_floats(out: Outputs, dtype: torch.dtype) -> Outputs:
    """Returns what a module returned, its floats in a type."""
    if isinstance(out, Tensor):
        return out.to(dtype) if out.is_floating_point() else out
    if isinstance(out, dict):
        result = copy(out)
        result |= {name: cast_floats(part, dtype) for name, part in out.items()}
        return result
    if not _is_collection(out):
        return out
    parts = [cast_floats(part, dtype) for part in out]
    return out._make(parts) if hasattr(out, "_make") else type(out)(parts)


def _is_collection(out: object) -> bool:
    return isinstance(out, (dict, tuple, list))


def _describe(part: object) -> str:
    return str(list(part.shape)) if isinstance(part, Tensor) else type(part).__name__


def example_count(batch: BatchLike) -> int:
    """Returns how many examples a batch holds, whatever its features are."""
    known: int | None = getattr(batch, "examples", None)
    return len(batch.features) if known is None else known


def input_rows(inputs: ModuleInput) -> int:
    """Returns how many rows a module reads."""
    return len(next(iter(inputs.values())) if isinstance(inputs, dict) else inputs)


def chunks(features: Features) -> Iterator[Features]:
    """Yields features some rows at a time; at least once."""
    is_named = isinstance(features, Mapping)
    rows = len(next(iter(features.values()))) if is_named else len(features)
    for start in range(0, max(1, rows), CHUNK_ROWS):
        selection = slice(start, start + CHUNK_ROWS)
        yield (
            {n: array[selection] for n, array in features.items()}
            if is_named
            else features[selection]
        )


def _select_inputs(
    inputs: Mapping[str, Vector], parameter_names: frozenset[str]
) -> dict[str, Vector]:
    """Returns all inputs, and of their masks those that `forward` has a parameter for.

    Args:
        inputs: by name; `tokens_mask`, bool [B, T], says which places of `tokens` are no padding.
        parameter_names: of `forward`. `mask` is the mask of the first input that has one, and so is
            `attention_mask`, as int64.
    """
    masks = {mask_of(name): inputs[mask_of(name)] for name in inputs if mask_of(name) in inputs}
    chosen = {name: a for name, a in inputs.items() if name not in masks or name in parameter_names}
    if masks:
        first = next(iter(masks.values()))
        derived = {"mask": first, "attention_mask": first.astype(np.int64)}
        chosen |= {
            name: a for name, a in derived.items() if name in parameter_names and name not in inputs
        }
    return chosen


def split_batch(batch: BatchLike, count: int) -> Iterator[tuple[BatchLike, float]]:
    """Yields the parts of a batch that are computed one after the other, and their shares of it."""
    rows = example_count(batch)
    if count == 1 or rows == 1:
        yield batch, 1.0
        return
    borders = np.linspace(0, rows, min(count, rows) + 1).round().astype(int)
    for start, stop in pairwise(borders.tolist()):
        yield slice_batch(batch, slice(start, stop)), (stop - start) / rows


def slice_batch(batch: BatchLike, selection: slice) -> BatchLike:
    """Returns some examples of a batch, of whatever class it is."""
    names = ("labels", "weights", "draws")
    values = {name: getattr(batch, name, None) for name in names}
    selected = {name: None if value is None else value[selection] for name, value in values.items()}
    is_named = isinstance(batch.features, Mapping)
    x: Any = batch.features
    features = {name: array[selection] for name, array in x.items()} if is_named else x[selection]
    count = len(range(example_count(batch))[selection])
    return SimpleNamespace(features=features, examples=count, **selected)
