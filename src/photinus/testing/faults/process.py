"""Injects faults into the worker process that it runs in."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
import weakref
from collections.abc import Callable

from photinus.core.errors import LinkLostError, NotReadyError, UsageError, reason_of
from photinus.deploy.executor_process import executor_of_worker
from photinus.engine.hooks import WorkerHooks
from photinus.testing.faults.fault import CUT, FREEZE, KILL, SLOW, SLOW_LINK, Fault
from photinus.testing.faults.worker import FaultyWorker
from photinus.training.plan import TrainingPlan
from photinus.training.requests import WorkerGenerator
from photinus.training.worker_loop import WorkerData
from photinus.transport.link import Link
from photinus.transport.rate_limit import RateLimit

_WAKE = 'sleep "$1"; kill -CONT "$2"'
_PULL = 'ip link set "$1" down && sleep "$2" && ip link set "$1" up'
_SHAPE = 'tc qdisc replace dev "$1" root tbf rate "$2"bps burst "$3"b latency 500ms'
_LEAST_BURST_BYTES, _BURST_SECONDS = 4096, 0.01
"""A kernel's token bucket must hold a packet; in a large one a whole push fits, as if unshaped."""


class Cable:
    """What all links of a worker run through, so that one can cut it."""

    def __init__(self) -> None:
        self._restored_at = 0.0
        self._links: weakref.WeakSet[Link] = weakref.WeakSet()

    def cut(self, seconds: float) -> None:
        """Closes all links; none can be made for a while."""
        self._restored_at = time.monotonic() + seconds
        for link in list(self._links):
            link.close()

    def linked(self, make: Callable[[], Link], connect_seconds: float) -> Link:
        """Makes a link, as soon as that is possible.

        Raises:
            LinkLostError: it was not for as long as `connect_seconds`.
        """
        left = self._restored_at - time.monotonic()
        threading.Event().wait(max(0.0, min(left, connect_seconds)))
        if left > connect_seconds:
            raise LinkLostError("this worker is cut off on purpose")
        link = make()
        self._links.add(link)
        return link


class WorkerFaults(WorkerHooks):
    """Does faults to this process, in which a worker runs.

    Args:
        planned: of its slot.
        diary: a file to note them in, just before; or nothing.
        rate_limit: of all that the worker sends, where a fault makes its link slow.
        address: the coordinator's address: its route names the host's interface.
    """

    def __init__(
        self,
        planned: tuple[Fault, ...] = (),
        diary: str = "",
        rate_limit: RateLimit | None = None,
        address: str = "",
    ) -> None:
        super().__init__(rate_limit)
        self.cable, self._planned, self._diary, self._address = Cable(), planned, diary, address
        self._slowed_faults, self._pull_processes = set[Fault](), list[subprocess.Popen[bytes]]()

    def check(self) -> None:
        """Looks for the executor and the host of each fault, before any happens.

        Raises:
            UsageError: there is no such executor or host.
            NotReadyError: the host's network is not to be found.
        """
        for fault in self._planned:
            if fault.executor:
                _executor()
            if fault.host:
                _interface(self._address)

    def linked(self, make: Callable[[], Link], connect_seconds: float) -> Link:
        """Makes a link, as soon as the worker is not cut off any more.

        Raises:
            LinkLostError: it was for as long as `connect_seconds`.
        """
        return self.cable.linked(make, connect_seconds)

    def life(self, plan: TrainingPlan, slot: int, part: WorkerData) -> WorkerGenerator:
        """Returns what the worker does, with its faults."""
        return FaultyWorker(self._planned, self.happen, self.later).life(plan, slot, part)

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
        if fault.kind == SLOW and fault.until and os.path.exists(fault.until):
            return
        if fault.kind == SLOW:
            threading.Event().wait((fault.factor - 1) * step_seconds)
            return
        if fault.kind == SLOW_LINK:
            self._slow_link(fault)
            return
        pid = _executor() if fault.executor else os.getpid()
        interface = _interface(self._address) if fault.host else ""
        note(self._diary, fault)
        if fault.kind == KILL:
            os.kill(pid, signal.SIGKILL)
        elif fault.kind == FREEZE:
            _freeze(pid, fault.seconds)
        elif fault.kind == CUT and fault.host:
            self._pull_processes.append(_start(_PULL, interface, f"{fault.seconds:g}"))
        elif fault.kind == CUT:
            self.cable.cut(fault.seconds)

    def _slow_link(self, fault: Fault) -> None:
        """Slows it once; `slow_link` is asked for after every step."""
        if fault in self._slowed_faults:
            return
        self._slowed_faults.add(fault)
        interface = _interface(self._address) if fault.host else ""
        note(self._diary, fault)
        if fault.host:
            burst = max(_LEAST_BURST_BYTES, int(_BURST_SECONDS * fault.amount))
            if code := _start(_SHAPE, interface, f"{int(fault.amount)}", f"{burst}").wait():
                raise NotReadyError("tc did not shape the host's link", got=f"exit code {code}")
        elif self.rate_limit is not None:
            self.rate_limit.slow_to(fault.amount)


def note(diary: str, fault: Fault) -> None:
    """Writes a line of a fault to a file, if there is one."""
    if not diary:
        return
    line = json.dumps({**fault.diary_entry(), "unix_seconds": time.time()}) + "\n"
    file = os.open(diary, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def _executor() -> int:
    """Returns the Java process of this worker's executor.

    Raises:
        UsageError: there is none: where all of Spark is one process the driver would die.
    """
    if (pid := executor_of_worker()) is None:
        do = "use a cluster, or local-cluster[executors,cores,memory]"
        wrong, got = "the fault needs an executor of Spark", "a worker without one"
        raise UsageError(wrong, got=got, do=do)
    return pid


def _interface(address: str) -> str:
    """Returns the network interface behind which this worker's host finds an address.

    Raises:
        UsageError: it is the machine's own, and not that of a host in a namespace.
        NotReadyError: there is no `ip`, or it finds no way.
    """
    host = address.rpartition(":")[0].rpartition("/")[2].strip("[]")
    if not _ip("netns", "identify", str(os.getpid())):
        wrong = "the fault of a host's link needs a network namespace of its own"
        raise UsageError(wrong, got="one without a name", do="use `ip netns exec NAME`")
    output = _ip("-o", "route", "get", host)
    return output[output.index("dev") + 1]


def _ip(*arguments: str) -> list[str]:
    try:
        completed = subprocess.run(  # noqa: S603
            ["ip", *arguments],  # noqa: S607 - the system's
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        wrong = f"ip {' '.join(arguments)} failed"
        raise NotReadyError(
            wrong, got=reason_of(error), do="look at the network of the host"
        ) from error
    return completed.stdout.split()


def _freeze(pid: int, seconds: float) -> None:
    """Stops a process; one that is started for that wakes it again."""
    with _start(_WAKE, f"{seconds:g}", str(pid)):
        os.kill(pid, signal.SIGSTOP)


def _start(script: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Starts a shell that a signal to this process's group does not reach."""
    command = ["/bin/sh", "-c", script, "faults", *arguments]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)  # noqa: S603
