"""Runs the coordinator in the task of slot 0, where tasks cannot reach the driver.

The others find it through the run folder. When that task is lost Spark starts it again, and the
coordinator continues under the next term, from its last checkpoint, as after a driver's resume.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Self

from photinus.coordinator.checkpoints import Checkpoints
from photinus.core.errors import LinkLostError, PhotinusError, user_message
from photinus.core.events import Event, Warned, event_to_dict
from photinus.core.threads import limit_threads
from photinus.devices.resources import TaskResources
from photinus.engine.base import RunSpec
from photinus.engine.driver_session import DriverSession
from photinus.engine.hooks import Hooks
from photinus.engine.spark.connect.run_directory import RunDirectory
from photinus.engine.worker_bootstrap import Rendezvous, WorkerBootstrap
from photinus.report.event_thinning import ThinnedEvents
from photinus.report.json_lines import Lines
from photinus.training.plan import TrainingPlan
from photinus.training.worker_loop import WorkerData
from photinus.transport.credentials import WorkerKey
from photinus.transport.frames import Frame
from photinus.transport.tcp_link import local_host

LEDGER_IDS = ("term", "phase", "slot", "lease", "sequence")
LEDGER_FIELDS = ("version", "steps", "examples", "position", "fragment")
"""What the ledger needs of a frame: of its identity, and of its header."""
_LOOK_SECONDS = 3.0
"""How long a worker tries an address before it looks for another one."""
_PAUSE_SECONDS = 0.1
_WATCH_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class CoordinatorSpec:
    """What is sent to every task where the coordinator runs in the first one."""

    run_spec: RunSpec
    """As it is sent: without rows and without parameters."""
    key: WorkerKey
    """All tasks read the same closure, so all have the one key, which may listen, too."""
    towards: str
    """A host that all executors reach: the coordinator listens on the interface towards it."""
    hooks: Hooks
    """Hooks of tests around the workers; under the client's own term only."""

    @property
    def plan(self) -> TrainingPlan:
        """What is trained."""
        return self.run_spec.plan

    def run(
        self,
        slot: int,
        attempt: str,
        open_part: Callable[[], WorkerData],
        resources: TaskResources | None = None,
        shared_folder: str = "",
    ) -> None:
        """Trains in one slot until the run is over, as `WorkerBootstrap.run`; hosts it in slot 0.

        Raises:
            NotReadyError: this task does not see the run folder.
            LinkLostError: neither a coordinator nor the client can be found any more.
        """
        run_directory = RunDirectory(self.run_spec.folder, self.run_spec.term)
        run_directory.check()
        open_once = functools.cache(open_part)
        _Task(
            self,
            run_directory,
            slot,
            attempt,
            open_once,
            resources or TaskResources(),
            shared_folder,
        ).run()

    def bootstrap(self, term: int, address: str) -> WorkerBootstrap:
        """Returns what a worker does under a coordinator."""
        hooks = self.hooks if term == self.run_spec.term else Hooks()
        rendezvous = Rendezvous(
            address,
            self.key,
            term,
            _LOOK_SECONDS,
            limits=self.plan.limits,
            has_peers=self.plan.has_peers,
            backend=self.run_spec.backend,
        )
        return WorkerBootstrap(self.plan, rendezvous, hooks)


