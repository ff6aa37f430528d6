"""Four workers on local Spark, one of them four times slower: what is kept of their summed speed.

    OMP_NUM_THREADS=1 python benchmarks/slowed.py [--seconds 20] [--cores 0.3]

Every worker's process is held to a share of a core by the system (a quota of its control group),
so that nobody can use what the slow one leaves. What each makes alone is measured first; 100 % is
three fast ones and the slow one, none waiting for another. Speeds are those of `share="fastest"`,
where a way knows it; the last column is of `share="rows"`, the default: for how much of the time
the three fast ones wait, in rounds or done with their rows. All begin without a part by gradients.
Needs root and the cpu controller of cgroups v1; leaves no group behind.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from machine import begin, cannot
from pyspark.sql import SparkSession

from photinus.core.clock import Seconds, Steps
from photinus.core.events import Event, PhaseStarted, RoundClosed, WorkerJoined, WorkerReport
from photinus.data import mnist
from photinus.engine.base import ArrayData, RunSpec
from photinus.engine.spark.engine import FrameData, SparkEngine, frame_of
from photinus.engine.spark.session import spark_session
from photinus.models.dbn import DBN, FineTuning, Pretraining
from photinus.run.job import Job
from photinus.strategies.recipes import all_reduce, averaging, downpour, gossip, publish
from photinus.strategies.spec import StrategySpec

GROUPS = Path("/sys/fs/cgroup/cpu")
PERIOD_MICROSECONDS = 20_000
"""Short, so that a step of some milliseconds is not chopped unevenly."""
WORKERS, SLOWED, ROWS, WARM_SECONDS = 4, 4.0, 12_000, 3.0
WAYS: Mapping[str, StrategySpec] = {
    "rounds of 1 second": averaging(every=Seconds(1.0), gradients_until=0),
    "rounds of 50 steps, quorum of 3": averaging(every=Steps(50), quorum=3, gradients_until=0),
    "downpour": downpour(gradients_until=0),
    "publish": publish(gradients_until=0),
    "gossip": gossip(gradients_until=0),
    "rounds of 50 steps": averaging(every=Steps(50), gradients_until=0),
    "every step": all_reduce(codec="bf16"),
}


@dataclass
class Shares:
    """Control groups, one a worker: `cores` of a core for each, the last one's less."""

    cores: Sequence[float]
    name: str = field(default_factory=lambda: f"photinus-{secrets.token_hex(4)}")

    def __enter__(self) -> Shares:
        for slot, cores in enumerate(self.cores):
            group = self.group(slot)
            group.mkdir()
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_MICROSECONDS))
            quota = round(cores * PERIOD_MICROSECONDS)
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        return self

    def group(self, slot: int) -> Path:
        """Returns the folder of a worker's group."""
        return GROUPS / f"{self.name}-{slot}"

    def take(self, slot: int, pid: int) -> None:
        """Holds a process, with all its threads, to a worker's share."""
        (self.group(slot) / "cgroup.procs").write_text(str(pid))

    def release(self) -> None:
        """Lets all processes go: they begin the next run at full speed."""
        for slot in range(len(self.cores)):
            for pid in (self.group(slot) / "cgroup.procs").read_text().split():
                with suppress(ProcessLookupError):
                    (GROUPS / "cgroup.procs").write_text(pid)

    def __exit__(self, *error: object) -> None:
        self.release()
        for slot in range(len(self.cores)):
            self.group(slot).rmdir()


@dataclass
class Watch:
    """Seats workers in their groups, and notes how many examples are in what was agreed."""

    shares: Shares
    first_slot: int
    rounds: list[tuple[float, int]] = field(default_factory=list)
    reports: dict[int, WorkerReport] = field(default_factory=dict)
    """Slot -> what it said of itself last."""
    began: float = 0.0

    def __call__(self, event: Event) -> None:
        """Takes in one event."""
        if isinstance(event, WorkerJoined):
            self.shares.take(event.slot + self.first_slot, event.pid)
        if isinstance(event, PhaseStarted):
            self.began = monotonic()
        if isinstance(event, RoundClosed):
            self.rounds.append((monotonic(), event.examples))
        if isinstance(event, WorkerReport):
            self.reports[event.slot] = event

    def speed(self, seconds: float) -> float | None:
        """Returns examples a second, for so long from the end of the warm-up; None if too short."""
        began = self.rounds[0][0] + WARM_SECONDS
        rounds = [r for r in self.rounds if began <= r[0] <= began + seconds]
        if len(rounds) < 2 or self.rounds[-1][0] < began + seconds / 2:
            return None
        (first, before), (last, after) = rounds[0], rounds[-1]
        return (after - before) / (last - first)

    def wait(self) -> float:
        """Returns for which share of the time the fast ones waited, each with a part of the rows.

        A worker's work takes its examples times the seconds that each took it; the rest is wait.
        """
        seconds, examples = self.rounds[-1][0] - self.began, self.rounds[-1][1] / WORKERS
        fast = [self.reports[slot] for slot in range(WORKERS - 1)]
        busy = [examples * report.compute_seconds / report.examples for report in fast]
        return 1.0 - sum(busy) / len(busy) / seconds


