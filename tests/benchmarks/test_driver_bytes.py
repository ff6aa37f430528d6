"""`fit` copies no rows to the driver, as the benchmark counts it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "driver_bytes.py"
ROW_BYTES = 36


def returned(rows):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(rows)], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = re.search(r"returned by (\d+) tasks: ([\d,]+) bytes", done.stdout)
    assert int(found[1]) >= 2
    return int(found[2].replace(",", ""))


@pytest.mark.slow
@pytest.mark.spark
def test_what_tasks_return_does_not_grow_with_the_rows():
    few, many = 100_000, 1_000_000
    assert returned(many) < min(2 * returned(few), 0.01 * many * ROW_BYTES)
