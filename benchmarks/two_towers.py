"""Recall@10 of two towers under the loss `in_batch`: K workers beside one plain loop of torch.

Usage: python benchmarks/two_towers.py [--small] [--workers 1,4,8] [--seeds 3] [--table whole]

Events and towers are those of `examples/two_towers.py`. A test event counts where its item is among
the ten nearest to its user. "popular" is the recall of the ten most frequent items, "best" that of
the scores from which the events were drawn. The workers are simulated. Nothing is set but module,
loss, batch, rate and passes. A difference is paired by the seed: its median, least and most.
With `--table sparse` the workers train sparse tables, stepped by SparseAdam, with `--table sharded`
tables that lie among them, stepped by Adagrad; the plain loop trains whole ones by AdamW.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch
from machine import begin

from photinus.embeddings.neighbours import exact
from photinus.engine.base import ArrayData
from photinus.models.losses import in_batch
from photinus.models.module import ModuleConfig
from photinus.run.job import Job, Source
from photinus.run.train import train

_PATH = Path(__file__).parents[1] / "examples" / "two_towers.py"
_SPEC = importlib.util.spec_from_file_location("two_towers_example", _PATH)
assert _SPEC is not None
assert _SPEC.loader is not None
example = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(example)
example.TABLES["sparse"] = partial(torch.nn.Embedding, sparse=True)

TESTED = 10_000


class Columns(torch.nn.Module):
    """The towers over rows of three numbers: user, item and genre."""

    def __init__(self, table: str = "whole") -> None:
        super().__init__()
        self.towers = example.Towers(table=table)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Returns two vectors a row, [B, 2, D]."""
        return self.towers(*rows.long().T)


def config(epochs: float, table: str = "whole") -> ModuleConfig:
    """What is trained."""
    return ModuleConfig(
        module="two_towers:Columns",
        arguments={"table": table},
        loss="in_batch",
        batch_size=256,
        lr=0.01,
        epochs=epochs,
    )


def labelled(rows: np.ndarray) -> np.ndarray:
    """Returns each event's item, and the log of the item's share of all events [n, 2]."""
    counts = np.bincount(rows[:, 1])[rows[:, 1]]
    return np.stack([rows[:, 1], np.log(counts / len(rows))], 1)


def plain(rows: np.ndarray, epochs: float, seed: int) -> torch.nn.Module:
    """Returns the towers after a loop of torch alone."""
    settings = config(epochs)
    model = settings.build((), seed)
    inner, module = settings.inner(model.parameters.layout), model.module
    optimizer = torch.optim.AdamW(module.parameters())
    features, labels = torch.from_numpy(rows.astype(np.float32)), torch.from_numpy(labelled(rows))
    chance, examples, total = np.random.default_rng(seed), 0, epochs * len(rows)
    for _ in range(int(epochs)):
        for index in torch.from_numpy(chance.permutation(len(rows))).split(settings.batch_size):
            for group in optimizer.param_groups:
                group["lr"] = inner._lr.at(examples / total)
            optimizer.zero_grad()
            in_batch(module(features[index]), labels[index]).backward()
            optimizer.step()
            examples += len(index)
    return module


def trained(rows: np.ndarray, model: ModuleConfig, workers: int, seed: int) -> torch.nn.Module:
    """Returns the towers of a job."""
    source = Source(name="given")
    job = Job(model=model, data=source, workers=workers, seed=seed, engine="simulate")
    with tempfile.TemporaryDirectory() as folder:
        data = ArrayData(rows.astype(np.float32), labelled(rows))
        return train(job, data, folder=f"{folder}/run", verbose=False).model()


def recall(module: torch.nn.Module, test: np.ndarray) -> float:
    """Returns the share of test events (%) whose item is among its user's ten nearest."""
    numbers = np.arange(example.ITEMS)
    shelf = np.stack([numbers * 0, numbers, numbers % example.GENRES], 1)
    with torch.no_grad():
        items = module(torch.from_numpy(shelf).float())[:, 1].numpy()
        users = module(torch.from_numpy(test).float())[:, 0].numpy()
    nearest, _ = exact(items, users, 10)
    return hits(nearest, test)


def hits(nearest: np.ndarray, test: np.ndarray) -> float:
    """Returns the share of test events (%) whose item is in its row [n, 10]."""
    return 100 * float((nearest == test[:, 1:2]).any(1).mean())


def main() -> None:
    """Measures and prints the table."""
    begin("--workers", "2", "--seeds", "1", "--rows", "2000", "--passes", "1")
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--workers", default="1,4,8")
    reader.add_argument("--seeds", type=int, default=3)
    reader.add_argument("--rows", type=int, default=50_000)
    reader.add_argument("--passes", type=float, default=10.0)
    reader.add_argument("--table", default="whole", choices=list(example.TABLES))
    options = reader.parse_args()
    torch.set_num_threads(1)
    rows, test = example.events(options.rows, 1), example.events(TESTED, 2)
    popular = np.argsort(-np.bincount(rows[:, 1]))[None, :10]
    best = np.argsort(-example.tastes(), 1)[test[:, 0], :10]
    print(f"popular {hits(popular, test):.1f} %, best {hits(best, test):.1f} %")
    seeds = range(options.seeds)
    alone = [recall(plain(rows, options.passes, seed), test) for seed in seeds]
    print(f"plain loop {statistics.median(alone):.1f} %", flush=True)
    for workers in map(int, options.workers.split(",")):
        model = config(options.passes, options.table)
        recalls = [recall(trained(rows, model, workers, seed), test) for seed in seeds]
        apart = np.subtract(recalls, alone)
        difference = f"{np.median(apart):+.2f} ({apart.min():+.2f} to {apart.max():+.2f})"
        print(f"{workers} workers {statistics.median(recalls):.1f} %, {difference}", flush=True)


if __name__ == "__main__":
    main()
