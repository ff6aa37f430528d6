"""Throughput kept with a fault every 30 s for ten minutes, 4 worker processes.

    PYTHONPATH=benchmarks python benchmarks/chaos.py [way] [seconds] [faults: 1 | 0]

Workers are killed, frozen for 8 s and cut off for 3 s in turn, one after the other. A step is a
timed wait, so that the others cannot use the victim's core: each process is a machine of its own.
Capacity is what is left when a worker's time
is taken out from its fault until it can work again: a frozen one's until it wakes, a cut one's
until its network is whole, a killed one's until its new process is there.
"""

from __future__ import annotations

import json
import secrets
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from photinus.core.clock import Steps
from photinus.core.events import Event, RoundClosed, WorkerJoined
from photinus.core.parameters import Vector
from photinus.engine.base import ArrayData, Assignment
from photinus.engine.faults import Faults
from photinus.engine.local import LocalEngine
from photinus.models.base import Batch, Model, Stage
from photinus.models.logistic import LogisticStage
from photinus.nodes.program import Phase, Program
from photinus.report.ledger import audit
from photinus.run.book import Book
from photinus.strategies.agreement import Agreement
from photinus.strategies.recipes import averaging, downpour, publish

WORKERS, EVERY, BATCH, STEP_SECONDS, WARM_SECONDS = 4, 30.0, 8, 0.1, 15.0
AWAY = {"kill": 4.0, "freeze": 8.2, "cut": 3.2}
"""About so long until the next lease begins: faults are timed from there."""
WAYS: dict[str, Agreement] = {
    "averaging": averaging(every=Steps(10)),
    "quorum": averaging(every=Steps(10), quorum=0.75),
    "downpour": downpour(every=Steps(10)),
    "publish": publish(every=Steps(10)),
}


class WaitingModel(Model):
    """Softmax regression whose step takes a set time of no core."""

    def __init__(self, model: Model) -> None:
        self.parameters, self._model, self._free = model.parameters, model, threading.Event()

    def learn(self, batch: Batch, seed: int) -> tuple[Vector, Mapping[str, float]]:
        """Waits, then learns."""
        self._free.wait(STEP_SECONDS)
        return self._model.learn(batch, seed)

    def measure(self, batch: Batch) -> Mapping[str, float]:
        """As the model within."""
        return self._model.measure(batch)


@dataclass(frozen=True, kw_only=True)
class WaitingStage(LogisticStage):
    """A stage of timed waits."""

    def build(self, history: tuple[Vector, ...], seed: int) -> Model:
        """Returns the model, which waits."""
        return WaitingModel(super().build(history, seed))


@dataclass
class Watch:
    """Notes how much was applied when, and who took a seat when."""

    applied: list[tuple[float, int]] = field(default_factory=list)
    seats: list[tuple[float, int, int]] = field(default_factory=list)

    def emit(self, event: Event) -> None:
        """Takes one event in."""
        if isinstance(event, RoundClosed):
            self.applied.append((time.time(), event.examples))
        if isinstance(event, WorkerJoined):
            self.seats.append((time.time(), event.slot, event.lease))

    def between(self, begin: float, end: float) -> int:
        """Returns the examples applied between two moments."""
        times = [at for at, _ in self.applied]
        counts = [count for _, count in self.applied]
        return int(np.interp(end, times, counts) - np.interp(begin, times, counts))


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


def work(seconds: float) -> tuple[Stage, ArrayData]:
    """Returns what is trained, and rows for as long."""
    chance, rows = np.random.default_rng(0), 8_000
    budget = int((seconds + 2 * WARM_SECONDS) / STEP_SECONDS) * BATCH * WORKERS
    stage = WaitingStage(features=20, classes=10, epochs=budget / rows, batch_size=BATCH, lr=0.05)
    features = chance.random((rows, 20), dtype=np.float32)
    return stage, ArrayData(features, chance.integers(0, 10, rows))


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


def main(way: str, seconds: float, *, is_harmed: bool) -> None:
    stage, data = work(seconds)
    program = Program(phases=(Phase(stage=stage, agreement=WAYS[way]),), workers=WORKERS)
    watch, run = Watch(), secrets.token_bytes(16)
    with tempfile.TemporaryDirectory() as place:
        book, diary = Book(Path(place) / "ledger.jsonl", run), Path(place) / "diary.jsonl"
        diary.touch()
        faults = planned(seconds).noted_in(str(diary)) if is_harmed else Faults()
        LocalEngine(faults).run(
            Assignment(program=program, data=data, run=run, emit=watch.emit, enter=book.enter)
        )
        book.close()
        notes = [json.loads(line) for line in diary.read_text().splitlines()]
        found = audit(Path(place) / "ledger.jsonl")
    begin = watch.applied[0][0] + WARM_SECONDS / 2
    end = min(begin + seconds, watch.applied[-1][0])
    rate = watch.between(begin, end) / (end - begin)
    notes = [note for note in notes if begin <= note["unix_seconds"] < end]
    lost = away(notes, watch, begin, end)
    told = {
        "way": way,
        "seconds": round(end - begin, 1),
        "faults": len(notes),
        "examples per second": round(rate, 2),
        "away": round(lost, 1),
        "capacity left": round(1 - lost / (WORKERS * (end - begin)), 4),
        "exact": found.is_exact,
        "ledger": str(found),
    }
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    import chaos  # the workers must find its classes in a module of their own

    names = (*sys.argv[1:4], *("averaging", "600", "1")[len(sys.argv[1:4]) :])
    chaos.main(names[0], float(names[1]), is_harmed=names[2] == "1")
