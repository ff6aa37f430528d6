"""A Python of the tasks that has no photinus is named before training."""

import os
import subprocess
import sys

import pytest

from photinus.core.errors import NotReadyError
from photinus.engine.spark.executor_python import _problem_of, check_python

PLAIN = """
import sys
from pyspark.sql import SparkSession
from photinus.engine.spark.executor_python import check_python

spark = SparkSession.builder.master("local[1]").getOrCreate()
check_python(spark.sparkContext)
"""


@pytest.fixture
def bare(tmp_path):
    """A Python without any installed package."""
    script = tmp_path / "python-bare"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    script.chmod(0o755)
    return str(script)


@pytest.mark.spark
def test_a_python_that_cannot_run_tasks_is_named_with_the_one_that_can(spark, bare, monkeypatch):
    monkeypatch.setattr(spark.sparkContext, "pythonExec", bare)
    with pytest.raises(NotReadyError, match=f"has no photinus.*PYSPARK_PYTHON={sys.executable}"):
        check_python(spark.sparkContext)


@pytest.mark.spark
def test_the_drivers_own_python_is_not_asked(spark, monkeypatch):
    monkeypatch.setattr(spark.sparkContext, "parallelize", None)
    check_python(spark.sparkContext)


@pytest.mark.spark
@pytest.mark.slow
def test_a_session_of_the_users_own_with_another_python_is_refused_in_a_sentence(bare):
    environment = {**os.environ, "PYSPARK_PYTHON": bare, "PYSPARK_DRIVER_PYTHON": sys.executable}
    completed = subprocess.run(
        [sys.executable, "-c", PLAIN], env=environment, capture_output=True, text=True, timeout=200
    )
    assert "NotReadyError: the Python of Spark's tasks has no photinus; got " in completed.stderr


@pytest.mark.parametrize(
    ("failure", "wrong", "got"),
    [
        (
            'Lost task 0.0: java.io.IOException: Cannot run program "/no/python": error=2, No such '
            "file or directory\n\tat java.base/java.lang.ProcessBuilder.start",
            "cannot be started",
            "/no/python: No such file or directory",
        ),
        (
            "PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version:"
            " 3.12 than that in driver: 3.11, PySpark cannot run with different minor versions.",
            "has another version than the driver's",
            "3.12 and 3.11",
        ),
        (
            "org.apache.spark.SparkException: EOFException occurred while reading the port number "
            "from photinus.engine.spark.daemon's stdout and terminated with code: 1..",
            "has no photinus",
            "bin/python",
        ),
        ("ImportError: no such module\n", "has no photinus", "ImportError: no such module"),
    ],
)
def test_what_is_wrong_with_a_python_is_said_in_words_and_not_as_sparks_exception(
    failure, wrong, got
):
    assert _problem_of(failure, "bin/python") == (f"the Python of Spark's tasks {wrong}", got)


def test_what_the_python_that_travelled_says_is_passed_on():
    said = "no Python 3.11 on node7; got PATH=/bin; name it: --python PATH"
    daemon = "EOFException occurred while reading the port number from photinus.engine.spark.daemon"
    with pytest.raises(NotReadyError, match=f"^{said}$"):
        _problem_of(f"Error from python worker:\n  photinus: {said}\n{daemon}", "python")
