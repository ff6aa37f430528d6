"""The driver of a sharded table holds none of it, measured from outside."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "sharded_table.py"

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        not Path("/proc/self/status").exists(), reason="this system tells no anonymous memory"
    ),
]


def test_the_driver_grows_by_a_third_of_a_table_at_most_with_checkpoints_and_a_lost_worker():
    size = ["--megabytes", "600", "--dims", "200", "--words", "200000", "--workers", "2"]
    command = [sys.executable, str(SCRIPT), *size, "--every", "5", "--ways", "sharded", "killed"]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    measurements = re.findall(
        r"driver (\S+) MB \((\S+) before\).* (\d+) checkpoints.*audit exact", process.stdout
    )
    assert len(measurements) == 2, process.stdout
    for peak, before, checkpoints in measurements:
        assert float(peak) - float(before) < 200
        assert int(checkpoints) > 0
