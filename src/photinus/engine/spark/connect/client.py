"""The Spark Connect client's side of a run: it waits for files in the run folder."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Self

from photinus.coordinator.phases import RunResult
from photinus.core.errors import CheckpointError, RunFailedError, UsageError
from photinus.core.events import WorkerJoined, event_from_dict
from photinus.engine.base import SOCKETS, RunSpec
from photinus.engine.driver_session import LAST_SECONDS
from photinus.engine.hooks import Hooks
from photinus.engine.spark.connect.coordinator_task import CoordinatorSpec
from photinus.engine.spark.connect.run_directory import RunDirectory
from photinus.engine.worker_bootstrap import reported_error
from photinus.transport.credentials import Credentials
from photinus.transport.frames import Frame


class ConnectSession:
    """Does for a client what `DriverSession` does for a driver; slot 0's task has the coordinator.

    Args:
        run_spec: what is trained; client and tasks exchange all status in its run folder.

    Raises:
        UsageError: it has no folder.
        NotReadyError: the folder cannot be written.
    """

    def __init__(self, run_spec: RunSpec) -> None:
        if not run_spec.folder:
            wrong = "on Spark Connect a run needs a folder that client and executors share"
            raise UsageError(wrong, do="name one, or call photinus.train")
        self._run_spec = run_spec
        self._run_directory = RunDirectory(run_spec.folder, run_spec.term)
        make = Credentials.make if run_spec.sent().security == "tls" else Credentials.none
        self._key = make(run_spec.run).worker(is_peer=True)
        self._run_directory.make(run_spec.plan.start, self._key)
        self._pause = threading.Event()
        self._leases: Counter[int] = Counter()
        self._offsets: dict[Path, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.stop(str(error) or type(error).__name__)
        self._drain()
        self._run_directory.remove()

    def coordinator_spec(self, hooks: Hooks, towards: str) -> CoordinatorSpec:
        """Returns what every task is sent.

        Args:
            hooks: what tests do to its workers.
            towards: a host that all executors reach.
        """
        spec = self._run_spec.sent()
        checked_hooks = hooks.checked(
            self.slots, is_real=True, has_sockets=spec.transport == SOCKETS
        )
        if checked_hooks.taken()[0]:
            wrong = "slots are taken by a job of the same application"
            raise UsageError(wrong, got="Spark Connect", do="use a classic session")
        return CoordinatorSpec(spec, self._key, towards, checked_hooks)

    @property
    def slots(self) -> int:
        """How many seats there are."""
        return self._run_spec.plan.workers

    def lease(self, slot: int) -> int:
        """Returns how often a slot was taken, as far as the coordinator has reported."""
        return self._leases[slot]

    def wait(self, seconds: float) -> bool:
        """Waits for the end, and passes on what is reported; returns whether the run has ended."""
        self._pause.wait(seconds)
        self._run_directory.beat()
        is_over = self._run_directory.has_outcome
        self._drain()
        return is_over

    def stop(self, reason: str) -> None:
        """Ends the run without a result."""
        self._run_directory.stop(reason)

    def stop_on_signal(self, reason: str) -> None:
        """Ctrl-C or SIGTERM: as of `DriverSession.stop_on_signal`."""
        self._run_directory.stop(reason, saves=True)
        deadline = time.monotonic() + LAST_SECONDS + 2.0
        while not self.wait(0.1) and time.monotonic() < deadline:
            continue

    def result(self) -> RunResult:
        """Returns what was agreed.

        Raises:
            RunFailedError: the run ended without a result.
        """
        try:
            result, failure, kind = self._run_directory.outcome()
        except CheckpointError as error:
            raise RunFailedError("the run's result cannot be read", got=error) from error
        if result is None:
            raise reported_error(failure, kind)
        return result

    def _drain(self) -> None:
        """Passes on what coordinators reported since: each file only grows."""
        for _, path in self._run_directory.event_files():
            start = self._offsets.get(path, 0)
            with path.open("rb") as file:
                file.seek(start)
                data = file.read()
            end = data.rfind(b"\n") + 1
            self._offsets[path] = start + end
            for line in data[:end].splitlines():
                self._forward(json.loads(line))

    def _forward(self, entry: dict[str, Any]) -> None:
        if "op" in entry:
            frame = Frame(entry["kind"], self._run_spec.run, **entry["frame"])
            self._run_spec.enter(entry["op"], frame, entry["extra"])
            return
        try:
            event = event_from_dict(entry["event"])
        except (UsageError, TypeError):  # of another version of photinus on the executors
            return
        if isinstance(event, WorkerJoined):
            self._leases[event.slot] += 1
        self._run_spec.emit(event)
