"""Runs the coordinator in the task of slot 0, where tasks cannot reach the driver.

The others find it through the run folder. When that task is lost Spark starts it again, and the
coordinator continues under the next term, from its last checkpoint, as after a driver's resume.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Self

from photinus.coordinator.checkpoints import Checkpoints
from photinus.core.errors import LinkLostError, PhotinusError, message
from photinus.core.events import Event, Warned, event_to_dict
from photinus.core.threads import threads_held
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
from photinus.transport.tcp import local_host

ENTERED_IDS = ("term", "phase", "slot", "lease", "sequence")
ENTERED_FIELDS = ("version", "steps", "examples", "position", "fragment")
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
        given: TaskResources | None = None,
        shared: str = "",
    ) -> None:
        """Trains in one slot until the run is over, as `WorkerBootstrap.run`; hosts it in slot 0.

        Raises:
            NotReadyError: this task does not see the run folder.
            LinkLostError: neither a coordinator nor the client can be found any more.
        """
        run_directory = RunDirectory(self.run_spec.folder, self.run_spec.term)
        run_directory.check()
        opened = functools.cache(open_part)
        _Task(self, run_directory, slot, attempt, opened, given or TaskResources(), shared).run()

    def bootstrap(self, term: int, address: str) -> WorkerBootstrap:
        """Returns what a worker does under a coordinator."""
        hooks = self.hooks if term == self.run_spec.term else Hooks()
        call = Rendezvous(
            address,
            self.key,
            term,
            _LOOK_SECONDS,
            limits=self.plan.limits,
            has_peers=self.plan.has_peers,
            backend=self.run_spec.backend,
        )
        return WorkerBootstrap(self.plan, call, hooks)


@dataclass(eq=False, slots=True)
class _Task:
    """One task: runs as a worker under one coordinator after the other."""

    hosted: CoordinatorSpec
    run_directory: RunDirectory
    slot: int
    attempt: str
    open_part: Callable[[], WorkerData]
    given: TaskResources
    shared: str
    lives: int = 0

    def run(self) -> None:
        left = 0
        while not self.run_directory.has_outcome:
            here = self.run_directory.host()
            if here is not None and here[0] > left:
                was_told = self._has_lived(*here)
                # a task that was sent away waits for the outcome, or for a newer coordinator
                left, here = (here[0], here) if was_told else (left, None)
            if here is None and self.slot == 0 and not self.run_directory.has_outcome:
                self._host()
            self._look_for_the_client()
            threading.Event().wait(_PAUSE_SECONDS)

    def _look_for_the_client(self) -> None:
        """Raises where the client is lost; else a coordinator will return, with slot 0's task."""
        if not self.run_directory.is_ours:
            raise LinkLostError("another client has resumed this run", do="look at that one's")
        silent = self.run_directory.silent_seconds()
        if silent > self.hosted.run_spec.reconnect_seconds:
            got = f"no coordinator, and no sign of the client for {silent:.0f} s"
            raise LinkLostError("the run is lost", got=got, do="look at the client; then resume")

    def _has_lived(self, term: int, address: str) -> bool:
        """Runs under a coordinator until that ends the run; False where its link was lost."""
        try:
            self.live(self.hosted.bootstrap(term, address))
        except LinkLostError:
            return False
        return True

    def live(self, bootstrap: WorkerBootstrap) -> None:
        """Runs one attempt."""
        self.lives += 1
        attempt = f"{self.attempt}.{self.lives}"
        bootstrap.run(self.slot, attempt, self.open_part, self.given, self.shared)

    def _host(self) -> None:
        """Takes the next term, and hosts the coordinator until the run is over."""
        sent, run_directory = self.hosted.run_spec, self.run_directory
        place, term = run_directory.place, sent.term
        if run_directory.host() is not None:
            term = place.claim_term({"run": sent.run.hex(), "client": sent.term})
        if not run_directory.is_ours:
            return
        with _Words(run_directory, term) as words:
            checkpoints = Checkpoints(
                place.checkpoints,
                sent.fingerprint,
                words.emit,
                step=lambda _: place.check_term(term),
                saved=words.emit,
            )
            try:
                with _guarded(run_directory):
                    self._serve(words, checkpoints, term)
            finally:
                checkpoints.close()

    def _serve(self, words: _Words, checkpoints: Checkpoints, term: int) -> None:
        run_directory, key, sent = self.run_directory, self.hosted.key, self.hosted.run_spec
        run_spec = replace(
            sent,
            plan=replace(sent.plan, start=run_directory.given(key)),
            term=term,
            cut=checkpoints.newest(),
            emit=words.emit,
            enter=words.enter,
            save=checkpoints.save,
            best=checkpoints.save_best,
            scratch=checkpoints.scratch,
        )
        if term > sent.term:
            then = f"it is back as term {term}, from {checkpoints.found or 'the beginning'}"
            words.emit(Warned(text=message("the coordinator was lost", then=then)))
        threads = threads_held(run_spec.plan.limits.threads)
        with threads, DriverSession(run_spec, local_host(self.hosted.towards), key) as session:
            if not run_directory.announce(term, session.address):
                return
            with _Watch(session, run_directory, run_spec) as watch:
                while not session.wait(0.0):
                    with suppress(LinkLostError):  # cut on purpose: the coordinator is here
                        self.live(self.hosted.bootstrap(term, session.address))
                    session.wait(_PAUSE_SECONDS)
            if not (watch.is_fenced or watch.has_told):
                checkpoints.close()
                words.flush()
                run_directory.say(session.result())


class _guarded:  # noqa: N801
    """Reports the coordinator's failure as the run's outcome; the failure of its task is none."""

    def __init__(self, run_directory: RunDirectory) -> None:
        self._run_directory = run_directory

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, PhotinusError) or isinstance(error, LinkLostError):
            return False
        self._run_directory.say(None, str(error), type(error).__name__)
        return True


class _Words:
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
        said: dict[str, Any] = {name: getattr(frame, name) for name in ENTERED_IDS}
        said["header"] = {n: frame.header[n] for n in ENTERED_FIELDS if n in frame.header}
        self._lines.write({"op": op, "kind": frame.kind, "frame": said, "extra": extra})

    def flush(self) -> None:
        """Writes what was held back."""
        self._thinned.flush()


class _Watch:
    """Looks whether the client is alive or wants the end, for a newer term, and for a failure."""

    is_fenced = False
    """True when a newer term has taken over: this coordinator must write no outcome."""
    has_told = False
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
        looks = 0
        while not self._closed.wait(_WATCH_SECONDS):
            looks += self._session.is_over
            if looks > 1:
                return self._tell()
            asked = self._asked()
            if asked is not None:
                if asked["saves"]:
                    self._session.stopped(asked["reason"])
                self._session.stop(asked["reason"])
                return None
        return None

    def _tell(self) -> None:
        """Writes a failure down: the worker in this process is busy, and may be ended."""
        with _guarded(self._run_directory):
            self._session.result()
            return
        self.has_told = True

    def _asked(self) -> dict[str, Any] | None:
        """Returns why the run must end, if it must."""
        asked = self._run_directory.asked()
        if asked is not None:
            return asked
        newest = self._run_directory.place.newest_term()
        if newest > self._run_spec.term:
            self.is_fenced = True
            return {"reason": f"term {newest} has taken over", "saves": False}
        if self._run_directory.silent_seconds() > self._run_spec.reconnect_seconds:
            return {"reason": "the client is lost", "saves": True}
        return None
