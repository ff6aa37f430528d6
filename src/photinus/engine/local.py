"""Workers as processes on this machine; a process that dies is started again in its slot."""

from __future__ import annotations

import os
import pickle  # noqa: TID251 - into a child's private pipe, never to a socket or a file
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from photinus.core.errors import RunFailedError, UsageError, message
from photinus.core.events import Warned
from photinus.engine.base import ArrayData, Assignment, Engine
from photinus.engine.child import Order
from photinus.engine.errand import Errand
from photinus.engine.hall import Hall
from photinus.nodes.coordinator import Result

__all__ = ["LocalEngine"]

LOOK_SECONDS = 0.1
LEAVE_SECONDS = 10.0
"""So long a child may take to end once the run is over."""


class LocalEngine(Engine):
    """Processes on this machine, over the encrypted link, without Spark.

    When a worker is lost its slot is started again, and goes on where its rows are in the agreed
    parameters.
    """

    name = "local"

    def run(self, assignment: Assignment) -> Result:
        """See `Engine.run`."""
        data = assignment.data
        if not isinstance(data, ArrayData):
            got = type(data).__name__
            raise UsageError("the local engine reads arrays", got=got, do="use the Spark engine")
        with tempfile.TemporaryDirectory(prefix="photinus-") as folder, Hall(assignment) as hall:
            family = _Family(assignment, hall, _dealt(data.checked(), assignment, Path(folder)))
            try:
                family.watch()
            finally:
                family.end()
        return hall.result()


def _dealt(data: ArrayData, assignment: Assignment, folder: Path) -> list[tuple[str, str]]:
    """Writes each slot's rows to files that its process maps into memory."""
    program, files = assignment.program, []
    for slot in range(1 if program.is_shared else program.workers):
        features, labels = data.part(program, slot)
        names = [str(folder / f"features-{slot}.npy"), ""]
        np.save(names[0], features)
        if labels is not None:
            names[1] = str(folder / f"labels-{slot}.npy")
            np.save(names[1], labels)
        files.append((names[0], names[1]))
    return files * program.workers if program.is_shared else files


class _Family:
    """The children of one run."""

    def __init__(self, assignment: Assignment, hall: Hall, files: list[tuple[str, str]]) -> None:
        self._assignment, self._hall, self._files = assignment, hall, files
        self._errand = Errand(
            assignment.program.sent(), hall.address, hall.worker_key(), assignment.term
        )
        self._children = {slot: self._born(slot, 0) for slot in range(assignment.program.workers)}
        self._births = 0

    def watch(self) -> None:
        """Waits for the end of the run; a child that died is born again."""
        while not self._hall.wait(LOOK_SECONDS):
            for slot, child in self._children.items():
                if child.poll() is not None and child.returncode != 0:
                    self._again(slot, child.returncode)

    def _again(self, slot: int, code: int) -> None:
        self._births += 1
        if self._births > self._assignment.restarts:
            raise RunFailedError(
                f"workers died {self._births} times", got=f"exit code {code}", do="see their logs"
            )
        text = message(f"worker {slot} ended", got=f"exit code {code}; its slot is started again")
        self._assignment.emit(Warned(text=text))
        self._children[slot] = self._born(slot, self._births)

    def _born(self, slot: int, birth: int) -> subprocess.Popen[bytes]:
        threads = str(self._assignment.program.threads)
        child = subprocess.Popen(
            [sys.executable, "-m", "photinus.engine.child"],
            stdin=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
        )
        features, labels = self._files[slot]
        scale = self._assignment.data.scale
        order = Order(self._errand, slot, f"{slot}-{birth}", features, labels, scale)
        assert child.stdin is not None
        try:
            with child.stdin as pipe:
                pickle.dump(order, pipe)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            child.kill()
            raise UsageError(
                "the program cannot be sent to a process", got=str(error), do="import what it names"
            ) from error
        except BrokenPipeError:
            pass  # it died at once: its exit code tells
        return child

    def end(self) -> None:
        """Lets the children leave; those that do not are killed."""
        deadline = time.monotonic() + LEAVE_SECONDS
        for child in self._children.values():
            try:
                child.wait(max(0.0, deadline - time.monotonic()) if self._hall.is_over else 0.0)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
