"""Loss of CIFAR-10's tutorial network step by step, for several workers, in virtual time.

    python benchmarks/cifar_curves.py CIFAR10 [--workers 1 2 3 4] [--iterations 20]
        [--strategies all_reduce averaging] [--dtype float32] [--seed 0]

All workers read one order of the images and take a global batch of 120 together, so under
`all_reduce` their losses must lie on one line: printed is the largest relative difference to the
first number of workers. The loss is the tutorial's: cross-entropy and weight decay. The last
column is on the 10,000 test images.
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from photinus.core.events import RoundClosed
from photinus.engine.base import ArrayData
from photinus.feed import cifar
from photinus.run.data import TestRows
from photinus.run.job import Source
from photinus.run.presets import preset
from photinus.run.train import train
from photinus.strategies.recipes import from_plain

BATCH = 120


def curve(settings, strategy, workers, data, test):
    """Returns the loss of each round, and the metrics on the test images."""
    if BATCH % workers:
        raise SystemExit(f"a batch of {BATCH} cannot be shared by {workers} workers")
    job = preset("cifar10", workers, engine="simulate", is_shared=True, seed=settings.seed)
    model = replace(
        job.model,
        arguments={"dtype": settings.dtype},
        epochs=settings.iterations * BATCH / len(data.features),
        batch_size=BATCH // workers,
        precision=settings.precision,
        memory="channels_last",
    )
    job = replace(job, model=model, data=Source(name="given"), strategy=from_plain(strategy))
    losses = []

    def listen(event):
        if isinstance(event, RoundClosed):
            losses.append(event.metrics["loss"])

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "run"
        outcome = train(job, data, test=test, folder=place, sinks=(listen,))
    return np.array(losses), outcome.metrics


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cifar10", help="a folder with CIFAR-10")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--strategies", nargs="+", default=["all_reduce"])
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--seed", type=int, default=0)
    settings = parser.parse_args()
    data = ArrayData(*cifar.load(settings.cifar10))
    images, labels = cifar.load(settings.cifar10, "test")
    test = TestRows(images, labels.astype(np.int64))
    print(f"{settings.iterations} iterations of {BATCH}, {settings.dtype}, {settings.precision}")
    print(f"{'':>12} {'workers':>8} {'first':>9} {'last':>9} {'apart':>9} {'test error':>11}")
    for strategy in settings.strategies:
        first = None
        for workers in settings.workers:
            losses, metrics = curve(settings, strategy, workers, data, test)
            first = losses if first is None else first
            is_line = strategy == "all_reduce"
            apart = f"{np.abs(losses / first - 1).max():9.1e}" if is_line else " " * 9
            last = losses[-20:].mean() if len(losses) > 100 else losses[-1]
            print(
                f"{strategy:>12} {workers:8d} {losses[0]:9.4f} {last:9.4f} {apart}"
                f" {metrics['error']:11.2%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
