"""Batches as a torch module reads them: whole, in parts, by names."""

from __future__ import annotations

import inspect
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
from photinus.core.factories import code_named
from photinus.core.masks import mask_of
from photinus.core.parameters import Vector
from photinus.core.settings import unknown_name
from photinus.models.base import Batch
from photinus.models.losses import Outputs
from photinus.models.placement import DeviceParameters
from photinus.models.tensors import laid_out, tensor_of

Features = Any
"""[B, ...], or a dict of such arrays by the names of `forward`'s parameters."""
Read = Tensor | dict[str, Tensor]
CHUNK_ROWS = 1000


@dataclass(frozen=True, slots=True)
class FeatureReading:
    """How a module reads features."""

    takes: frozenset[str]
    """The parameters of its `forward`."""
    dtype: torch.dtype
    reads: Callable[..., Any] | None
    memory: str
    sent: Callable[[Tensor], Tensor]
    """Brings a tensor to where the module lies."""
    tensors: Callable[[Tensor, Tensor | None], Read] | None
    """`reads` as a device computes it, from one array of features; None: the host does."""

    @classmethod
    def of(
        cls,
        module: nn.Module,
        dtype: torch.dtype,
        reads: str = "",
        memory: str = "contiguous",
        at: DeviceParameters | None = None,
    ) -> FeatureReading:
        """Returns how a module reads them, by the fields of `Learning`, on the device it is at."""
        takes = frozenset(inspect.signature(module.forward).parameters)
        found = code_named(reads, "function") if reads else None
        sent = Tensor.detach if at is None else at.sent
        is_there = at is not None and at.is_apart and at.has_float64
        tensors = _own_tensors(found) if is_there else None
        return cls(takes, dtype, found, memory, sent, tensors)

    def __call__(self, features: Features, draws: Vector | None = None) -> Read:
        """Returns features [B, ...] as the module reads them, where it lies."""
        read = self.here(features, draws)
        if isinstance(read, dict):
            return self.laid({name: self.sent(x) for name, x in read.items()})
        chance = self.chance(draws)
        return self.laid(self.sent(read), None if chance is None else self.sent(chance))

    def chance(self, draws: Vector | None) -> Tensor | None:
        """Returns the draws [B] as int64, where `reads` is computed on a device."""
        return None if self.tensors is None or draws is None else tensor_of(draws.view(np.int64))

    def here(self, features: Features, draws: Vector | None = None) -> Read:
        """Returns what is sent to a module of features [B, ...], still on the host."""
        is_later = self.reads is None or self.tensors is not None
        given = features if is_later else self.reads(features, draws)  # type: ignore[misc]
        if isinstance(given, Mapping):
            return {name: tensor_of(a) for name, a in _chosen(given, self.takes).items()}
        return tensor_of(np.asarray(given))

    def laid(self, read: Read, chance: Tensor | None = None) -> Read:
        """Returns what the module reads, in its type and memory format.

        Args:
            read: as `here` returned it, sent to the module.
            chance: as `chance` did, likewise.
        """
        if isinstance(read, dict):
            if self.tensors is not None:
                wrong = f"{_name(self.reads)}.tensors takes one array of features"
                raise UsageError(wrong, got=", ".join(read), do="leave .tensors out")
            return {name: self._laid(x) for name, x in read.items()}
        found = read if self.tensors is None else self.tensors(read, chance)
        if isinstance(found, dict):
            return {name: self._laid(x) for name, x in found.items()}
        return self._laid(found)

    def _laid(self, tensor: Tensor) -> Tensor:
        x = tensor.to(self.dtype) if tensor.is_floating_point() else tensor
        return laid_out(x, self.memory)


