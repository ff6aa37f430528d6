"""What the training loop costs beside a bare torch loop, with few rounds.

    OMP_NUM_THREADS=1 python benchmarks/loop_cost.py

The same network, batches and optimizer, in turns: a bare loop over tensors in memory, and one
worker with its feed, its strategy and its link (in memory, a round every 1,000 steps).
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from machine import begin
from torch import nn

from photinus.coordinator.coordinator import Coordinator
from photinus.coordinator.server import Service
from photinus.core.clock import Steps
from photinus.core.threads import use_threads
from photinus.data.arrays import PartitionFeed
from photinus.data.rows import Rows
from photinus.models.module import ModuleConfig
from photinus.protocol.messages import Seat
from photinus.protocol.worker_client import Worker
from photinus.strategies.recipes import averaging
from photinus.testing.memory_link import MemoryListener
from photinus.training.plan import Phase, TrainingPlan
from photinus.training.worker_loop import WorkerData, live

ROWS, FEATURES, CLASSES = 20_000, 784, 10


def network(hidden: int) -> nn.Module:
    """Two dense layers; `hidden` decides how long a step takes."""
    return nn.Sequential(
        nn.Linear(FEATURES, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, CLASSES),
    )


def bare(size: tuple[int, int], x: torch.Tensor, y: torch.Tensor, steps: int) -> float:
    """Returns the seconds of so many steps in a loop that anyone would write."""
    hidden, batch = size
    torch.manual_seed(0)
    net = network(hidden)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, fused=True)
    order = torch.randperm(ROWS)
    began = time.perf_counter()
    for step in range(steps):
        mine = order[step * batch % ROWS :][:batch]
        loss = nn.functional.cross_entropy(net(x[mine]), y[mine])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
    return time.perf_counter() - began


def ours(size: tuple[int, int], rows: Rows, steps: int) -> float:
    """Returns the seconds of a worker's whole life of so many steps."""
    hidden, batch = size
    config = ModuleConfig(
        module="loop_cost:network",
        arguments={"hidden": hidden},
        optimizer="sgd",
        settings={"lr": 0.01},
        batch_size=batch,
        epochs=steps * batch / ROWS,
    )
    phase = Phase(config=config, strategy=averaging(every=Steps(1000)))
    plan = TrainingPlan(phases=(phase,), workers=1)
    hub: list[MemoryListener] = []

    def listen(hear, gone):
        hub.append(MemoryListener(hear, gone))
        return hub[0]

    coordinator = Coordinator(plan, now=time.monotonic())
    service = Service(coordinator, listen)
    part = WorkerData(ROWS, lambda order: PartitionFeed(rows, order))
    worker = Worker(live(plan, 0, part), hub[0].link, Seat(bytes(16), 1), about={"attempt": "1"})
    began = time.perf_counter()
    worker.run()
    seconds = time.perf_counter() - began
    worker.close()
    service.close()
    return seconds


def per_step(run: Callable[[int], float], steps: int) -> float:
    """Returns the seconds of one more step: a long run less a short one, without the start."""
    return (run(3 * steps) - run(steps)) / (2 * steps)


def main(tries: int = 5) -> None:
    """Prints a line for each size."""
    use_threads(1)
    rng = np.random.default_rng(0)
    features = rng.random((ROWS, FEATURES), np.float32)
    labels = rng.integers(0, CLASSES, ROWS)
    rows = Rows.of(features, labels)
    x, y = torch.from_numpy(features), torch.from_numpy(labels)
    print("hidden | batch | bare, ms a step | photinus, ms a step | added")
    print("--- | --- | --- | --- | ---")
    # a short step; a longer one with 0.3 M parameters; one with 1.8 M
    for hidden, batch, steps in ((128, 100, 200), (256, 1000, 40), (1000, 100, 40)):
        size = (hidden, batch)
        plain_run, our_run = partial(bare, size, x, y), partial(ours, size, rows)
        pairs = [(per_step(plain_run, steps), per_step(our_run, steps)) for _ in range(tries)]
        plain, with_us = (statistics.median(side) for side in zip(*pairs, strict=True))
        added = statistics.median(b / a - 1 for a, b in pairs)
        print(
            f"{hidden} | {batch} | {1e3 * plain:.2f} | {1e3 * with_us:.2f} | {100 * added:+.1f} %"
        )


if __name__ == "__main__":
    begin("1")
    main(*(int(word) for word in sys.argv[1:]))
