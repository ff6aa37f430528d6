"""A Python of the tasks that has no photinus is named before training."""

import os
import subprocess
import sys

import pytest

from photinus.core.errors import NotReadyError
from photinus.engine.spark.executor_python import check_python

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