def _own_tensors(function: object) -> Any:  # noqa: ANN401 - a function, or None
    """Returns a function's `tensors`; not those that `functools.wraps` took from another one."""
    found = getattr(function, "tensors", None)
    inner = getattr(function, "__wrapped__", None)
    return None if found is getattr(inner, "tensors", None) else found


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
    parts = list(out.values() if isinstance(out, dict) else out) if _is_several(out) else [out]
    is_right = all(isinstance(part, Tensor) and part.ndim for part in parts)
    if not is_right or len({len(part) for part in parts}) != 1:
        wrong = f"the layer {layer!r}" if layer else "the module"
        got = type(out).__name__
        if _is_several(out):
            got += " of " + ", ".join(_shown(part) for part in parts)
        do = "return a tensor, or a tuple or dict of tensors, each with a row for each example"
        raise UsageError(f"{wrong} must return tensors [B, ...]", got=got, do=do)
    return torch.cat([part.flatten(1) if part.ndim > 1 else part[:, None] for part in parts], 1)


def in_type(out: Outputs, dtype: torch.dtype) -> Outputs:
    """Returns what a module returned, its floats in a type."""
    if isinstance(out, Tensor):
        return out.to(dtype) if out.is_floating_point() else out
    if isinstance(out, dict):
        made = copy(out)
        made |= {name: in_type(part, dtype) for name, part in out.items()}
        return made
    if not _is_several(out):
        return out
    parts = [in_type(part, dtype) for part in out]
    return out._make(parts) if hasattr(out, "_make") else type(out)(parts)


def _is_several(out: object) -> bool:
    return isinstance(out, (dict, tuple, list))


def _shown(part: object) -> str:
    return str(list(part.shape)) if isinstance(part, Tensor) else type(part).__name__


def examples(batch: Batch) -> int:
    """Returns how many examples a batch holds, whatever its features are."""
    known: int | None = getattr(batch, "examples", None)
    return len(batch.features) if known is None else known


def chunks(features: Features) -> Iterator[Features]:
    """Yields features some rows at a time; at least once."""
    is_named = isinstance(features, Mapping)
    rows = len(next(iter(features.values()))) if is_named else len(features)
    for start in range(0, max(1, rows), CHUNK_ROWS):
        some = slice(start, start + CHUNK_ROWS)
        yield {n: array[some] for n, array in features.items()} if is_named else features[some]


def _chosen(inputs: Mapping[str, Vector], takes: frozenset[str]) -> dict[str, Vector]:
    """Returns all inputs, and of their masks those that `forward` has a parameter for.

    Args:
        inputs: by name; `tokens_mask`, bool [B, T], says which places of `tokens` are no padding.
        takes: the parameters. `mask` is the mask of the first input that has one, and so is
            `attention_mask`, as int64.
    """
    masks = {mask_of(name): inputs[mask_of(name)] for name in inputs if mask_of(name) in inputs}
    chosen = {name: a for name, a in inputs.items() if name not in masks or name in takes}
    if masks:
        first = next(iter(masks.values()))
        given = {"mask": first, "attention_mask": first.astype(np.int64)}
        chosen |= {name: a for name, a in given.items() if name in takes and name not in inputs}
    return chosen


def parts(batch: Batch, count: int) -> Iterator[tuple[Batch, float]]:
    """Yields the parts of a batch that are computed one after the other, and their shares of it."""
    rows = examples(batch)
    if count == 1 or rows == 1:
        yield batch, 1.0
        return
    borders = np.linspace(0, rows, min(count, rows) + 1).round().astype(int)
    for start, stop in pairwise(borders.tolist()):
        yield some_of(batch, slice(start, stop)), (stop - start) / rows


def some_of(batch: Batch, some: slice) -> Batch:
    """Returns some examples of a batch, of whatever class it is."""
    names = ("labels", "weights", "draws")
    given = {name: getattr(batch, name, None) for name in names}
    part = {name: None if value is None else value[some] for name, value in given.items()}
    is_named = isinstance(batch.features, Mapping)
    x: Any = batch.features
    features = {name: array[some] for name, array in x.items()} if is_named else x[some]
    rows = len(range(examples(batch))[some])
    return SimpleNamespace(features=features, examples=rows, **part)
