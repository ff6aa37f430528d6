"""An urgent run beside one that holds all slots: how soon it trains, and what the other one pays.

    python benchmarks/priorities.py [--tries 5] [--slots 4] [--epochs 400] [--small]

Both are runs of one application on a local Spark. The first one holds all slots. The urgent one
asks for all of them, and ends. A table tells the seconds from its start to its first round, those
from its end to the next round of the other one, and whether that one used all its rows. A start on
free slots is measured beside it.
"""

from __future__ import annotations

import argparse
import logging
import os
import threading
import time
from dataclasses import dataclass, field

import numpy as np
from machine import begin

from photinus.core.clock import Steps
from photinus.core.events import Event, PhaseEnded, RoundClosed
from photinus.engine.base import ArrayData, RunSpec
from photinus.engine.seat_sharing import Urgency
from photinus.engine.spark.engine import SparkEngine
from photinus.engine.spark.session import spark_session
from photinus.models.logistic import LogisticConfig
from photinus.strategies.recipes import averaging
from photinus.training.plan import Phase, TrainingPlan

ROWS, WIDTH = 4000, 50


@dataclass
class Run:
    """One run, in a thread of its own."""

    engine: SparkEngine
    workers: int
    epochs: float
    priority: int = 0
    rounds: list[float] = field(default_factory=list)
    passes: dict[str, float] = field(default_factory=dict)
    is_quick: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Starts it."""
        self.began, self.thread = time.monotonic(), threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        rng = np.random.default_rng(0)
        rows = ArrayData(rng.random((ROWS, WIDTH), dtype=np.float32), rng.integers(0, 3, ROWS))
        config = LogisticConfig(features=WIDTH, classes=3, epochs=self.epochs, batch_size=32)
        recipe = averaging(every=Steps(25), gradients_until=0.0)
        plan = TrainingPlan(phases=(Phase(config=config, strategy=recipe),), workers=self.workers)
        urgency = Urgency(priority=self.priority)
        run = os.urandom(16)
        self.engine.run(RunSpec(plan=plan, data=rows, run=run, emit=self._note, urgency=urgency))
        self.ended = time.monotonic()

    def _note(self, event: Event) -> None:
        if isinstance(event, RoundClosed):
            self.rounds.append(time.monotonic())
            self.is_quick.set()
        if isinstance(event, PhaseEnded):
            self.passes = dict(event.passes)


def tried(engine: SparkEngine, options: argparse.Namespace) -> tuple[float, float, float, bool]:
    """Returns seconds to the first round alone, beside another run, and of that one afterwards.

    Last, whether the other one has used each row as often as it was asked to.
    """
    alone = Run(engine, options.slots, 2.0)
    alone.start()
    alone.thread.join()
    second = Run(engine, options.slots, options.epochs)
    second.start()
    second.is_quick.wait()
    urgent = Run(engine, options.slots, 2.0, priority=1)
    urgent.start()
    urgent.thread.join()
    second.thread.join()
    if second.ended < urgent.ended:
        raise SystemExit("the other run ended first: give --epochs more")
    back = min((at for at in second.rounds if at > urgent.ended), default=urgent.ended)
    is_whole = set(second.passes.values()) == {options.epochs}
    first, beside = alone.rounds[0] - alone.began, urgent.rounds[0] - urgent.began
    return first, beside, back - urgent.ended, is_whole


def main() -> None:
    """Prints a row for each try."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--epochs", type=float, default=400.0)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    spark = spark_session(options.slots, name="priorities")
    warm = Run(SparkEngine(spark), options.slots, 1.0)  # Python workers start, libraries are loaded
    warm.start()
    warm.thread.join()
    print("try | alone | urgent | the other back | all rows used\n--- | --- | --- | --- | ---")
    for number in range(options.tries):
        alone, beside, back, is_whole = tried(SparkEngine(spark), options)
        seconds = " | ".join(f"{value:.1f} s" for value in (alone, beside, back))
        print(f"{number + 1} | {seconds} | {'yes' if is_whole else 'NO'}", flush=True)
    spark.stop()


if __name__ == "__main__":
    begin("--tries", "1", "--slots", "2", "--epochs", "200")
    main()
