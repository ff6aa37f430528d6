"""Pushes under faults: what was acknowledged is applied once, and nothing else is.

    python benchmarks/pushes.py [sim | local] [pushes of each way] [seed] [ways ...]

Each line is one strategy, with faults at random: workers killed, frozen, cut off and slow;
in the simulator also seats taken twice, a tenth of all messages lost and a fifth doubled. Every
run is judged by the audit of its ledger; by the rows, which must follow each other without a gap
from push to push; in the simulator by the workers, too: what they were told is agreed must be
applied. Publications among workers are counted by who sends and by who takes them in.
"""

from __future__ import annotations

import json
import secrets
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from machine import begin

from photinus.core.clock import Seconds, Steps
from photinus.core.events import Event, PeersMet
from photinus.engine.base import ArrayData, Engine, RunSpec
from photinus.engine.local.engine import LocalEngine
from photinus.engine.simulation.cluster import SimulatedCluster
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.models.logistic import LogisticConfig
from photinus.protocol.worker_session import WorkerSession
from photinus.report.ledger import audit
from photinus.run.ledger_writer import LedgerWriter
from photinus.strategies.outer import Adagrad, DelayedNesterov
from photinus.strategies.recipes import (
    all_reduce,
    averaging,
    diloco,
    downpour,
    elastic,
    full_gradient,
    gossip,
    iterative_reduce,
    post_local,
    publish,
    streaming,
)
from photinus.strategies.spec import StrategySpec
from photinus.testing import Faults
from photinus.training.plan import Phase, TrainingPlan
from photinus.training.requests import Request
from photinus.transport.frames import Frame

ROWS, FEATURES, CLASSES, BATCH, WORKERS = 480, 6, 3, 8, 4
MOST = 5_000
"""Pushes of one run."""
WAYS = {
    "all_reduce": all_reduce(),
    "all_reduce, 3 owners": all_reduce(owners=3),
    "averaging": averaging(every=Steps(3)),
    "averaging in seconds": averaging(every=Steps(5) | Seconds(0.05)),
    "averaging by quorum": averaging(every=Steps(3), quorum=0.5),
    "diloco": diloco(every=Steps(4)),
    "diloco at once": diloco(every=Steps(3), release="immediate", outer=DelayedNesterov()),
    "downpour": downpour(every=Steps(2), fetch=Steps(3), staleness="inverse"),
    "downpour of gradients": downpour(every=Steps(2), payload="gradient", outer=Adagrad()),
    "elastic": elastic(every=Steps(2)),
    "full_gradient": full_gradient(),
    "iterative_reduce": iterative_reduce(),
    "post_local": post_local(every=Steps(3)),
    "streaming": streaming(every=Steps(6)),
    "publish": publish(every=Steps(2), exact_every=5),
    "gossip": gossip(every=Steps(2), exact_every=5),
}


HEAD = """\
| way | runs | faults | pushes applied | missed | said again | fenced | leases | publications \
taken, of | made up | lost | doubled |
|---|---|---|---|---|---|---|---|---|---|---|---|"""


@dataclass
class Found:
    """What became of all pushes of one strategy."""

    counts: Counter[str] = field(default_factory=Counter)
    offences: list[str] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)

    def line(self, name: str) -> str:
        """Returns its row of the table."""
        c = self.counts
        names = ("applied", "missed", "duplicates", "fenced", "leases")
        cells = " | ".join(f"{c[n]:,}" for n in names)
        among = f"{c['taken']:,}, {c['published']:,} | {c['missing']:,}" if c["met"] else "|"
        faults = f"{c['runs']} | {sum(self.happened.values())}"
        return f"| {name} | {faults} | {cells} | {among} | {c['lost']} | {c['doubled']} |"


