"""The same digits network end to end: one torch process, TorchDistributor with DDP, photinus.

    OMP_NUM_THREADS=1 python benchmarks/peers.py [--turns 3]

64-128-10 on scikit-learn's digits, 2 workers of one thread, 480 steps of 32 each, momentum 0.9.
Every way has a process and a Spark application of its own and trains twice in it: the first time
cold, the second warm; the start of Spark itself is not counted. *Launch* is from the call to the
end of the first step (TorchDistributor, torch) or round (photinus); *a step* is what one took
after that; the whole is the call's time, in which ours also measures, saves and reports.
All ways take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import begin
from recipe_named import recipe_named
from torch import nn

HOME = Path(__file__).parent
WORKERS, STEPS, BATCH, LR, MOMENTUM = 2, 480, 32, 0.05, 0.9


def network() -> nn.Module:
    """Two dense layers."""
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def digits() -> tuple[Any, Any, Any, Any]:
    """Returns pixels 0..1 and labels to train on, and to test with."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    x, y = (pixels / 16).astype(np.float32)[order], labels.astype(np.int64)[order]
    return x[:1437], y[:1437], x[1437:], y[1437:]


def loop(rank: int, world: int, net: nn.Module) -> dict[str, float]:
    """Trains on every `world`th row; returns when the first step was over, a step's time, error."""
    torch.set_num_threads(1)
    x, y, *test = (torch.from_numpy(one) for one in digits())
    x, y = x[rank::world], y[rank::world]
    optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM)
    torch.manual_seed(0)
    first = 0.0
    for step in range(STEPS):
        if step % (len(y) // BATCH) == 0:
            order = torch.randperm(len(y))
        mine = order[step % (len(y) // BATCH) * BATCH :][:BATCH]
        loss = nn.functional.cross_entropy(net(x[mine]), y[mine])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        first = first or time.time()
    error = (net(test[0]).argmax(1) != test[1]).float().mean()
    return {"first": first, "step": (time.time() - first) / (STEPS - 1), "error": float(error)}


def data_parallel() -> dict[str, float]:
    """What TorchDistributor runs in each task."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    net = nn.parallel.DistributedDataParallel(network())
    result = loop(dist.get_rank(), dist.get_world_size(), net)
    dist.destroy_process_group()
    return result


def alone() -> list[dict[str, float]]:
    """One torch process."""
    return [timed(lambda: loop(0, 1, network())) for _ in range(2)]


def distributor() -> list[dict[str, float]]:
    """TorchDistributor on tasks of Spark, with DDP."""
    from pyspark.ml.torch.distributor import TorchDistributor

    from photinus.engine.spark.session import spark_session

    spark = spark_session(WORKERS)  # the same settings for both

    def run() -> dict[str, float]:
        return TorchDistributor(WORKERS, local_mode=False, use_gpu=False).run(data_parallel)

    results = [timed(run) for _ in range(2)]
    spark.stop()
    return results


def ours(recipe: str) -> list[dict[str, float]]:
    """A job on a DataFrame."""
    import photinus as ph
    from photinus.core.events import RoundClosed
    from photinus.engine.spark.engine import frame_of
    from photinus.engine.spark.session import spark_session
    from photinus.models.schedules import Schedule

    spark = spark_session(WORKERS)
    for name in ("peers.py", "machine.py", "recipe_named.py"):
        spark.sparkContext.addPyFile(str(HOME / name))
    x, y, *test = digits()
    frame = frame_of(spark, [(x[n::WORKERS], y[n::WORKERS]) for n in range(WORKERS)]).cache()
    frame.count()
    data = ph.FrameData(frame=frame, features="features", label="label")
    model = ph.ModuleConfig(
        module="peers:network",
        optimizer="sgd",
        settings={"momentum": MOMENTUM},
        lr=Schedule.constant(LR),
        batch_size=BATCH * WORKERS,
        epochs=STEPS * BATCH * WORKERS / len(y),
    )
    job = ph.Job(model=model, workers=WORKERS, strategy=recipe_named(recipe))

    def run() -> dict[str, float]:
        rounds: list[tuple[float, int]] = []
        of_phases: dict[int, int] = {}

        def listen(event: Any) -> None:
            if isinstance(event, RoundClosed):
                of_phases[event.phase] = event.examples
                rounds.append((time.time(), sum(of_phases.values())))

        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "run"
            outcome = ph.train(
                job, data, test=ph.TestRows(*test), folder=place, callbacks=(listen,)
            )
        steps = (rounds[-1][1] - rounds[0][1]) / BATCH / WORKERS
        step = (rounds[-1][0] - rounds[0][0]) / steps
        return {"first": rounds[0][0], "step": step, "error": outcome.metrics["error"]}

    results = [timed(run) for _ in range(2)]
    spark.stop()
    return results


def timed(run: Any) -> dict[str, float]:
    """Returns what `run` found, with the seconds of its launch and of the whole."""
    began = time.time()
    result = run()
    return result | {"launch": result["first"] - began, "whole": time.time() - began}


WAYS = {
    "one torch process": alone,
    "TorchDistributor, DDP": distributor,
    "photinus, all_reduce": lambda: ours("all_reduce"),
    "photinus, averaging": lambda: ours("averaging"),
    "photinus, averaging alone": lambda: ours("averaging alone"),
}


def main() -> None:
    """Prints medians over the turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--one", choices=WAYS, help="this way only, as JSON on the last line")
    a = parser.parse_args()
    if a.one:
        print("\n" + json.dumps(WAYS[a.one]()))
        return
    results: dict[str, list[list[dict[str, float]]]] = {name: [] for name in WAYS}
    for _ in range(a.turns):
        for name, turns in results.items():
            command = [sys.executable, __file__, "--one", name]
            process = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            turns.append(json.loads(process.stdout.rstrip().rpartition("\n")[2]))
            print(f"{name}: {turns[-1]}", flush=True)
    print(f"{a.turns} turns, load {os.getloadavg()[0]:.1f}")
    print("| | launch, s | a step, ms | the whole, s | test error |")
    print("|---|---|---|---|---|")
    for name, turns in results.items():
        for number, state in enumerate(("cold", "warm")):
            mine = [turn[number] for turn in turns]
            launch, step, whole, error = (
                statistics.median(one[key] for one in mine)
                for key in ("launch", "step", "whole", "error")
            )
            cells = f"{launch:.2f} | {1e3 * step:.2f} | {whole:.2f} | {error:.1%}"
            print(f"| {name}, {state} | {cells} |")


if __name__ == "__main__":
    begin("--turns", "1")
    main()
