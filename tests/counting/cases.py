"""Recipes and faults under the counting model, on any engine: for the tests and the benchmark."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import counted
import numpy as np

from photinus.coordinator.checkpoints import Checkpoints
from photinus.core.clock import Epochs, Steps
from photinus.core.seeds import derive
from photinus.engine.base import Engine, RunSpec
from photinus.engine.local.engine import LocalEngine
from photinus.engine.simulation.cluster import SimulatedCluster
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.report.ledger import AuditResult, audit
from photinus.run.ledger_writer import LedgerWriter
from photinus.strategies import recipes
from photinus.strategies.outer import Sgd
from photinus.strategies.spec import StrategySpec
from photinus.testing import Faults

__all__ = [
    "BOTH_PARTS",
    "RECIPES",
    "SIMULATED",
    "Trial",
    "Verdict",
    "chances",
    "end_driver",
    "epochs_of",
    "killed_driver",
    "lost_of",
    "real",
    "simulated",
    "stopped",
    "tasks_of_spark",
]

_EXACT: dict[str, Any] = {"outer": Sgd(), "merge": "uniform", "codec": "fp32"}
RECIPES: dict[str, Callable[[int], StrategySpec]] = {
    "averaging": lambda k: recipes.averaging(every=Steps(3), **_EXACT),
    "averaging, owners": lambda k: recipes.averaging(every=Steps(3), owners=k, **_EXACT),
    "averaging, a table": lambda k: recipes.averaging(
        every=Steps(3), owners=k, rows=1, gradients_until=0.0, **_EXACT
    ),
    "iterative_reduce": lambda k: recipes.iterative_reduce(every=Epochs(1), **_EXACT),
    "post_local": lambda k: recipes.post_local(every=Steps(4), gradients_until=0.0, **_EXACT),
    "diloco": lambda k: recipes.diloco(every=Steps(4), merge="uniform", codec="fp32"),
    "streaming": lambda k: recipes.streaming(
        every=Steps(4), fragments=4, delay=0, merge="uniform", codec="fp32"
    ),
    "all_reduce": lambda k: recipes.all_reduce(merge="examples", codec="fp32"),
    "all_reduce, owners": lambda k: recipes.all_reduce(merge="examples", codec="fp32", owners=k),
    "full_gradient": lambda k: recipes.full_gradient(merge="examples", codec="fp32"),
    "downpour": lambda k: recipes.downpour(every=Steps(2), outer=Sgd(), codec="fp32"),
    "downpour, gradients": lambda k: recipes.downpour(
        every=Steps(2), outer=Sgd(), codec="fp32", payload="gradient"
    ),
    "downpour, a table": lambda k: recipes.downpour(
        every=Steps(3), outer=Sgd(), codec="fp32", owners=k, rows=1, gradients_until=0.0
    ),
    "elastic": lambda k: recipes.elastic(every=Steps(2), alpha=0.9, codec_down="fp32"),
    "publish": lambda k: recipes.publish(every=Steps(2), codec="fp32", exact_every=2),
    "gossip": lambda k: recipes.gossip(every=Steps(2), codec="fp32", exact_every=2),
}
"""Recipe -> its strategy for K workers. Every part that would be chosen is named; codecs and
merges are exact. `diloco` and `streaming` keep their own outer optimizer."""
_HALF: dict[str, Any] = {"gradients_until": 0.5, "codec": "fp32"}
BOTH_PARTS: dict[str, Callable[[int], StrategySpec]] = {
    "averaging, both parts": lambda k: recipes.averaging(
        every=Steps(3), **_EXACT, gradients_until=0.5
    ),
    "averaging, owners, both parts": lambda k: recipes.averaging(
        every=Steps(3), owners=k, **_EXACT, gradients_until=0.5
    ),
    "post_local, both parts": lambda k: recipes.post_local(every=Steps(4), **_EXACT),
    "downpour, both parts": lambda k: recipes.downpour(every=Steps(2), outer=Sgd(), **_HALF),
    "elastic, both parts": lambda k: recipes.elastic(
        every=Steps(2), alpha=0.9, codec_down="fp32", gradients_until=0.5
    ),
    "publish, both parts": lambda k: recipes.publish(every=Steps(2), exact_every=2, **_HALF),
    "gossip, both parts": lambda k: recipes.gossip(every=Steps(2), exact_every=2, **_HALF),
}
"""The same for recipes whose first half agrees on gradients, as they are by default. Each worker
must have whole mini-batches."""


SIMULATED: dict[str, Faults] = {
    "killed": Faults().kill(slot=2, step=5).kill(slot=0, step=3),
    "killed again and again": Faults().kill(1, 4).kill(1, 2, lease=2).kill(1, 1, lease=3),
    "frozen": Faults().freeze(slot=1, step=4, seconds=8.0),
    "cut off": Faults().cut(slot=1, step=4, seconds=3.0),
    "copied, and the first one dies": Faults().copy(slot=1, step=2).kill(slot=1, step=5),
    "copied, and the first one freezes": Faults().copy(1, 2).freeze(1, step=5, seconds=8.0),
    "messages lost and doubled": Faults().lose(0.1).double(0.2),
}
"""What happens to three simulated workers."""
_REAL = Faults().kill(1, 5).kill(1, 2, lease=2).freeze(2, 4, seconds=7.0)
"""And to three real ones: one is killed twice, another one freezes for longer than a lease."""
_AT_BORDER = Faults().kill(1, 15).kill(1, 1, lease=2).freeze(2, 16, seconds=7.0)
"""The same where a start by gradients ends: after half of thirty steps."""


def real(recipe: str) -> Faults:
    """Returns what happens to three real workers of a recipe."""
    return _AT_BORDER if recipe in BOTH_PARTS else _REAL


def lost_of(recipe: str) -> set[int]:
    """Returns which slots are lost by these faults.

    Of a table all give up their seats when two are lost at once, the frozen one among them.
    """
    return {1} if recipe.endswith("a table") else {1, 2}


def epochs_of(recipe: str) -> int:
    """Returns so many that a fault at the fifth step happens."""
    return 8 if recipe == "full_gradient" else 3


def chances(seed: int, workers: int) -> Faults:
    """Returns faults of every kind, drawn by the seed."""

    def draw(what: str, below: int) -> int:
        return derive(seed, what) % below

    faults = Faults().lose(0.02 * draw("lose", 3)).double(0.1 * draw("double", 3))
    for n in range(3):
        slot, step = draw(f"slot {n}", workers), 1 + draw(f"step {n}", 9)
        lease, kind = 1 + draw(f"lease {n}", 2), draw(f"kind {n}", 4)
        faults = (
            faults.kill(slot, step, lease=lease),
            faults.freeze(slot, step, seconds=2.0 + draw(f"seconds {n}", 9), lease=lease),
            faults.cut(slot, step, seconds=0.5 + draw(f"seconds {n}", 4), lease=lease),
            faults.copy(slot, step, lease=lease),
        )[kind]
    return faults


def simulated(faults: Faults | None = None, **fields: Any) -> SimulatedEngine:
    """Returns a simulator in which these things happen."""
    return SimulatedEngine(
        SimulatedCluster(faults=faults or Faults(), resend_seconds=0.1, **fields)
    )


@dataclass(frozen=True)
class Verdict:
    """What the model, the ledger and the events say of one run."""

    count: counted.Count
    lost: int
    """Uses of rows that are not in the model, of all that the epochs ask for."""
    doubled: int
    audited: AuditResult
    events: list[Any]
    model: np.ndarray

    def of(self, kind: str) -> list[Any]:
        """Returns the events of a kind."""
        return [event for event in self.events if type(event).__name__ == kind]


@dataclass
class Trial:
    """One run of the counting model, and of a term that continues from its last checkpoint.

    Args:
        recipe: one of `RECIPES`, or a strategy.
        folder: of what is written; nothing else may be in it.
        workers: how many.
        rows: how many; 0 for 120, or ten mini-batches a worker where a recipe has two parts.
        epochs: how often each row is wanted.
        copies: how many weights a row has.
        fixed: False where whoever is faster does more.
        fields: of the assignment.
    """

    recipe: str | StrategySpec
    folder: Path
    workers: int = 3
    rows: int = 0
    epochs: int = 2
    copies: int = 1
    fixed: bool = True
    lease_seconds: float = 5.0
    fields: dict[str, Any] = field(default_factory=dict)
    data: Any = None
    """Other than the numbers of the rows in memory."""
    resumed_from: int = 0
    """The version of the checkpoint that a second term continued from."""
    resumed_in: int = 0
    """Its phase: of two parts the start is 0, the rest 1."""

    def __post_init__(self) -> None:
        self.run, self.events = os.urandom(16), list[Any]()
        self.rows = self.rows or (40 * self.workers if self.recipe in BOTH_PARTS else 120)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path, self.ledger = self.folder / "agreements.jsonl", self.folder / "ledger.jsonl"

    @property
    def strategy(self) -> StrategySpec:
        """How the workers agree."""
        named = self.recipe
        return (RECIPES | BOTH_PARTS)[named](self.workers) if isinstance(named, str) else named

    def data_of(self, slot: int) -> np.ndarray:
        """Returns the numbers of the rows that a slot is dealt."""
        plan = counted.plan(self.strategy, "", self.rows, self.workers)
        return counted.row_numbers(self.rows).numbers(plan, slot)

    def assignment(self, book: LedgerWriter, **fields: Any) -> RunSpec:
        """Returns what an engine runs."""
        plan = counted.plan(
            self.strategy,
            str(self.path),
            self.rows,
            self.workers,
            epochs=self.epochs,
            copies=self.copies,
            lease_seconds=self.lease_seconds,
            share="rows" if self.fixed else "fastest",
        )
        usual = {"data": self.data or counted.row_numbers(self.rows), "run": self.run}
        usual |= {"emit": self.events.append, "enter": book.enter}
        return RunSpec(plan=plan, **usual | self.fields | fields)

    def train(self, engine: Engine, **fields: Any) -> Verdict:
        """Runs to the end, and counts."""
        book = LedgerWriter(self.ledger, self.run)
        try:
            result = engine.run(self.assignment(book, **fields))
        finally:
            book.close()
        return self.evaluation_sums(result.vectors[-1])

    def evaluation_sums(self, model: np.ndarray) -> Verdict:
        """Counts how often each row is in a model."""
        strategy = self.strategy
        if strategy.payload == "elastic":
            count = counted.pulled(self.path, model, strategy.alpha)
        else:
            shards = strategy.owners if strategy.is_sharded else 1
            count = counted.counted(self.path, model, strategy.outer, shards)
        start = Path(counted.of_start(self.path))
        if start.exists():
            count = counted.counted(start, counted.border(self.path)) + count
        wanted = self.epochs
        return Verdict(
            count,
            count.lost(wanted),
            count.doubled(wanted),
            audit(self.ledger),
            self.events,
            model,
        )

    def vault(self, saved: Callable[[Any], None] = lambda _: None) -> Checkpoints:
        """Returns the checkpoints of a run, of whichever process."""
        return Checkpoints(
            self.folder / "checkpoints",
            "counting",
            self.events.append,
            step=lambda _: None,
            saved=saved,
        )

    def resumed(self, engine: Engine) -> Verdict:
        """Continues from the newest checkpoint in the folder, as the next term."""
        vault = self.vault()
        try:
            snapshot = vault.newest()
            assert snapshot is not None, "the folder holds no checkpoint"
            self.resumed_in, self.resumed_from = snapshot.phase, snapshot.version
            return self.train(engine, term=2, snapshot=snapshot)
        finally:
            vault.close()


class Stopped(BaseException):
    """The simulated driver is gone."""


def stopped(trial: Trial, engine: SimulatedEngine, seconds: float = 0.6) -> int:
    """Trains until the simulated driver is gone, with checkpoints; returns the version reached."""
    vault, record = trial.vault(), trial.events.append

    def emit(event: Any) -> None:
        record(event)
        if type(event).__name__ == "RoundClosed" and engine.seconds > seconds:
            raise Stopped

    with suppress(Stopped):
        trial.train(engine, emit=emit, save=vault.save, checkpoint_seconds=0.2)
        raise AssertionError("the run ended before its driver")
    vault.close()
    return int(trial.events[-1].version)


def _engine(name: str, workers: int, faults: Faults | None = None) -> Engine:
    """Returns processes of this machine, or a Spark of this process with a slot for each worker."""
    if name == "processes":
        return LocalEngine(faults)
    from photinus.engine.spark.engine import SparkEngine
    from photinus.engine.spark.session import spark_session

    return SparkEngine(spark_session(workers, name="counting"), faults)


def _apart(call: str, seconds: float) -> subprocess.CompletedProcess[str]:
    """Calls a function of this file in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", f"import cases; cases.{call}"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=seconds,
    )


