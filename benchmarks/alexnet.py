"""AlexNet over links of 1 Gbit/s: bytes and seconds by steps between rounds, as SparkNet tables it.

    sudo python benchmarks/alexnet.py [--taus 1 2 5 10 20] [--steps 20] [--batch 8]
    python benchmarks/alexnet.py --small       (LeNet on a plain loopback, in seconds)

Two workers, each in a network namespace with a link of its own (Linux with unshare, ip, tc; root),
train on images of chance: the plain average of float32 parameters every tau steps. Beside each line
stands the simulator's, of as many parameters, with the steps as fast as they were measured.
"""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import sys
import time
from dataclasses import dataclass

import numpy as np
from hosts import isolated
from large_models import DRIVER, Case, LargeConfig, Watch, built
from machine import begin

from photinus.core.clock import Steps
from photinus.core.events import PhaseStarted, RoundClosed, WorkerReport
from photinus.engine.base import ArrayData, RunSpec
from photinus.engine.local.engine import LocalEngine
from photinus.engine.simulation.cluster import SimulatedCluster
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.models.base import ModelConfig
from photinus.models.module import ModuleConfig
from photinus.strategies.outer import Sgd
from photinus.strategies.recipes import averaging
from photinus.training.plan import Phase, TrainingPlan

WORKERS, RATE, BYTES_PER_SECOND = 2, "1gbit", 125e6
SIDES = {"alexnet": 224, "lenet": 28}
CHANNELS = {"alexnet": 3, "lenet": 1}


@dataclass(frozen=True)
class Run:
    """What one training took."""

    rounds: int
    mega_bytes: float
    """Of the rounds' messages, up and down."""
    seconds: float
    """From the first step to the last round."""
    step_seconds: float = 0.0


def plan(net: str, tau: int, config: ModelConfig | None = None, batch: int = 8) -> TrainingPlan:
    """Returns what is trained: SparkNet's scheme."""
    reads = "photinus.models.images:imagenet" if net == "alexnet" else ""
    net_config = ModuleConfig(
        module=f"photinus.models.zoo:{net}",
        epochs=1.0,
        batch_size=WORKERS * batch,
        reads=reads,
        optimizer="sgd",
        settings={"momentum": 0.9},
        lr=1e-3,
    )
    way = averaging(
        every=Steps(tau), outer=Sgd(), merge="uniform", codec="fp32", gradients_until=0.0
    )
    return TrainingPlan(phases=(Phase(config=config or net_config, strategy=way),), workers=WORKERS)


def rows(net: str, steps: int, batch: int) -> ArrayData:
    """Returns images of chance: as many steps of both workers."""
    chance, count = np.random.default_rng(0), WORKERS * steps * batch
    size = CHANNELS[net] * SIDES[net] ** 2
    images = chance.integers(0, 256, (count, size), np.uint8)
    scale = None if net == "alexnet" else 1 / 255
    return ArrayData(images, chance.integers(0, 10, count), scale)


def measured(net: str, tau: int, steps: int, batch: int, engine: LocalEngine) -> Run:
    """Trains in processes; returns what it took."""
    watch = Watch()
    engine.run(
        RunSpec(
            plan=plan(net, tau, batch=batch),
            data=rows(net, steps, batch),
            run=secrets.token_bytes(16),
            emit=watch.emit,
        )
    )
    watch.end()
    reports = {event.slot: event for _, event in watch.of(WorkerReport)}
    computed = sum(r.compute_seconds for r in reports.values())
    return _run(watch, computed / max(1, sum(r.steps for r in reports.values())))


def simulated(net: str, tau: int, steps: int, batch: int, step_seconds: float) -> Run:
    """Trains as many parameters in virtual time, where a step's arithmetic takes no time."""
    whole = plan(net, tau, batch=batch)
    numbers = whole.phases[0].config.build((), 0).parameters.trained.size
    config = LargeConfig(numbers=numbers, batch_size=WORKERS * batch)
    cluster = SimulatedCluster(
        step_seconds=step_seconds, bytes_per_second=BYTES_PER_SECOND, latency_seconds=0
    )
    engine, watch = SimulatedEngine(cluster), Watch()

    def emit(event: object) -> None:
        watch.events.append((engine.seconds, event))

    engine.run(
        RunSpec(
            plan=plan(net, tau, config),
            data=rows("lenet", steps, batch),
            run=secrets.token_bytes(16),
            emit=emit,
        )
    )
    watch.end()
    return _run(watch, step_seconds)


def _run(watch: Watch, step_seconds: float) -> Run:
    closed = watch.of(RoundClosed)
    sent = sum(event.bytes_up + event.bytes_down for _, event in closed)
    [(began, _)] = watch.of(PhaseStarted)
    return Run(len(closed), sent / 1e6, closed[-1][0] - began, step_seconds)


def one(a: argparse.Namespace) -> None:
    """Prints the line of one tau, in a driver of its own."""
    engine = LocalEngine()
    if a.net == "alexnet":
        isolated()
        built(Case(0, WORKERS, RATE))
        before = {n: ("ip", "netns", "exec", f"h{n}") for n in range(WORKERS)}
        engine = LocalEngine(host=DRIVER, before=before.__getitem__)
    began = time.time()
    real = measured(a.net, a.one, a.steps, a.batch, engine)
    virtual = simulated(a.net, a.one, a.steps, a.batch, real.step_seconds)
    off = real.mega_bytes / virtual.mega_bytes - 1
    print(
        f"{a.one} | {real.rounds} | {real.mega_bytes:,.1f} | {virtual.mega_bytes:,.1f} | {off:+.2%}"
        f" | {real.seconds:.1f} | {virtual.seconds:.1f} | {real.step_seconds:.2f} | "
        f"{time.time() - began:.0f}",
        flush=True,
    )


def main() -> None:
    """Prints a line for each tau."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--taus", nargs="+", type=int, default=[1, 2, 5, 10, 20])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=8, help="of one worker")
    parser.add_argument("--net", choices=list(SIDES), default="alexnet")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.one:
        one(a)
        return
    if a.net == "alexnet" and os.geteuid():
        sys.exit("shaped links need root; try --small")
    print("tau | rounds | MB | MB simulated | more | s | s simulated | s a step | s in all")
    print("--- | --- | --- | --- | --- | --- | --- | --- | ---", flush=True)
    same = ["--steps", str(a.steps), "--batch", str(a.batch), "--net", a.net]
    for tau in a.taus:
        subprocess.run([sys.executable, __file__, "--one", str(tau), *same], check=True)


if __name__ == "__main__":
    begin("--net", "lenet", "--taus", "1", "2", "--steps", "4")
    import alexnet  # the simulator's config is known by its module

    alexnet.main()
