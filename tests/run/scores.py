"""A module with two sharded tables, events to train it on, and a run in the simulator."""

from dataclasses import replace

import numpy as np
from torch import nn

from photinus.engine.base import ArrayData
from photinus.engine.local.engine import LocalEngine
from photinus.engine.simulation.cluster import SimulatedCluster
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.models.module import ModuleConfig
from photinus.models.schedules import Schedule
from photinus.nn import ShardedEmbedding
from photinus.run.job import Job
from photinus.run.train import train
from photinus.strategies.outer import Sgd
from photinus.strategies.recipes import averaging

USERS, ITEMS, DIM = 60, 40, 4


class Scores(nn.Module):
    """Whether a user takes an item, by two vectors and a layer."""

    def __init__(self, optimizer="adagrad"):
        super().__init__()
        self.users = ShardedEmbedding(USERS, DIM, std=0.5, optimizer=optimizer)
        self.items = ShardedEmbedding(ITEMS, DIM, std=0.5, optimizer=optimizer)
        self.out = nn.Linear(DIM, 2)

    def forward(self, x):
        user, item = x.long().T
        return self.out(self.users(user) * self.items(item))


class Normed(Scores):
    """The same with a layer that keeps statistics."""

    def __init__(self, optimizer="adagrad"):
        super().__init__(optimizer)
        self.norm = nn.BatchNorm1d(DIM)

    def forward(self, x):
        user, item = x.long().T
        return self.out(self.norm(self.users(user) * self.items(item)))


def events(count=3000, seed=0):
    """Returns pairs, and whether the two are of one kind."""
    rng = np.random.default_rng(seed)
    pairs = np.stack([rng.integers(0, USERS, count), rng.integers(0, ITEMS, count)], 1)
    return pairs.astype(np.float32), (pairs[:, 0] % 2 == pairs[:, 1] % 2).astype(np.int64)


CONFIG = ModuleConfig(module=f"{__name__}:Scores", epochs=6.0, lr=Schedule.cosine(0.01))
SHORT = replace(CONFIG, epochs=3.0)  # 282 steps of each of three workers: for tests of bits
ROUNDS = averaging(gradients_until=0.0)
"""The default without a start by gradients, which takes all steps of runs so short."""
MEAN = {"outer": Sgd(), "merge": "uniform", "gradients_until": 0.0, "codec": "fp32"}


def run(folder, workers=3, faults=None, real=None, **fields):
    usual = {"model": CONFIG, "workers": workers, "engine": "simulate", "strategy": ROUNDS}
    job = Job(**usual | fields)
    engine = SimulatedEngine(SimulatedCluster(faults=faults)) if faults else None
    engine = LocalEngine(real) if real else engine
    pairs, labels = events()
    return train(
        job, ArrayData(pairs, labels), test=events(500, 1), folder=folder, engine=engine,
        verbose=False,
    )  # fmt: skip


def went_back(outcome):
    return (outcome.folder / "ledger.jsonl").read_text().count('"back"')
