"""Images a second of workers that agree, beside processes that know nothing of each other.

    OMP_NUM_THREADS=1 python benchmarks/scaling.py [--pairs 5]                   # the DBN
    OMP_NUM_THREADS=1 python benchmarks/scaling.py CIFAR10 --engine spark        # the CNN
    OMP_NUM_THREADS=1 python benchmarks/scaling.py CIFAR10 --engine spark --share 0.4

The limit of a machine is what unconnected processes reach together; the share of it is what
agreeing costs. One thread a worker, from the first round to the last, with feed, decoding and
augmentation. All ways take turns, so that a busy minute hits all; ratios are within a turn, their
median is printed, with the interval in which it lies by 95 % (bootstrap). The last columns are CPU
time an image, of all processes together, Spark's own included: it says what agreeing costs where
other work shares the machine. "averaging alone" has no start by gradients. `--keep` adds the turns
to a file and prints over all in it.

With `--share` 1, 2, 3 and 4 workers and the driver are each held to so much of a core (root; cgroup
v1, periods of 10 ms), as if each had a small machine of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
from machine import begin
from recipe_named import recipe_named

from photinus.core.events import Event, RoundClosed, WorkerJoined
from photinus.data import cifar, mnist
from photinus.engine.base import ArrayData, RunSpec
from photinus.engine.local.engine import LocalEngine
from photinus.models.dbn import DBN, FineTuning, Pretraining
from photinus.run.job import Job
from photinus.run.presets import preset

CGROUP = Path("/sys/fs/cgroup/cpu")
TICKS = os.sysconf("SC_CLK_TCK")
PERIOD_MICROSECONDS = 10_000  # short, so that a step of some milliseconds is not chopped unevenly
GLOO, BF16 = "all_reduce, by gloo", "bf16"
SHOWN = ["averaging alone", "averaging", "all_reduce", "all_reduce, own shards", GLOO]
"""Own shards: of every worker, so that no array passes through the driver; gloo knows no TLS. One
more is "all_reduce, own shards, bf16"."""
WEIGHT = 32 * 1024  # other work on the machine takes nothing of what was promised


def family(root: int) -> dict[int, int]:
    """Returns the ticks that a process and all below it have used so far, by process."""
    parents, spent = {}, {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            fields = place.read_text().rpartition(")")[2].split()
            pid = int(place.parent.name)
            parents[pid], spent[pid] = int(fields[1]), int(fields[11]) + int(fields[12])
    mine = {root}
    while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= more
    return {pid: spent.get(pid, 0) for pid in mine}


def cpu_seconds() -> float:
    """Returns what this process and all below it have used so far."""
    return sum(family(os.getpid()).values()) / TICKS


@dataclass
class Speed:
    """Notes rounds as (time, examples, CPU), and hands each worker's process to `join`."""

    join: Callable[[int, int], object] | None = None
    rounds: list[tuple[float, int, float]] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        """Takes in one event."""
        if isinstance(event, RoundClosed):
            if not self.rounds or monotonic() > self.rounds[-1][0] + 0.2:  # looking costs, too
                self.rounds.append((monotonic(), event.examples, cpu_seconds()))
        elif isinstance(event, WorkerJoined) and self.join is not None:
            self.join(event.slot, event.pid)


def rate(speeds: list[Speed]) -> tuple[float, float]:
    """Returns images a second and CPU seconds an image of all, while all were under way."""
    start = max(s.rounds[0][0] for s in speeds)
    end = min(s.rounds[-1][0] for s in speeds)
    images = cpu = 0.0
    for speed in speeds:
        times, examples, spent = zip(*speed.rounds, strict=True)
        images += float(np.diff(np.interp([start, end], times, examples))[0])
        cpu = float(np.diff(np.interp([start, end], times, spent))[0])  # the same for all
    return images / (end - start), cpu / images


