"""What a driver and its workers grow by: memory, descriptors and threads over ten minutes.

    python benchmarks/growth.py [seconds] [plain | faults | spark] [--small]

Two worker processes train softmax regression in short rounds, hundreds a second; with `faults` one
of them is killed, frozen or cut off every 20 s, and comes back; with `spark` they are tasks of a
local Spark, whose Java process is looked at, too. The run is ended by SIGTERM. All
/proc knows of the driver and its workers is looked at every few seconds; what is there in the last
fifth of the time is compared with the second fifth, as the first still fills caches. A worker that
was killed begins anew: only the one that lives all the time is compared, and the driver.
With --small: 20 s, which say only that it runs.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from machine import begin

from photinus.core.clock import Steps
from photinus.core.events import Event, RoundClosed, WorkerJoined
from photinus.engine.base import ArrayData, Engine
from photinus.engine.local.engine import LocalEngine
from photinus.engine.spark.engine import FrameData, SparkEngine, frame_of
from photinus.engine.spark.session import spark_session
from photinus.models.logistic import LogisticConfig
from photinus.report.ledger import audit
from photinus.run.job import Job, Source
from photinus.run.train import train
from photinus.strategies.recipes import averaging
from photinus.testing import Faults

SECONDS, SMALL_SECONDS, LOOK_SECONDS, FAULT_SECONDS = 600.0, 20.0, 2.0, 20.0
ENDLESS = 1e7
"""Epochs: the run is ended when its time is over."""


@dataclass(frozen=True)
class Look:
    """One process at one moment."""

    at: float
    megabytes: float
    descriptors: int
    threads: int


def look(pid: int, at: float) -> Look:
    """Returns what a process holds; /proc is Linux's."""
    status = Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return Look(
        at,
        int(fields["RssAnon"].split()[0]) / 1024,
        len(os.listdir(f"/proc/{pid}/fd")),
        int(fields["Threads"]),
    )


@dataclass
class Watch:
    """Looks at the driver and its workers from the first round on, and ends the run."""

    seconds: float
    rounds: int = 0
    pids: dict[str, int] = field(default_factory=lambda: {"driver": os.getpid()})
    """Name -> its process."""
    looks: dict[str, list[Look]] = field(default_factory=lambda: defaultdict(list))
    begun: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)

    def emit(self, event: Event) -> None:
        """Takes one event in."""
        if isinstance(event, WorkerJoined):
            self.pids[f"worker {event.slot}"] = event.pid
        if isinstance(event, RoundClosed):
            self.rounds += 1
            self.begun.set()

    def run(self) -> None:
        """Looks until the time is over."""
        self.begun.wait()
        began = time.monotonic()
        while (at := time.monotonic() - began) < self.seconds and not self.over.is_set():
            for name, pid in list(self.pids.items()):
                with suppress(OSError, KeyError):  # it was killed just now
                    self.looks[name].append(look(pid, at))
            self.over.wait(LOOK_SECONDS)
        if not self.over.is_set():
            os.kill(os.getpid(), signal.SIGTERM)


def faults_of(seconds: float) -> Faults:
    """Worker 1 is killed, frozen and cut off in turn, as long as the run lasts."""
    faults = Faults()
    for lease in range(1, int(seconds / FAULT_SECONDS) + 1):
        at = {"slot": 1, "lease": lease, "at_seconds": FAULT_SECONDS}
        kind = lease % 3
        if kind == 1:
            faults = faults.kill(**at)
        elif kind == 2:
            faults = faults.freeze(**at, seconds=7.0)
        else:
            faults = faults.cut(**at, seconds=3.0)
    return faults


def job() -> Job:
    """Rounds of two steps."""
    model = LogisticConfig(features=64, classes=10, epochs=ENDLESS, batch_size=16, lr=1e-4)
    return Job(
        model=model,
        data=Source(name="given"),
        strategy=averaging(every=Steps(2), gradients_until=0),
        workers=2,
        engine="local",
        checkpoint_seconds=10.0,
    )


def grown(looks: list[Look], of: str) -> tuple[float, float]:
    """Returns the medians of the second and of the last fifth of the time."""
    last = looks[-1].at
    parts = [(0.2, 0.4), (0.8, 1.0)]
    values = [[getattr(k, of) for k in looks if a * last <= k.at <= b * last] for a, b in parts]
    return statistics.median(values[0]), statistics.median(values[1])


def lines(watch: Watch, seconds: float, kind: str) -> Iterator[str]:
    """Yields the table."""
    yield f"{watch.rounds} rounds in {seconds:.0f} s"
    yield "| process | anonymous memory, MB | descriptors | threads |"
    yield "|---|---|---|---|"
    for name, looks in sorted(watch.looks.items()):
        if kind == "faults" and name == "worker 1":
            continue
        cells = [grown(looks, of) for of in ("megabytes", "descriptors", "threads")]
        memory, *counts = cells
        shown = [f"{memory[0]:.1f} → {memory[1]:.1f}", *(f"{a:g} → {b:g}" for a, b in counts)]
        yield f"| {name} | {' | '.join(shown)} |"


def main() -> None:
    """Trains, looks, prints."""
    begin(f"{SMALL_SECONDS:g}")
    words = sys.argv[1:]
    seconds = float(words[0]) if words else SECONDS
    kind = words[1] if words[1:] else "plain"
    rng = np.random.default_rng(0)
    rows = rng.random((2_000, 64), dtype=np.float32), rng.integers(0, 10, 2_000)
    watch = Watch(seconds)
    data: Any = ArrayData(*rows)
    engine: Engine = LocalEngine(faults_of(seconds) if kind == "faults" else None)
    if kind == "spark":
        spark = spark_session(2, name="growth")
        watch.pids["Java"] = spark.sparkContext._gateway.proc.pid
        halves = [(rows[0][n::2], rows[1][n::2]) for n in range(2)]
        data = FrameData(frame=frame_of(spark, halves), features="features", label="label")
        engine = SparkEngine(spark)
    thread = threading.Thread(target=watch.run, daemon=True)
    thread.start()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        try:
            train(
                replace(job(), engine=engine.name),
                data,
                folder=run,
                callbacks=(watch.emit,),
                engine=engine,
            )
        except KeyboardInterrupt:
            print(*lines(watch, seconds, kind), sep="\n")
        finally:
            watch.over.set()
        exact = audit(run / "ledger.jsonl").is_exact
        print("audit:", "each exactly once" if exact else "offences")


if __name__ == "__main__":
    main()