def end_driver(engine: str, folder: str, recipe: str, rounds: int, run: str) -> None:
    """Trains in this process, and kills it once there is a checkpoint, after so many rounds.

    Of two parts they are those of the rest.
    """
    trial, saved = Trial(recipe, Path(folder), epochs=4), threading.Event()
    trial.run, vault = bytes.fromhex(run), trial.vault(lambda _: saved.set())
    phase = 1 if recipe in BOTH_PARTS else 0

    def emit(event: Any) -> None:
        is_round = type(event).__name__ == "RoundClosed" and event.phase == phase
        if is_round and event.version >= rounds and saved.wait(0.5):
            os.kill(os.getpid(), signal.SIGKILL)

    fields = {"emit": emit, "save": vault.save, "checkpoint_seconds": 0.0, "reconnect_seconds": 2.0}
    book = LedgerWriter(trial.ledger, trial.run)
    _engine(engine, trial.workers).run(trial.assignment(book, **fields))


def killed_driver(recipe: str, folder: Path, engine: str = "processes") -> Trial:
    """Returns a trial whose driver has been killed; it can be resumed."""
    few = {"iterative_reduce": 2, "full_gradient": 2, "publish": 2, "gossip": 2}
    rounds = 2 if recipe in BOTH_PARTS else few.get(recipe, 6)
    trial = Trial(recipe, folder, epochs=4)
    words = f"{engine!r}, {str(folder)!r}, {recipe!r}, {rounds}, {trial.run.hex()!r}"
    ended = _apart(f"end_driver({words})", 600)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    return trial


def _tasks(folder: str, recipes: list[str], workers: list[int]) -> None:
    """Prints what is lost and doubled by tasks of a Spark that is this process's own."""
    for recipe in recipes:
        for count in workers:
            engine = _engine("spark", max(workers), Faults().kill(slot=count - 1, step=3))
            verdict = Trial(recipe, Path(folder) / f"{recipe}-{count}", count).train(engine)
            result = (recipe, count, verdict.lost, verdict.doubled, verdict.audited.is_exact)
            print(json.dumps(result), flush=True)  # noqa: T201 - for the process that asked


def tasks_of_spark(folder: Path, recipes: list[str], workers: list[int]) -> list[list[Any]]:
    """Returns recipe, workers, lost, doubled, and whether the audit is exact, of each run."""
    ended = _apart(f"_tasks({str(folder)!r}, {recipes!r}, {workers!r})", 900)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("[")]
