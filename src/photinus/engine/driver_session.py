"""The driver's side of a run with real processes: keys, listener, coordinator."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Self

from photinus.coordinator.coordinator import Coordinator, Result
from photinus.coordinator.server import Service, Speaks
from photinus.core.descriptors import allow_descriptors
from photinus.core.errors import RunFailedError
from photinus.core.events import Warned
from photinus.engine.base import BACKENDS, SOCKETS, Assignment
from photinus.engine.faults.plan import Faults
from photinus.engine.worker_bootstrap import Call, WorkerBootstrap, told_error
from photinus.transport.credentials import Credentials, WorkerKey
from photinus.transport.folder import FolderListener
from photinus.transport.link import Gone, Hear, Listener
from photinus.transport.refusals import refused
from photinus.transport.serve import TcpListener

__all__ = ["LAST_SECONDS", "DriverSession", "Meeting"]

_EACH, _SPARE = 2, 24
"""Descriptors: a worker's connections, and what keys, checkpoints, logs and strangers open."""
LAST_SECONDS = 6.0
"""So long Ctrl-C waits for the end of a round: 10 s later no worker may be left."""


class Meeting:
    """Where workers meet whoever speaks for a run: keys, listener, service.

    Args:
        speaks: the state machine; its desk names the run.
        host: the interface to listen on.
        security: tls, or none.
        road: sockets, torch, nccl, or a folder.
        key: to listen with, where whoever made the keys lives elsewhere; else they are made here.

    Raises:
        NotReadyError: this process may not open as many connections.
    """

    def __init__(
        self,
        speaks: Speaks,
        host: str = "127.0.0.1",
        security: str = "tls",
        road: str = SOCKETS,
        key: WorkerKey | None = None,
    ) -> None:
        allow_descriptors(_SPARE + _EACH * speaks.leases.workers, "the driver")
        make = Credentials.make if security == "tls" else Credentials.none
        self._host, self._speaks, self._road = host, speaks, road
        self._keys = key or make(speaks.callbacks.run)
        self._service = Service(speaks, self._listen)
        self.address = self._service.listener.address

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._service.stop(str(error) or type(error).__name__)
        self._service.close()

    def _listen(self, hear: Hear, gone: Gone) -> Listener:
        if self._road not in (SOCKETS, *BACKENDS):
            return FolderListener(self._road, self._keys, hear, gone, self._refused)
        return TcpListener(self._host, self._keys, hear, gone, on_refused=self._refused)

    def _refused(self, counts: Mapping[str, int]) -> None:
        self._speaks.callbacks.emit(Warned(text=refused(counts)))

    def call(self, threads: int = 1, *, has_peers: bool = False) -> Call:
        """Returns what every worker must know, with a key of its own."""
        term, key = self._speaks.callbacks.term, self._key(is_peer=has_peers)
        return Call(self.address, key, term, has_peers=has_peers, threads=threads)

    def _key(self, *, is_peer: bool = False) -> WorkerKey:
        keys = self._keys
        return keys if isinstance(keys, WorkerKey) else keys.worker(is_peer=is_peer)

    @property
    def slots(self) -> int:
        """How many seats there are."""
        return self._speaks.leases.workers

    def lease(self, slot: int) -> int:
        """Returns how often a slot was taken."""
        return self._service.lease(slot)

    def starved(self) -> frozenset[int]:
        """Returns the slots that wait for a task whose place a copy of another one takes."""
        return self._service.starved()

    def died(self, slot: int, attempt: str) -> None:
        """An attempt's process has ended: its lease ends at once, on every road."""
        self._service.died(slot, attempt)

    def retire(self, slot: int, attempt: str) -> None:
        """Has an attempt give its seat up after its next push."""
        self._service.retire(slot, attempt)

    def has_left(self, slot: int, attempt: str) -> bool:
        """Tells whether this attempt does not hold the seat."""
        return self._service.has_left(slot, attempt)

    @property
    def is_over(self) -> bool:
        """True when every worker may go."""
        return self._speaks.is_over

    def wait(self, seconds: float) -> bool:
        """Waits for the end; returns whether it has come."""
        return self._service.wait(seconds)

    def stop(self, reason: str) -> None:
        """Ends the run without a result."""
        self._service.stop(reason)


class DriverSession(Meeting):
    """Where the workers of one training meet.

    Args:
        assignment: what is trained.
        host: the interface to listen on.
        key: as of `Meeting`.
    """

    def __init__(
        self, assignment: Assignment, host: str = "127.0.0.1", key: WorkerKey | None = None
    ) -> None:
        self._assignment = assignment
        self._coordinator = Coordinator(
            assignment.program, assignment.callbacks(), now=time.monotonic(), cut=assignment.cut
        )
        super().__init__(self._coordinator, host, assignment.security, assignment.road, key)

    def bootstrap(self, faults: Faults | None = None) -> WorkerBootstrap:
        """Returns what every worker is sent, and what shall go wrong with it on purpose."""
        assignment = self._assignment
        workers, has_sockets = assignment.program.workers, assignment.road == SOCKETS
        asked = faults or Faults()
        return WorkerBootstrap(
            assignment.program.sent(),
            self.address,
            self._key(is_peer=assignment.program.has_peers),
            assignment.term,
            assignment.lost_seconds,
            asked.checked(workers, is_real=True, has_sockets=has_sockets),
            backend=BACKENDS.get(assignment.road, ""),
        )

    @property
    def is_between_passes(self) -> bool:
        """True when the next pass over rows that stream is waited for."""
        return self._service.is_between_passes

    @property
    def wants_shuffle(self) -> bool:
        """True while the rows are to be dealt out anew, before any of them is trained on."""
        return self._coordinator.wants_shuffle

    def next_pass(self) -> None:
        """Every worker comes again, with another pass over its rows."""
        self._service.next_pass()

    def stopped(self, wrong: str) -> None:
        """Ctrl-C or SIGTERM: the round under way is saved, if it ends soon; then the run ends.

        Workers are still there, and go on until they are told; a second signal waits for nothing.

        Args:
            wrong: why, in words.
        """
        most = f"{LAST_SECONDS:.0f} s"
        does = f"a last checkpoint is made at the end of this round, within {most}"
        does += "; a second signal ends at once" if wrong.startswith("stopped by") else ""
        self._assignment.emit(Warned(text=f"{wrong}; {does}"))
        if self._service.cut(LAST_SECONDS) is False:
            late = f"no round ended within {most}: the last checkpoint is an older one"
            self._assignment.emit(Warned(text=late))
        self.stop(wrong)

    def result(self) -> Result:
        """Returns what was agreed.

        Raises:
            RunFailedError: the run ended without a result.
        """
        coordinator = self._coordinator
        if coordinator.result is None:
            if coordinator.failure:
                raise told_error(coordinator.failure, coordinator.failure_kind)
            raise RunFailedError("the run ended before its phases were over")
        return coordinator.result
