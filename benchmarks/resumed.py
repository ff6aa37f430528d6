"""Without rounds no bits are promised after a resume; the loss must be equal, over seeds.

    python benchmarks/resumed.py [seeds] [rows | fastest]

In the simulator: softmax regression 20-10 on 4 uneven workers, the loss on 4,000 rows that nobody
trained on. Each seed trains once without a break, and once as a run whose driver was killed twice
and that resumed from its checkpoints, through the files that they are. By `rows`, the default, the
slowest worker ends alone with its own rows; `fastest` is the other rule for `share`.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
from machine import begin

from photinus.checkpoint.store import Store
from photinus.coordinator.checkpoints import files_of, meta_of, snapshot_from
from photinus.core.clock import Steps
from photinus.core.parameters import Vector
from photinus.engine.base import ArrayData, RunSpec
from photinus.engine.simulation.cluster import SimulatedCluster
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.models.logistic import LogisticConfig
from photinus.strategies.outer import DelayedNesterov
from photinus.strategies.recipes import averaging, diloco, downpour, elastic, gossip, publish
from photinus.strategies.spec import StrategySpec
from photinus.training.plan import Phase, TrainingPlan
from photinus.training.snapshots import RunSnapshot

WORKERS, ROWS, FEATURES, CLASSES, EPOCHS, HELD = 4, 2_000, 20, 10, 12, 4_000
WAYS = {
    "downpour": downpour(every=Steps(5)),
    "averaging at once": averaging(every=Steps(5), release="immediate"),
    "diloco at once": diloco(every=Steps(5), release="immediate", outer=DelayedNesterov()),
    "elastic": elastic(every=Steps(5)),
    "publish": publish(every=Steps(5)),
    "gossip": gossip(every=Steps(5)),
}


def config() -> LogisticConfig:
    return LogisticConfig(
        features=FEATURES,
        classes=CLASSES,
        epochs=EPOCHS,
        batch_size=10 * WORKERS,
        lr=0.05,
        dtype="float64",
    )


def rows(seed: int, count: int) -> tuple[Vector, Vector]:
    """Returns rows of ten classes that overlap."""
    rng = np.random.default_rng((1, seed))
    centres = np.random.default_rng(0).normal(size=(CLASSES, FEATURES))
    labels = rng.integers(0, CLASSES, count)
    return (centres[labels] + 1.5 * rng.normal(size=(count, FEATURES))), labels


def loss(vector: Vector) -> float:
    """Returns the mean loss on rows that nobody trained on."""
    model = config().build((), 0)
    model.load(vector)
    features, labels = rows(10_000, HELD)
    test_rows = type("Rows", (), {"features": features, "labels": labels})
    sums = model.measure(test_rows)
    return sums["loss"] / sums["examples"]


def run(
    way: StrategySpec, seed: int, snapshot: RunSnapshot | None, term: int, share: str
) -> tuple[Vector, list[RunSnapshot]]:
    """Trains from the beginning, or from a cut; returns the end and the cuts on the way."""
    snapshots: list[RunSnapshot] = []
    features, labels = rows(seed, ROWS)
    phases = (Phase(config=config(), strategy=way),)
    plan = TrainingPlan(phases=phases, workers=WORKERS, seed=seed, share=share)
    rng = np.random.default_rng((seed, term))
    speeds = tuple(float(s) for s in rng.uniform(0.01, 0.03, WORKERS))
    assignment = RunSpec(
        plan=plan,
        data=ArrayData(features, labels),
        run=bytes(16),
        term=term,
        snapshot=snapshot,
        save=snapshots.append,
        checkpoint_seconds=0.2,
    )
    vector = SimulatedEngine(SimulatedCluster(step_seconds=speeds)).run(assignment).vectors[-1]
    return vector, snapshots


def read_again(snapshot: RunSnapshot) -> RunSnapshot:
    """Returns a cut as a checkpoint brings it back."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        store.save(snapshot.name, meta_of(snapshot, "p"), files_of(snapshot))
        checkpoint = store.latest()
        assert checkpoint is not None
        return snapshot_from(checkpoint, "p")


def killed_twice(way: StrategySpec, seed: int, share: str) -> Vector:
    """A third is trained, a third from its checkpoint, and the rest from the next one's."""
    snapshot = None
    for term in (1, 2):
        _, snapshots = run(way, seed, snapshot, term, share)
        snapshot = read_again(next(c for c in snapshots if c.applied >= term / 3 * c.budget))
    return run(way, seed, snapshot, 3, share)[0]


def compared(name: str, seeds: int, share: str = "rows") -> tuple[list[float], list[float]]:
    """Returns the losses without a break, and with two resumes."""
    way = WAYS[name]
    plain = [loss(run(way, seed, None, 1, share)[0]) for seed in range(seeds)]
    return plain, [loss(killed_twice(way, seed, share)) for seed in range(seeds)]


def main(seeds: int, share: str) -> None:
    print("| way | loss without a break | killed twice and resumed | apart | spread over seeds |")
    print("|---|---|---|---|---|", flush=True)
    for name in WAYS:
        plain, again = compared(name, seeds, share)
        a, b = statistics.mean(plain), statistics.mean(again)
        spread = statistics.mean([statistics.stdev(plain), statistics.stdev(again)])
        print(f"| {name} | {a:.4f} | {b:.4f} | {b / a - 1:+.2%} | {spread / a:.2%} |", flush=True)


if __name__ == "__main__":
    begin("2")
    count, share = (*sys.argv[1:], *("5", "rows")[len(sys.argv) - 1 :])
    main(int(count), share)
