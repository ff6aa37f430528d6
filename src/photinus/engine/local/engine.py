"""Runs workers as processes on this machine, and restarts those that end."""

from __future__ import annotations

import dataclasses
import os
import pickle  # noqa: TID251 - into a child's private pipe, never to a socket or a file
import platform
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from photinus.coordinator.phases import RunResult
from photinus.core.errors import NotReadyError, RunFailedError, UsageError
from photinus.core.signals import stopped_by
from photinus.core.threads import environment, limit_threads
from photinus.data.base import Block
from photinus.engine.base import MEMORY_RAN_OUT, ArrayData, Engine, RunSpec
from photinus.engine.cpu_share import processors
from photinus.engine.driver_session import DriverSession
from photinus.engine.hooks import Hooks, hooks_of
from photinus.engine.local.fork_server import ForkedWorker, forked
from photinus.engine.local.shared_rows import RowsFile, StoredRows
from photinus.engine.local.worker_main import NO_FILES, NOT_INHERITED, UNREADABLE, ChildSpec
from photinus.engine.seat_sharing import SeatSharing
from photinus.engine.seat_table import SeatClaim
from photinus.engine.worker_bootstrap import WorkerBootstrap

Child = subprocess.Popen[bytes] | ForkedWorker
_FORKS = sys.platform == "linux"
"""Elsewhere a process that has loaded torch cannot be forked safely."""
_LOOK_SECONDS = 0.1
_LEAVE_SECONDS = 10.0
"""How long a child may take to end once the run is over."""
_SHORT_LEAVE_SECONDS = 2.0
"""Likewise, after Ctrl-C."""
_OUT_OF_MEMORY = f"{MEMORY_RAN_OUT}: use a smaller batch, or fewer workers"


class LocalEngine(Engine):
    """Processes on this machine, over the encrypted link, without Spark.

    When a worker is lost its slot is started again, and continues behind the last of its rows that
    is in the agreed parameters.

    Args:
        faults: faults to inject, of `photinus.testing.Faults`.
        host: the interface on which workers find the driver.
        before: a prefix of a slot's command, as `nice -n 10`, or `ip netns exec NAME`.
    """

    name = "local"

    def __init__(
        self,
        faults: Hooks | None = None,
        *,
        host: str = "127.0.0.1",
        before: Callable[[int], Sequence[str]] = lambda slot: (),  # noqa: ARG005
    ) -> None:
        self._hooks, self._host, self._before = hooks_of(faults), host, before

    def run(self, run_spec: RunSpec) -> RunResult:
        data = run_spec.data
        if not isinstance(data, ArrayData):
            got = type(data).__name__
            raise UsageError("the local engine reads arrays", got=got, do="use the Spark engine")
        run_spec = dataclasses.replace(run_spec, advice=_advice)
        driver = self._hooks.driver(run_spec)
        run_spec = driver.run_spec
        parts = self._hooks.dealt(data, run_spec.plan)
        with (
            limit_threads(run_spec.plan.limits.threads),
            _share_rows(parts) as inherited,
            DriverSession(run_spec, self._host) as session,
            driver,
            ExitStack() as stack,
        ):
            sharing = _sharing(run_spec)
            bootstrap = session.bootstrap(self._hooks)
            processes = _Processes(run_spec, session, bootstrap, inherited, self._before)
            stack.enter_context(sharing.joined())
            wait_seconds = _LEAVE_SECONDS
            try:
                processes.watch(lambda: sharing.look(session))
            except KeyboardInterrupt as error:
                wait_seconds = _SHORT_LEAVE_SECONDS
                session.stop_on_signal(stopped_by(error))
                raise
            finally:
                processes.end(wait_seconds)
        return session.result()