@dataclass(frozen=True)
class Bench:
    """What is trained, and where."""

    job: Job
    data: ArrayData
    epochs: float
    spark: Any = None
    frames: dict[tuple[int, int, int], Any] = field(default_factory=dict)

    def model(self, epochs: float, workers: int) -> Any:
        """Returns the job's model for so many epochs; its batch is that of each worker."""
        model = self.job.model
        if isinstance(model, DBN):
            batch = model.fine_tuning.batch_size * workers
            tuning = replace(model.fine_tuning, epochs=epochs, batch_size=batch)
            return replace(model, fine_tuning=tuning)
        return replace(model, epochs=epochs, batch_size=model.batch_size * workers)

    def start(self, data: ArrayData, workers: int, recipe: str, speed: Speed, **where: Any) -> None:
        """Trains, with `speed` listening; `where`: security, epochs."""
        model = self.model(where.get("epochs", self.epochs), workers)
        name, *words = recipe.split(", ")
        parts = {"owners": workers} if words else {}
        strategy = recipe_named(name, **parts, **{"codec": BF16} if BF16 in words else {})
        job = replace(self.job, model=model, workers=workers, strategy=strategy)
        plan = job.plan()
        spec = RunSpec(
            plan=plan,
            data=data,
            run=secrets.token_bytes(16),
            emit=speed,
            security=where.get("security", "tls"),
            transport="torch" if recipe == GLOO else "sockets",
        )
        if self.spark is None:
            LocalEngine().run(spec)
            return
        from photinus.engine.spark.engine import SparkEngine

        SparkEngine(self.spark).run(replace(spec, data=self._framed(plan, data)))

    def _framed(self, plan: Any, data: ArrayData) -> Any:
        from photinus.engine.spark.engine import FrameData, frame_of

        key = plan.workers, len(data.features), data.features.ctypes.data
        if key not in self.frames:
            parts = [data.part(plan, slot) for slot in range(plan.workers)]
            self.frames[key] = frame_of(self.spark, parts).cache()
            self.frames[key].count()
        return FrameData(
            frame=self.frames[key], features="features", label="label", scale=data.scale
        )

    def together(self, workers: int, recipe: str, security: str = "tls") -> tuple[float, float]:
        """Returns images a second of workers that agree."""
        speed = Speed()
        self.start(self.data, workers, recipe, speed, security=security)
        return rate([speed])

    def alone(self) -> tuple[float, float]:
        """Returns images a second of one worker, in half the steps."""
        speed = Speed()
        self.start(self.data, 1, "averaging", speed, epochs=self.epochs / 2)
        return rate([speed])

    def unconnected(self, enter: Callable[[int, int], object] | None = None) -> tuple[float, float]:
        """Returns what two workers that do not talk reach side by side, each on its half."""
        half = len(self.data.features) // 2
        speeds, threads = [], []
        for slot, part in enumerate((slice(half), slice(half, 2 * half))):
            rows = replace(
                self.data, features=self.data.features[part], labels=self.data.labels[part]
            )
            seat = enter and (lambda _, pid, slot=slot: enter(slot, pid))
            speeds.append(Speed(join=seat))
            arguments = (rows, 1, "averaging", speeds[slot])
            threads.append(threading.Thread(target=self.start, args=arguments))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return rate(speeds)

    def limited(self, workers: int, recipe: str, cores: float) -> tuple[float, float]:
        """Returns images a second of workers held to so much of a core each."""
        with shares(workers, cores) as enter:
            speed = Speed(join=enter)
            if recipe == "unconnected":
                return replace(self, epochs=self.epochs * workers).unconnected(enter)
            self.start(self.data, workers, recipe, speed, epochs=self.epochs * workers)
        return rate([speed])


@contextmanager
def shares(workers: int, cores: float) -> Iterator[Callable[[int, int], object]]:
    """Makes a small machine for each worker and one for the driver; yields what seats a worker."""
    folders = [CGROUP / f"photinus-{os.getpid()}-{slot}" for slot in range(workers + 1)]

    def enter(slot: int, pid: int) -> None:
        (folders[slot] / "cgroup.procs").write_text(str(pid))

    for folder in folders:
        folder.mkdir()
        (folder / "cpu.cfs_period_us").write_text(str(PERIOD_MICROSECONDS))
        (folder / "cpu.cfs_quota_us").write_text(str(int(cores * PERIOD_MICROSECONDS)))
        (folder / "cpu.shares").write_text(str(WEIGHT))
    try:
        enter(workers, os.getpid())
        yield enter
    finally:
        for folder in folders:
            for pid in (folder / "cgroup.procs").read_text().split():
                (CGROUP / "cgroup.procs").write_text(pid)
            folder.rmdir()


def plain_torch(folder: str) -> tuple[float, float]:
    """Returns the same of plain PyTorch, in a process of its own, without Spark."""
    code = (
        "import sys, time, torch; sys.path.insert(0, sys.argv[1]); import cnn\n"
        "from photinus.data.arrays import FeedOrder, PartitionFeed\n"
        "torch.set_num_threads(1)\n"
        "way = cnn.Plain(PartitionFeed(cnn.pictures(sys.argv[2]), FeedOrder(batch_size=128)))\n"
        "way.step(); start, cpu = time.monotonic(), time.process_time()\n"
        "for _ in range(10): way.step()\n"
        "print(1280 / (time.monotonic() - start), (time.process_time() - cpu) / 1280)"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parent), folder]
    words = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(words[0]), float(words[1])


