"""Workers as processes on this machine; a process that dies is started again in its slot."""

from __future__ import annotations

import os
import pickle  # noqa: TID251 - into a child's private pipe, never to a socket or a file
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from photinus.core.errors import RunFailedError, UsageError, message
from photinus.core.events import Warned
from photinus.engine.base import MEMORY_RAN_OUT, ArrayData, Assignment, Engine
from photinus.engine.child import UNREADABLE, Order
from photinus.engine.errand import Errand
from photinus.engine.faults import Faults, faults_of
from photinus.engine.hall import Hall
from photinus.engine.harm_driver import DriverHarm
from photinus.engine.harm_rows import dealt
from photinus.feed.base import Array
from photinus.nodes.coordinator import Result

__all__ = ["LocalEngine"]

_LOOK_SECONDS = 0.1
_LEAVE_SECONDS = 10.0
"""So long a child may take to end once the run is over."""
_OUT_OF_MEMORY = f"{MEMORY_RAN_OUT}: use a smaller batch, or fewer workers"


class LocalEngine(Engine):
    """Processes on this machine, over the encrypted link, without Spark.

    When a worker is lost its slot is started again, and goes on where its rows are in the agreed
    parameters.

    Args:
        faults: what shall go wrong on purpose.
        host: the interface on which workers find the driver.
        before: what stands before a slot's command, as `nice -n 10`, or `ip netns exec NAME`.
    """

    name = "local"

    def __init__(
        self,
        faults: Faults | None = None,
        *,
        host: str = "127.0.0.1",
        before: Callable[[int], Sequence[str]] = lambda slot: (),  # noqa: ARG005
    ) -> None:
        self._faults, self._host, self._before = faults_of(faults), host, before

    def run(self, assignment: Assignment) -> Result:
        """See `Engine.run`."""
        data = assignment.data
        if not isinstance(data, ArrayData):
            got = type(data).__name__
            raise UsageError("the local engine reads arrays", got=got, do="use the Spark engine")
        harm = DriverHarm(self._faults, assignment)
        assignment = harm.assignment
        with (
            tempfile.TemporaryDirectory(prefix="photinus-") as folder,
            Hall(assignment, self._host) as hall,
            harm,
        ):
            errand = hall.errand(self._faults)
            files = _written(dealt(data, assignment.program, self._faults), Path(folder))
            family = _Family(assignment, hall, errand, files, self._before)
            try:
                family.watch()
            except KeyboardInterrupt:
                hall.stopped()
                raise
            finally:
                family.end()
        return hall.result()


def _written(parts: list[tuple[Array, Array | None]], folder: Path) -> list[tuple[str, str]]:
    """Writes each slot's rows to files that its process maps into memory."""
    files = []
    for slot, (features, labels) in enumerate(parts):
        names = [str(folder / f"features-{slot}.npy"), ""]
        np.save(names[0], features)
        if labels is not None:
            names[1] = str(folder / f"labels-{slot}.npy")
            np.save(names[1], labels)
        files.append((names[0], names[1]))
    return files


class _Family:
    """The children of one run."""

    def __init__(
        self,
        assignment: Assignment,
        hall: Hall,
        errand: Errand,
        files: list[tuple[str, str]],
        before: Callable[[int], Sequence[str]],
    ) -> None:
        self._assignment, self._hall, self._files = assignment, hall, files
        self._errand, self._before = errand, before
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._workers = assignment.program.workers
        self._births, self._early = 0, Counter[int]()
        self._leases: dict[int, int] = {}

    def watch(self) -> None:
        """Waits for the end of the run; a child that died is born again."""
        began = time.monotonic()
        self._bear(0.0)
        while not self._hall.wait(_LOOK_SECONDS):
            self._bear(time.monotonic() - began)
            for slot, child in self._children.items():
                # one that ended well may have told why, and that is still to be heard
                if child.poll() is not None and (child.returncode or not self._hall.wait(1.0)):
                    self._again(slot, child.returncode)

    def _bear(self, seconds: float) -> None:
        """Starts the workers whose places are free after so many seconds."""
        for slot in set(range(self._workers)) - self._children.keys():
            if self._errand.faults.comes_after(slot, self._workers) <= seconds:
                self._children[slot] = self._born(slot)

    def _again(self, slot: int, code: int) -> None:
        if code == UNREADABLE:
            raise UsageError(
                "what the program names cannot be imported by a worker process",
                do="define classes and functions in a module of their own, not in __main__",
            )
        self._early[slot] += 1
        if self._hall.lease(slot) > self._leases[slot]:
            self._early[slot] = 0
        most = self._assignment.restarts + self._workers
        if self._births >= most or self._early[slot] >= 3:
            do = _OUT_OF_MEMORY if code == -signal.SIGKILL else "look at what it printed"
            raise RunFailedError(f"worker {slot} ended too often", got=_ended(code), do=do)
        text = message(f"worker {slot} ended", got=_ended(code), do="its slot is started again")
        self._assignment.emit(Warned(text=text))
        self._children[slot] = self._born(slot)

    def _born(self, slot: int) -> subprocess.Popen[bytes]:
        threads = str(self._assignment.program.threads)
        features, labels = self._files[slot % len(self._files)]
        attempt, scale = f"{slot}-{self._births}", self._assignment.data.scale
        sent = _pickled(Order(self._errand, slot, attempt, features, labels, scale))
        self._births, self._leases[slot] = self._births + 1, self._hall.lease(slot)
        child = subprocess.Popen(  # noqa: S603 - what stands before is the caller's own word
            [*self._before(slot), sys.executable, "-m", "photinus.engine.child"],
            stdin=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
            process_group=0,  # Ctrl-C reaches the driver alone, and that tells the children
        )
        assert child.stdin is not None
        with suppress(BrokenPipeError), child.stdin as pipe:  # dead at once: its code tells
            pipe.write(sent)
        return child

    def end(self) -> None:
        """Lets the children leave; those that do not are killed."""
        deadline = time.monotonic() + _LEAVE_SECONDS
        for child in self._children.values():
            try:
                child.wait(max(0.0, deadline - time.monotonic()) if self._hall.is_over else 0.0)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _pickled(order: Order) -> bytes:
    try:
        return pickle.dumps(order)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UsageError(
            "the program cannot be sent to a process", got=str(error), do="import what it names"
        ) from error


def _ended(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
