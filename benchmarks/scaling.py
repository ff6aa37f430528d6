"""Images a second of one worker, of two, and of two processes that know nothing of each other.

    OMP_NUM_THREADS=1 python benchmarks/scaling.py [--pairs 5]

The limit of a machine is what unconnected processes reach together; the share of it is what
agreeing costs. Fine-tuning of the deep belief network, one thread a worker, encrypted link.
"""

from __future__ import annotations

import argparse
import secrets
import statistics
import threading
from dataclasses import replace
from time import monotonic

from photinus.core.events import Event, RoundClosed
from photinus.engine.base import ArrayData, Assignment
from photinus.engine.local import LocalEngine
from photinus.feed import mnist
from photinus.models.dbn import DBN, FineTuning, Pretraining
from photinus.run.job import Job
from photinus.strategies.recipes import RECIPES


class Speed:
    """Measures from the first round to the last: neither start nor end counts."""

    def __init__(self) -> None:
        self.first: tuple[float, int] | None = None
        self.last: tuple[float, int] = (0.0, 0)

    def __call__(self, event: Event) -> None:
        """Takes in one event."""
        if isinstance(event, RoundClosed):
            self.last = (monotonic(), event.examples)
            self.first = self.first or self.last

    @property
    def images_per_second(self) -> float:
        """Of all workers together."""
        assert self.first is not None
        return (self.last[1] - self.first[1]) / (self.last[0] - self.first[0])


def run(workers: int, recipe: str, data: ArrayData, epochs: float) -> float:
    """Trains and returns images a second."""
    model = DBN(
        pretraining=Pretraining(epochs=0.0),
        fine_tuning=FineTuning(epochs=epochs, batch_size=100),
    )
    job = Job(model=model, workers=workers, strategy=RECIPES[recipe].build()).resolved()
    program, _ = job.program(len(data.features))
    speed = Speed()
    LocalEngine().run(
        Assignment(program=program, data=data, run=secrets.token_bytes(16), emit=speed)
    )
    return speed.images_per_second


def unconnected(data: ArrayData, epochs: float) -> float:
    """Returns what two runs of one worker reach side by side, each on its half."""
    half = len(data.features) // 2
    halves = [
        replace(data, features=data.features[part], labels=data.labels[part])
        for part in (slice(half), slice(half, None))
    ]
    speeds: list[float] = []
    threads = [
        threading.Thread(target=lambda d=d: speeds.append(run(1, "averaging", d, epochs)))
        for d in halves
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(speeds)


def main() -> None:
    """Prints medians over the pairs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--epochs", type=float, default=1.0)
    a = parser.parse_args()
    images = mnist.load()
    data = ArrayData(images.train_images, images.train_labels, 1 / 255)
    one, limit, shares = [], [], {"averaging": [], "all_reduce": []}
    for _ in range(a.pairs):
        one.append(run(1, "averaging", data, a.epochs / 2))
        limit.append(unconnected(data, a.epochs))
        for recipe, measured in shares.items():
            measured.append(run(2, recipe, data, a.epochs))
    top = statistics.median(limit)
    print("what | images/s | of one worker | of two unconnected")
    print("--- | --- | --- | ---")
    rows = {"one worker": one, "two unconnected": limit, **shares}
    for name, speeds in rows.items():
        middle = statistics.median(speeds)
        by_one, by_limit = middle / statistics.median(one), middle / top
        print(f"{name} | {middle:,.0f} | {by_one:.2f} | {by_limit:.2f}")


if __name__ == "__main__":
    main()
