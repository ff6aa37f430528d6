"""Models that take longer than a lease to reach a worker: time, leases lost, memory.

    python benchmarks/large_models.py [25M] [244MB] [1GB] [deepdist]   (root; Linux with unshare,
                                                                        ip, tc; deepdist: Spark)
    python benchmarks/large_models.py --small                          (anywhere, in seconds)

Each worker lives in a network namespace with a link of its own, whose rate holds for what is sent
to it and for what it sends, behind a bridge at which the driver stands. All of it is in a namespace
of this script's, and gone when it ends. DeepDist runs on a local Spark over a loopback of that
rate, which all share. With `--small` a little model is trained on a plain loopback.

A line for each case: the model's bytes, the link, the workers, the seconds from the grants to the
first step, the seconds of a round, the leases that were lost, what each worker was sent in models,
and the peak of the memory of the driver and of each worker.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hosts import isolated, sh
from machine import begin

from photinus.core.clock import Steps
from photinus.core.events import (
    Event,
    PhaseEnded,
    PhaseStarted,
    RoundClosed,
    Warned,
    WorkerJoined,
    WorkerLost,
)
from photinus.core.parameters import TRAINED, Layout, Parameters, Vector
from photinus.engine.base import ArrayData, RunSpec
from photinus.engine.local.engine import LocalEngine
from photinus.models.base import BatchLike, Model, ModelConfig
from photinus.models.optimizers import InnerOptimizer
from photinus.strategies.outer import Sgd
from photinus.strategies.recipes import averaging
from photinus.training.plan import Phase, TrainingPlan

INPUTS = 8
DRIVER = "10.78.0.1"
NOTES = "PHOTINUS_LARGE_NOTES"
ROUNDS, BATCH = 2, 4


@dataclass(frozen=True)
class Case:
    """A model, a link and workers."""

    numbers: int
    """Parameters, of 4 bytes each."""
    workers: int
    rate: str = ""
    """As `tc` has it; empty: the loopback as it is."""
    is_deepdist: bool = False


CASES = {
    "25M": Case(25_000_000, 3, "80mbit"),
    "244MB": Case(61_000_000, 5, "1gbit"),
    "1GB": Case(250_000_000, 2, "100mbit"),
    "deepdist": Case(60_000_000, 2, "100mbit", is_deepdist=True),
}
SMALL = Case(150_000, 2)


class Large(Model):
    """As many parameters as it takes, and no memory beside them: what is counted is not its own.

    Its loss is the parameters' length, so that they are their own gradient. It notes when its
    process takes its first step.
    """

    def __init__(self, numbers: int) -> None:
        self.parameters = Parameters(Layout.of([("w", (numbers,), TRAINED)]))
        self.parameters.trained[:] = 1

    def learn(self, batch: BatchLike, seed: int) -> tuple[Vector, Mapping[str, float]]:  # noqa: ARG002
        """Returns the gradient of w²/2."""
        note = Path(os.environ.get(NOTES, os.devnull), f"{os.getpid()}")
        if note.parent.is_dir() and not note.exists():
            note.write_text(str(time.time()))
        return self.parameters.trained, {"loss": float(self.parameters.trained[0]) ** 2 / 2}

    def measure(self, batch: BatchLike) -> Mapping[str, float]:
        """Returns as little as it must."""
        return {"examples": float(len(batch.features)), "loss": 0.0}


class Descent(InnerOptimizer):
    """Plain gradient descent on such a model."""

    def step(self, trained: Vector, gradient: Vector, progress: float) -> None:  # noqa: ARG002
        """W ← .9 w, in place."""
        trained *= trained.dtype.type(0.9)

    def state(self) -> dict[str, Vector]:
        """Nothing is remembered."""
        return {}

    def load(self, state: Mapping[str, Vector]) -> None:
        """Nothing is remembered."""


@dataclass(frozen=True, kw_only=True)
class LargeConfig(ModelConfig):
    """A phase of it."""

    numbers: int
    name: str = "large"
    epochs: float = 1.0
    batch_size: int = BATCH

    def build(self, history: tuple[Vector, ...], seed: int) -> Large:  # noqa: ARG002
        """All ones."""
        return Large(self.numbers)

    def inner(self, layout: Layout) -> Descent:  # noqa: ARG002
        """Returns the plainest."""
        return Descent()


def plan(case: Case) -> tuple[TrainingPlan, ArrayData]:
    """Returns what is trained: two rounds of two steps."""
    chance, rows = np.random.default_rng(0), case.workers * ROUNDS * 2 * BATCH
    data = ArrayData(chance.random((rows, INPUTS), dtype=np.float32), chance.integers(0, 2, rows))
    config = LargeConfig(numbers=case.numbers, batch_size=case.workers * BATCH)
    way = averaging(every=Steps(2), outer=Sgd())
    return TrainingPlan(phases=(Phase(config=config, strategy=way),), workers=case.workers), data


class Watch:
    """Keeps events with their moments, and the peak of each process's memory."""

    def __init__(self) -> None:
        self.events = list[tuple[float, Event]]()
        self.peaks: dict[int, float] = {}
        self._pids, self._over = {os.getpid()}, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def emit(self, event: Event) -> None:
        """Takes one event in."""
        self.events.append((time.time(), event))
        if isinstance(event, WorkerJoined) and event.pid:
            self._pids |= {event.pid}

    def _watch(self) -> None:
        while not self._over.wait(0.1):
            for pid in list(self._pids):
                self._look(pid)

    def _look(self, pid: int) -> None:
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            return
        [peak] = [line.split()[1] for line in lines if line.startswith("VmHWM")] or ["0"]
        self.peaks[pid] = max(self.peaks.get(pid, 0.0), int(peak) / 1e6)

    def end(self) -> None:
        """Looks once more."""
        self._look(os.getpid())
        self._over.set()
        self._thread.join()

    def of(self, kind: type[Event]) -> list[tuple[float, Event]]:
        """Returns the events of one kind."""
        return [(at, event) for at, event in self.events if isinstance(event, kind)]

    def summary(self, case: Case) -> dict[str, object]:
        """Returns what both kinds of runs print."""
        driver, peaks = os.getpid(), sorted(self.peaks.items())
        losses = self.of(WorkerLost) + self.of(Warned)
        joined = [event for _, event in self.of(WorkerJoined) if isinstance(event, WorkerJoined)]
        return {
            "model bytes": 4 * case.numbers,
            "link": case.rate or "loopback",
            "workers": case.workers,
            "leases lost": sum(event.lease > 1 for event in joined),
            "told": [getattr(e, "reason", "") or getattr(e, "text", "") for _, e in losses],
            "driver GB": round(self.peaks.get(driver, 0.0), 2),
            "worker GB": [round(peak, 2) for pid, peak in peaks if pid != driver],
        }


