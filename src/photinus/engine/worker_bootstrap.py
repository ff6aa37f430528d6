"""Starts a worker in any process: connects, joins, trains, reports errors."""

from __future__ import annotations

import logging
import os
import platform
import sys
import traceback
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import photinus
from photinus.core import errors
from photinus.core.errors import LinkError, LinkLostError, PhotinusError, RunFailedError
from photinus.core.file_limit import allow_descriptors
from photinus.core.malloc import keep_freed_memory, release_freed_memory
from photinus.core.threads import limit_threads
from photinus.devices.discovery import ready
from photinus.devices.resources import TaskResources
from photinus.engine.cpu_share import CpuShare, check_processors, paced
from photinus.engine.frozen_parameters import FrozenFile, fetch_once
from photinus.engine.hooks import Hooks, WorkerHooks
from photinus.engine.log_forwarding import LogLines
from photinus.engine.memory_cap import MemoryCap
from photinus.protocol.messages import Seat
from photinus.protocol.worker_client import Worker
from photinus.training.plan import TrainingPlan, WorkerLimits
from photinus.training.requests import WorkerGenerator
from photinus.training.worker_loop import WorkerData
from photinus.transport.credentials import WorkerKey
from photinus.transport.folder import SCHEME, FolderLink, FolderListener
from photinus.transport.frames import Frame
from photinus.transport.heartbeat import HeartbeatSender
from photinus.transport.link import Link, Listener, OnClosed, OnFrame
from photinus.transport.mesh import Mesh
from photinus.transport.rate_limit import RateLimit
from photinus.transport.refusals import refused
from photinus.transport.ring import Ring, gpu
from photinus.transport.tcp_link import TcpLink
from photinus.transport.tcp_listener import TcpListener
from photinus.transport.wire import Limits

OpenWorker = Callable[[WorkerGenerator, Mapping[str, Any]], Worker]
"""Makes a worker from its generator and from further fields of its hellos."""

BEAT_SECONDS = 1.0
_PATIENCE_FRACTION, _MIN_BEATS = 0.9, 5
"""The part of its patience after which a worker leaves a silent coordinator: to leave takes time,
too."""
SPARE_DESCRIPTORS = 16
"""What a worker opens besides its connections to other workers."""
_PACKAGE_FOLDER = os.path.join(os.path.dirname(photinus.__file__), "")
_SEND_SECONDS = 60.0
_STOP_SECONDS = 5.0
"""How long a worker that failed waits for the coordinator to take that in."""


