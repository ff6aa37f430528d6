"""all_reduce whose gradient leaves during the backward pass, beside one that waits for its end.

    OMP_NUM_THREADS=1 python benchmarks/overlap.py [--batch 64] [--steps 30] [--turns 3]
        [--mbits 0 1000 200] [--codecs fp32 bf16] [--security none]

Two workers, a shard each, train the CIFAR-10 tutorial network on made-up images, in bfloat16, one
thread each. `bandwidth` limits what a worker sends (0: no limit), so that a wait for the network
costs no processor time, as between machines. What waits is the same recipe with `quorum=2`: it
sends nothing before it is called. The ways take turns; a line has the medians.
"""

from __future__ import annotations

import argparse
import secrets
import statistics
from time import monotonic

import numpy as np
from machine import begin

from photinus.core.events import Event, RoundClosed
from photinus.engine.base import ArrayData, RunSpec
from photinus.engine.local.engine import LocalEngine
from photinus.models.module import ModuleConfig
from photinus.strategies.recipes import all_reduce
from photinus.training.plan import Phase, TrainingPlan, WorkerLimits

WORKERS, WARM = 2, 5


def seconds_of_a_step(early: bool, codec: str, mbits: float, a: argparse.Namespace) -> float:
    """Returns the median seconds from step to step."""
    quorum = 1.0 if early else WORKERS
    config = ModuleConfig(
        module="photinus.models.cnn:tutorial",
        batch_size=WORKERS * a.batch,
        epochs=float(a.steps + WARM),
        precision=a.precision,
        memory="channels_last",
    )
    strategy = all_reduce(owners=WORKERS, codec=codec, quorum=quorum)
    at: list[float] = []

    def emit(event: Event) -> None:
        if isinstance(event, RoundClosed):
            at.append(monotonic())

    rng = np.random.default_rng(0)
    images = rng.random((WORKERS * a.batch, 3, 24, 24), dtype=np.float32)
    LocalEngine().run(
        RunSpec(
            plan=TrainingPlan(
                phases=(Phase(config=config, strategy=strategy),),
                workers=WORKERS,
                limits=WorkerLimits(bandwidth=mbits * 1e6 / 8 or None),
            ),
            data=ArrayData(images, rng.integers(0, 10, len(images))),
            run=secrets.token_bytes(16),
            emit=emit,
            security=a.security,
        )
    )
    return statistics.median(np.diff(at)[WARM:])


def main() -> None:
    """Prints a line for each codec and bandwidth."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=64, help="of a worker")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--mbits", type=float, nargs="+", default=[0, 1000, 200])
    parser.add_argument("--codecs", nargs="+", choices=("fp32", "bf16"), default=["fp32", "bf16"])
    parser.add_argument("--security", choices=("tls", "none"), default="none")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="bfloat16")
    a = parser.parse_args()
    print("codec | Mbit/s | ms a step, after the backward pass | during it | ratio")
    print("--- | --- | --- | --- | ---")
    for codec in a.codecs:
        for mbits in a.mbits:
            turns = [
                [seconds_of_a_step(early, codec, mbits, a) for early in (False, True)]
                for _ in range(a.turns)
            ]
            late, early = (statistics.median(way) * 1e3 for way in zip(*turns, strict=True))
            rate = f"{mbits:g}" if mbits else "no limit"
            print(f"{codec} | {rate} | {late:.0f} | {early:.0f} | {early / late:.2f}", flush=True)


if __name__ == "__main__":
    begin("--batch", "2", "--steps", "2", "--turns", "1", "--mbits", "0", "--codecs", "fp32")
    main()
