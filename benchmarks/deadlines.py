"""How often a deadline is met, and with how many workers.

    python benchmarks/deadlines.py [--tries 10] [--slots 4] [--engine spark] [--small]

A network is trained on generated images. A first run without a deadline gives the time that all
workers need. Each try then draws a deadline from .8 to 5 times that. A table tells what became of
it: met with how many workers, missed by how much, or refused and with which earliest time. A
deadline that was refused is tried again with the time that the refusal named.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from machine import begin

from photinus import Job, ModuleConfig, Steps, averaging, train
from photinus.core.errors import UsageError
from photinus.core.events import Event, PhaseEnded, RunStarted

SIDE, CLASSES = 28, 10


def net() -> Any:
    """A network of 784-512-512-10."""
    from torch import nn

    return nn.Sequential(
        nn.Linear(SIDE * SIDE, 512),
        nn.ReLU(),
        nn.Linear(512, 512),
        nn.ReLU(),
        nn.Linear(512, CLASSES),
    )


class Watch:
    """Keeps how many workers train, and when training ended."""

    def __init__(self) -> None:
        self.began, self.workers, self.seconds = time.monotonic(), 0, 0.0

    def __call__(self, event: Event) -> None:
        """Takes in what happens."""
        if isinstance(event, RunStarted):
            self.workers = event.workers
        elif isinstance(event, PhaseEnded):
            self.seconds = time.monotonic() - self.began


def tried(options: argparse.Namespace, rows: Any, deadline: float | None) -> tuple[Watch, str]:
    """Trains once; returns when it ended, and why it was refused, if it was."""
    job = Job(
        model=ModuleConfig(
            module=f"{Path(__file__).stem}:net", epochs=options.epochs, batch_size=64
        ),
        strategy=averaging(every=Steps(20)),
        workers=options.slots,
        engine=options.engine,
        deadline_seconds=deadline,
        checkpoint_seconds=600.0,
    )
    watch = Watch()
    with tempfile.TemporaryDirectory() as folder:
        try:
            train(job, rows, folder=f"{folder}/run", callbacks=[watch], verbose=False)
        except UsageError as error:
            watch.seconds = time.monotonic() - watch.began
            return watch, str(error)
    return watch, ""


def main() -> None:
    """Prints a table of tries."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tries", type=int, default=10)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--epochs", type=float, default=6.0)
    parser.add_argument("--engine", default="spark", choices=("spark", "local"))
    begin(*["--tries", "2", "--slots", "2", "--rows", "2000", "--epochs", "2", "--engine", "local"])
    options = parser.parse_args()
    logging.getLogger("photinus").setLevel(logging.ERROR)
    os.environ["PYTHONPATH"] = os.path.dirname(os.path.abspath(__file__))  # tasks import `net`
    rng = np.random.default_rng(0)
    images = rng.random((options.rows, SIDE * SIDE), dtype=np.float32)
    rows: Any = images, rng.integers(0, CLASSES, options.rows)
    if options.engine == "spark":
        import pandas as pd

        from photinus.engine.spark.session import spark_session

        spark = spark_session(options.slots)
        frame = pd.DataFrame({"features": list(images), "label": rows[1]})
        rows = spark.createDataFrame(frame).repartition(options.slots).cache()
        rows.count()
    alone, wrong = tried(options, rows, None)
    if wrong:
        raise SystemExit(wrong)
    print(f"{options.slots} workers without a deadline: {alone.seconds:.1f} s")
    print("| deadline, s | workers | ended after, s | |\n|---|---|---|---|")
    met = accepted = 0
    for _ in range(options.tries):
        deadline: float = round(alone.seconds * rng.uniform(0.8, 5.0), 1)
        watch, refused = tried(options, rows, deadline)
        if refused:
            print(f"| {deadline} | - | refused after {watch.seconds:.1f} | {refused} |", flush=True)
            earliest = re.search(r"set it to (\d+)", refused)
            assert earliest is not None
            deadline = float(earliest[1])
            watch, refused = tried(options, rows, deadline)
        is_met = not refused and watch.seconds <= deadline
        met, accepted = met + is_met, accepted + (not refused)
        outcome = "refused again" if refused else "met" if is_met else "missed"
        print(f"| {deadline} | {watch.workers} | {watch.seconds:.1f} | {outcome} |", flush=True)
    print(f"met: {met} of {accepted} runs that were not refused")


if __name__ == "__main__":
    main()
