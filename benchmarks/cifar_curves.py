"""Loss of CIFAR-10's tutorial network step by step, for several workers.

    python benchmarks/cifar_curves.py CIFAR10 [--workers 1 2 3 4] [--iterations 20]
        [--strategies all_reduce '{"recipe": "averaging", "codec": "int8"}'] [--dtype float32]
        [--schedule cut | tutorial] [--seed 0] [--engine simulate] [--keep CURVES.json]
    python benchmarks/cifar_curves.py --draw PICTURE.svg CURVES.json ...

In virtual time all workers read one order of the images and take a global batch of 120 together, so
under `all_reduce` their losses must lie on one line: printed is the largest relative difference to
the first number of workers. With `--engine spark` the workers are tasks of Spark, with `local`
processes, and each reads a part of the images. The loss is the tutorial's: cross-entropy and weight
decay; the last one is the mean over the last 2 % of the iterations. The last column is on the
10,000 test images, with the moving average of the weights. `cut` drops the rate twice within the
iterations, `tutorial` leaves it at 0.1, as the tutorial does for its first 350 epochs. A strategy
is a recipe's name, or JSON.
"""

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from machine import begin
from pictures import curves

from photinus.core.events import PhaseEnded, RoundClosed
from photinus.data import cifar
from photinus.engine.base import ArrayData
from photinus.models.schedules import Schedule
from photinus.report.chart import Chart, Series, thinned
from photinus.run.data import TestRows
from photinus.run.job import Source
from photinus.run.presets import preset
from photinus.run.train import train
from photinus.strategies.recipes import from_plain

BATCH = 120


def curve(settings, strategy, workers, data, test):
    """Returns (iterations, loss) of each round, and the metrics on the test images."""
    if BATCH % workers:
        raise SystemExit(f"a batch of {BATCH} cannot be shared by {workers} workers")
    job = preset("cifar10", workers)
    job = replace(job, engine=settings.engine, seed=settings.seed)
    job = replace(job, is_shared=settings.engine == "simulate")
    model = replace(
        job.model,
        arguments={"dtype": settings.dtype},
        epochs=settings.iterations * BATCH / len(data.features),
        batch_size=BATCH,
        precision=settings.precision,
        memory="channels_last",
    )
    if settings.schedule == "tutorial":
        model = replace(model, lr=Schedule.constant(0.1), average=0.9999)
    job = replace(job, model=model, data=Source(name="given"), strategy=strategy)
    losses, before = [], 0

    def listen(event):
        nonlocal before
        if isinstance(event, RoundClosed):
            at = (before + event.examples) / BATCH
            losses.append((at, float(event.metrics["loss"])))
        if isinstance(event, PhaseEnded):  # a start by gradients, and the rest: each counts from 0
            before += event.examples

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "run"
        outcome = train(job, data, test=test, folder=place, callbacks=(listen,))
    return np.array(losses), outcome.metrics


def pictures(places, part="train"):
    """Returns images [n, 3072] and labels of CIFAR-10, or noise where no folder is named."""
    if places:
        return cifar.load(places[0], part)
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (1200, 3072)).astype(np.uint8), rng.integers(0, 10, 1200)


def draw(target, files):
    """Draws the curves that were kept, those of all files together."""
    results = [one for file in files for one in json.loads(Path(file).read_text())]
    workers = {one["workers"] for one in results}
    counts = ["" if len(workers) == 1 else f", {one['workers']} workers" for one in results]
    series = [
        Series(one["strategy"] + count, one["curve"])
        for one, count in zip(results, counts, strict=True)
    ]
    loss = f"loss, {workers.pop()} workers" if len(workers) == 1 else "loss"
    title = "CIFAR-10's tutorial network"
    figure = Chart(title=title, subtitle=loss, x_label="iterations", series=series)
    Path(target).write_text(curves(figure))


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "places", nargs="*", help="a folder with CIFAR-10, else noise; kept curves to draw"
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--strategies", nargs="+", default=["all_reduce"])
    parser.add_argument("--schedule", choices=("cut", "tutorial"), default="cut")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", choices=("simulate", "local", "spark"), default="simulate")
    parser.add_argument("--keep", help="a file for the curves")
    parser.add_argument("--draw", help="a picture of kept curves; trains nothing")
    return parser.parse_args()


def main():
    settings = parse_options()
    if settings.draw:
        draw(settings.draw, settings.places)
        return
    data = ArrayData(*pictures(settings.places))
    images, labels = pictures(settings.places, "test")
    test = TestRows(images, labels.astype(np.int64))
    how = f"{settings.dtype}, {settings.precision}, {settings.engine}"
    print(f"{settings.iterations} iterations of {BATCH}, {how}")
    print(f"{'':>12} {'workers':>8} {'first':>9} {'last':>9} {'apart':>9} {'test error':>11}")
    results = []
    for text in settings.strategies:
        parts = json.loads(text) if text.startswith("{") else {"recipe": text}
        strategy = from_plain(parts)
        recipe = parts.pop("recipe")
        name = " ".join([recipe, *(f"{part}={value}" for part, value in parts.items())])
        first = None
        for workers in settings.workers:
            points, metrics = curve(settings, strategy, workers, data, test)
            losses, reached = np.array([loss for _, loss in points]), [at for at, _ in points]
            first = losses if first is None else first
            is_line = text == "all_reduce" and settings.engine == "simulate"
            apart = f"{np.abs(losses / first - 1).max():9.1e}" if is_line else " " * 9
            last = losses[np.array(reached) > 0.98 * reached[-1]].mean()
            print(
                f"{name:>12} {workers:8d} {losses[0]:9.4f} {last:9.4f} {apart}"
                f" {metrics['error']:11.2%}",
                flush=True,
            )
            results.append(
                {"strategy": name, "workers": workers, "curve": [*map(list, thinned(points))]}
            )
            if settings.keep:
                Path(settings.keep).write_text(json.dumps(results))


if __name__ == "__main__":
    begin("--iterations", "2", "--workers", "1", "2")
    main()
