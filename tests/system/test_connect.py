"""Spark Connect, in another pytest: its client changes pyspark's functions in a whole process."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

CHECKS = Path(__file__).parents[1] / "connect"

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("grpc") is None, reason="Spark Connect needs grpcio"),
]


def passes(*checks):
    """Runs checks against a server of their own; shows what they said where one fails."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *checks]
    completed = subprocess.run(command, cwd=CHECKS.parents[1], capture_output=True, text=True)
    assert completed.returncode == 0, completed.stdout[-6000:] + completed.stderr[-2000:]


def test_a_job_on_spark_connect_with_a_token_gives_the_bits_of_the_simulator():
    passes(f"{CHECKS}/check_engine.py::test_every_recipe_gives_the_bits_of_the_simulator")


@pytest.mark.parametrize("checks", sorted(CHECKS.glob("check_*.py")), ids=lambda path: path.stem)
def test_everything_that_spark_connect_promises(checks):
    passes(str(checks))
