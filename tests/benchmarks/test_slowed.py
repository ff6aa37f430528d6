"""How long fast workers wait, as `benchmarks/slowed.py` counts it."""

import importlib
from pathlib import Path

import pytest

from photinus.core.events import PhaseStarted, RoundClosed, WorkerReport

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def slowed(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("slowed")


@pytest.fixture
def watch(slowed, monkeypatch):
    """Twenty seconds, 1,000 examples of each of four workers; the fast ones do 200 a second."""
    now = [0.0]
    monkeypatch.setattr(slowed, "monotonic", lambda: now[0])
    slowed_watch = slowed.Watch(shares=None, first_slot=0)
    slowed_watch(PhaseStarted(phase=0, name="all", budget=4000, parameters=1, strategy="all"))
    for second in range(1, 21):
        now[0] = float(second)
        round_ = RoundClosed(
            phase=0, version=second, slots=(0,), examples=200 * second, progress=0.0, seconds=1.0
        )
        slowed_watch(round_)
    for slot, speed in enumerate((200, 200, 200, 50)):
        report = WorkerReport(
            slot=slot,
            phase=0,
            steps=8,
            examples=800,
            examples_per_second=1.0,
            compute_seconds=800 / speed,
        )
        slowed_watch(report)
    return slowed_watch


def test_the_fast_wait_for_as_long_as_their_own_examples_do_not_take(watch):
    assert watch.wait() == pytest.approx(1 - 5 / 20)


def test_a_run_too_short_for_the_window_has_no_speed(watch):
    assert watch.speed(10.0) == pytest.approx(200)
    assert watch.speed(100.0) is None
