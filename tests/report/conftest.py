"""A run's journal, made up: two layers and a fine-tuning by four workers, one of them lost."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from photinus.core import events as e
from photinus.report.interval import error_interval
from photinus.report.journal import Journal
from photinus.report.weight_images import pack

PHASES = ["rbm 784-500", "rbm 500-500", "fine-tuning"]
SECONDS, ROUNDS, WORKERS, BATCH = 40.0, 60, 4, 15_000


def story(start: float = 1.0):
    """Yields (seconds, event)."""
    rng = np.random.default_rng(3)
    versions = {"photinus": "0.1.0", "python": "3.11.7", "torch": "2.13.0"}
    job = {"model": {"name": "mnist-dbn", "hidden": [500, 500]}, "strategy": "averaging", "seed": 7}
    yield (
        start,
        e.RunStarted(
            run="mnist-dbn", term=1, engine="spark", workers=WORKERS, job=job, versions=versions
        ),
    )
    for slot in range(WORKERS):
        yield (
            start + 0.2 * slot,
            e.WorkerJoined(slot=slot, lease=1, host=f"node-{slot % 2}", examples=15_000),
        )
    for phase, name in enumerate(PHASES):
        yield from _phase(phase, name, start + 2 + phase * (SECONDS + 1), rng)
    yield from _end(start + 4 + len(PHASES) * (SECONDS + 1), rng)


def _phase(phase: int, name: str, began: float, rng: np.random.Generator):
    budget = ROUNDS * BATCH
    yield began, e.PhaseStarted(
        phase=phase, name=name, budget=budget, parameters=393_284 - phase * 9_000, epochs=15,
        strategy="average every 50 steps", batch_size=100,
    )  # fmt: skip
    for n in range(1, ROUNDS + 1):
        at = began + SECONDS * n / ROUNDS
        if phase == 1 and n == 20:
            yield at, e.WorkerLost(slot=2, lease=1, reason="no beat for 5 s")
        if phase == 1 and n == 35:
            yield at, e.WorkerJoined(slot=2, lease=2, host="node-0", examples=15_000)
        slots = tuple(s for s in range(WORKERS) if not (phase == 1 and 20 <= n < 35 and s == 2))
        metrics = _metrics(phase, n, rng)
        yield at, e.RoundClosed(
            phase=phase, version=n, slots=slots, examples=n * BATCH, progress=n / ROUNDS,
            seconds=0.6 + 0.1 * rng.random(), metrics=metrics, bytes_up=1_573_000 * len(slots),
            bytes_down=1_573_000 * len(slots),
        )  # fmt: skip
        for slot in slots:
            work = 0.5 + 0.05 * slot - 0.2 * (phase == 2 and slot == 1)
            yield at, e.WorkerReport(
                slot=slot, phase=phase, steps=38 * n, examples=3_800 * n,
                examples_per_second=5200 + 300 * slot + 200 * rng.random(),
                compute_seconds=work * n, wait_seconds=(0.67 - work) * n,
                bytes_sent=1_573_000 * n, bytes_received=1_573_000 * n,
            )  # fmt: skip
        if n % 20 == 0 and phase == 2:
            yield at, e.Evaluated(
                phase=phase, name="validation", examples=5000,
                metrics={"error": 0.012 + 0.05 * math.exp(-n / 12)},
            )  # fmt: skip
        if n % 30 == 0:
            name_saved = f"1-{phase}-{n:06d}"
            yield at, e.CheckpointSaved(name=name_saved, phase=phase, version=n, seconds=0.2)
    yield (
        began + SECONDS,
        e.PhaseEnded(phase=phase, name=name, examples=budget, seconds=SECONDS, metrics=metrics),
    )


def _metrics(phase: int, n: int, rng: np.random.Generator) -> dict[str, float]:
    noise = 1 + 0.03 * rng.standard_normal()
    if phase < 2:
        return {"reconstruction": float((0.01 + 0.05 * math.exp(-n / 12)) * noise)}
    loss = float((0.002 + 0.4 * math.exp(-n / 10)) * noise)
    return {"loss": loss, "error": loss / 8}


def _end(at: float, rng: np.random.Generator):
    yield at - 1, e.Warned(text="worker 3 was left out of 2 rounds; it keeps its progress")
    confusion = np.diag([980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009])
    for _ in range(124):
        true, predicted = rng.integers(0, 10, 2)
        if true != predicted:
            confusion[true, predicted] += 1
            confusion[true, true] -= 1
    errors = int(confusion.sum() - np.trace(confusion))
    rows, cols = np.mgrid[0:28, 0:28]
    filters = [
        np.sin(rows * rng.normal(0, 0.3) + cols * rng.normal(0, 0.3) + rng.random() * 6)
        * np.exp(-((rows - 14) ** 2 + (cols - 14) ** 2) / 90)
        for _ in range(100)
    ]
    yield at, e.Evaluated(
        phase=2, name="test", examples=10_000, metrics={"error": errors / 10_000},
        extra={
            "confusion": confusion.tolist(),
            "interval": list(error_interval(errors, 10_000)),
            "filters": pack(np.array(filters)),
        },
    )  # fmt: skip
    yield at + 0.5, e.RunEnded(state="done", seconds=at, counts={"applied": 720, "duplicate": 0})


@pytest.fixture
def timeline():
    return list(story())


@pytest.fixture(scope="session")
def sample(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("run") / "events.jsonl"
    write(path, story())
    return path


def write(path: Path, timeline) -> None:
    clock = [0.0]
    journal = Journal(path, now=lambda: clock[0], wall=lambda: 1_795_000_000.0)
    for clock[0], event in timeline:
        journal.write(event)
    journal.close()