# -- hosts -------------------------------------------------------------------------------------


def built(case: Case) -> None:
    """A bridge, and hosts behind it, each with a link of the rate."""
    shape = f"root tbf rate {case.rate} burst 256kb latency 500ms"
    sh("mount -t tmpfs none /run && ip link set lo up")
    if case.is_deepdist:
        sh(f"tc qdisc replace dev lo {shape}")
        return
    sh(f"ip link add br0 type bridge && ip addr add {DRIVER}/24 dev br0 && ip link set br0 up")
    for host in range(case.workers):
        inside = f"ip netns exec h{host}"
        sh(f"ip netns add h{host} && ip link add v{host} type veth peer name eth0 netns h{host}")
        sh(f"ip link set v{host} master br0 up && {inside} ip link set lo up")
        sh(f"{inside} ip addr add 10.78.0.{10 + host}/24 dev eth0 && {inside} ip link set eth0 up")
        sh(f"{inside} tc qdisc replace dev eth0 {shape} && tc qdisc replace dev v{host} {shape}")


def sent_to(host: int) -> int:
    """Returns the bytes that went to a host."""
    words = ["ip", "-s", "-j", "link", "show", f"v{host}"]
    [link] = json.loads(subprocess.run(words, check=True, capture_output=True).stdout)
    return int(link["stats64"]["tx"]["bytes"])


