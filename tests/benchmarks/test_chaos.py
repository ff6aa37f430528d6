"""A fault every 30 s, and what capacity is left; the kills of drivers, in short."""

import importlib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def chaos(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("chaos")


def test_every_worker_suffers_every_kind_in_ten_minutes(chaos):
    planned = chaos.planned(600.0).planned
    assert len(planned) == 20
    assert Counter(fault.slot for fault in planned) == dict.fromkeys(range(4), 5)
    assert set(Counter(fault.kind for fault in planned).values()) == {6, 7}
    assert [f.lease for f in planned if f.slot == 1] == [1, 2, 3, 4, 5]


def test_capacity_is_lost_until_a_worker_can_work_again(chaos):
    watch = chaos.Watch(seats=[(0.0, 1, 1), (104.5, 1, 2), (130.0, 2, 2)])
    notes = [
        {"kind": "kill", "slot": 1, "unix_seconds": 100.0},
        {"kind": "freeze", "slot": 2, "unix_seconds": 120.0},
        {"kind": "cut", "slot": 3, "unix_seconds": 199.0},
    ]
    assert chaos.away(notes, watch, 0.0, 200.0) == pytest.approx(4.5 + 8.0 + 1.0)


def test_who_is_hunted_is_the_executor_of_the_lease_that_was_planned(chaos, tmp_path, monkeypatch):
    killed, timers = [], []
    monkeypatch.setattr(chaos, "_parent", {30: 20, 20: 10}.get)
    monkeypatch.setattr(chaos.os, "kill", lambda *hit: killed.append(hit))

    class Timer:
        def __init__(self, seconds, function, arguments):
            timers.append((seconds, lambda: function(*arguments)))

        def start(self):
            pass

    monkeypatch.setattr(chaos.threading, "Timer", Timer)
    kills = list(chaos.Faults().kill(slot=1, at_seconds=7.0, lease=2).planned)
    hunter = chaos.Hunter(kills, tmp_path / "diary")
    for slot, pid in ((1, 3), (0, 4), (1, 30)):
        hunter(slot, pid)
    [(seconds, kill)] = timers
    kill()
    assert seconds == 7.0
    assert killed == [(10, chaos.signal.SIGKILL)]
    [note] = map(json.loads, (tmp_path / "diary").read_text().splitlines())
    assert (note["kind"], note["slot"]) == ("kill", 1)


def test_examples_are_counted_between_two_moments(chaos):
    watch = chaos.Watch(applied=[(0.0, 0), (10.0, 100), (20.0, 300)])
    assert watch.between(5.0, 15.0) == 150


@pytest.mark.fault
@pytest.mark.processes
@pytest.mark.slow
def test_a_driver_that_is_killed_again_and_again_ends_with_the_same_bits():
    command = [sys.executable, str(BENCHMARKS / "driver_kills.py"), "local", "3", "1"]
    environment = os.environ | {"PYTHONPATH": str(BENCHMARKS.parent / "src")}
    process = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert process.returncode == 0, process.stderr
    summary = json.loads(process.stdout.splitlines()[-1])
    assert (summary["kills"], summary["resumes"], summary["refused checkpoints"]) == (3, 3, 0)
    assert summary["chains to the same bits"] == summary["chains"]
    assert summary["ledgers without an offence"] == summary["chains"]
