"""What a planned fault does to a real worker process: to the one that it runs in."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

from photinus.core.errors import LinkLostError, UsageError
from photinus.engine.faults import CUT, FREEZE, KILL, SLOW, Fault
from photinus.transport.link import Link

__all__ = ["Cable", "Harm"]

_WAKE = 'sleep "$1"; kill -CONT "$2"'
_EXECUTOR = b"CoarseGrainedExecutorBackend"


class Cable:
    """What all links of a worker run through, so that one can cut it."""

    def __init__(self) -> None:
        self._whole_at = 0.0
        self._links: weakref.WeakSet[Link] = weakref.WeakSet()

    def cut(self, seconds: float) -> None:
        """Closes all links; none can be made for a while."""
        self._whole_at = time.monotonic() + seconds
        for link in list(self._links):
            link.close()

    def linked(self, make: Callable[[], Link], patience_seconds: float) -> Link:
        """Makes a link, as soon as that is possible.

        Raises:
            LinkLostError: it was not for as long as `patience_seconds`.
        """
        left = self._whole_at - time.monotonic()
        threading.Event().wait(max(0.0, min(left, patience_seconds)))
        if left > patience_seconds:
            raise LinkLostError("this worker is cut off on purpose")
        link = make()
        self._links.add(link)
        return link


class Harm:
    """Does faults to this process.

    Args:
        diary: a file to note them in, just before; or nothing.
    """

    def __init__(self, diary: str = "") -> None:
        self.cable, self._diary = Cable(), diary

    def later(self, seconds: float, fault: Fault) -> None:
        """Does it in a while, whatever the worker does then."""
        timer = threading.Timer(seconds, self.happen, (fault, 0.0))
        timer.daemon = True
        timer.start()

    def happen(self, fault: Fault, step_seconds: float) -> None:
        """Does it now.

        Args:
            fault: of this worker.
            step_seconds: how long its last step took.
        """
        if fault.kind == SLOW:
            threading.Event().wait((fault.factor - 1) * step_seconds)
            return
        victim = _executor() if fault.executor else os.getpid()
        self._note(fault)
        if fault.kind == KILL:
            os.kill(victim, signal.SIGKILL)
        elif fault.kind == FREEZE:
            _freeze(victim, fault.seconds)
        elif fault.kind == CUT:
            self.cable.cut(fault.seconds)

    def _note(self, fault: Fault) -> None:
        if not self._diary:
            return
        line = json.dumps({**fault.told(), "unix_seconds": time.time()}) + "\n"
        file = os.open(self._diary, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)


def _executor() -> int:
    """Returns the Java process of the executor that this process is a worker of.

    Raises:
        UsageError: there is none: where all of Spark is one process the driver would die.
    """
    pid = os.getppid()
    while pid > 1:
        process = Path("/proc", str(pid))
        if _EXECUTOR in (process / "cmdline").read_bytes():
            return pid
        pid = int((process / "stat").read_text().rpartition(")")[2].split()[1])
    do = "use a cluster, or local-cluster[executors,cores,memory]"
    raise UsageError("a fault befalls an executor of Spark's", got="a worker without one", do=do)


def _freeze(pid: int, seconds: float) -> None:
    """Stops a process; one that is started for that wakes it again."""
    command = ["/bin/sh", "-c", _WAKE, "wake", f"{seconds:g}", str(pid)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0):  # noqa: S603
        os.kill(pid, signal.SIGSTOP)
