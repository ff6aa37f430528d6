"""What a tracker costs: processor time of the driver for each step, and what a step takes.

    python benchmarks/trackers.py [mlflow | tensorboard | trackio] [epochs]

Two processes train a small model and agree at every step: nothing closes more rounds a second. A
callback is timed by the processor time of its calls, and its thread by its own: other work on the
machine does not count.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from machine import begin

from photinus import MLflowCallback, TensorBoardCallback, TrackioCallback
from photinus.core.events import Event, PhaseEnded
from photinus.engine.base import ArrayData
from photinus.models.logistic import LogisticConfig
from photinus.run.job import Job
from photinus.run.train import train
from photinus.strategies.recipes import all_reduce

KINDS = {
    "mlflow": MLflowCallback,
    "tensorboard": TensorBoardCallback,
    "trackio": TrackioCallback,
}
ROWS, BATCH = 4000, 64


def measured(kind: str, epochs: float) -> tuple[float, float, float, int]:
    """Returns processor seconds to begin, and of calls and thread after that; a step's; steps."""
    chance, ended, spent, begun = np.random.default_rng(0), list[PhaseEnded](), [0.0], [0.0]
    rows = chance.normal(size=(ROWS, 100)).astype("f4"), chance.integers(0, 10, ROWS)
    tracker = KINDS[kind]()
    feed, begin_run = tracker._feed, tracker._begin

    def timed_begin(run: str, settings: Mapping[str, Any]) -> None:
        before = time.thread_time()
        begin_run(run, settings)  # loads the tracker's packages
        begun[0] = time.thread_time() - before

    def timed_feed() -> None:
        feed()
        spent[0] += time.thread_time()  # of a thread that did nothing else

    def timed_call(event: Event) -> None:
        began = time.thread_time()
        tracker(event)
        spent[0] += time.thread_time() - began
        if isinstance(event, PhaseEnded):
            ended.append(event)

    tracker._feed, tracker._begin = timed_feed, timed_begin  # type: ignore[method-assign]
    timed_call.open, timed_call.close = tracker.open, tracker.close  # type: ignore[attr-defined]
    config = LogisticConfig(features=100, classes=10, epochs=epochs, batch_size=BATCH)
    job = Job(model=config, workers=2, engine="local", strategy=all_reduce())
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
        os.environ["MLFLOW_TRACKING_URI"] = f"file:{folder}/mlruns"
        os.environ["TRACKIO_DIR"] = f"{folder}/trackio"
        train(job, ArrayData(*rows), folder=Path(folder) / "run", callbacks=[timed_call])
    steps = round(ended[-1].examples / BATCH)
    return begun[0], spent[0] - begun[0], ended[-1].seconds / steps, steps


if __name__ == "__main__":
    begin("tensorboard", "2")
    kind, epochs = (*sys.argv[1:3], *("tensorboard", "60")[len(sys.argv[1:3]) :])
    begun, spent, step, steps = measured(kind, float(epochs))
    print(f"{steps} steps of {1e3 * step:.2f} ms; {kind} took {begun:.2f} s to begin, and")
    print(f"{1e6 * spent / steps:.0f} us a step: {spent / steps / step:.1%}")
