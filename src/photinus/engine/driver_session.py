"""The driver's side of a run with real processes: keys, listener, coordinator."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Self

from photinus.coordinator.coordinator import Coordinator
from photinus.coordinator.lease_server import LeaseServer
from photinus.coordinator.leases import Yields
from photinus.coordinator.phases import RunResult
from photinus.coordinator.server import Service
from photinus.core.errors import RunFailedError
from photinus.core.events import Event
from photinus.core.file_limit import allow_descriptors
from photinus.engine.base import BACKENDS, SOCKETS, RunSpec
from photinus.engine.hooks import Hooks
from photinus.engine.worker_bootstrap import Rendezvous, WorkerBootstrap, reported_error
from photinus.training.plan import WorkerLimits
from photinus.transport.credentials import Credentials, WorkerKey
from photinus.transport.folder import FolderListener
from photinus.transport.link import Listener, OnClosed, OnFrame
from photinus.transport.refusals import refused
from photinus.transport.tcp_listener import TcpListener

_WORKER_DESCRIPTORS, _SPARE_DESCRIPTORS = 2, 24
"""Descriptors: a worker's connections, and what keys, checkpoints, logs and strangers open."""
LAST_SECONDS = 6.0
"""How long Ctrl-C waits for the end of a round: 10 s later no worker may be left."""


class ListeningService(Service):
    """A service on an interface of this machine, or in a folder, with keys of its own.

    Args:
        server: the state machine; its callbacks name the run.
        host: the interface to listen on.
        security: tls, or none.
        transport: sockets, torch, nccl, or a folder.
        key: to listen with, where the run's keys were made in another process; else they are made
            here.

    Raises:
        NotReadyError: this process may not open as many connections.
    """

    def __init__(
        self,
        server: LeaseServer,
        host: str = "127.0.0.1",
        security: str = "tls",
        transport: str = SOCKETS,
        key: WorkerKey | None = None,
    ) -> None:
        allow_descriptors(
            _SPARE_DESCRIPTORS + _WORKER_DESCRIPTORS * server.leases.workers, "the driver"
        )
        make = Credentials.make if security == "tls" else Credentials.none
        self._host, self._server, self._transport = host, server, transport
        self._keys = key or make(server.callbacks.run)
        super().__init__(server, self._listen)
        self.address = self.listener.address

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.stop(str(error) or type(error).__name__)
        self.close()

    def _listen(self, on_frame: OnFrame, on_closed: OnClosed) -> Listener:
        if self._transport not in (SOCKETS, *BACKENDS):
            return FolderListener(
                self._transport, self._keys, on_frame, on_closed, self._warn_refused
            )
        return TcpListener(
            self._host, self._keys, on_frame, on_closed, on_refused=self._warn_refused
        )

    def _warn_refused(self, counts: Mapping[str, int]) -> None:
        self._server.callbacks.warn(refused(counts))

    def call(self, limits: WorkerLimits | None = None, *, has_peers: bool = False) -> Rendezvous:
        """Returns what every worker must know, with a key of its own."""
        keys, term = self._keys, self._server.callbacks.term
        key = keys if isinstance(keys, WorkerKey) else keys.worker(is_peer=has_peers)
        limits = limits or WorkerLimits()
        return Rendezvous(self.address, key, term, limits=limits, has_peers=has_peers)

    @property
    def slots(self) -> int:
        """How many seats there are."""
        return self._server.leases.workers

    @property
    def is_over(self) -> bool:
        """True when every worker may leave."""
        return self._server.is_over


class DriverSession(ListeningService):
    """The service of one training.

    `yields` is what a worker does whose seat is given up to another run.

    Args:
        run_spec: what is trained.
        host: the interface to listen on.
        key: as of `ListeningService`.
    """

    yields: Yields = "parks"

    def __init__(
        self, run_spec: RunSpec, host: str = "127.0.0.1", key: WorkerKey | None = None
    ) -> None:
        self._run_spec = run_spec
        self._training = Coordinator(
            run_spec.plan, run_spec, now=time.monotonic(), snapshot=run_spec.snapshot
        )
        super().__init__(self._training, host, run_spec.security, run_spec.transport, key)

    def bootstrap(self, hooks: Hooks | None = None) -> WorkerBootstrap:
        """Returns what every worker is sent, with the hooks of tests."""
        run_spec = self._run_spec
        plan, has_sockets = run_spec.plan, run_spec.transport == SOCKETS
        checked = (hooks or Hooks()).checked(plan.workers, is_real=True, has_sockets=has_sockets)
        rendezvous = replace(
            self.call(plan.limits, has_peers=plan.has_peers),
            reconnect_seconds=run_spec.reconnect_seconds,
            backend=run_spec.backend,
        )
        return WorkerBootstrap(plan.sent(), rendezvous, checked)

    @property
    def wants_shuffle(self) -> bool:
        """True while the rows must be redistributed, before any of them is trained on."""
        return self._training.wants_shuffle

    @property
    def emit(self) -> Callable[[Event], None]:
        """The function that is called with each event of the run."""
        return self._run_spec.emit

    @property
    def has_begun(self) -> bool:
        """True once all workers have come."""
        return self._training.has_begun

    @property
    def can_yield(self) -> bool:
        """True while seats can be given up to another run."""
        with self._lock:
            return self._training.can_yield

    @property
    def can_share(self) -> bool:
        """True while fewer workers than there are can train to the end of the phase, by turns."""
        return self._training.is_kept

    def idle(self) -> frozenset[int]:
        """Returns the slots that need no worker in this phase any more."""
        with self._lock:
            return self._training.idle

    def unprepare(self) -> None:
        with self._lock:
            self._training.unprepare()

    def prepare(self) -> bool:
        """Prepares for giving seats up; returns whether that is done."""
        with self._lock:
            return self._training.prepared_to_yield()

    def yielding(self) -> dict[int, bool]:
        """Returns the slots that are given up, and which of them are empty by now."""
        with self._lock:
            return self._training.leases.yielding

    def yield_seats(self, slots: Iterable[int]) -> None:
        """Gives seats up, each at the end of its round."""
        with self._lock:
            self._carry(self._training.yield_seats(slots, self.yields, time.monotonic()))

    def take_back(self, slots: Iterable[int]) -> frozenset[int]:
        """Takes seats back; returns those whose task has ended."""
        with self._lock:
            return self._training.take_back(slots)

    def stop_on_signal(self, reason: str) -> None:
        """Ends the run after Ctrl-C or SIGTERM; saves the round under way, if that ends soon.

        Workers are still there, and continue until they get the message. A second signal ends the
        run at once.

        Args:
            reason: for people.
        """
        limit = f"{LAST_SECONDS:.0f} s"
        then = f"a last checkpoint is made at the end of this round, within {limit}"
        do = "a second signal ends at once" if reason.startswith("stopped by") else ""
        self._run_spec.warn(reason, then=then, do=do)
        if self.save_snapshot(LAST_SECONDS) is False:
            problem = f"no round ended within {limit}"
            then = "the last checkpoint is an older one"
            self._run_spec.warn(problem, then=then)
        self.stop(reason)

    def result(self) -> RunResult:
        """Returns what was agreed.

        Raises:
            RunFailedError: the run ended without a result.
            BaseException: what a callback raised that is no error, as KeyboardInterrupt.
        """
        coordinator = self._training
        if coordinator.result is None:
            if self.interrupt is not None:
                raise self.interrupt
            if coordinator.failure:
                raise reported_error(coordinator.failure, coordinator.failure_kind)
            raise RunFailedError("the run ended before its phases were over")
        return coordinator.result
