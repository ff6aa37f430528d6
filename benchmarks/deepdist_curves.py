"""Loss against time on Spark: DeepDist with and without AdaGrad, and full-batch descent.

    OMP_NUM_THREADS=1 python benchmarks/deepdist_curves.py [--epochs 20] [--draw PICTURE.svg]

Softmax regression on MNIST's 60,000 images in 16 partitions, two tasks at a time. DeepDist applies
each partition's mean gradient as it comes; `full_gradient` takes one step an epoch, of the mean
over all rows, at the same rate. Seconds are from the first update on; the loss is over all rows,
computed afterwards from copies of the parameters.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from machine import begin
from pictures import curves

from photinus.core.events import RoundClosed
from photinus.data import mnist
from photinus.engine.base import ArrayData
from photinus.engine.spark.session import spark_session
from photinus.estimators.deepdist import DeepDist, Stepper
from photinus.models.logistic import LogisticConfig
from photinus.report.chart import Chart, Series
from photinus.run.job import Job
from photinus.run.train import train
from photinus.strategies.outer import Adagrad
from photinus.strategies.recipes import full_gradient

PARTITIONS, WORKERS = 16, 2
LR, ADAGRAD_LR = 0.5, 0.1


def probabilities(model: dict[str, Any], x: Any) -> Any:
    """Returns softmax(xW + b) [n, 10]."""
    z = x @ model["W"] + model["b"]
    p = np.exp(z - z.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def gradient(model: dict[str, Any], blocks: Any) -> dict[str, Any]:
    """Returns the mean gradient of one partition, which is one block of rows."""
    ((pixels, labels),) = blocks
    x = pixels.astype(np.float32) / 255
    p = probabilities(model, x)
    p[np.arange(len(x)), labels] -= 1
    return {"W": x.T @ p / len(x), "b": p.mean(axis=0)}


def deepdist(blocks: Any, epochs: int, adagrad: Stepper | None) -> list[tuple[float, Any]]:
    """Returns (seconds, parameters) after each update."""
    model = {"W": np.zeros((784, 10), np.float32), "b": np.zeros(10, np.float32)}
    points: list[tuple[float, Any]] = []

    def descent(model: dict[str, Any], update: dict[str, Any]) -> None:
        for name, slope in update.items():
            model[name] -= adagrad.step(name, slope) if adagrad else LR * slope
        points.append((time.monotonic(), {name: part.copy() for name, part in model.items()}))

    with DeepDist(model) as dd:
        print(dd.train(blocks, gradient, descent, epochs=epochs))
    return points


def full_batch(data: ArrayData, epochs: int) -> list[tuple[float, float]]:
    """Returns (seconds, loss) of each round."""
    model = LogisticConfig(features=784, classes=10, batch_size=1000, epochs=float(epochs), lr=LR)
    points: list[tuple[float, float]] = []

    def listen(event: Any) -> None:
        if isinstance(event, RoundClosed):
            points.append((time.monotonic(), float(event.metrics["loss"])))

    job = Job(model=model, workers=WORKERS, strategy=full_gradient(), engine="spark")
    with tempfile.TemporaryDirectory() as folder:
        train(job, data, folder=Path(folder) / "run", callbacks=(listen,))
    return points


def main() -> None:
    """Prints the table; draws the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--draw", help="a file for the picture")
    a = parser.parse_args()
    images = mnist.load()
    pixels, labels = images.train_images.reshape(-1, 784), images.train_labels.astype(np.int64)
    spark = spark_session(WORKERS)
    parts = [(pixels[n::PARTITIONS], labels[n::PARTITIONS]) for n in range(PARTITIONS)]
    blocks = spark.sparkContext.parallelize(parts, PARTITIONS).cache()
    blocks.count()
    x = pixels.astype(np.float32) / 255

    def loss(model: dict[str, Any]) -> float:
        chosen = probabilities(model, x)[np.arange(len(x)), labels]
        return float(-np.log(np.maximum(chosen, 1e-30)).mean())

    losses: dict[str, list[tuple[float, float]]] = {}
    for name, adagrad in (
        ("DeepDist", None),
        ("DeepDist, AdaGrad", Stepper(Adagrad(lr=ADAGRAD_LR))),
    ):
        course = deepdist(blocks, a.epochs, adagrad)
        losses[name] = [(at - course[0][0], loss(model)) for at, model in course]
    course = full_batch(ArrayData(pixels, labels, 1 / 255), a.epochs)
    losses["full_gradient"] = [(at - course[0][0], value) for at, value in course]
    spark.stop()
    print(f"{a.epochs} epochs, load {os.getloadavg()[0]:.1f}")
    print("| | updates | seconds | loss | after half the time |")
    print("|---|---|---|---|---|")
    for name, points in losses.items():
        end = points[-1][0]
        half = next(value for at, value in points if at >= end / 2)
        print(f"| {name} | {len(points)} | {end:.1f} | {points[-1][1]:.3f} | {half:.3f} |")
    if a.draw:
        series = [Series(name, points) for name, points in losses.items()]
        drawn = Chart(title="Softmax regression", subtitle="loss", x_label="seconds", series=series)
        Path(a.draw).write_text(curves(drawn))


if __name__ == "__main__":
    begin("--epochs", "1")
    main()
