"""Seconds to agree on 10 million float32 with two workers on loopback: gloo beside `all_reduce`.

    PYTHONPATH=benchmarks OMP_NUM_THREADS=1 python benchmarks/all_reduce.py [--deltas]

Both loops do the same: a constant gradient, agree on the mean, one plain step of descent. gloo
goes through torch.distributed (no encryption); ours with every worker owning a shard, in clear,
over TLS and through torch.distributed, and with one owner. They take turns; a line is the median of
the tries. With --deltas rounds of `averaging` after every step instead, with its outer momentum, by
one owner and by two. MB: of arrays, in and out of the node that most pass through.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic

import numpy as np
from machine import begin

from photinus.core.clock import Steps
from photinus.core.events import Event, RoundClosed
from photinus.core.parameters import TRAINED, Layout, Parameters, Vector
from photinus.engine.base import SOCKETS, ArrayData, RunSpec
from photinus.engine.local.engine import LocalEngine
from photinus.models.base import BatchLike, Model, ModelConfig
from photinus.models.optimizers import InnerOptimizer, TorchOptimizer
from photinus.models.schedules import Schedule
from photinus.strategies.recipes import all_reduce, averaging
from photinus.strategies.spec import StrategySpec
from photinus.training.plan import Phase, TrainingPlan

WORKERS, WARM = 2, 3
LAYOUT = "w"


class Still(Model):
    """Its gradient is all ones and costs nothing."""

    def __init__(self, numbers: int) -> None:
        self.parameters = Parameters(Layout.of([(LAYOUT, (numbers,), TRAINED)]))
        self._gradient = np.ones(numbers, np.float32)

    def learn(self, batch: BatchLike, seed: int) -> tuple[Vector, Mapping[str, float]]:  # noqa: ARG002
        """Returns ones."""
        return self._gradient, {}

    def measure(self, batch: BatchLike) -> Mapping[str, float]:
        """Returns nothing but the count."""
        return {"examples": float(len(batch.features))}


@dataclass(frozen=True)
class StillConfig(ModelConfig):
    """A phase of so many numbers and steps."""

    numbers: int
    epochs: float
    name: str = "still"
    batch_size: int = 1

    def build(self, history: tuple[Vector, ...], seed: int) -> Still:  # noqa: ARG002
        """Returns the model."""
        return Still(self.numbers)

    def inner(self, layout: Layout) -> InnerOptimizer:
        """Returns plain descent."""
        return TorchOptimizer(layout, "sgd", lr=Schedule.constant(0.1))


def ours(
    numbers: int, rounds: int, security: str, strategy: StrategySpec, transport: str = SOCKETS
) -> tuple[float, float]:
    """Returns the median seconds from round to round, and MB a round through the busiest node."""
    from all_reduce import StillConfig as Sent  # by its importable name, as the workers find it

    config = Sent(numbers=numbers, epochs=float(rounds + WARM))
    plan = TrainingPlan(phases=(Phase(config=config, strategy=strategy),), workers=WORKERS)
    at: list[float] = []
    sent: list[int] = []

    def emit(event: Event) -> None:
        if isinstance(event, RoundClosed):
            at.append(monotonic())
            sent.append(event.bytes_up + event.bytes_down)

    data = ArrayData(np.arange(WORKERS, dtype=np.float32)[:, None])
    LocalEngine().run(
        RunSpec(
            plan=plan,
            data=data,
            run=secrets.token_bytes(16),
            emit=emit,
            security=security,
            transport=transport,
        )
    )
    nodes = WORKERS / 2 if strategy.owners > 1 else 1  # each sends its share, and hears as much
    return statistics.median(np.diff(at)[WARM - 1 :]), statistics.median(sent) / nodes / 1e6


def gloo(numbers: int, rounds: int) -> tuple[float, float]:
    """Returns the same of two processes that use torch.distributed: its ring sends as much."""
    command = [sys.executable, __file__, "--gloo", str(numbers), str(rounds)]
    port = str(20000 + secrets.randbelow(20000))
    settings = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(WORKERS)}
    children = [
        subprocess.Popen(
            command, env={**os.environ, **settings, "RANK": str(rank)}, stdout=subprocess.PIPE
        )
        for rank in range(WORKERS)
    ]
    outputs = [child.communicate()[0] for child in children]
    return float(outputs[0]), 2 * 2 * (WORKERS - 1) / WORKERS * numbers * 4 / 1e6


def in_gloo(numbers: int, rounds: int) -> None:
    """One of gloo's processes: prints the median."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    w, ones = torch.zeros(numbers), torch.ones(numbers)
    optimizer = torch.optim.SGD([torch.nn.Parameter(w)], lr=0.1, fused=True)
    seconds = []
    for _ in range(rounds + WARM):
        began = time.perf_counter()
        gradient = ones.clone()
        dist.all_reduce(gradient)
        optimizer.param_groups[0]["params"][0].grad = gradient.div_(WORKERS)
        optimizer.step()
        seconds.append(time.perf_counter() - began)
    print(statistics.median(seconds[WARM:]))
    dist.destroy_process_group()


def main() -> None:
    """Prints a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--numbers", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--deltas", action="store_true")
    parser.add_argument("--gloo", type=int, nargs=2, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.gloo:
        return in_gloo(*a.gloo)
    every = {"every": Steps(1), "codec": "fp32"}
    make = functools.partial(averaging, **every) if a.deltas else all_reduce
    ways = {} if a.deltas else {"gloo, in clear": lambda: gloo(a.numbers, a.rounds)}
    for owners, security in itertools.product((WORKERS, 1), ("none", "tls")):
        name = f"{make().recipe}(owners={owners}), {'TLS' if security == 'tls' else 'in clear'}"
        strategy = make(owners=owners)
        ways[name] = functools.partial(ours, a.numbers, a.rounds, security, strategy)
    if not a.deltas:
        through = functools.partial(
            ours, a.numbers, a.rounds, "none", make(owners=WORKERS), "torch"
        )
        ways |= {f"all_reduce(owners={WORKERS}), transport torch": through}
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(a.tries):
        for name, run in ways.items():
            taken[name].append(run())
    first = next(iter(taken))
    base = statistics.median(seconds for seconds, _ in taken[first])
    print(f"way | ms a round | of {first} | MB")
    print("--- | --- | --- | ---")
    for name, measurements in taken.items():
        middle = statistics.median(seconds for seconds, _ in measurements)
        print(f"{name} | {1e3 * middle:.0f} | {middle / base:.2f} | {measurements[0][1]:.0f}")
    return None


if __name__ == "__main__":
    begin("--numbers", "100000", "--rounds", "4", "--tries", "1")
    main()
