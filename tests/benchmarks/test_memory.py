"""What a worker's process takes for its rows, measured from outside."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "memory.py"

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="this system does not tell a process's peak"
)


def measure(*arguments):
    """Returns engine -> (peak in MB, ratio)."""
    command = [sys.executable, str(SCRIPT), *arguments]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [line.split() for line in process.stdout.splitlines()]
    return {row[0]: (float(row[1]), float(row[2])) for row in rows if row[0] in ("local", "spark")}


@pytest.mark.processes
@pytest.mark.slow
def test_the_peak_of_a_small_run_is_that_of_its_worker():
    peak, _ = measure("--small", "--engines", "local")["local"]
    assert 100 < peak < 2000, "a Python with torch, in MB"


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("engine", ["local", "spark"])
def test_a_worker_takes_at_most_a_third_more_than_its_rows_beside_300_mb(engine):
    _, ratio = measure("--engines", engine)[engine]
    assert ratio <= 1.3