@dataclass(eq=False, slots=True)
class _Task:
    """One task: runs as a worker under one coordinator after the other."""

    spec: CoordinatorSpec
    run_directory: RunDirectory
    slot: int
    attempt: str
    open_part: Callable[[], WorkerData]
    resources: TaskResources
    shared_folder: str
    attempts: int = 0

    def run(self) -> None:
        left_term = 0
        while not self.run_directory.has_outcome:
            host = self.run_directory.host()
            if host is not None and host[0] > left_term:
                is_dismissed = self._has_finished(*host)
                # a task that was sent away waits for the outcome, or for a newer coordinator
                left_term, host = (host[0], host) if is_dismissed else (left_term, None)
            if host is None and self.slot == 0 and not self.run_directory.has_outcome:
                self._host()
            self._check_client()
            threading.Event().wait(_PAUSE_SECONDS)

    def _check_client(self) -> None:
        """Raises where the client is lost; else a coordinator will return, with slot 0's task."""
        if not self.run_directory.is_ours:
            raise LinkLostError("another client has resumed this run", do="look at that one's")
        silent = self.run_directory.silent_seconds()
        if silent > self.spec.run_spec.reconnect_seconds:
            got = f"no coordinator, and no sign of the client for {silent:.0f} s"
            raise LinkLostError("the run is lost", got=got, do="look at the client; then resume")

    def _has_finished(self, term: int, address: str) -> bool:
        """Runs under a coordinator until that ends the run; False where its link was lost."""
        try:
            self.run_attempt(self.spec.bootstrap(term, address))
        except LinkLostError:
            return False
        return True

    def run_attempt(self, bootstrap: WorkerBootstrap) -> None:
        """Runs one attempt."""
        self.attempts += 1
        attempt = f"{self.attempt}.{self.attempts}"
        bootstrap.run(self.slot, attempt, self.open_part, self.resources, self.shared_folder)

    def _host(self) -> None:
        """Takes the next term, and hosts the coordinator until the run is over."""
        sent_spec, run_directory = self.spec.run_spec, self.run_directory
        run_folder, term = run_directory.run_folder, sent_spec.term
        if run_directory.host() is not None:
            term = run_folder.claim_term({"run": sent_spec.run.hex(), "client": sent_spec.term})
        if not run_directory.is_ours:
            return
        with _EventLog(run_directory, term) as event_log:
            checkpoints = Checkpoints(
                run_folder.checkpoints,
                sent_spec.fingerprint,
                event_log.emit,
                step=lambda _: run_folder.check_term(term),
                saved=event_log.emit,
            )
            try:
                with _failure_reported(run_directory):
                    self._serve(event_log, checkpoints, term)
            finally:
                checkpoints.close()

    def _serve(self, event_log: _EventLog, checkpoints: Checkpoints, term: int) -> None:
        run_directory, key, sent_spec = self.run_directory, self.spec.key, self.spec.run_spec
        run_spec = replace(
            sent_spec,
            plan=replace(sent_spec.plan, start=run_directory.initial_vectors(key)),
            term=term,
            snapshot=checkpoints.newest(),
            emit=event_log.emit,
            enter=event_log.enter,
            save=checkpoints.save,
            best=checkpoints.save_best,
            scratch=checkpoints.scratch,
        )
        if term > sent_spec.term:
            then = f"it is back as term {term}, from {checkpoints.found or 'the beginning'}"
            event_log.emit(Warned(text=user_message("the coordinator was lost", then=then)))
        threads = limit_threads(run_spec.plan.limits.threads)
        with threads, DriverSession(run_spec, local_host(self.spec.towards), key) as session:
            if not run_directory.announce(term, session.address):
                return
            with _Watch(session, run_directory, run_spec) as watch:
                while not session.wait(0.0):
                    with suppress(LinkLostError):  # cut on purpose: the coordinator is here
                        self.run_attempt(self.spec.bootstrap(term, session.address))
                    session.wait(_PAUSE_SECONDS)
            if not (watch.is_fenced or watch.has_reported):
                checkpoints.close()
                event_log.flush()
                run_directory.write_outcome(session.result())


@contextmanager
def _failure_reported(run_directory: RunDirectory) -> Iterator[None]:
    """Reports the coordinator's failure as the run's outcome; the failure of its task is none."""
    try:
        yield
    except LinkLostError:
        raise
    except PhotinusError as error:
        run_directory.write_outcome(None, str(error), type(error).__name__)


class _EventLog:
    """Writes the coordinator's events and ledger entries for the client."""

    def __init__(self, run_directory: RunDirectory, term: int) -> None:
        self._lines = Lines(run_directory.path / f"words-{term}.jsonl")
        self._thinned = ThinnedEvents(self._write)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._thinned.flush()
        self._lines.close()

    def _write(self, event: Event) -> None:
        self._lines.write({"event": event_to_dict(event)})

    def emit(self, event: Event) -> None:
        """Writes an event."""
        self._thinned.write(event)

    def enter(self, op: str, frame: Frame, extra: Mapping[str, Any]) -> None:
        """Enters a line of the ledger."""
        fields: dict[str, Any] = {name: getattr(frame, name) for name in LEDGER_IDS}
        fields["header"] = {n: frame.header[n] for n in LEDGER_FIELDS if n in frame.header}
        self._lines.write({"op": op, "kind": frame.kind, "frame": fields, "extra": extra})

    def flush(self) -> None:
        """Writes what was held back."""
        self._thinned.flush()


class _Watch:
    """Looks whether the client is alive or wants the end, for a newer term, and for a failure."""

    is_fenced = False
    """True when a newer term has taken over: this coordinator must write no outcome."""
    has_reported = False
    """True when the outcome is written."""

    def __init__(
        self, session: DriverSession, run_directory: RunDirectory, run_spec: RunSpec
    ) -> None:
        self._session, self._run_directory, self._run_spec = session, run_directory, run_spec
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._look, name="photinus-watch", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._closed.set()
        self._thread.join()

    def _look(self) -> None:
        looks_after_end = 0
        while not self._closed.wait(_WATCH_SECONDS):
            looks_after_end += self._session.is_over
            if looks_after_end > 1:
                return self._report_failure()
            request = self._stop_request()
            if request is not None:
                if request["saves"]:
                    self._session.stop_on_signal(request["reason"])
                self._session.stop(request["reason"])
                return None
        return None

    def _report_failure(self) -> None:
        """Writes a failure down: the worker in this process is busy, and may be ended."""
        with _failure_reported(self._run_directory):
            self._session.result()
            return
        self.has_reported = True

    def _stop_request(self) -> dict[str, Any] | None:
        """Returns why the run must end, if it must."""
        request = self._run_directory.stop_request()
        if request is not None:
            return request
        newest = self._run_directory.run_folder.newest_term()
        if newest > self._run_spec.term:
            self.is_fenced = True
            return {"reason": f"term {newest} has taken over", "saves": False}
        if self._run_directory.silent_seconds() > self._run_spec.reconnect_seconds:
            return {"reason": "the client is lost", "saves": True}
        return None
