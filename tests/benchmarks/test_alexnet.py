"""The bytes of AlexNet's table at a small size: real messages against the simulator's."""

import importlib
from pathlib import Path

import pytest

from photinus.engine.local.engine import LocalEngine

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
@pytest.mark.processes
def test_the_bytes_of_both_workers_are_within_15_percent_of_the_simulators(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module = importlib.import_module("alexnet")
    measured = module.measured("lenet", 2, 4, 4, LocalEngine())
    simulated = module.simulated("lenet", 2, 4, 4, 0.01)
    assert (measured.rounds, simulated.rounds) == (2, 2)
    assert measured.mega_bytes == pytest.approx(simulated.mega_bytes, rel=0.15)
    # two workers send and get 60,850 numbers in each round
    assert simulated.mega_bytes == pytest.approx(2 * 2 * 2 * 60_850 * 4 / 1e6, rel=0.05)
    simulated_alone = module.simulated("lenet", 4, 4, 4, 0.01)
    assert simulated_alone.mega_bytes == pytest.approx(simulated.mega_bytes / 2, rel=0.05)
