"""Tables of a module among the workers beside whole sparse ones: memory, seconds and error.

    python benchmarks/sharded_embedding.py [--megabytes 800] [--dims 64] [--events 400000]
        [--workers 4] [--every 60] [--ways whole sharded rounds killed momentum diloco pushes
        stepwise one]

Made-up events of a user and an item, by Zipf's law, and whether they are of one kind. Processes of
this machine; all but the tables is left at its default. Memory is anonymous, as
`sharded_table.py` has it: of the driver before the run and at its peak, and of the largest worker
at its peak. "whole" has `nn.Embedding(sparse=True)` in every worker, which SparseAdam steps.
"sharded" and it begin by gradients, as is usual: in a run so short that is all of it. "rounds" has
averages from the first step on. In "killed", likewise, a worker is killed after half of its steps.
"momentum" and "diloco" also have an outer momentum of the layers beside the tables. In "pushes", by
`downpour`, none waits for the steps of another. "stepwise" is `all_reduce`, and "one" a single
worker, which trains as one process does. Linux only.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time

import numpy as np
import torch
from machine import begin
from sharded_table import Watch, each_way
from torch import nn

from photinus.core.events import Event, RoundClosed
from photinus.engine.base import ArrayData
from photinus.engine.local.engine import LocalEngine
from photinus.models.module import ModuleConfig
from photinus.nn import ShardedEmbedding
from photinus.report.ledger import audit
from photinus.run.data import TestRows
from photinus.run.job import Job
from photinus.run.train import train
from photinus.strategies.outer import Nesterov
from photinus.strategies.recipes import all_reduce, averaging, diloco, downpour
from photinus.testing import Faults

ITEMS, KINDS, BATCH, TESTED = 1_000, 2, 256, 20_000
STRATEGIES = {
    "rounds": averaging(gradients_until=0.0),
    "killed": averaging(gradients_until=0.0),
    "momentum": averaging(outer=Nesterov(), gradients_until=0.0),
    "diloco": diloco(gradients_until=0.0),
    "pushes": downpour(gradients_until=0.0),
    "stepwise": all_reduce(),
}
"""Way -> its strategy, where it is not the default."""


class Scores(nn.Module):
    """Scores of (user, item) by two vectors and a layer."""

    def __init__(self, users: int, dims: int, *, sharded: bool) -> None:
        super().__init__()
        if sharded:
            self.users, self.items = ShardedEmbedding(users, dims), ShardedEmbedding(ITEMS, dims)
        else:
            self.users = nn.Embedding(users, dims, sparse=True)
            self.items = nn.Embedding(ITEMS, dims, sparse=True)
        self.head = nn.Sequential(nn.Linear(dims, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, events: torch.Tensor) -> torch.Tensor:
        """Returns scores [B, 2] of events [B, 2]."""
        users, items = events.T
        return self.head(self.users(users) * self.items(items))


def events(count: int, users: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns users and items [n, 2], and whether the two are of one kind."""
    rng = np.random.default_rng(seed)
    drawn = np.stack([users ** rng.random(count), ITEMS ** rng.random(count)], 1)  # p ~ 1/rank
    pairs = drawn.astype(np.int64) - 1
    return pairs, (pairs[:, 0] % KINDS == pairs[:, 1] % KINDS).astype(np.int64)


def run(options: argparse.Namespace) -> None:
    """Trains in one of the ways, and prints what it took."""
    users = users_of(options)
    config = ModuleConfig(
        module="sharded_embedding:Scores",
        arguments={"users": users, "dims": options.dims, "sharded": options.way != "whole"},
        batch_size=BATCH,
        epochs=options.passes,
        lr=0.01,
    )
    job = Job(
        model=config,
        workers=1 if options.way == "one" else options.workers,
        engine="local",
        checkpoint_seconds=options.every,
        **({"strategy": STRATEGIES[options.way]} if options.way in STRATEGIES else {}),
    )
    late = int(options.passes * options.events / BATCH / 2)
    faults = Faults().kill(slot=1, step=late) if options.way == "killed" else Faults()
    with tempfile.TemporaryDirectory(dir=options.folder or None) as folder:
        events_of_run: list[Event] = []
        watch = Watch(folder)
        watch.start()
        began = time.monotonic()
        outcome = train(
            job,
            ArrayData(*events(options.events, users, 0)),
            test=TestRows(*events(TESTED, users, 1)),
            folder=f"{folder}/run",
            engine=LocalEngine(faults),
            callbacks=[events_of_run.append],
            verbose=False,
        )
        seconds = time.monotonic() - began
        watch.over.set()
        watch.join()
        audited = audit(f"{folder}/run/ledger.jsonl")
    result = {
        "before_mb": watch.before / 1e6,
        "driver_mb": watch.driver / 1e6,
        "worker_mb": watch.worker / 1e6,
        "error": outcome.metrics["error"],
        "seconds": seconds,
        "sent_mb": sum(e.bytes_up for e in events_of_run if isinstance(e, RoundClosed)) / 1e6,
        "undone": audited.undone,
        "offences": audited.offences,
    }
    print(json.dumps(result))


def users_of(options: argparse.Namespace) -> int:
    """Returns how many users there are: their table has the size asked for."""
    return int(options.megabytes * 1e6 / (4 * options.dims))


def main() -> None:
    """Runs each way in a process of its own, and prints a line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=float, default=800.0, help="of the users' table")
    parser.add_argument("--dims", type=int, default=64)
    parser.add_argument("--events", type=int, default=400_000)
    parser.add_argument("--passes", type=float, default=2.0)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--every", type=float, default=60.0, help="seconds between checkpoints")
    parser.add_argument("--folder", default="", help="where the runs are kept")
    ways = ["whole", "sharded", *STRATEGIES, "one"]
    parser.add_argument("--ways", nargs="+", choices=ways, default=ways)
    parser.add_argument("--way", choices=ways)
    options = parser.parse_args()
    if options.way:
        run(options)
        return
    shown = f"{users_of(options):,} users, {options.workers} workers"
    print(f"{shown}, {options.events:,} events, {options.passes:g} passes", flush=True)
    for way, result in each_way(__file__, options.ways):
        shown = f"driver {result['driver_mb']:,.0f} MB ({result['before_mb']:,.0f} before), "
        shown += (
            f"largest worker {result['worker_mb']:,.0f} MB, error {100 * result['error']:.2f} %, "
        )
        shown += f"{result['seconds']:.1f} s, {result['sent_mb']:,.0f} MB sent, "
        shown += f"{result['undone']} pushes undone, "
        print(f"{way}: {shown}audit {result['offences'] or 'exact'}", flush=True)


if __name__ == "__main__":
    begin(
        "--megabytes", "2", "--dims", "16", "--events", "4000", "--workers", "2", "--every", "0.5"
    )
    main()
