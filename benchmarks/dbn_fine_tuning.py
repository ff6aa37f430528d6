"""A deep belief network's fine-tuning in several ways, each from the same pre-trained layers.

    python benchmarks/dbn_fine_tuning.py [--workers 10] [--seeds 0] [--ways NAME ...]
    python benchmarks/dbn_fine_tuning.py --preset mnist-dbn --held-out 10000

Each way changes one thing of the job. How the published 1.66 % was fine-tuned is not known, so
"mnist-dbn-published" tries several. All workers train, in the simulator. It prints the errors on
the 10,000 test images, and the 95 % interval of the first seed's. With `--held-out N` the last N
training images take their place, and are not trained on. The layers of a seed take some twenty
minutes of a core, and each way five.
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


def ways(job):
    """Returns the name of each way of fine-tuning, and the job that does it."""
    if job.name == "mnist-dbn":
        return ways_today(job)
    tuning = job.model.fine_tuning
    usual = FineTuning(epochs=60.0)
    of_today = {
        "dropout_input": usual.dropout_input,
        "dropout_hidden": usual.dropout_hidden,
        "label_smoothing": usual.label_smoothing,
    }
    once = ph.iterative_reduce(every=ph.Epochs(tuning.epochs))
    often = ph.averaging(every=ph.Steps(6), gradients_until=0.0)
    return {
        "as published": job,
        "dropout and label smoothing": tuned(job, **of_today),
        "a third of the rate": tuned(job, lr=ph.Schedule.cosine(3e-4, warm_up=0.01)),
        "three times the rate": tuned(job, lr=ph.Schedule.cosine(3e-3, warm_up=0.01)),
        "small batches (50 a worker)": tuned(job, batch_size=50 * job.workers),
        "averaged once, at the end": replace(job, strategy=once),
        "averaging every 6 steps": replace(job, strategy=often),
        "all_reduce": replace(job, strategy=ph.all_reduce()),
        "by one worker": replace(tuned(job, batch_size=250), workers=1),
    }


def ways_today(job):
    """Returns the ways of the job of today."""
    usual = FineTuning(epochs=60.0)
    half = ph.Schedule.cosine(1e-3, warm_up=0.01)
    smoothed = {"dropout_hidden": usual.dropout_hidden, "label_smoothing": usual.label_smoothing}
    at_half = tuned(job, lr=half)
    return {
        "at half the rate, with label smoothing and less dropout": tuned(at_half, **smoothed),
        "at half the rate, less dropout": tuned(at_half, dropout_hidden=usual.dropout_hidden),
        "at half the rate": at_half,
        "as it is": job,
        "at twice the rate": tuned(job, lr=ph.Schedule.cosine(4e-3, warm_up=0.01)),
        "the rate falls in the last fifth": tuned(job, lr=ph.Schedule.usual(2e-3, warm_up=0.01)),
    }


def tuned(job, **changed):
    """Returns the job with other settings of its fine-tuning."""
    fine_tuning = replace(job.model.fine_tuning, **changed)
    return replace(job, model=replace(job.model, fine_tuning=fine_tuning))


def main() -> None:
    begin("--rows", "400", "--epochs", "1", "--ways", "as published", "by one worker")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="mnist-dbn-published")
    parser.add_argument("--workers", type=int, default=10)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--ways", nargs="+", help="some of them, by name")
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--held-out", type=int, default=0, help="test on the last training rows")
    parser.add_argument("--epochs", type=float, help="of each layer and of fine-tuning")
    a = parser.parse_args()
    images = mnist.load()
    trained = min(a.rows, len(images.train_images) - a.held_out)
    rows = ph.ArrayData(images.train_images[:trained], images.train_labels[:trained], 1 / 255)
    test = images.test_images / np.float32(255), images.test_labels
    if a.held_out:
        validation = slice(-a.held_out, None)
        test = images.train_images[validation] / np.float32(255), images.train_labels[validation]
    results = {}
    for seed in a.seeds:
        with tempfile.TemporaryDirectory() as folder:
            for name, error in errors(a, seed, rows, test, Path(folder)):
                results.setdefault(name, []).append(error)
                print(f"seed {seed}, {name}: {100 * error:.2f} %", file=sys.stderr, flush=True)
    print("fine-tuning | test error of each seed, % | 95 % interval of the first, %")
    print("--- | --- | ---")
    for name, of_it in results.items():
        low, high = error_interval(round(of_it[0] * len(test[1])), len(test[1]))
        listed = ", ".join(f"{100 * error:.2f}" for error in of_it)
        print(f"{name} | {listed} | {100 * low:.2f} to {100 * high:.2f}")


def errors(a, seed, rows, test, folder):
    """Trains the layers once, then yields the name and the test error of each way."""
    job = replace(preset(a.preset, a.workers), engine="simulate", seed=seed)
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
        outcome = ph.train(tuned, rows, test=test, folder=folder / str(number), verbose=False)
        yield name, outcome.metrics["error"]


if __name__ == "__main__":
    main()
