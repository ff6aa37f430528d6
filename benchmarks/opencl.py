"""Processor seconds of a step on each OpenCL device, beside PyTorch, and how far gradients differ.

    python benchmarks/opencl.py [steps] [rounds] [wide|narrow|groups]

The CIFAR-10 tutorial network (batch 64), a restricted Boltzmann machine (784-500, batch 100), and
the fine-tuning of a deep belief network (784-500-500-2000-10, batch 100). PyTorch and the device
take turns, with one thread; the round with the fewest seconds counts. On a card the seconds are
the host's alone. Without a flavour of the kernels, the one that suits the device is measured.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from machine import begin, cannot

from photinus.core.errors import NotReadyError
from photinus.core.parameters import Vector
from photinus.devices.opencl.engine import OpenCLEngine
from photinus.devices.opencl.offload import Offload
from photinus.devices.opencl.platforms import devices
from photinus.devices.opencl.self_test import check
from photinus.models.base import Model
from photinus.models.mlp import MLP, Dense
from photinus.models.module import ModuleConfig
from photinus.models.rbm import RBM, first_parameters
from photinus.training.placement import Offloaded

CHANCE = np.random.default_rng(0)


def cifar() -> tuple[Model, Any]:
    config = ModuleConfig(module="photinus.models.cnn:tutorial", batch_size=64)
    images = CHANCE.standard_normal((64, 3, 24, 24)).astype(np.float32)
    return config.build((), 0), batch(images, 10)


def machine() -> tuple[Model, Any]:
    return RBM(first_parameters(784, 500, seed=0)), batch(CHANCE.random((100, 784), np.float32), 10)


def fine_tuning() -> tuple[Model, Any]:
    net = MLP(Dense(sizes=(784, 500, 500, 2000, 10)))
    net.randomize(0)
    return net, batch(CHANCE.random((100, 784), np.float32), 10)


def batch(features: Vector, classes: int) -> Any:
    labels = CHANCE.integers(0, classes, len(features))
    return SimpleNamespace(features=features, labels=labels)


NETS: dict[str, Callable[[], tuple[Model, Any]]] = {
    "CIFAR-10 network": cifar,
    "Boltzmann machine": machine,
    "fine-tuning": fine_tuning,
}


def seconds(model: Model, rows: Any, steps: int) -> float:
    """Returns the processor seconds of a step."""
    start = time.process_time()
    for _ in range(steps):
        model.learn(rows, 1)
    return (time.process_time() - start) / steps


def main() -> None:
    """Prints a line for each device and net."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    torch.set_num_threads(1)
    try:
        listed = devices()
    except NotReadyError as error:
        cannot(str(error))
    if not listed:
        cannot("no OpenCL driver is installed")
    for one in listed:
        card = OpenCLEngine(one, *sys.argv[3:4])
        check(card)
        print(
            f"{one.name}: {one.title}, {one.platform}, {one.handle.driver_version}, {card.flavour}"
        )
        print("net | PyTorch, s | OpenCL, s | times | gradients differ by")
        for name, make in NETS.items():
            plain, rows = make()
            on_device = Offloaded(plain, one.name)
            on_device.offload = Offload(card)
            on_host = plain.learn(rows, 1)[0].copy()
            apart = np.linalg.norm(on_device.learn(rows, 1)[0] - on_host) / np.linalg.norm(on_host)
            taken = [
                (seconds(plain, rows, steps), seconds(on_device, rows, steps))
                for _ in range(rounds)
            ]
            ours, theirs = min(one[1] for one in taken), min(one[0] for one in taken)
            print(
                f"{name} | {theirs:.4f} | {ours:.4f} | {ours / theirs:.2f} | {apart:.1e}",
                flush=True,
            )


if __name__ == "__main__":
    begin("1", "1")
    main()