class Watch:
    """Follows one run: its ledger, its events, and what workers were told."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path, self.run = folder, folder / "ledger.jsonl", secrets.token_bytes(16)
        self.book, self.events = LedgerWriter(self.path, self.run), list[Event]()
        self.notices: set[tuple[int, int, int]] = set()

    def judge(self, totals: Found, *, has_fragments: bool) -> None:
        """Adds what the ledger proves."""
        self.book.close()
        entries = [json.loads(line) for line in self.path.read_text().splitlines()]
        applied = {(e["phase"], e["slot"], e["sequence"]) for e in entries if e["op"] == "apply"}
        result, met = audit(self.path), [e for e in self.events if isinstance(e, PeersMet)]
        lost = [text for text in result.offences if "never applied" in text]
        lost += [f"told, and not applied: {push}" for push in self.notices - applied]
        twice = [text for text in result.offences if "times" in text]
        for text in gaps(entries):
            (lost if "gap" in text else twice).append(text)
        twice = [] if has_fragments else twice  # fragments share their rows
        uneven = [f"uneven: {e}" for e in met if e.published != e.taken + e.missing]
        totals.offences += [*result.offences, *lost, *twice, *uneven]
        sums = {n: sum(getattr(e, n) for e in met) for n in ("published", "taken", "missing")}
        sums |= {n: getattr(result, n) for n in COUNTED}
        totals.counts.update(sums, runs=1, met=len(met), lost=len(lost), doubled=len(twice))


COUNTED = ("applied", "missed", "duplicates", "fenced", "leases", "undone")


def gaps(entries: list[dict[str, Any]]) -> list[str]:
    """Returns where a seat's rows do not follow each other from push to push.

    Each applied push says how many rows it holds, and how far they reach. Where all who knew the
    agreed point were lost, rows fall back to where they were in the version that was left.
    """
    reached: dict[tuple[int, int], list[tuple[int, int]]] = {}
    offences = []
    for entry in entries:
        if entry["op"] == "back":
            for seat, positions in reached.items():
                earlier = [at for at in positions if at[0] <= entry["version"]]
                reached[seat] = earlier if seat[0] == entry["phase"] else positions
        if entry["op"] != "apply" or not entry["examples"]:
            continue
        positions = reached.setdefault((entry["phase"], entry["slot"]), [])
        at, begins = positions[-1][1] if positions else 0, entry["position"] - entry["examples"]
        if begins != at:
            what = "a gap" if begins > at else "rows twice"
            offences.append(f"{what}: slot {entry['slot']}, from {at} to {begins}")
        positions.append((entry["version"], entry["position"]))
    return offences


def planned(rng: np.random.Generator, steps: int, *, is_real: bool) -> Faults:
    """Returns faults at random steps of the first lives of every worker."""
    faults = Faults().slow(slot=int(rng.integers(WORKERS)), factor=3.0, step=1 + steps // 2)
    for slot in range(WORKERS):
        for lease in range(1, 3 if is_real else 9):
            step = 1 + int(rng.integers(max(1, steps // 4)))
            when, seconds = {"slot": slot, "lease": lease}, float(rng.uniform(0.0, 8.0))
            kind = rng.choice(["kill", "freeze", "cut"] + ["copy"] * (not is_real))
            if kind == "freeze":
                faults = faults.freeze(step=step, seconds=seconds, **when)
            elif kind == "cut":
                faults = faults.cut(step=step, seconds=seconds / 2, **when)
            elif kind == "copy":
                faults = faults.copy(step=step, **when)
            # what ended no lease is followed by what does
            faults = faults.kill(step=step + 7 * (kind != "kill"), back_seconds=seconds / 4, **when)
    return faults if is_real else faults.lose(0.1).double(0.2)


def plan(way: StrategySpec, epochs: float) -> TrainingPlan:
    config = LogisticConfig(
        features=FEATURES,
        classes=CLASSES,
        epochs=epochs,
        batch_size=BATCH * WORKERS,
        dtype="float64",
    )
    return TrainingPlan(phases=(Phase(config=config, strategy=way),), workers=WORKERS)


def data() -> ArrayData:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, ROWS)
    features = rng.normal(size=(ROWS, FEATURES)) + 2 * np.tile(np.eye(CLASSES)[labels], 2)
    return ArrayData(features.astype("f4"), labels)


def one(way: StrategySpec, epochs: float, engine: Engine, totals: Found) -> Watch:
    """Runs once, and judges."""
    with tempfile.TemporaryDirectory() as folder:
        watch = Watch(Path(folder))
        assignment = RunSpec(
            plan=plan(way, epochs),
            data=data(),
            run=watch.run,
            emit=watch.events.append,
            enter=watch.book.enter,
            restarts=10_000,
        )
        with telling(watch.notices):
            result = engine.run(assignment)
        watch.judge(totals, has_fragments=way.fragments > 1)
        assert all(np.isfinite(v).all() for v in result.vectors)
    return watch


@contextmanager
def telling(notices: set[tuple[int, int, int]]) -> Iterator[None]:
    """Notes which pushes were answered to workers of this process as agreed."""
    plain = WorkerSession.answers

    def answers(
        self: WorkerSession, ask: Request | None, request: Frame | None, reply: Frame
    ) -> bool:
        meant = self.under_way.get(reply.sequence, request)
        is_answer = plain(self, ask, request, reply)
        is_push = meant is not None and meant.kind == "push" and meant.sequence == reply.sequence
        if is_push and reply.kind in ("agreed", "ack") and reply.lease == self.seat.lease:
            notices.add((reply.phase, reply.slot, reply.sequence))
        return is_answer

    WorkerSession.answers = answers
    try:
        yield
    finally:
        WorkerSession.answers = plain


def many(name: str, wanted: int, rng: np.random.Generator, *, is_real: bool) -> Found:
    """Runs one strategy until so many pushes and publications were made."""
    way, probe, totals = WAYS[name], Found(), Found()
    one(way, 20.0, SimulatedEngine(), probe)
    per_epoch = (probe.counts["applied"] + probe.counts["published"]) / 20
    while (left := wanted - totals.counts["applied"] - totals.counts["published"]) > 0:
        epochs = float(np.ceil(min(MOST, left) / per_epoch))
        steps = int(epochs) * (1 if name == "full_gradient" else ROWS // WORKERS // BATCH)
        faults = planned(rng, steps, is_real=is_real)
        if is_real:
            with tempfile.NamedTemporaryFile() as diary:
                one(way, epochs, LocalEngine(faults.noted_in(diary.name)), totals)
                notes = Path(diary.name).read_text().splitlines()
                totals.happened.update(json.loads(note)["kind"] for note in notes)
            continue
        again = float(rng.choice([0.05, 0.6]))
        cluster = SimulatedCluster(
            step_seconds=(0.01, 0.02, 0.01, 0.03), resend_seconds=again, faults=faults
        )
        engine = SimulatedEngine(cluster)
        one(way, epochs, engine, totals)
        totals.happened.update(fault.kind for fault in engine.happened)
    return totals


def main(kind: str, pushes: int, seed: int, names: list[str]) -> None:
    print(HEAD, flush=True)
    totals, offences = Found(), list[str]()
    for name in names or WAYS:
        rng = np.random.default_rng((seed, list(WAYS).index(name)))
        of_way = many(name, pushes, rng, is_real=kind == "local")
        print(of_way.line(name), flush=True)
        totals.counts += of_way.counts
        totals.happened += of_way.happened
        offences += [f"{name}: {text}" for text in of_way.offences]
    print(totals.line("all"))
    print("faults:", ", ".join(f"{n} {kind}" for kind, n in totals.happened.most_common()))
    print("\n".join(offences[:20]) or "no offence", flush=True)


if __name__ == "__main__":
    begin("sim", "50", "0", "averaging", "publish")
    kind, pushes, seed = (*sys.argv[1:4], *("sim", "5000", "0")[len(sys.argv[1:4]) :])
    main(kind, int(pushes), int(seed), sys.argv[4:])
