"""Sharded tables whose owners differ in speed: how long a run takes, and its error.

    python benchmarks/uneven_owners.py [--seconds .01 .01 .08] [--events 20000] [--users 2000]
        [--passes 6]

The simulator trains the module of `sharded_embedding.py`; each worker takes so many seconds for a
step, and a faster one trains on more rows. Rounds of as many steps of all wait for the slowest.
Rounds in seconds end for all at once. By `downpour` each worker pushes after steps of its own. The
seconds are those of the simulator. They do not depend on this machine.
"""

from __future__ import annotations

import argparse
import tempfile

from machine import begin
from sharded_embedding import BATCH, TESTED, events

from photinus.core.clock import Seconds, Steps
from photinus.engine.base import ArrayData
from photinus.engine.simulation.cluster import SimulatedCluster
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.models.module import ModuleConfig
from photinus.report.ledger import audit
from photinus.run.data import TestRows
from photinus.run.job import Job
from photinus.run.train import train
from photinus.strategies.recipes import averaging, downpour

ROUND_STEPS = 16


def main() -> None:
    """Trains by each strategy, and prints a line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, nargs="+", default=[0.01, 0.01, 0.08])
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--users", type=int, default=2_000)
    parser.add_argument("--passes", type=float, default=6.0)
    options = parser.parse_args()
    round_seconds = ROUND_STEPS * min(options.seconds)
    strategies = {
        f"rounds of {ROUND_STEPS} steps": averaging(every=Steps(ROUND_STEPS), gradients_until=0.0),
        f"rounds of {round_seconds:g} s": averaging(
            every=Seconds(round_seconds), gradients_until=0.0
        ),
        "downpour": downpour(gradients_until=0.0),
    }
    for name, strategy in strategies.items():
        engine = SimulatedEngine(SimulatedCluster(step_seconds=tuple(options.seconds)))
        job = Job(
            model=ModuleConfig(
                module="sharded_embedding:Scores",
                arguments={"users": options.users, "dims": 16, "sharded": True},
                batch_size=BATCH,
                epochs=options.passes,
                lr=0.01,
            ),
            workers=len(options.seconds),
            engine="simulate",
            strategy=strategy,
            share="fastest",
        )
        with tempfile.TemporaryDirectory() as folder:
            outcome = train(
                job,
                ArrayData(*events(options.events, options.users, 0)),
                test=TestRows(*events(TESTED, options.users, 1)),
                folder=f"{folder}/run",
                engine=engine,
                verbose=False,
            )
            offences = audit(f"{folder}/run/ledger.jsonl").offences
        shown = f"{engine.seconds:.1f} s, error {100 * outcome.metrics['error']:.2f} %"
        print(f"{name}: {shown}, audit {offences or 'exact'}", flush=True)


if __name__ == "__main__":
    begin("--events", "2000", "--users", "100", "--passes", "1")
    main()
