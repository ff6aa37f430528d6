"""What a fault that ends a run has cost is read from the rounds of its lives."""

import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def resumed(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("faults_resumed")


def closed(at, examples, slots=(0, 1, 2, 3)):
    return {"at": at, "slots": slots, "examples": examples}


def test_what_was_done_since_the_checkpoint_is_redone(resumed):
    first = [closed(1.0, 800), closed(2.0, 1600), closed(3.0, 2400)]
    again = [closed(9.0, 1600, slots=(0, 2, 3)), closed(10.0, 2400), closed(11.0, 3200)]
    assert resumed.price(3.5, first + again) == (5.5, 6.5, 1600)


def test_a_run_that_goes_on_has_nothing_redone(resumed):
    rounds = [closed(1.0, 800), closed(2.0, 1600), closed(4.5, 2400)]
    assert resumed.price(1.5, rounds) == (2.5, 0.5, 0)
