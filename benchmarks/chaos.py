"""Throughput kept with a fault every 30 s for ten minutes, 4 worker processes.

    PYTHONPATH=benchmarks python benchmarks/chaos.py [way] [seconds] [faults: 1|0] [share] [engine]

Workers are killed, frozen for 8 s and cut off for 3 s in turn, one after the other. A step is a
timed wait, so that the others cannot use the victim's core: each process is a machine of its own.
The ways are averaging, the same with leases of 2 s ("short"), quorum, downpour and publish.
With a share, as 0.2, steps are real ones of the network 784-500-500-2000-10 on MNIST, and each
worker is held to so much of a core instead (as by `scaling.py`: root; cgroup v1). The engine is
`local`, or `spark`: tasks of the Spark that PYSPARK_SUBMIT_ARGS names, on whose executors `chaos`
and `scaling` can be imported. With `executors` that is killed in which a worker lives; they must be
processes of this machine.
Capacity is what is left when a worker's time
is taken out from its fault until it can work again: a frozen one's until it wakes, a cut one's
until its network is whole, a killed one's until its new process is there.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from machine import begin
from scaling import CGROUP, shares

from photinus.core.clock import Steps
from photinus.core.events import Event, RoundClosed, WorkerJoined
from photinus.core.parameters import Vector
from photinus.data import mnist
from photinus.engine.base import ArrayData, RunSpec
from photinus.engine.local.engine import LocalEngine
from photinus.engine.spark.engine import SparkEngine
from photinus.models.base import BatchLike, Model
from photinus.models.dbn import DBN, FineTuning, Pretraining
from photinus.models.logistic import LogisticConfig
from photinus.report.ledger import audit
from photinus.run.job import Job
from photinus.run.ledger_writer import LedgerWriter
from photinus.strategies.recipes import averaging, downpour, publish
from photinus.strategies.spec import StrategySpec
from photinus.testing import Faults
from photinus.testing.faults.fault import KILL, Fault
from photinus.training.plan import Phase, TrainingPlan

WORKERS, EVERY, BATCH, STEP_SECONDS, WARM_SECONDS = 4, 30.0, 8, 0.1, 15.0
ENDLESS = 1e5
"""Epochs: a run is ended when its time is over."""
AWAY = {"kill": 4.0, "freeze": 8.2, "cut": 3.2}
"""About so long until the next lease begins: faults are timed from there."""
WAYS: dict[str, StrategySpec] = {
    "averaging": averaging(every=Steps(10), gradients_until=0),
    "short": averaging(every=Steps(10), gradients_until=0),
    "quorum": averaging(every=Steps(10), quorum=0.75, gradients_until=0),
    "downpour": downpour(every=Steps(10), gradients_until=0),
    "publish": publish(every=Steps(10), gradients_until=0),
}
LEASE_SECONDS = {"short": 2.0}
"""Way -> how long a lease lasts, where it is not the default."""
ENGINES = {"local": LocalEngine, "spark": SparkEngine, "executors": SparkEngine}


class WaitingModel(Model):
    """Softmax regression whose step takes a set time of no core."""

    def __init__(self, model: Model) -> None:
        self.parameters, self._model, self._free = model.parameters, model, threading.Event()

    def learn(self, batch: BatchLike, seed: int) -> tuple[Vector, Mapping[str, float]]:
        """Waits, then learns."""
        self._free.wait(STEP_SECONDS)
        return self._model.learn(batch, seed)

    def measure(self, batch: BatchLike) -> Mapping[str, float]:
        """As the model within."""
        return self._model.measure(batch)


@dataclass(frozen=True, kw_only=True)
class WaitingConfig(LogisticConfig):
    """A config of timed waits."""

    def build(self, history: tuple[Vector, ...], seed: int) -> Model:
        """Returns the model, which waits."""
        return WaitingModel(super().build(history, seed))


@dataclass
class Watch:
    """Notes how much was applied when, and who took a seat when.

    Calls `begun` at the first round, and `enter` with the slot and the process of who takes a seat.
    """

    begun: Callable[[], object] = lambda: None
    enter: Callable[[int, int], object] | None = None
    applied: list[tuple[float, int]] = field(default_factory=list)
    seats: list[tuple[float, int, int]] = field(default_factory=list)

    def emit(self, event: Event) -> None:
        """Takes one event in."""
        if isinstance(event, RoundClosed):
            if not self.applied:
                self.begun()
            self.applied.append((time.time(), event.examples))
        if isinstance(event, WorkerJoined):
            self.seats.append((time.time(), event.slot, event.lease))
            if self.enter is not None:
                with suppress(ProcessLookupError):  # it was killed meanwhile
                    self.enter(event.slot, event.pid)

    def between(self, begin: float, end: float) -> int:
        """Returns the examples applied between two moments."""
        times = [at for at, _ in self.applied]
        counts = [count for _, count in self.applied]
        return int(np.interp(end, times, counts) - np.interp(begin, times, counts))


@dataclass
class Hunter:
    """Kills the executors of workers, each so long after a worker took its seat as planned."""

    kills: list[Fault]
    diary: Path
    leases: Counter[int] = field(default_factory=Counter)

    def __call__(self, slot: int, pid: int) -> None:
        """A worker took its seat."""
        self.leases[slot] += 1
        for fault in self.kills:
            if (fault.slot, fault.lease) == (slot, self.leases[slot]):
                timer = threading.Timer(fault.at_seconds or 0.0, self._kill, (fault, pid))
                timer.daemon = True
                timer.start()

    def _kill(self, fault: Fault, pid: int) -> None:
        executor = _parent(_parent(pid))  # a worker is forked from the executor's daemon
        with self.diary.open("a") as file:
            file.write(json.dumps({**fault.diary_entry(), "unix_seconds": time.time()}) + "\n")
        os.kill(executor, signal.SIGKILL)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def planned(seconds: float) -> Faults:
    """A fault every 30 s, of each worker in turn, of each kind in turn."""
    faults, last, lease = Faults(), [0.0] * WORKERS, [1] * WORKERS
    for number in range(int(seconds / EVERY)):
        slot, kind = number % WORKERS, ("kill", "freeze", "cut")[number % 3]
        at = EVERY * (number + 1) - EVERY / 2
        when = {"slot": slot, "at_seconds": max(0.0, at - last[slot]), "lease": lease[slot]}
        if kind == "kill":
            faults = faults.kill(**when)
        elif kind == "freeze":
            faults = faults.freeze(**when, seconds=8.0)
        else:
            faults = faults.cut(**when, seconds=3.0)
        last[slot], lease[slot] = at + AWAY[kind], lease[slot] + 1
    return faults


def work(way: str, *, is_real: bool) -> tuple[TrainingPlan, ArrayData]:
    """Returns what is trained, and rows."""
    if is_real:
        images, tuning = mnist.load(), FineTuning(epochs=ENDLESS, batch_size=100 * WORKERS)
        model = DBN(pretraining=Pretraining(epochs=0.0), fine_tuning=tuning)
        job = Job(model=model, workers=WORKERS, strategy=WAYS[way]).resolved()
        return job.plan(), ArrayData(images.train_images, images.train_labels, 1 / 255)
    chance, rows = np.random.default_rng(0), 8_000
    config = WaitingConfig(
        features=20, classes=10, epochs=ENDLESS, batch_size=BATCH * WORKERS, lr=0.05
    )
    features = chance.random((rows, 20), dtype=np.float32)
    plan = TrainingPlan(phases=(Phase(config=config, strategy=WAYS[way]),), workers=WORKERS)
    return plan, ArrayData(features, chance.integers(0, 10, rows))


def away(notes: list[dict], watch: Watch, begin: float, end: float) -> float:
    """Returns the seconds in which workers could not work."""
    total = 0.0
    for note in notes:
        at = note["unix_seconds"]
        back = at + {"freeze": 8.0, "cut": 3.0}.get(note["kind"], 0.0)
        if note["kind"] == "kill":
            after = [t for t, slot, _ in watch.seats if slot == note["slot"] and t > at]
            back = min(after, default=end)
        total += max(0.0, min(back, end) - max(at, begin))
    return total


def trained(
    engine: str,
    way: str,
    seconds: float,
    faults: Faults,
    share: float,
    folder: Path,
) -> Watch:
    """Trains for so long, and then stops as after Ctrl-C."""
    plan, data = work(way, is_real=share > 0)
    plan = replace(plan, lease_seconds=LEASE_SECONDS.get(way, plan.lease_seconds))
    run = secrets.token_bytes(16)
    book = LedgerWriter(folder / "ledger.jsonl", run)
    hunter = None
    if engine == "executors":
        kills = [fault for fault in faults.planned if fault.kind == KILL]
        hunter = Hunter(kills, folder / "diary.jsonl")
        faults = replace(faults, planned=tuple(f for f in faults.planned if f.kind != KILL))
    with shares(WORKERS, share) if share else nullcontext(hunter) as enter:
        if share:  # the driver is not held, nor are the processes that it starts until they join
            (CGROUP / "cgroup.procs").write_text(str(os.getpid()))
        end = (os.getpid(), signal.SIGINT)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # which shells' `&` switches off
        watch = Watch(threading.Timer(seconds + WARM_SECONDS, os.kill, end).start, enter)
        with suppress(KeyboardInterrupt):
            ENGINES[engine](faults=faults).run(
                RunSpec(plan=plan, data=data, run=run, emit=watch.emit, enter=book.enter)
            )
    book.close()
    return watch


def main(engine: str, way: str, seconds: float, *, is_harmed: bool, share: float) -> None:
    with tempfile.TemporaryDirectory() as place:
        diary = Path(place) / "diary.jsonl"
        diary.touch()
        faults = planned(seconds).noted_in(str(diary)) if is_harmed else Faults()
        watch = trained(engine, way, seconds, faults, share, Path(place))
        notes = [json.loads(line) for line in diary.read_text().splitlines()]
        audited = audit(Path(place) / "ledger.jsonl")
    begin = watch.applied[0][0] + WARM_SECONDS / 2
    end = min(begin + seconds, watch.applied[-1][0])
    rate = watch.between(begin, end) / (end - begin)
    notes = [note for note in notes if begin <= note["unix_seconds"] < end]
    lost = away(notes, watch, begin, end)
    result = {
        "engine": engine,
        "way": way,
        "share of a core": share or None,
        "seconds": round(end - begin, 1),
        "faults": len(notes),
        "examples per second": round(rate, 2),
        "away": round(lost, 1),
        "capacity left": round(1 - lost / (WORKERS * (end - begin)), 4),
        "load": round(os.getloadavg()[0], 1),
        "exact": audited.is_exact,
        "ledger": str(audited),
    }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    begin("averaging", "31")
    import chaos  # the workers must find its classes in a module of their own

    usual = ("averaging", "600", "1", "0", "local")
    way, seconds, is_harmed, share, engine = (*sys.argv[1:6], *usual[len(sys.argv[1:6]) :])
    chaos.main(engine, way, float(seconds), is_harmed=is_harmed == "1", share=float(share))
