"""Why the batch is kept: test error of K workers by the rule for the learning rate.

Usage: python benchmarks/rate_rules.py [--small] [--workers 4,16] [--data mnist,images:2:512]
    [--recipes all_reduce,averaging] [--optimizers adamw:0.001] [--rules linear,kept] [--jobs 2]

By all rules but `kept` each worker has a batch of 32 of its own, so that K workers make a K-th of
the steps, at the rate that one process has (`same`), at √K or K times that (`sqrt`, `linear`), or
at K times that but no more than four times (`capped`). By `kept` all workers together have a batch
of 32, at the rate of one process. There recipes have no start by gradients, and rounds of 50
steps. `default` is what photinus does: `kept`, with the recipe as it is where nothing is set. The
rate rises for 5 % of the training and falls to 0 by a cosine. The first column is one worker; one
seed, in the simulator.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product

import torch
from defaults import task_of
from machine import begin
from recipe_named import recipe_named

from photinus.core.clock import Steps
from photinus.engine.base import ArrayData
from photinus.models.schedules import Schedule
from photinus.run.data import TestRows
from photinus.run.job import Job, Source
from photinus.run.train import train

BATCH = 32
FACTORS: Mapping[str, Callable[[int], float]] = {
    "same": lambda _: 1.0,
    "sqrt": lambda workers: workers**0.5,
    "linear": float,
    "capped": lambda workers: min(workers, 4.0),
}
"""By how much the rate grows where each worker has a batch of its own."""
KEPT, DEFAULT = "kept", "default"
Cell = tuple[str, str, str, int, str]
"""Table, optimizer and rate, recipe, workers, rule."""


def error(of: Cell) -> float:
    """Returns the test error (%) of one cell, in a process of its own."""
    table, optimizer, recipe, workers, rule = of
    torch.set_num_threads(1)
    task, (name, rate) = task_of(table), optimizer.split(":")
    factor = FACTORS[rule](workers) if rule in FACTORS else 1.0
    model = replace(
        task.model,
        optimizer=name,
        settings={"momentum": 0.9} if name == "sgd" else {},
        lr=Schedule.cosine(float(rate) * factor, warm_up=0.05),
        batch_size=BATCH * workers if rule in FACTORS else BATCH,
    )
    is_whole = rule == DEFAULT or recipe == "all_reduce"
    parts = {} if is_whole else {"every": Steps(50), "gradients_until": 0.0}
    job = Job(
        model=model,
        strategy=recipe_named(recipe, **parts),
        data=Source(name="given"),
        workers=workers,
        engine="simulate",
    )
    with tempfile.TemporaryDirectory() as folder:
        rows = TestRows(*task.test)
        result = train(job, ArrayData(*task.train), test=rows, folder=f"{folder}/run")
    return 100 * result.metrics["error"]


def main() -> None:
    """Prints a table for each table of rows: optimizers and workers by recipe and rule."""
    begin(
        "--workers", "2", "--data", "small", "--recipes", "averaging", "--rules", "linear,default"
    )
    reader = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    reader.add_argument("--workers", default="4,16")
    reader.add_argument("--data", default="mnist")
    reader.add_argument("--recipes", default="averaging,downpour,all_reduce")
    reader.add_argument("--optimizers", default="adamw:0.001,adamw:0.003,sgd:0.02,sgd:0.1")
    reader.add_argument("--rules", default=",".join([*FACTORS, KEPT, DEFAULT]))
    reader.add_argument("--jobs", type=int, default=2)
    options = reader.parse_args()
    tables, optimizers, recipes, rules = (
        names.split(",")
        for names in (options.data, options.optimizers, options.recipes, options.rules)
    )
    for table in tables:
        print(f"\n{table}, test error in percent: {', '.join(recipes)}")
        print("| optimizer | one worker | workers | " + " | ".join(rules) + " |")
        print("|---" * (len(rules) + 3) + "|")
        with ProcessPoolExecutor(options.jobs) as pool:
            for optimizer in optimizers:
                alone = pool.submit(error, (table, optimizer, "averaging", 1, KEPT))
                for workers in map(int, options.workers.split(",")):
                    cells = [(table, optimizer, r, workers, n) for n, r in product(rules, recipes)]
                    errors = dict(zip(cells, pool.map(error, cells), strict=True))
                    shown = [
                        ", ".join(f"{errors[table, optimizer, r, workers, n]:.1f}" for r in recipes)
                        for n in rules
                    ]
                    row = [optimizer, f"{alone.result():.1f}", str(workers), *shown]
                    print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
