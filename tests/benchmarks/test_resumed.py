"""P5: where no bits are promised after a resume, the loss is equal, over seeds."""

import importlib
import statistics
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
WAYS = ("averaging at once", "diloco at once", "downpour", "elastic", "gossip", "publish")


@pytest.fixture
def resumed(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module = importlib.import_module("resumed")
    monkeypatch.setattr(module, "EPOCHS", 6)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("name", WAYS)
def test_a_run_that_was_killed_twice_ends_with_an_equal_loss(resumed, name):
    assert set(resumed.WAYS) == set(WAYS)
    plain_losses, resumed_losses = resumed.compared(name, 3)
    assert statistics.mean(resumed_losses) == pytest.approx(statistics.mean(plain_losses), rel=0.02)
