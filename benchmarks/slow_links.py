"""Seconds until the same loss on a shaped link: rounds, the default, and every step.

    sudo python benchmarks/slow_links.py [--rates 100mbit 10mbit]

Two worker processes and the driver in a network namespace whose loopback carries no more than the
rate (Linux, `unshare`, `tc`, root). A perceptron 784-100-10 on MNIST, encrypted links, real time.
"averaging alone" has no start by gradients, which takes the whole of so short a training otherwise.
"""

from __future__ import annotations

import argparse
import json
import secrets
import shutil
import subprocess
import sys
from time import monotonic

from machine import begin, cannot
from recipe_named import recipe_named

from photinus.core.events import Event, PhaseStarted, RoundClosed
from photinus.data import mnist
from photinus.engine.base import ArrayData, RunSpec
from photinus.engine.local.engine import LocalEngine
from photinus.models.dbn import DBN, FineTuning, Pretraining
from photinus.run.job import Job

WORKERS, TARGET = 2, 1.7
STRATEGIES = ("averaging alone", "averaging", "all_reduce")


class Watch:
    """Notes when the loss of training first went below the target."""

    def __init__(self) -> None:
        self.began = self.reached = self.ended = float("nan")
        self.bytes, self.loss = 0, float("nan")

    def __call__(self, event: Event) -> None:
        """Takes in one event."""
        if isinstance(event, PhaseStarted):
            self.began = monotonic()
        if isinstance(event, RoundClosed):
            self.ended = monotonic() - self.began
            self.bytes += event.bytes_up + event.bytes_down
            self.loss = event.metrics.get("loss", self.loss)
            if self.loss < TARGET and self.reached != self.reached:  # still NaN
                self.reached = self.ended


def run(recipe: str, epochs: float) -> dict[str, float]:
    """Trains here; returns what was noted."""
    images = mnist.load()
    data = ArrayData(images.train_images, images.train_labels, 1 / 255)
    model = DBN(
        hidden=(100,),
        pretraining=Pretraining(epochs=0.0),
        fine_tuning=FineTuning(epochs=epochs, batch_size=50 * WORKERS, dropout_hidden=(0.0,)),
        precision="mkl",
    )
    job = Job(model=model, workers=WORKERS, strategy=recipe_named(recipe))
    plan = job.plan()
    watch = Watch()
    LocalEngine().run(RunSpec(plan=plan, data=data, run=secrets.token_bytes(16), emit=watch))
    return {
        "reached": watch.reached,
        "ended": watch.ended,
        "bytes": watch.bytes,
        "loss": watch.loss,
    }


def shaped(rate: str, recipe: str, epochs: float) -> dict[str, float]:
    """Runs this script again where loopback has that rate."""
    script = (
        'ip link set lo up && tc qdisc add dev lo root tbf rate "$1" burst 256k latency 2s'
        ' && shift && exec "$@"'
    )
    again = [sys.executable, __file__, "--one", recipe, "--epochs", str(epochs)]
    command = ["unshare", "-n", "bash", "-c", script, "shaped", rate, *again]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        cannot(f"a shaped link needs Linux, root and tc; got {process.stderr.strip()[-300:]}")
    return json.loads(process.stdout.splitlines()[-1])


def main() -> None:
    """Prints a line for each rate and strategy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rates", nargs="+", default=["100mbit", "10mbit"])
    parser.add_argument("--epochs", type=float, default=0.3)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.one:
        print(json.dumps(run(a.one, a.epochs)))
        return
    if not all(shutil.which(tool) for tool in ("unshare", "tc", "ip")):
        cannot("a shaped link needs Linux with unshare, ip and tc")
    print(f"link | strategy | seconds to a loss of {TARGET} | seconds in all | MB | last loss")
    print("--- | --- | --- | --- | --- | ---")
    for rate in a.rates:
        for recipe in STRATEGIES:
            result = shaped(rate, recipe, a.epochs)
            times = f"{result['reached']:.1f} | {result['ended']:.1f}"
            print(
                f"{rate} | {recipe} | {times} | {result['bytes'] / 1e6:.1f} | {result['loss']:.3f}"
            )


if __name__ == "__main__":
    begin("--rates", "100mbit", "--epochs", "0.02")
    main()
