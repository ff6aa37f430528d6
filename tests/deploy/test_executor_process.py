"""The executor above a worker is found, and ended only where that was asked for.

On a cluster: tests/clusters/test_submit.py.
"""

import os
import signal
import subprocess
import sys

import pytest

from photinus.deploy.executor_process import ENDS_EXECUTOR, end_executor, executor_of_worker

WORKER = "from photinus.deploy.executor_process import end_executor; end_executor()"
EXECUTOR = """
import subprocess, sys
worker = subprocess.run([sys.executable, "-c", sys.argv[1]])
print("lives", worker.returncode, flush=True)
"""


def executor(**environment):
    """A process that looks like an executor, whose worker ends it, or does not."""
    command = [sys.executable, "-c", EXECUTOR, WORKER, "CoarseGrainedExecutorBackend"]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=os.environ | environment
    )


@pytest.mark.processes
def test_an_executor_is_ended_by_a_worker_below_it_that_was_told_so():
    assert executor(**{ENDS_EXECUTOR: "1"}).returncode == -signal.SIGKILL


@pytest.mark.processes
def test_without_a_word_it_lives():
    process = executor(**{ENDS_EXECUTOR: ""})
    assert (process.returncode, process.stdout) == (0, "lives 0\n"), process.stderr


def test_where_all_of_spark_is_one_process_nothing_is_ended(monkeypatch):
    monkeypatch.setenv(ENDS_EXECUTOR, "1")
    assert executor_of_worker() is None
    end_executor()
