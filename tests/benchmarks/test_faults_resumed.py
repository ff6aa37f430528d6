"""What a fault that ends a run has cost is read from the rounds of its lives."""

import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def resumed(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("faults_resumed")


def round_entry(at, examples, slots=(0, 1, 2, 3)):
    return {"at": at, "slots": slots, "examples": examples}


def test_what_was_done_since_the_checkpoint_is_redone(resumed):
    first = [round_entry(1.0, 800), round_entry(2.0, 1600), round_entry(3.0, 2400)]
    again = [
        round_entry(9.0, 1600, slots=(0, 2, 3)),
        round_entry(10.0, 2400),
        round_entry(11.0, 3200),
    ]
    assert resumed.price(3.5, first + again) == (5.5, 6.5, 1600)


def test_a_run_that_continues_has_nothing_redone(resumed):
    rounds = [round_entry(1.0, 800), round_entry(2.0, 1600), round_entry(4.5, 2400)]
    assert resumed.price(1.5, rounds) == (2.5, 0.5, 0)
