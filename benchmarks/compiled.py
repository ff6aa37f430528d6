"""A training step by torch.compile beside the plain one, on the processor.

    OMP_NUM_THREADS=1 python benchmarks/compiled.py [--repeats 12]

A dense network, the CIFAR-10 tutorial network in float32 and bfloat16, and a small transformer,
forward and backward, one thread. The ways take turns; a line has the least CPU time of the repeats,
and the seconds to compile. It needs a C++ compiler.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Callable
from functools import partial

import torch
from machine import begin, cannot
from torch import Tensor, nn

from photinus.models.cnn import tutorial
from photinus.models.cpu_time import cpu_seconds
from photinus.models.low_precision import autocast
from photinus.models.tensors import to_memory_format


def dense() -> nn.Module:
    """Returns 784-500-500-10."""
    return nn.Sequential(
        nn.Linear(784, 500), nn.ReLU(), nn.Linear(500, 500), nn.ReLU(), nn.Linear(500, 10)
    )


def transformer() -> nn.Module:
    """Returns three layers of 128 numbers."""
    layers = [nn.TransformerEncoderLayer(128, 4, 256, 0.0, batch_first=True) for _ in range(3)]
    return nn.Sequential(*layers)


NETWORKS: tuple[tuple[str, Callable[[], nn.Module], tuple[int, ...], str], ...] = (
    ("dense, float32", dense, (128, 784), "float32"),
    ("CIFAR-10, float32", tutorial, (64, 3, 24, 24), "float32"),
    ("CIFAR-10, bfloat16", tutorial, (64, 3, 24, 24), "bfloat16"),
    ("transformer, float32", transformer, (32, 32, 128), "float32"),
)


def step_of(module: Callable[[Tensor], Tensor], net: nn.Module, x: Tensor, precision: str) -> None:
    """Takes a step: forward, and backward to all parameters."""
    with autocast("cpu", precision):
        outputs = module(x)
    torch.autograd.grad(outputs.float().square().mean(), list(net.parameters()))


def main() -> None:
    """Prints a line for each network."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--networks", type=int, default=len(NETWORKS), help="how many of them")
    a = parser.parse_args()
    if not (shutil.which("g++") or shutil.which("clang++")):
        cannot("torch.compile needs a C++ compiler: install g++")
    torch.set_num_threads(1)
    print("network | plain, CPU ms a step | compiled | plain / compiled | seconds to compile")
    print("--- | --- | --- | --- | ---")
    for name, make, shape, precision in NETWORKS[: a.networks]:
        net, x = make(), to_memory_format(torch.randn(shape), "channels_last")
        ways = [net, torch.compile(net)]
        began = time.perf_counter()
        step_of(ways[1], net, x, precision)
        took, spent = time.perf_counter() - began, [float("inf")] * 2
        for _ in range(a.repeats):
            for number, way in enumerate(ways):
                step = partial(step_of, way, net, x, precision)
                spent[number] = min(spent[number], cpu_seconds(step))
        plain, compiled = (seconds * 1e3 for seconds in spent)
        print(f"{name} | {plain:.1f} | {compiled:.1f} | {plain / compiled:.2f} | {took:.0f}")


if __name__ == "__main__":
    begin("--repeats", "1", "--networks", "1")
    main()
