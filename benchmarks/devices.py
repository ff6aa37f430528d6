"""Images a second, processor seconds and bytes copied, by device, beside a bare loop of PyTorch.

    python benchmarks/devices.py [steps] [rounds]

The CIFAR-10 tutorial network, batches of 64, Adam. Every device of this machine, and the stand-in,
takes its turn in each round of so many steps; after a round the parameters pass to the host and
back, as when workers agree. The fastest round of each counts.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from machine import begin
from torch.nn import functional

from photinus.data.base import Batch
from photinus.devices.discovery import found
from photinus.devices.names import OPENCL, kind_of
from photinus.models.cnn import tutorial
from photinus.models.module import ModuleStage
from photinus.models.placement import DeviceInner
from photinus.training.placement import fresh

SIZE = 64
STAGE = ModuleStage(
    module="photinus.models.cnn:tutorial", optimizer="adam", batch_size=SIZE, lr=0.001
)
CHANCE = np.random.default_rng(0)
BATCH = Batch(
    CHANCE.standard_normal((SIZE, 3, 24, 24)).astype(np.float32), CHANCE.integers(0, 10, SIZE)
)


def bare(device: str) -> Callable[[int], tuple[int, int]]:
    """Returns a round of plain PyTorch."""
    net = tutorial().to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.001, fused=True)
    assert BATCH.labels is not None
    x, y = torch.from_numpy(BATCH.features), torch.from_numpy(BATCH.labels)

    def run(steps: int) -> tuple[int, int]:
        for _ in range(steps):
            optimizer.zero_grad()
            functional.cross_entropy(net(x.to(device)), y.to(device)).backward()
            optimizer.step()
        float(next(net.parameters()).detach().sum())
        return 0, 0

    return run


def ours(device: str) -> Callable[[int], tuple[int, int]]:
    """Returns a round on a device, which tells the bytes to the host and to the device."""
    model, inner = fresh(STAGE, (), 0, device)
    trained = model.parameters.trained

    def run(steps: int) -> tuple[int, int]:
        placed = inner.placed if isinstance(inner, DeviceInner) else None
        before = (placed.bytes_to_host, placed.bytes_to_device) if placed else (0, 0)
        for step in range(steps):
            gradient, _ = model.learn(BATCH, step)
            inner.step(trained, gradient, 0.0)
        model.to_host(trained)
        model.to_device(trained)
        if placed is None:
            return 0, 0
        placed.sync()
        return placed.bytes_to_host - before[0], placed.bytes_to_device - before[1]

    return run


def main() -> None:
    """Prints a line for each device."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    torch.set_num_threads(1)
    names = [device.name for device in found()]
    runs = {f"{name}, bare PyTorch": bare(name) for name in names if kind_of(name) != OPENCL}
    runs |= {name: ours(name) for name in [*names, "stand-in"]}
    best: dict[str, tuple[float, float, tuple[int, int]]] = {}
    for turn in range(rounds + 1):
        for name, run in runs.items():
            began = time.process_time(), time.perf_counter()
            copied = run(steps)
            spent = time.perf_counter() - began[1], time.process_time() - began[0]
            if turn and (name not in best or spent[1] < best[name][1]):
                best[name] = (*spent, copied)
    print("device | images/s | processor seconds a step | MB to the host | MB to the device")
    for name, (clock, processor, (down, up)) in best.items():
        print(
            f"{name:20} {steps * SIZE / clock:8.1f} {processor / steps:10.4f}"
            f" {down / 1e6:8.2f} {up / 1e6:8.2f}"
        )


if __name__ == "__main__":
    begin("2", "1")
    main()
