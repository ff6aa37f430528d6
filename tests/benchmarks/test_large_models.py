"""The benchmark of large models, at a size that takes seconds."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.processes
@pytest.mark.slow
def test_the_small_case_runs_without_links_of_a_rate_and_loses_no_lease():
    command = [sys.executable, str(BENCHMARKS / "large_models.py"), "--small"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    summary = json.loads(output.splitlines()[-1])
    assert (summary["leases lost"], len(summary["worker GB"])) == (0, 2)
    assert len(summary["rounds s"]) == 2


def test_its_model_is_one(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module = importlib.import_module("large_models")
    work, data = module.plan(module.SMALL)
    assert work.phases[0].config.build((), 0).parameters.trained.size == module.SMALL.numbers
    assert len(data.features) == 32
