"""How long a run takes from the call to its first round, cold and warm: on Spark, or in processes.

    python benchmarks/launch.py [workers] [--local]

The first run in an application pays for the Python workers and what they import; those after it
find them warm. On Spark the rows lie in a table in memory, as a user's DataFrame may. With --local
the workers are processes of this machine, without Spark.
"""

from __future__ import annotations

import secrets
import sys
import time
from dataclasses import dataclass, field

import numpy as np
from machine import begin

from photinus.core.clock import Steps
from photinus.core.events import Event, PhaseStarted, RoundClosed
from photinus.engine.base import ArrayData, Engine, RunSpec
from photinus.engine.local.engine import LocalEngine
from photinus.engine.spark.engine import FrameData, SparkEngine, frame_of
from photinus.engine.spark.session import spark_session
from photinus.models.logistic import LogisticConfig
from photinus.strategies.recipes import averaging
from photinus.training.plan import Phase, TrainingPlan

ROWS, FEATURES, CLASSES, RUNS = 4_000, 784, 10, 4


@dataclass
class Watch:
    """Notes when things happened first, in seconds since it was made."""

    began: float = field(default_factory=time.perf_counter)
    at: dict[str, float] = field(default_factory=dict)

    def emit(self, event: Event) -> None:
        """Takes one event in."""
        names = {PhaseStarted: "workers seated", RoundClosed: "first round"}
        if type(event) in names:
            self.note(names[type(event)])

    def note(self, name: str) -> None:
        """Keeps the first time of a name."""
        self.at.setdefault(name, time.perf_counter() - self.began)

    def __str__(self) -> str:
        return "   ".join(f"{name} {seconds:5.2f} s" for name, seconds in self.at.items())


def main(workers: int, *, is_local: bool) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (ROWS, FEATURES)).astype(np.uint8)
    config = LogisticConfig(
        features=FEATURES, classes=CLASSES, epochs=1.0, batch_size=100 * workers
    )
    strategy = averaging(every=Steps(5), codec="fp32")
    plan = TrainingPlan(phases=(Phase(config=config, strategy=strategy),), workers=workers)
    data = ArrayData(pixels, rng.integers(0, CLASSES, ROWS))
    if is_local:
        runs(LocalEngine(), data, plan)
        return
    watch = Watch()
    spark = spark_session(workers, name="launch")
    watch.note("session")
    print(f"session   {watch}", flush=True)
    frame = frame_of(spark, [data.part(plan, slot) for slot in range(workers)]).cache()
    frame.count()
    rows = FrameData(frame=frame, features="features", label="label", scale=1 / 255)
    runs(SparkEngine(spark), rows, plan)
    spark.stop()


def runs(engine: Engine, rows: ArrayData | FrameData, plan: TrainingPlan) -> None:
    """Prints a line for each run."""
    for run in range(RUNS):
        watch = Watch()
        engine.run(RunSpec(plan=plan, data=rows, run=secrets.token_bytes(16), emit=watch.emit))
        watch.note("end")
        print(f"{'warm' if run else 'cold':10}{watch}", flush=True)


if __name__ == "__main__":
    begin("2")
    numbers = [int(word) for word in sys.argv[1:] if word.isdigit()]
    main(*(numbers or [4]), is_local="--local" in sys.argv)
