"""Accuracy over sharded tables with nothing set but the model, beside a single worker.

    python benchmarks/sharded_defaults.py [--rows 24000] [--passes 4] [--workers 3 7]
        [--seeds 0 1]

Made-up pairs of a user and an item, some of them frequent and most rare, and whether the one takes
the other. "default" has no strategy named. "rounds" is the same with averages from the first step
on, `averaging(gradients_until=0.0)`. "half" begins by gradients, up to half of the training. All in
the simulator; its time is not shown.
"""

from __future__ import annotations

import argparse
import tempfile

import numpy as np
import torch
from machine import begin
from torch import nn

from photinus.engine.base import ArrayData
from photinus.models.module import ModuleConfig
from photinus.nn import ShardedEmbedding
from photinus.run.data import TestRows
from photinus.run.job import Job
from photinus.run.train import train
from photinus.strategies.recipes import averaging

USERS, ITEMS, DIMS, TRAITS, TESTED = 600, 200, 8, 3, 20_000
STRATEGIES = {
    "default": {},
    "rounds": {"strategy": averaging(gradients_until=0.0)},
    "half": {"strategy": averaging(gradients_until=0.5)},
}


class Taker(nn.Module):
    """Whether a user takes an item, by their vectors, the products of these, and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = ShardedEmbedding(USERS, DIMS), ShardedEmbedding(ITEMS, DIMS)
        self.head = nn.Sequential(nn.Linear(3 * DIMS, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, pairs: torch.Tensor) -> torch.Tensor:
        """Returns the scores [B, 2] of pairs [B, 2]."""
        user_ids, item_ids = pairs.long().T
        users, items = self.users(user_ids), self.items(item_ids)  # [B, D]
        scores: torch.Tensor = self.head(torch.cat([users, items, users * items], dim=1))
        return scores


def pairs_of(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns pairs [count, 2] and labels [count], by traits that are always the same."""
    rng = np.random.default_rng(0)
    users, items = rng.normal(size=(USERS, TRAITS)), rng.normal(size=(ITEMS, TRAITS))
    rng = np.random.default_rng(1 + seed)
    user_ids = (USERS * rng.beta(0.6, 1.5, count)).astype(np.int64)
    item_ids = (ITEMS * rng.beta(0.6, 1.5, count)).astype(np.int64)
    liking = (users[user_ids] * items[item_ids]).sum(axis=1) + 0.5 * items[item_ids, 0]
    labels = (liking + 0.5 * rng.logistic(size=count) > 0).astype(np.int64)
    return np.stack([user_ids, item_ids], axis=1).astype(np.float32), labels


def main() -> None:
    """Trains in each way with each seed, and prints a line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=24_000)
    parser.add_argument("--passes", type=float, default=4.0)
    parser.add_argument("--workers", type=int, nargs="+", default=[3, 7])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    options = parser.parse_args()
    ways = [(1, "default"), *((k, name) for k in options.workers for name in STRATEGIES)]
    for workers, name in ways:
        errors = []
        for seed in options.seeds:
            job = Job(
                model=ModuleConfig(module="sharded_defaults:Taker", epochs=options.passes),
                workers=workers,
                engine="simulate",
                seed=seed,
                **STRATEGIES[name],
            )
            with tempfile.TemporaryDirectory() as folder:
                outcome = train(
                    job,
                    ArrayData(*pairs_of(options.rows, 0)),
                    test=TestRows(*pairs_of(TESTED, 1)),
                    folder=f"{folder}/run",
                    verbose=False,
                )
            errors.append(100 * outcome.metrics["error"])
        each = ", ".join(f"{error:.2f}" for error in errors)
        print(f"{workers} workers, {name}: error {np.mean(errors):.2f} % ({each})", flush=True)


if __name__ == "__main__":
    begin("--rows", "400", "--passes", "1", "--workers", "2", "--seeds", "0")
    main()
