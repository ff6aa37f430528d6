"""What a step needs, in memory and in time, by how activations are kept.

    python benchmarks/activation_memory.py [layers] [steps]

A transformer of 12 layers (width 256, 128 tokens, batch 16), and the CIFAR-10 network (batch 64).
Memory is the most bytes of tensors that a step makes, beside parameters, gradient and optimizer.
Seconds are the processor's, and a clock's, of the fastest step; the ways take turns.
"""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

import numpy as np
import torch
from machine import begin
from torch import nn

from photinus.models.activations import ACTIVATIONS, PeakBytes
from photinus.models.cnn import tutorial
from photinus.models.module_model import Learning, ModuleModel

MOST = {"recompute": 0.6, "offload": 0.5}
"""The goals: the share of the memory where all is kept."""


class Transformer(nn.Module):
    """An encoder with a classifier on the mean of its tokens."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(256, 8, 1024, 0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(256, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps [B, T, D] to [B, classes]."""
        return self.head(self.encoder(x).mean(1))


def batch(*shape: int) -> SimpleNamespace:
    rng = np.random.default_rng(0)
    features = rng.standard_normal(shape).astype(np.float32)
    return SimpleNamespace(features=features, labels=rng.integers(0, 10, shape[0]))


def compared(name: str, make, of: SimpleNamespace, steps: int) -> None:
    """Prints a line for each way."""
    models, peaks, gradients = {}, {}, {}
    for how in ACTIVATIONS:
        torch.manual_seed(0)
        models[how] = ModuleModel(make(), "cross_entropy", Learning(activation_memory=how))
        gradients[how] = models[how].learn(of, 1)[0].copy()
        with PeakBytes() as peak:
            models[how].learn(of, 1)
        peaks[how] = peak.most
    spent: dict[str, list[tuple[float, float]]] = {how: [] for how in ACTIVATIONS}
    for step in range(steps):
        for how, model in models.items():
            began = time.process_time(), time.perf_counter()
            model.learn(of, step)
            spent[how].append((time.process_time() - began[0], time.perf_counter() - began[1]))
    for how, times in spent.items():
        assert np.array_equal(gradients[how], gradients["keep"])
        share = peaks[how] / peaks["keep"]
        processor, clock = (min(column) for column in zip(*times, strict=True))
        least = [min(column) for column in zip(*spent["keep"], strict=True)]
        print(
            f"{name:12} {how:10} {peaks[how] / 2**20:8.1f} MiB ({share:.2f})"
            f" {processor:6.3f} s of the processor ({processor / least[0]:.2f})"
            f" {clock:6.3f} s ({clock / least[1]:.2f})"
        )
        assert name != "transformer" or share <= MOST.get(how, 1.0), "the goal is missed"


def main() -> None:
    """Compares the ways on both networks."""
    layers = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 7
    torch.set_num_threads(1)
    compared("transformer", lambda: Transformer(layers), batch(16, 128, 256), steps)
    compared("cifar10", tutorial, batch(64, 3, 24, 24), steps)


if __name__ == "__main__":
    begin("4", "1")
    main()
