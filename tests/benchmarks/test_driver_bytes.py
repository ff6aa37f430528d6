"""`fit` copies no rows to the driver, as the benchmark counts it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "driver_bytes.py"
ROW_BYTES = 36


def bytes_returned(rows):
    process = subprocess.run(
        [sys.executable, str(SCRIPT), str(rows)], capture_output=True, text=True, timeout=600
    )
    assert process.returncode == 0, process.stderr[-3000:]
    match = re.search(r"returned by (\d+) tasks: ([\d,]+) bytes", process.stdout)
    assert int(match[1]) >= 2
    return int(match[2].replace(",", ""))


@pytest.mark.slow
@pytest.mark.spark
def test_what_tasks_return_does_not_grow_with_the_rows():
    few, many = 100_000, 1_000_000
    assert bytes_returned(many) < min(2 * bytes_returned(few), 0.01 * many * ROW_BYTES)