class _SeatedWorker(NamedTuple):
    seat: Seat
    attempt: str
    heartbeat: HeartbeatSender
    lines: LogLines


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where a worker says hello, and with which key."""

    address: str
    key: WorkerKey
    term: int
    reconnect_seconds: float = 30.0
    """How long a worker looks for a coordinator that it lost; then it ends by itself."""
    limits: WorkerLimits = field(default_factory=WorkerLimits)
    has_peers: bool = False
    """True when workers exchange frames with each other, too."""
    hooks: WorkerHooks = field(default_factory=WorkerHooks)
    """Hooks around it in its process, with the rate limit of its links."""
    backend: str = ""
    """The backend of torch.distributed that computes the means; empty: none of them."""

    def hooked(self, hooks: Hooks, slot: int) -> Rendezvous:
        """Returns what one worker uses in its process: its links share one rate limit there."""
        return replace(self, hooks=hooks.worker(slot, self.address, self.limits.bandwidth))

    def run_worker(
        self,
        slot: int,
        attempt: str,
        make_generator: Callable[[], WorkerGenerator],
        hello_fields: Mapping[str, str] | None = None,
    ) -> None:
        """Runs one worker in a slot until the run ends; reports its error to the coordinator.

        Args:
            slot: the seat to take.
            attempt: distinguishes this attempt from others of the same slot.
            make_generator: reads the data, and returns the worker's generator.
            hello_fields: sent with every hello, as they are once `make_generator` has returned.

        Raises:
            LinkLostError: the coordinator cannot be found any more.
            NotReadyError: this process may not open enough files.
            Exception: the worker's own, where another attempt should follow.
        """
        self.serve(
            slot,
            attempt,
            lambda open_worker: open_worker(make_generator(), hello_fields or {}).run(),
        )

    def serve(self, slot: int, attempt: str, body: Callable[[OpenWorker], None]) -> None:
        """Runs `body` in a slot; reports its error to the coordinator.

        Args:
            slot: the seat to take.
            attempt: distinguishes this attempt from others of the same slot.
            body: is called with a function that makes a `Worker` from its generator and from
                further fields of its hellos.

        Raises:
            LinkLostError: the coordinator cannot be found any more.
            NotReadyError: this process may not open enough files.
            Exception: the worker's own, where another attempt should follow.
        """
        keep_freed_memory()
        allow_descriptors(SPARE_DESCRIPTORS, f"worker {slot}")
        seat, attempt = Seat(self.key.run, self.term, 0, slot), attempt or uuid.uuid4().hex
        heartbeat = HeartbeatSender(self._open_quick_link, _heartbeat(seat, attempt), BEAT_SECONDS)
        with limit_threads(self.limits.threads), heartbeat, LogLines() as lines:
            seated = _SeatedWorker(seat, attempt, heartbeat, lines)
            try:
                if self.limits.cpu_share is not None:
                    check_processors(self.limits.cpu_share, slot)
                with self._memory_guard(heartbeat, seat), ExitStack() as cleanup:
                    body(
                        lambda generator, hello_fields: self._open_worker(
                            seated, generator, hello_fields, cleanup
                        )
                    )
            except RunFailedError:
                return  # the coordinator sent it
            except LinkLostError:
                raise
            except Exception as error:
                if self._report_error(heartbeat.frame.lease, seat, error):
                    raise

    def _open_worker(
        self,
        seated_worker: _SeatedWorker,
        generator: WorkerGenerator,
        hello_fields: Mapping[str, Any],
        cleanup: ExitStack,
    ) -> Worker:
        seat, attempt, heartbeat, lines = seated_worker
        if self.limits.cpu_share is not None:
            generator = paced(generator, CpuShare(self.limits.cpu_share))

        def on_seated(new_seat: Seat) -> None:
            heartbeat.frame = _heartbeat(new_seat, attempt)

        worker = Worker(
            generator,
            self._open_link,
            seat,
            about={"attempt": attempt, "host": platform.node(), "pid": os.getpid(), **hello_fields},
            seated=on_seated,
            notes=lines.take,
        )
        cleanup.callback(worker.close)
        if not self.address.startswith(SCHEME):  # a folder's listener leaves signs of its own
            heartbeat.heard = lambda seconds: self._leave_if_silent(worker, seconds)
        if self.backend:
            worker.sum_by(lambda link: _make_ring(link, self.backend, seat.slot))
        elif self.has_peers:
            worker.join(self._make_mesh)
        return worker

    def _memory_guard(
        self, heartbeat: HeartbeatSender, seat: Seat
    ) -> AbstractContextManager[object]:
        """Ends the run when this process takes too much memory, whatever it computes then."""
        if self.limits.memory is None:
            return nullcontext()

        def on_exceeded(error: RunFailedError) -> None:
            with suppress(LinkError):  # then no coordinator is left to inform
                self._report_error(heartbeat.frame.lease, seat, error)

        return MemoryCap(self.limits.memory, seat.slot, on_exceeded)

    def send(self, frame: Frame) -> None:
        """Sends a frame over a separate link, and retries until the coordinator has it.

        Raises:
            RunFailedError: the run was stopped.
            LinkLostError: the coordinator cannot be found any more.
        """
        while True:
            link = self._open_link()
            try:
                for reply in link.exchange(frame, _SEND_SECONDS):
                    if reply.kind == "stop":
                        raise RunFailedError(str(reply.header.get("reason", "the run was stopped")))
                    return
            except LinkLostError:
                continue
            finally:
                link.close()

    def _leave_if_silent(self, worker: Worker, silent_seconds: float) -> None:
        """Leaves a coordinator that is silent for too long.

        A driver that stands still, or whose host is cut off, closes no connection.
        """
        if worker.silent_for(silent_seconds) > max(
            _MIN_BEATS * BEAT_SECONDS, _PATIENCE_FRACTION * self.reconnect_seconds
        ):
            worker.leave()

    def _open_link(self) -> Link:
        return self._link_to(
            self.address, _PATIENCE_FRACTION * self.reconnect_seconds, self.hooks.rate_limit
        )

    def _open_quick_link(self) -> Link:
        return self._link_to(self.address, 2 * BEAT_SECONDS, None)

    def _link_to(self, address: str, connect_seconds: float, rate_limit: RateLimit | None) -> Link:
        def make_link() -> Link:
            if address.startswith(SCHEME):
                return FolderLink(address, self.key, connect_seconds=connect_seconds)
            return TcpLink(
                address,
                self.key,
                connect_seconds=connect_seconds,
                limits=Limits(rate_limit=rate_limit),
            )

        return self.hooks.linked(make_link, connect_seconds)

    def _make_mesh(self, link: Link) -> Mesh:
        """Listens to other workers at the address at which the coordinator sees this one."""

        def listen(on_frame: OnFrame, on_closed: OnClosed) -> Listener:
            if isinstance(link, TcpLink):
                limits = Limits(rate_limit=self.hooks.rate_limit)
                return TcpListener(
                    link.local_host, self.key, on_frame, on_closed, limits, _log_refused
                )
            own_folder = f"{self.address.removeprefix(SCHEME)}/{uuid.uuid4().hex}"
            return FolderListener(own_folder, self.key, on_frame, on_closed, _log_refused)

        def connect(address: str) -> Link:
            return self._link_to(address, 2 * BEAT_SECONDS, self.hooks.rate_limit)

        return Mesh(listen, connect)

    def _report_error(self, lease: int, seat: Seat, error: Exception) -> bool:
        """Sends the error to the coordinator; returns whether another attempt should follow.

        The traceback is sent only for errors that are not photinus's own. The frame names the lease
        that the worker had: the coordinator ignores the error of a worker that had lost its seat.
        """
        text = "; ".join([str(error), *getattr(error, "__notes__", ())])
        if not isinstance(error, PhotinusError):
            text = f"worker {seat.slot} failed: " + "".join(_user_traceback(error)).rstrip()
        cause = f"{type(error).__name__}: {error}{_location(error)}"
        limit = 20_000 if text.isascii() else 4_000  # a header has 64 KiB, a letter up to 12 bytes
        header = {"error": text[-limit:], "type": type(error).__name__, "cause": cause[:600]}
        frame = Seat(seat.run, seat.term, seat.phase, seat.slot, lease).frame("bye", header)
        link = self._open_link()
        try:
            with suppress(LinkError):  # the end of the run, which is what it asks for
                return any(reply.kind == "fenced" for reply in link.exchange(frame, _STOP_SECONDS))
        finally:
            link.close()
        return False


@dataclass(frozen=True, slots=True)
class WorkerBootstrap:
    """What is sent to every worker of a training: where to say hello, and what to train."""

    plan: TrainingPlan
    rendezvous: Rendezvous
    hooks: Hooks = field(default_factory=Hooks)
    """Hooks of tests around it."""

    def run(
        self,
        slot: int,
        attempt: str,
        open_part: Callable[[], WorkerData],
        resources: TaskResources | None = None,
        shared_folder: str = "",
    ) -> None:
        """Trains in one slot until the run is over; an error of its own ends the run.

        Args:
            slot: the seat to take.
            attempt: distinguishes this attempt from others of the same slot.
            open_part: reads the slot's rows, once.
            resources: the accelerators that it may use, where Spark assigns them.
            shared_folder: of its executor: what is frozen is fetched once for all workers there.

        Raises:
            LinkLostError: the coordinator cannot be found any more.
        """
        rendezvous = self.rendezvous.hooked(self.hooks, slot)
        hello_fields: dict[str, str] = {}

        def make_generator() -> WorkerGenerator:
            rendezvous.hooks.check()
            if resources is not None:
                resources.bind()
            for number, phase in enumerate(self.plan.phases):
                phase.config.preload()  # that may take seconds, and there is no lease yet
                hello_fields["device"] = ready(self.plan.device(number, slot))
            worker_data = open_part()
            release_freed_memory()
            generator = rendezvous.hooks.life(self.plan, slot, worker_data)
            is_frozen = any(getattr(phase.config, "frozen", ()) for phase in self.plan.phases)
            if not (shared_folder and is_frozen):
                return generator
            name = f"photinus-{self.rendezvous.key.run.hex()}.npy"
            return fetch_once(generator, FrozenFile(Path(shared_folder, name)))

        rendezvous.run_worker(slot, attempt, make_generator, hello_fields)


def reported_error(text: str, kind: str) -> PhotinusError:
    """Returns the error that a worker reported, in its own class."""
    return (errors.class_of(kind) or RunFailedError)(text)


def _heartbeat(seat: Seat, attempt: str) -> Frame:
    """Returns a heartbeat; it names the attempt: the lease is unknown until the grant is read."""
    return seat.frame("beat", {"attempt": attempt})


def _library_folders() -> tuple[str, ...]:
    """Returns the folders of code that calls the user's: photinus, and torch where it is loaded."""
    folders = getattr(sys.modules.get("torch"), "__path__", ())
    return (_PACKAGE_FOLDER, *(os.path.join(folder, "") for folder in folders))


def _user_traceback(error: Exception) -> list[str]:
    """Returns the traceback from the user's first line on; all of it where none is the user's."""
    entry, libraries = error.__traceback__, _library_folders()
    while entry is not None and entry.tb_frame.f_code.co_filename.startswith(libraries):
        entry = entry.tb_next
    return traceback.format_exception(type(error), error, entry or error.__traceback__)


def _location(error: Exception) -> str:
    """Returns where an error was raised: file and line, the user's where there is one."""
    entries, libraries = list(traceback.extract_tb(error.__traceback__)), _library_folders()
    frames = [frame for frame in entries if not frame.filename.startswith(libraries)] or entries
    return f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""


def _log_refused(counts: Mapping[str, int]) -> None:
    """Logs the strangers at a worker: its log lines reach the driver."""
    logging.getLogger("photinus").warning(refused(counts))


def _make_ring(link: Link, backend: str, slot: int) -> Ring:
    assert isinstance(link, TcpLink)
    return Ring(link.local_host, device=gpu(slot) if backend == "nccl" else "cpu")