@dataclass
class Bench:
    """A Spark of so many tasks, and rows for them."""

    spark: SparkSession
    shares: Shares

    def watched(self, strategy: StrategySpec, examples: float, slots: range, share: str) -> Watch:
        """Trains for so many examples; returns what was seen."""
        images, workers = mnist.load(), len(slots)
        data = ArrayData(images.train_images[:ROWS], images.train_labels[:ROWS])
        model = DBN(
            hidden=(500, 500),
            pretraining=Pretraining(epochs=0.0),
            fine_tuning=FineTuning(
                epochs=examples / ROWS, batch_size=100 * workers, dropout_hidden=(0.0, 0.0)
            ),
        )
        job = Job(model=model, workers=workers, strategy=strategy, share=share).resolved()
        plan = job.plan()
        frame = frame_of(self.spark, [data.part(plan, slot) for slot in range(workers)])
        rows = FrameData(frame=frame, features="features", label="label", scale=1 / 255)
        watch = Watch(self.shares, slots.start)
        run = secrets.token_bytes(16)
        SparkEngine(self.spark).run(RunSpec(plan=plan, data=rows, run=run, emit=watch))
        self.shares.release()
        return watch

    def alone(self, slot: int, examples: float, seconds: float = 10.0) -> float:
        """Returns how many examples a second a worker makes alone, in that slot's group.

        Args:
            slot: whose group.
            examples: to begin with; four times as many again while that was too short.
            seconds: of the window.
        """
        while True:
            way = averaging(every=Seconds(1.0))
            speed = self.watched(way, examples, range(slot, slot + 1), "rows").speed(seconds)
            if speed is not None:
                return speed
            examples *= 4


def main() -> None:
    """Prints what each makes alone, then a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--cores", type=float, default=0.3, help="of a worker that is not slowed")
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=list(WAYS))
    a = parser.parse_args()
    if not (GROUPS / "cpu.cfs_quota_us").parent.exists() or not (GROUPS / "cgroup.procs").exists():
        cannot(f"no cpu controller of cgroups v1 at {GROUPS}")
    if a.cores / SLOWED * PERIOD_MICROSECONDS < 1000:
        sys.exit("a group gets at least a millisecond of each period: give --cores more")
    spark = spark_session(WORKERS, name="slowed")
    with Shares([a.cores] * (WORKERS - 1) + [a.cores / SLOWED]) as shares:
        bench, guess = Bench(spark, shares), 60_000 * a.cores
        fast, slow = bench.alone(0, guess), bench.alone(WORKERS - 1, guess / SLOWED)
        whole = (WORKERS - 1) * fast + slow
        print(f"alone: {fast:,.0f} and {slow:,.0f} examples/s; all together {whole:,.0f}")
        print("way | examples/s | of the summed speed | rows equally often: the fast ones wait")
        print("--- | --- | --- | ---", flush=True)
        for name in a.ways:
            strategy, began = WAYS[name], monotonic()
            # fixed shares go at the pace of the slow one
            examples = WORKERS * slow * (WARM_SECONDS + a.seconds)
            fixed = bench.watched(strategy, examples, range(WORKERS), "rows")
            free = fixed
            if not strategy.is_deterministic:
                examples = whole * (WARM_SECONDS + a.seconds)
                free = bench.watched(strategy, examples, range(WORKERS), "fastest")
            speed = free.speed(a.seconds)
            if speed is None:
                sys.exit(f"too few rounds within {a.seconds:g} s: give --seconds more")
            print(f"{name} | {speed:,.0f} | {speed / whole:.0%} | {fixed.wait():.0%}", flush=True)
            print(f"  ({monotonic() - began:.0f} s)", file=sys.stderr)
        spark.stop()


if __name__ == "__main__":
    begin("--seconds", "10", "--ways", "downpour")
    main()