# -- runs --------------------------------------------------------------------------------------


def trained(case: Case, notes: Path) -> dict[str, object]:
    """Trains for two rounds; returns what to print."""
    os.environ[NOTES] = str(notes)
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    watch, (work, data) = Watch(), plan(case)
    engine = LocalEngine()
    if case.rate:
        before = {n: ("ip", "netns", "exec", f"h{n}") for n in range(case.workers)}
        engine = LocalEngine(host=DRIVER, before=before.__getitem__)
    engine.run(RunSpec(plan=work, data=data, run=secrets.token_bytes(16), emit=watch.emit))
    watch.end()
    [(began, _)], [(ended, _)] = watch.of(PhaseStarted), watch.of(PhaseEnded)
    rounds = [began, *(at for at, _ in watch.of(RoundClosed))]
    steps = [float(note.read_text()) - began for note in notes.iterdir()]
    sent = [sent_to(host) / (4 * case.numbers) for host in range(case.workers if case.rate else 0)]
    return watch.summary(case) | {
        "first step s": [round(min(steps), 1), round(max(steps), 1)],
        "rounds s": [round(s, 1) for s in np.diff(rounds).tolist()],
        "all s": round(ended - began, 1),
        "models sent to each": [round(s, 2) for s in sent],
    }


class Server:
    """What DeepDist trains: one array."""

    def __init__(self, numbers: int) -> None:
        self.weights = np.zeros(numbers, np.float32)


def distributed(case: Case, notes: Path) -> dict[str, object]:
    """Two passes of DeepDist over one partition a worker; returns what to print."""
    from pyspark.sql import SparkSession

    from photinus.estimators.deepdist import DeepDist

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    spark = (
        SparkSession.builder.master(f"local[{case.workers}]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    watch, where = Watch(), str(notes)

    def gradient(model, rows):  # type: ignore[no-untyped-def]
        Path(where, f"{os.getpid()}-{time.time()}").write_text(str(time.time()))
        return {"weights": np.full_like(model.weights, sum(rows))}

    def descent(model, update):  # type: ignore[no-untyped-def]
        model.weights += update["weights"]

    rows, model = spark.sparkContext.parallelize([1.0] * case.workers, case.workers), Server(1)
    began = time.time()
    with DeepDist(Server(case.numbers), callbacks=[watch.emit]) as server:
        result = server.train(rows, gradient, descent, epochs=ROUNDS)
        model = server.model
    seconds = time.time() - began
    watch.end()
    spark.stop()
    joined = watch.of(WorkerJoined)
    steps = sorted(float(note.read_text()) - joined[0][0] for note in notes.iterdir())
    return watch.summary(case) | {
        "first step s": [round(s, 1) for s in steps[: case.workers]],
        "rounds s": [round(seconds / ROUNDS, 1)],
        "all s": round(seconds, 1),
        "updates": result.updates,
        "applied": float(model.weights.min()),
        "fenced": result.fenced,
    }


def run(name: str, case: Case) -> dict[str, object]:
    """Runs one case; returns what to print."""
    with tempfile.TemporaryDirectory() as notes:
        does = distributed if case.is_deepdist else trained
        return {"case": name, **does(case, Path(notes))}


def main(words: list[str]) -> None:
    if words == ["--small"]:
        print(json.dumps(run("small", SMALL)), flush=True)
        return
    if len(words) != 1:  # each with a driver, and so a peak of memory, of its own
        for name in words or CASES:
            subprocess.run([sys.executable, __file__, name], check=True)
        return
    isolated()
    built(CASES[words[0]])
    print(json.dumps(run(words[0], CASES[words[0]])), flush=True)


if __name__ == "__main__":
    begin("--small")
    import large_models  # workers know its classes by that name

    large_models.main(sys.argv[1:])