def interval(ratios: list[float]) -> tuple[float, float]:
    """Returns where the median lies by 95 %, by bootstrap."""
    drawn = np.random.default_rng(0).choice(ratios, (4000, len(ratios)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return float(low), float(high)


def table(turns: list[dict[str, list[float]]], limit: str) -> None:
    """Prints a line for each way."""
    print(
        f"{len(turns)} turns | images/s | of {limit} | 95 % | CPU ms an image | of {limit} | 95 %"
    )
    print("--- | --- | --- | --- | --- | --- | ---")
    for name in turns[0]:
        cells = [name]
        for part, scale in ((0, 1.0), (1, 1e3)):
            ratios = [turn[name][part] / turn[limit][part] for turn in turns]
            low, high = interval(ratios)
            middle = scale * statistics.median(turn[name][part] for turn in turns)
            cells.append(f"{middle:,.{3 * part}f}")
            cells += [f"{statistics.median(ratios):.3f}", f"{low:.3f} to {high:.3f}"]
        print(" | ".join(cells))


def bench(a: argparse.Namespace) -> Bench:
    """Returns what was asked for."""
    most = 4 if a.share else 2
    spark = None
    if a.engine == "spark":
        from photinus.engine.spark.session import spark_session

        spark = spark_session(most, name="scaling")
    if a.cifar10 is None:
        images = mnist.load()
        model = DBN(pretraining=Pretraining(epochs=0.0), fine_tuning=FineTuning(batch_size=100))
        data = ArrayData(images.train_images, images.train_labels, 1 / 255)
        return Bench(Job(model=model).resolved(), data, a.epochs, spark)
    job = preset("cifar10", 1)
    # said, not measured: two ways must not choose differently
    fixed = {"precision": a.precision, "memory": "channels_last", "batch_size": a.batch}
    job = replace(job, model=replace(job.model, **fixed))
    images, labels = cifar.load(a.cifar10)
    return Bench(job, ArrayData(images, labels), a.epochs, spark)


def ways(b: Bench, a: argparse.Namespace) -> dict[str, Callable[[], tuple[float, float]]]:
    """Returns how images a second are measured, by name; the first is the limit."""
    if a.share:
        pairs = [(recipe, workers) for recipe in a.recipes for workers in a.workers]
        return {
            f"{recipe}, {workers} at {a.share:g}": lambda r=recipe, w=workers: b.limited(
                w, r, a.share
            )
            for recipe, workers in [*pairs, ("unconnected", 2)]
        }
    named: dict[str, Callable[[], tuple[float, float]]] = {"two unconnected": b.unconnected}
    for recipe in (r for r in a.recipes if r != GLOO):
        named[recipe] = lambda r=recipe: b.together(2, r)
    for recipe in a.recipes:
        if recipe.startswith("all_reduce"):
            named[f"{recipe}, in clear"] = lambda r=recipe: b.together(2, r, "none")
    named["one worker"] = b.alone
    if a.cifar10:
        named["plain PyTorch, alone"] = lambda: plain_torch(a.cifar10)
    return named


def main() -> None:
    """Prints medians over the turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cifar10", nargs="?", help="a folder with CIFAR-10; else the DBN's MNIST")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--engine", choices=("local", "spark"), default="local")
    parser.add_argument("--recipes", nargs="+", default=SHOWN)
    parser.add_argument("--batch", type=int, default=128, help="of each worker of the CNN")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--share", type=float, default=0.0, help="of a core, for each worker")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 3, 4], help="so held")
    parser.add_argument("--keep", help="a file of turns")
    a = parser.parse_args()
    file = Path(a.keep) if a.keep else None
    turns = json.loads(file.read_text()) if file and file.exists() else []
    b = bench(a)
    measured = ways(b, a)
    for _ in range(a.pairs):
        turn = {}
        for name, measure in measured.items():
            turn[name] = measure()
            print(f"{name}: {turn[name][0]:,.0f} images/s", flush=True)
        turns.append(turn)
        if file:
            file.write_text(json.dumps(turns))
    print(f"load {os.getloadavg()[0]:.1f}, batch {a.batch}, {a.precision}")
    if turns:
        table(turns, next(iter(measured)))
    if b.spark is not None:
        b.spark.stop()


if __name__ == "__main__":
    begin("--pairs", "1", "--epochs", "0.4")
    main()