def _sharing(run_spec: RunSpec) -> SeatSharing:
    """Returns how a run shares this machine's processors: workers that yield wait for their seat.

    Their processes stay, and use no processor.
    """
    plan = run_spec.plan
    claim = SeatClaim(run=run_spec.run.hex(), place=platform.node(), workers=plan.workers)
    seats = max(1, processors() // plan.limits.threads)
    return SeatSharing(run_spec.urgency, claim, lambda: seats, run_spec.emit, can_overcommit=True)


def _advice() -> str:
    return "wait: their processes are starting on this machine, which is busy or slow"


@dataclass(frozen=True, slots=True)
class _Inherited:
    """What every child inherits."""

    slots: list[StoredRows]
    """The rows of each slot."""
    rows_fd: int
    """The descriptor of the file that holds them."""
    parent_fd: int
    """The descriptor of a pipe that ends with this process."""


@contextmanager
def _share_rows(parts: list[Block]) -> Iterator[_Inherited]:
    """Holds each slot's rows in a file that its process maps into memory."""
    with RowsFile() as rows_file:
        slots = [rows_file.add_rows(part) for part in parts]
        parent_end, own_end = os.pipe()
        try:
            yield _Inherited(slots, rows_file.descriptor, parent_end)
        finally:
            os.close(own_end)
            os.close(parent_end)


class _Processes:
    """The children of one run."""

    def __init__(
        self,
        run_spec: RunSpec,
        session: DriverSession,
        bootstrap: WorkerBootstrap,
        inherited: _Inherited,
        before: Callable[[int], Sequence[str]],
    ) -> None:
        self._run_spec, self._session, self._inherited = run_spec, session, inherited
        self._bootstrap, self._before = bootstrap, before
        self._children: dict[int, Child] = {}
        self._workers = run_spec.plan.workers
        self._starts, self._early_ends = 0, Counter[int]()
        self._leases_at_start: dict[int, int] = {}
        self._attempts: dict[int, str] = {}

    def watch(self, on_poll: Callable[[], object]) -> None:
        """Waits for the end of the run; starts a child again that died.

        Args:
            on_poll: is called some times a second.
        """
        start = time.monotonic()
        self._start_due(0.0)
        while not self._session.wait(_LOOK_SECONDS):
            self._start_due(time.monotonic() - start)
            on_poll()
            for slot, child in self._children.items():
                # one that ended well may have reported why, and that is not read yet
                code = child.poll()
                if code is not None and (code or not self._session.wait(1.0)):
                    self._session.died(slot, self._attempts[slot])
                    self._restart(slot, code)

    def _start_due(self, seconds: float) -> None:
        """Starts the workers whose places are free after so many seconds."""
        for slot in set(range(self._workers)) - self._children.keys():
            if self._bootstrap.hooks.comes_after(slot, self._workers) <= seconds:
                self._children[slot] = self._start(slot)

    def _restart(self, slot: int, code: int) -> None:
        if code == UNREADABLE:
            raise UsageError(
                "what the plan names cannot be imported by a worker process",
                do="define classes and functions in a module of their own, not in __main__",
            )
        if code == NOT_INHERITED:
            wrong = "what stands before a worker's command closes files that it must inherit"
            raise UsageError(wrong, got=" ".join(self._before(slot)), do="leave sudo out")
        if code == NO_FILES:
            wrong = f"worker {slot} may not open enough files and connections"
            raise NotReadyError(wrong, do="raise its limit: ulimit -n 64, or more")
        self._early_ends[slot] += 1
        if self._session.lease(slot) > self._leases_at_start[slot]:
            self._early_ends[slot] = 0
        max_starts = self._run_spec.restarts + self._workers
        if self._starts >= max_starts or self._early_ends[slot] >= 3:
            do = _OUT_OF_MEMORY if code == -signal.SIGKILL else "look at what it printed"
            raise RunFailedError(f"worker {slot} ended too often", got=_exit_text(code), do=do)
        wrong = f"worker {slot} ended"
        self._run_spec.warn(wrong, got=_exit_text(code), then="its slot is started again")
        self._children[slot] = self._start(slot)

    def _environment(self) -> dict[str, str]:
        thread_limits = environment(self._run_spec.plan.limits.threads)
        return {**os.environ, **thread_limits, **_import_path()}

    def _start(self, slot: int) -> Child:
        inherited, scale = self._inherited, self._run_spec.data.scale
        stored_rows = inherited.slots[slot % len(inherited.slots)]
        self._attempts[slot] = attempt = f"{slot}-{self._starts}"
        child_spec = ChildSpec(
            self._bootstrap,
            slot,
            attempt,
            stored_rows,
            scale,
            inherited.rows_fd,
            inherited.parent_fd,
        )
        payload = _pickle(child_spec)
        self._starts, self._leases_at_start[slot] = self._starts + 1, self._session.lease(slot)
        variables = self._environment()
        if not self._before(slot) and _FORKS:
            return forked(variables, payload, inherited.rows_fd, inherited.parent_fd)
        child = subprocess.Popen(  # noqa: S603 - the prefix is the caller's own
            [*self._before(slot), sys.executable, "-m", "photinus.engine.local.worker_main"],
            stdin=subprocess.PIPE,
            env=variables,
            pass_fds=(inherited.rows_fd, inherited.parent_fd),
            process_group=0,  # Ctrl-C reaches the driver alone, which ends the children
        )
        assert child.stdin is not None
        with suppress(BrokenPipeError), child.stdin as pipe:  # dead at once: its code shows why
            pipe.write(payload)
        return child

    def end(self, seconds: float) -> None:
        """Lets the children leave; those that do not within so long are killed."""
        deadline = time.monotonic() + seconds
        try:
            for child in self._children.values():
                with suppress(subprocess.TimeoutExpired):
                    child.wait(
                        max(0.0, deadline - time.monotonic()) if self._session.is_over else 0.0
                    )
        finally:  # also after a second signal
            for child in self._children.values():
                child.kill()
            for child in self._children.values():
                child.wait()


def _import_path() -> dict[str, str]:
    """Returns an environment in which a worker imports what this process can import."""
    paths = [path or os.getcwd() for path in sys.path]
    return {"PYTHONPATH": os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), *paths])}


def _pickle(child_spec: ChildSpec) -> bytes:
    try:
        return pickle.dumps(child_spec)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UsageError(
            "the plan cannot be sent to a process", got=str(error), do="import what it names"
        ) from error


def _exit_text(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
