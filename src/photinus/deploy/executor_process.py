"""Finds and ends the executor process that a Spark worker runs in."""

from __future__ import annotations

import os
import signal
from pathlib import Path

ENDS_EXECUTOR = "PHOTINUS_ENDS_EXECUTOR"
"""In the environment of workers whose executor must not outlive their coordinator."""
_EXECUTOR = b"CoarseGrainedExecutorBackend"


def executor_of_worker() -> int | None:
    """Returns the Java process above this one; None where all of Spark is one process."""
    pid = os.getppid()
    while pid > 1:
        process = Path("/proc", str(pid))
        if _EXECUTOR in (process / "cmdline").read_bytes():
            return pid
        pid = int((process / "stat").read_text().rpartition(")")[2].split()[1])
    return None


def end_executor() -> None:
    """Ends this worker's executor, if its environment asks for that.

    By itself an executor would wait ten minutes for a silent driver.
    """
    if os.environ.get(ENDS_EXECUTOR) and (pid := executor_of_worker()) is not None:
        os.kill(pid, signal.SIGKILL)
