"""What a checkpoint costs the training: the copy that it waits for, and rounds with and without.

    python benchmarks/checkpoints.py [copy | rounds] [repeats]

`copy` saves 100 MB of parameters and prints how long the caller waited, beside the seconds that
the writing took. `rounds` trains a model of 4 MB with two processes, in turns with a checkpoint
every second and with none, and prints examples a second of both.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from machine import begin

from photinus.checkpoint.background import Saver
from photinus.checkpoint.store import Store
from photinus.core.clock import Steps
from photinus.core.events import CheckpointFailed, CheckpointSaved, Event, RoundClosed
from photinus.engine.base import ArrayData
from photinus.models.logistic import LogisticConfig
from photinus.run.job import Job, Source
from photinus.run.train import train
from photinus.strategies.recipes import averaging

MEGABYTES = 100
FEATURES, CLASSES, ROWS, BATCH, EPOCHS = 100_000, 10, 256, 16, 60.0


def copy(repeats: int) -> None:
    """Prints what a caller waits for."""
    vector = np.random.default_rng(0).random(MEGABYTES * 250_000, dtype=np.float32)
    waits, writes, written = list[float](), list[float](), threading.Semaphore(0)

    def report(outcome: CheckpointSaved | CheckpointFailed) -> None:
        if isinstance(outcome, CheckpointSaved):
            writes.append(outcome.seconds)
        written.release()

    with tempfile.TemporaryDirectory() as folder:
        saver = Saver(Store(Path(folder)), report)
        for number in range(repeats + 1):
            began = time.perf_counter()
            saver.save(f"{number:05d}", {}, {"agreed": {"trained": vector}})
            waits.append(time.perf_counter() - began)
            written.acquire()
        saver.close()
    first, later = waits[0], statistics.median(waits[1:])
    print(f"{MEGABYTES} MB: training waits {1e3 * first:.0f} ms at the first checkpoint, then")
    print(f"{1e3 * later:.0f} ms (median of {repeats}, at most {1e3 * max(waits[1:]):.0f});")
    print(f"writing takes {statistics.median(writes):.2f} s, beside it")


def speed(checkpoint_seconds: float) -> tuple[float, int]:
    """Returns examples a second from the second round to the last, and how many were saved."""
    chance, events = np.random.default_rng(0), list[tuple[float, Event]]()
    data = ArrayData(
        chance.random((ROWS, FEATURES), dtype=np.float32), chance.integers(0, CLASSES, ROWS)
    )
    job = Job(
        model=LogisticConfig(
            features=FEATURES, classes=CLASSES, epochs=EPOCHS, batch_size=2 * BATCH
        ),
        data=Source(name="given"),
        strategy=averaging(every=Steps(8), codec="fp32", gradients_until=0),
        workers=2,
        engine="local",
        checkpoint_seconds=checkpoint_seconds,
    )
    with tempfile.TemporaryDirectory() as folder:
        noted = (lambda event: events.append((time.perf_counter(), event)),)
        train(job, data, folder=Path(folder) / "run", callbacks=noted)
    rounds = [(at, e.examples) for at, e in events if isinstance(e, RoundClosed)][1:]
    saved = sum(isinstance(e, CheckpointSaved) for _, e in events)
    (first, before), (last, after) = rounds[0], rounds[-1]
    return (after - before) / (last - first), saved


def rounds(repeats: int) -> None:
    """Prints the speed with checkpoints as a share of that without, pair by pair."""
    shares = []
    for number in range(repeats):
        turn = [1e9, 1.0] if number % 2 else [1.0, 1e9]
        speeds = {seconds: speed(seconds) for seconds in turn}
        (saving, saved), (plain, _) = speeds[1.0], speeds[1e9]
        shares.append(saving / plain)
        print(f"{saving:.0f} examples/s with {saved} checkpoints, {plain:.0f} without", flush=True)
    print(f"kept: {statistics.median(shares):.1%} (median of {repeats})")


if __name__ == "__main__":
    begin("copy", "1")
    kind, repeats = (*sys.argv[1:3], *("copy", "9")[len(sys.argv[1:3]) :])
    {"copy": copy, "rounds": rounds}[kind](int(repeats))
