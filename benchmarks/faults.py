"""What a fault costs: seconds to the next round, until the seat is taken again, work redone.

    python benchmarks/faults.py [local | spark] [repeats] [faults ...]

Each row is a run of its own in which worker 1 suffers once, at its 200th step, and one in which
nobody does. Times are from just before the fault, which the worker notes itself.
"""

from __future__ import annotations

import json
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from machine import begin

from photinus.core.clock import Steps
from photinus.core.events import Event, RoundClosed, WorkerJoined
from photinus.engine.base import ArrayData, Engine, RunSpec
from photinus.models.logistic import LogisticConfig
from photinus.report.ledger import audit
from photinus.run.ledger_writer import LedgerWriter
from photinus.strategies.recipes import averaging
from photinus.testing import Faults
from photinus.training.plan import Phase, TrainingPlan

ROWS, FEATURES, CLASSES, BATCH, WORKERS, EPOCHS = 8_000, 784, 10, 20, 4, 60
VICTIM, AT = 1, 200
HEAD = """| fault | longest gap s | share counts again s | redone | lost | doubled | run s |
|---|---|---|---|---|---|---|"""
FAULTS = {
    "kill": Faults().kill(slot=VICTIM, step=AT),
    "freeze, 8 s": Faults().freeze(slot=VICTIM, step=AT, seconds=8.0),
    "cut, 3 s": Faults().cut(slot=VICTIM, step=AT, seconds=3.0),
    "cut, 0.3 s": Faults().cut(slot=VICTIM, step=AT, seconds=0.3),
    "NaN, which is dropped": Faults().nan(slot=VICTIM, step=AT),
    "link of 1 MB/s": Faults().slow_link(slot=VICTIM, bytes_per_second=1e6, step=AT),
}


@dataclass
class Watch:
    """Notes when rounds closed, and when the victim took its seat."""

    rounds: list[tuple[float, RoundClosed]] = field(default_factory=list)
    seats: list[tuple[float, int]] = field(default_factory=list)

    def emit(self, event: Event) -> None:
        """Takes one event in."""
        if isinstance(event, RoundClosed):
            self.rounds.append((time.time(), event))
        if isinstance(event, WorkerJoined) and event.slot == VICTIM:
            self.seats.append((time.time(), event.lease))


@dataclass
class Cost:
    """What one fault cost."""

    gap: float
    """The longest time without a round from the fault on."""
    again: float
    """Until the victim's share was in a round again."""
    redone: int
    lost: int
    doubled: int
    total: float


def plan() -> TrainingPlan:
    config = LogisticConfig(
        features=FEATURES, classes=CLASSES, epochs=EPOCHS, batch_size=BATCH * WORKERS, lr=0.05
    )
    strategy = averaging(every=Steps(10), codec="fp32", gradients_until=0)
    return TrainingPlan(phases=(Phase(config=config, strategy=strategy),), workers=WORKERS)


def data() -> ArrayData:
    rng = np.random.default_rng(0)
    features = rng.random((ROWS, FEATURES), dtype=np.float32)
    return ArrayData(features, rng.integers(0, CLASSES, ROWS))


def cost(make: Callable[[Faults], Engine], faults: Faults, folder: Path) -> Cost:
    """Runs once, and reads what happened from events, diary and ledger."""
    watch, run = Watch(), secrets.token_bytes(16)
    book, diary = LedgerWriter(folder / "ledger.jsonl", run), folder / "diary.jsonl"
    assignment = RunSpec(plan=plan(), data=data(), run=run, emit=watch.emit, enter=book.enter)
    began = time.time()
    make(faults.noted_in(str(diary))).run(assignment)
    total = time.time() - began
    book.close()
    audited, entries = audit(folder / "ledger.jsonl"), read(folder / "ledger.jsonl")
    lost = sum("never applied" in text for text in audited.offences)
    doubled = sum("times" in text for text in audited.offences)
    if not faults.planned:
        return Cost(0.0, 0.0, 0, lost, doubled, total)
    [note] = read(diary)
    at = note["unix_seconds"]
    times = [at, *(moment for moment, _ in watch.rounds if moment > at)]
    again = [moment for moment, event in watch.rounds if moment > at and VICTIM in event.slots]
    return Cost(
        gap=max(np.diff(times)),
        again=again[0] - at,
        redone=AT * BATCH - applied_before(entries),
        lost=lost,
        doubled=doubled,
        total=total,
    )


def applied_before(entries: list[dict]) -> int:
    """Returns how far the victim's rows were in the agreed point when it lost its seat, or all."""
    own = [e for e in entries if e.get("slot") == VICTIM and e["op"] in ("apply", "hello")]
    leases = [n for n, e in enumerate(own) if e["op"] == "hello"]
    if len(leases) == 1:
        return AT * BATCH
    return max(e["position"] for e in own[: leases[1]] if e["op"] == "apply")


def read(path: Path) -> list[dict]:
    """Returns the entries of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def engines(name: str) -> Callable[[Faults], Engine]:
    """Returns what makes an engine with faults."""
    if name == "spark":
        from photinus.engine.spark.engine import SparkEngine
        from photinus.engine.spark.session import spark_session

        spark = spark_session(WORKERS, name="faults")
        return lambda faults: SparkEngine(spark, faults)
    from photinus.engine.local.engine import LocalEngine

    return LocalEngine


def row(fault: str, costs: list[Cost]) -> str:
    """Returns a line of the table: medians, and the sums of what was lost and doubled."""
    gap, again, redone, total = (
        statistics.median(getattr(c, n) for c in costs) for n in ("gap", "again", "redone", "total")
    )
    lost, doubled = (sum(getattr(c, n) for c in costs) for n in ("lost", "doubled"))
    line = f"{gap:.2f} | {again:.2f} | {redone:.0f} | {lost} | {doubled} | {total:.1f}"
    return f"| {fault} | {line} |"


def main(name: str, repeats: int, kinds: list[str]) -> None:
    make = engines(name)
    print(f"{name}: {WORKERS} workers, averaging every 10 steps of {BATCH}, {repeats} runs each")
    print(HEAD, flush=True)
    for fault, faults in {"none": Faults(), **FAULTS}.items():
        if kinds and fault not in kinds:
            continue
        costs = []
        for _ in range(repeats):
            with tempfile.TemporaryDirectory() as folder:
                costs.append(cost(make, faults, Path(folder)))
        print(row(fault, costs), flush=True)


if __name__ == "__main__":
    begin("local", "1", "cut, 0.3 s")
    words = sys.argv[1:]
    main(words[0] if words else "local", int(words[1]) if words[1:] else 3, words[2:])
