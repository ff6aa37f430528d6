"""A module with a sparse table beside the same with a dense one: bytes, and seconds of a step.

    python benchmarks/sparse_tables.py [--small] [--rows 100000] [--width 16] [--workers 4]

Events are made up: a user and an item each, drawn evenly. Bytes are those of all pushes and of what
came back, of simulated workers, and the parameters are compared to the bit under sgd. A second
table has the seconds of a step of 256 examples in this process: the median of 50, sparse and dense
in turn.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import numpy as np
import torch
from machine import begin
from torch import nn

from photinus.core.clock import Steps
from photinus.core.events import RoundClosed
from photinus.data.rows import Rows
from photinus.engine.base import ArrayData, RunSpec
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.models.module import ModuleConfig
from photinus.strategies import recipes
from photinus.strategies.spec import StrategySpec
from photinus.training.plan import Phase, TrainingPlan

HIDDEN, BATCH, ROUND = 32, 256, 10


class Scores(nn.Module):
    """Scores of (user, item) by two tables and two dense layers."""

    def __init__(self, rows: int, width: int, *, sparse: bool) -> None:
        super().__init__()
        self.users = nn.Embedding(rows, width, sparse=sparse)
        self.items = nn.Embedding(rows // 10, width, sparse=sparse)
        self.head = nn.Sequential(nn.Linear(2 * width, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2))

    def forward(self, events: torch.Tensor) -> torch.Tensor:
        """Returns scores [B, 2] of events [B, 2]."""
        users, items = events.long().T
        return self.head(torch.cat([self.users(users), self.items(items)], 1))


def events(count: int, rows: int) -> ArrayData:
    """Returns users and items, and whether the item was taken."""
    rng = np.random.default_rng(0)
    pairs = np.stack([rng.integers(0, rows, count), rng.integers(0, rows // 10, count)], 1)
    return ArrayData(pairs.astype(np.float32), rng.integers(0, 2, count))


def config(options: argparse.Namespace, optimizer: str, *, sparse: bool) -> ModuleConfig:
    """What is trained."""
    return ModuleConfig(
        module="sparse_tables:Scores",
        arguments={"rows": options.rows, "width": options.width, "sparse": sparse},
        optimizer=optimizer,
        lr=0.01,
        batch_size=BATCH,
        max_steps=options.steps,
    )


def trained(
    options: argparse.Namespace, how: StrategySpec, *, sparse: bool
) -> tuple[np.ndarray, int]:
    """Returns the parameters [n], and the bytes that went up and down in all."""
    phase = Phase(config=config(options, "sgd", sparse=sparse), strategy=how)
    plan, recorded = TrainingPlan(phases=(phase,), workers=options.workers), []
    data = events(options.steps * BATCH, options.rows)
    spec = RunSpec(plan=plan, data=data, run=os.urandom(16), emit=recorded.append)
    vector = SimulatedEngine().run(spec).vectors[0]
    rounds = [event for event in recorded if isinstance(event, RoundClosed)]
    return vector, sum(event.bytes_up + event.bytes_down for event in rounds)


def step_seconds(options: argparse.Namespace, optimizer: str) -> tuple[float, float]:
    """Returns the medians of a step, sparse and dense, taken in turn."""
    data, taken = events(BATCH, options.rows), ([], [])
    batch = Rows.of(data.features, data.labels).batch(np.arange(BATCH))
    models = []
    for sparse in (True, False):
        how = config(options, optimizer, sparse=sparse)
        model = how.build((), 0)
        models.append((model, how.inner(model.parameters.layout)))
    for _ in range(options.repeats):
        for (model, inner), seconds in zip(models, taken, strict=True):
            start = time.perf_counter()
            gradient, _ = model.learn(batch, 0)
            inner.step(model.parameters.trained, gradient, 0.0)
            seconds.append(time.perf_counter() - start)
    return statistics.median(taken[0]), statistics.median(taken[1])


def main() -> None:
    """Measures and prints both tables."""
    begin("--rows", "2000", "--workers", "2", "--steps", "20", "--repeats", "3")
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--rows", type=int, default=100_000)
    reader.add_argument("--width", type=int, default=16)
    reader.add_argument("--workers", type=int, default=4)
    reader.add_argument("--steps", type=int, default=100)
    reader.add_argument("--repeats", type=int, default=50)
    options = reader.parse_args()
    torch.set_num_threads(1)
    every = {"every": Steps(ROUND)}
    ways = {
        "averaging, fp32": recipes.averaging(**every, codec="fp32", gradients_until=0),
        "averaging, bf16": recipes.averaging(**every, gradients_until=0),
        "averaging, int8": recipes.averaging(**every, codec="int8", gradients_until=0),
        "averaging, an owner each": recipes.averaging(
            **every, gradients_until=0, owners=options.workers
        ),
        "all_reduce": recipes.all_reduce(),
    }
    for name, how in ways.items():
        (some, sparse), (whole, dense) = (trained(options, how, sparse=s) for s in (True, False))
        same = "same bits" if np.array_equal(some, whole) else "OTHER BITS"
        comparison = f"sparse {sparse / 1e6:.2f} MB, dense {dense / 1e6:.2f} MB"
        print(f"{name}: {comparison}, {sparse / dense:.2%}, {same}", flush=True)
    for optimizer in ("sgd", "adagrad", "adam"):
        sparse_s, dense_s = step_seconds(options, optimizer)
        comparison = f"sparse {1e3 * sparse_s:.2f} ms, dense {1e3 * dense_s:.2f} ms"
        print(f"a step of {optimizer}: {comparison}, {sparse_s / dense_s:.2f}", flush=True)


if __name__ == "__main__":
    main()
