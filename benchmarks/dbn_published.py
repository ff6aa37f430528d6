"""The published scheme of the deep belief network, fine-tuned in several ways.

    python benchmarks/dbn_published.py [--workers 10] [--seeds 0] [--ways NAME ...]

Every way fine-tunes the same network: layers of RBMs on raw pixels, 50 epochs of CD-1 each, the
plain average after every epoch. How the published 1.66 % was fine-tuned is not known, so each way
changes one thing. Real training of all workers in the simulator. Told are the errors on the 10,000
test images, with the 95 % interval of the first seed's; some twenty minutes of a core for the
layers of a seed, and five for each way.
"""

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from machine import begin

import photinus as ph
from photinus.data import mnist
from photinus.models.dbn import FineTuning
from photinus.report.interval import error_interval
from photinus.run.presets import preset

TEST_ROWS = 10_000


def ways(job):
    """Returns the name of each way of fine-tuning, and the job that does it."""
    tuning, model = job.model.fine_tuning, job.model
    usual = FineTuning()
    of_today = {
        "dropout_input": usual.dropout_input,
        "dropout_hidden": usual.dropout_hidden,
        "label_smoothing": usual.label_smoothing,
    }
    once = ph.iterative_reduce(every=ph.Epochs(tuning.epochs))

    def tuned(strategy=job.strategy, workers=job.workers, **changed):
        fine_tuning = replace(tuning, **changed)
        return replace(
            job,
            strategy=strategy,
            workers=workers,
            model=replace(model, fine_tuning=fine_tuning),
        )

    often = ph.averaging(every=ph.Steps(6), gradients_until=0.0)
    return {
        "as published": tuned(),
        "dropout and label smoothing": tuned(**of_today),
        "a third of the rate": tuned(lr=ph.Schedule.cosine(3e-4, warm_up=0.01)),
        "three times the rate": tuned(lr=ph.Schedule.cosine(3e-3, warm_up=0.01)),
        "small batches (50 a worker)": tuned(batch_size=50 * job.workers),
        "averaged once, at the end": tuned(once),
        "averaging every 6 steps": tuned(often),
        "all_reduce": tuned(ph.all_reduce()),
        "by one worker": tuned(workers=1, batch_size=250),
    }


def main() -> None:
    begin("--rows", "400", "--epochs", "1", "--ways", "as published", "by one worker")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=10)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--ways", nargs="+", help="some of them, by name")
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--epochs", type=float, help="of each layer and of fine-tuning")
    a = parser.parse_args()
    images = mnist.load()
    rows = ph.ArrayData(images.train_images[: a.rows], images.train_labels[: a.rows], 1 / 255)
    test = images.test_images / np.float32(255), images.test_labels
    found = {}
    for seed in a.seeds:
        with tempfile.TemporaryDirectory() as folder:
            for name, error in errors(a, seed, rows, test, Path(folder)):
                found.setdefault(name, []).append(error)
                print(f"seed {seed}, {name}: {100 * error:.2f} %", file=sys.stderr, flush=True)
    print("fine-tuning | test error of each seed, % | 95 % interval of the first, %")
    print("--- | --- | ---")
    for name, of_it in found.items():
        low, high = error_interval(round(of_it[0] * TEST_ROWS), TEST_ROWS)
        listed = ", ".join(f"{100 * error:.2f}" for error in of_it)
        print(f"{name} | {listed} | {100 * low:.2f} to {100 * high:.2f}")


def errors(a, seed, rows, test, folder):
    """Trains the layers once, then yields the name and the test error of each way."""
    job = replace(preset("mnist-dbn-published", a.workers), engine="simulate", seed=seed)
    if a.epochs:
        layers, tuning = job.model.pretraining, job.model.fine_tuning
        model = replace(
            job.model,
            pretraining=replace(layers, epochs=a.epochs),
            fine_tuning=replace(tuning, epochs=a.epochs),
        )
        job = replace(job, model=model)
    still = replace(job.model.fine_tuning, epochs=0.01, lr=0.0)  # the layers as they are
    only_layers = replace(job, model=replace(job.model, fine_tuning=still))
    start = ph.train(only_layers, rows, test=test, folder=folder / "layers", verbose=False)
    for number, (name, way) in enumerate(ways(job).items()):
        if a.ways and name not in a.ways:
            continue
        tuned = replace(way, start=str(start.folder / "model"))  # so the layers are not trained
        made = ph.train(tuned, rows, test=test, folder=folder / str(number), verbose=False)
        yield name, made.metrics["error"]


if __name__ == "__main__":
    main()
