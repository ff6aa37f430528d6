"""Measures which precision and memory format train a module fastest."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from photinus.models.cpu_time import cpu_seconds
from photinus.models.low_precision import autocast
from photinus.models.reading import main_output, output_of
from photinus.models.tensors import to_memory_format

PRECISIONS = ("float32", "bfloat16")
MEMORIES = ("contiguous", "channels_last")

_GAIN = 1.5
"""bfloat16 is taken by itself only where it is this much faster: it costs digits."""
_REPEATS = 3
_HOPELESS_FACTOR = 4.0


def fastest_settings(
    make: Callable[[], nn.Module],
    shape: tuple[int, ...],
    precisions: tuple[str, ...] = PRECISIONS,
    memories: tuple[str, ...] = MEMORIES,
) -> tuple[str, str]:
    """Returns the precision and the memory format in which forward and backward take least.

    Args:
        make: returns the module.
        shape: [B, ...] of what it reads.
        precisions: to choose from; the first one is kept unless another is 1.5 times as fast.
        memories: to choose from.
    """
    with torch.random.fork_rng(devices=[]):
        module, x = make(), torch.randn(shape)
        seconds: dict[tuple[str, str], float] = {}
        for precision, memory in itertools.product(precisions, memories):
            best_seconds = min(seconds.values(), default=math.inf)
            seconds[precision, memory] = _seconds(
                module, to_memory_format(x, memory), precision, best_seconds
            )
    best_memory = {p: min(memories, key=lambda memory, p=p: seconds[p, memory]) for p in precisions}  # type: ignore[misc]
    default = precisions[0]
    best_seconds = seconds[default, best_memory[default]]
    chosen = next(
        (p for p in precisions[1:] if seconds[p, best_memory[p]] * _GAIN <= best_seconds), default
    )
    return chosen, best_memory[chosen]


def _seconds(module: nn.Module, x: Tensor, precision: str, best_so_far: float) -> float:
    """The least of some training steps, after one that is not counted.

    One step is enough where it takes several times the least of others: without instructions of
    its own bfloat16 is a hundred times slower.
    """

    def step() -> None:
        with autocast("cpu", precision):
            outputs = module(x)
        loss: Any = output_of("", main_output(outputs, "")).float().square().mean()
        loss.backward()

    step()
    best = cpu_seconds(step)
    if best > _HOPELESS_FACTOR * best_so_far:
        return best
    return min(best, *(cpu_seconds(step) for _ in range(_REPEATS - 1)))
