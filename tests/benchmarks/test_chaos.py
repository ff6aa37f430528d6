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


def test_examples_are_counted_between_two_moments(chaos):
    watch = chaos.Watch(applied=[(0.0, 0), (10.0, 100), (20.0, 300)])
    assert watch.between(5.0, 15.0) == 150


@pytest.mark.fault
@pytest.mark.processes
@pytest.mark.slow
def test_a_driver_that_is_killed_again_and_again_ends_with_the_same_bits():
    command = [sys.executable, str(BENCHMARKS / "driver_kills.py"), "local", "3", "1"]
    environment = os.environ | {"PYTHONPATH": str(BENCHMARKS.parent / "src")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["kills"], told["resumes"], told["refused checkpoints"]) == (3, 3, 0)
    assert told["chains to the same bits"] == told["chains"]
    assert told["ledgers without an offence"] == told["chains"]
