"""What a tracker costs the training: steps a second with one and without, in turns.

    python benchmarks/trackers.py [mlflow | tensorboard | trackio] [repeats] [epochs]

Two processes train a small model and agree at every step: nothing closes more rounds a second.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
from machine import begin

from photinus import MLflowCallback, TensorBoardCallback, TrackioCallback
from photinus.core.events import Event, PhaseEnded
from photinus.engine.base import ArrayData
from photinus.models.logistic import LogisticStage
from photinus.run.job import Job
from photinus.run.train import train
from photinus.strategies.recipes import all_reduce

KINDS = {
    "mlflow": MLflowCallback,
    "tensorboard": TensorBoardCallback,
    "trackio": TrackioCallback,
}
ROWS, BATCH = 4000, 64


def step_seconds(kind: str, epochs: float) -> float:
    """Returns the seconds of one step, from the phase's first to its last."""
    chance, ended = np.random.default_rng(0), list[PhaseEnded]()
    rows = chance.normal(size=(ROWS, 100)).astype("f4"), chance.integers(0, 10, ROWS)

    def listen(event: Event) -> None:
        if isinstance(event, PhaseEnded):
            ended.append(event)

    stage = LogisticStage(features=100, classes=10, epochs=epochs, batch_size=BATCH)
    job = Job(model=stage, workers=2, engine="local", strategy=all_reduce())
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
        os.environ["MLFLOW_TRACKING_URI"] = f"file:{folder}/mlruns"
        callbacks = [listen, *([KINDS[kind]()] if kind else [])]
        train(job, ArrayData(*rows), folder=Path(folder) / "run", callbacks=callbacks)
    return ended[-1].seconds / (ended[-1].examples / BATCH)


if __name__ == "__main__":
    begin("tensorboard", "1", "2")
    words = (*sys.argv[1:4], *("tensorboard", "5", "60")[len(sys.argv[1:4]) :])
    kind, repeats, epochs = words[0], int(words[1]), float(words[2])
    pairs = [(step_seconds("", epochs), step_seconds(kind, epochs)) for _ in range(repeats)]
    bare, tracked = (statistics.median(column) for column in zip(*pairs, strict=True))
    shares = sorted(with_it / without - 1 for without, with_it in pairs)
    print(f"{1e3 * bare:.2f} ms a step alone, {1e3 * tracked:.2f} ms with {kind}:")
    print(f"{statistics.median(shares):+.1%} (from {shares[0]:+.1%} to {shares[-1]:+.1%})")
