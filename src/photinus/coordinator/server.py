"""Runs the coordinator behind a listener: a lock, a clock, one connection per slot."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from photinus.coordinator.advice import CodecAdvice
from photinus.coordinator.lease_server import LeaseServer
from photinus.coordinator.worker_reports import WorkerReports
from photinus.core.errors import PhotinusError
from photinus.core.events import Log
from photinus.protocol.headers import checked
from photinus.transport.frames import Frame
from photinus.transport.link import Listener, OnClosed, OnFrame, Peer

_TICK_SECONDS = 0.1


class Service:
    """Carries frames between a listener's peers and the coordinator, one at a time.

    Any error of the coordinator ends the run with its text as the reason: no thread dies unnoticed.

    Args:
        coordinator: the state machine; only the service may call it while the service is open.
        listen: opens the listener with the functions that take its peers' frames and their ends.
        now: returns the seconds of a monotonic clock.
    """

    def __init__(
        self,
        coordinator: LeaseServer,
        listen: Callable[[OnFrame, OnClosed], Listener],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._coordinator, self._now, self._reports = coordinator, now, WorkerReports()
        self._lock = threading.Lock()
        self._ended, self._closing, self._snapshot_done = (threading.Event() for _ in range(3))
        self.interrupt: BaseException | None = None
        """What ended the run and is no error: a callback's KeyboardInterrupt or SystemExit."""
        self._codec_advice = CodecAdvice()
        self._holders: dict[int, Peer] = {}
        """Slot -> the peer that holds the seat."""
        self._pending_hellos: dict[int, tuple[Peer, Frame]] = {}
        """Slot -> the peer that asks for the seat, and its hello."""
        self._dead_attempts: set[tuple[int, str]] = set()
        """Slots and attempts whose processes have ended."""
        self._heartbeats: dict[int, tuple[Peer, int]] = {}
        """Slot -> the connection that its heartbeats arrive on, and their lease."""
        self._byte_counts: dict[Peer, tuple[int, int]] = {}
        """How many bytes a peer had sent and been sent when it was looked at last."""
        self.listener = listen(self._receive, self._disconnect)
        self._ticker = threading.Thread(target=self._run_ticks, name="photinus-ticks", daemon=True)
        self._ticker.start()

    def wait(self, seconds: float) -> bool:
        """Waits for the end of the run; returns whether it has ended."""
        return self._ended.wait(seconds)

    def lease(self, slot: int) -> int:
        """Returns how often a slot was taken."""
        with self._lock:
            return self._coordinator.leases[slot].lease

    def starved(self) -> frozenset[int]:
        """Returns the slots that wait for a task whose place a copy of another task takes."""
        with self._lock:
            return self._coordinator.leases.starved

    def died(self, slot: int, attempt: str) -> None:
        """Ends the lease of an attempt whose process has ended; its starter calls this.

        A folder shows no end of a connection: without this call the others wait for a minute. A
        hello of the attempt that is read later gets no seat.
        """
        with self._lock:
            self._dead_attempts.add((slot, attempt))
            pending = self._pending_hellos.get(slot)
            if pending is not None and pending[1].header.get("attempt") == attempt:
                self._coordinator.leases.withdraw(self._pending_hellos.pop(slot)[1])
            self._coordinator.leases.died(slot, attempt, self._now())

    def retire(self, slot: int, attempt: str) -> None:
        """Has an attempt give its seat up after its next push."""
        with self._lock:
            self._coordinator.leases[slot].leaving_attempt = attempt

    def has_left(self, slot: int, attempt: str) -> bool:
        """Returns whether this attempt does not hold the seat."""
        with self._lock:
            seat = self._coordinator.leases[slot]
            return not seat.is_live or seat.attempt != attempt

    @property
    def is_between_passes(self) -> bool:
        """True when the next pass over rows that stream is waited for."""
        return self._coordinator.is_between_passes

    def next_pass(self) -> None:
        """Every worker says hello again, with another pass over its rows."""
        with self._lock:
            self._coordinator.next_pass(self._now())

    def save_snapshot(self, seconds: float) -> bool | None:
        """Has the present round saved, and waits for that; None where there is none to save."""
        with self._lock:
            if not self._coordinator.ask_for_snapshot():
                return None
            self._snapshot_done.clear()
        return self._snapshot_done.wait(seconds)

    def stop(self, reason: str) -> None:
        """Ends the run without a result, and sends "stop" to the workers."""
        with self._lock:
            self._carry(self._coordinator.stop(reason))

    def close(self) -> None:
        """Stops listening."""
        self._closing.set()
        self._ticker.join()
        self.listener.close()

    def tick(self) -> None:
        """Lets time pass: leases end, late slots are left out, workers are reported."""
        with self._lock:
            self._guard("the passing of time", self._tick)

    def _run_ticks(self) -> None:
        while not self._closing.wait(_TICK_SECONDS):
            self.tick()

    def _tick(self) -> None:
        now = self._now()
        self._renew_by_bytes(now)
        self._carry(self._coordinator.tick(now))
        for report in self._reports.due(now):
            self._coordinator.callbacks.emit(report)

    def _renew_by_bytes(self, now: float) -> None:
        """Takes bytes that arrived since the last look as signs of life.

        They belong to a frame that is not whole yet, or to one that waits for the lock: while the
        coordinator merges a large round no frame is taken in, though bytes arrive.
        """
        leases = self._coordinator.leases
        for slot, peer in self._holders.items():
            received, sent = self._bytes_since_last(peer)
            if received:
                leases.sent_bytes(slot, leases[slot].lease, now)
            if (received and peer.arriving is not None) or (sent and peer.waiting):
                leases.moved(slot, now)
        for slot, (peer, lease) in self._heartbeats.items():
            if self._bytes_since_last(peer)[0]:
                leases.sent_bytes(slot, lease, now)

    def _bytes_since_last(self, peer: Peer) -> tuple[int, int]:
        """Returns how many bytes a peer has sent and been sent since the last call."""
        counts = peer.bytes_received, peer.bytes_sent
        received_before, sent_before = self._byte_counts.get(peer, counts)
        self._byte_counts[peer] = counts
        return counts[0] - received_before, counts[1] - sent_before

    def _receive(self, peer: Peer, frame: Frame) -> None:
        with self._lock:
            self._byte_counts[peer] = peer.bytes_received, peer.bytes_sent
            description = f"a {frame.kind} of worker {frame.slot}"
            self._guard(description, lambda: self._handle(peer, checked(frame)))

    def _handle(self, peer: Peer, frame: Frame) -> None:
        if frame.kind == "hello" and (frame.slot, frame.header["attempt"]) in self._dead_attempts:
            return
        leases, now = self._coordinator.leases, self._now()
        is_held = frame.term == self._coordinator.callbacks.term and leases.holds(frame)
        self._register_peer(peer, frame, is_held=is_held)
        if is_held and frame.kind == "push" and frame.sequence == leases[frame.slot].sequence:
            self._reports.add_push(frame, peer, now)
            for advise in (self._codec_advice.codec_warning, self._codec_advice.sending_advice):
                if warning := advise(frame, peer.bytes_per_second):
                    self._coordinator.callbacks.warn(warning)
        self._carry(self._coordinator.hear(frame, now), peer, frame)

    def _register_peer(self, peer: Peer, frame: Frame, *, is_held: bool) -> None:
        """Notes which peer serves a slot; answers heartbeats, which have their own connection."""
        if frame.kind == "hello":
            self._pending_hellos[frame.slot] = peer, frame
        elif frame.kind == "note":
            self._log(frame)
        elif frame.kind == "beat":
            leases = self._coordinator.leases
            if is_held or leases.is_granted_to(frame):
                self._heartbeats[frame.slot] = peer, leases[frame.slot].lease
            if not peer.is_signed:
                peer.send(frame)
        elif is_held:
            self._holders[frame.slot] = peer

    def _guard(self, description: str, action: Callable[[], None]) -> None:
        """Runs `action`; an error in it ends the run, as the reason that every worker is sent."""
        try:
            action()
        except BaseException as error:  # sys.exit in a callback would end this thread alone
            if self._coordinator.is_over:
                return
            self.interrupt = None if isinstance(error, Exception) else error
            is_own_error = isinstance(error, PhotinusError)
            reason = str(error) if is_own_error else f"{type(error).__name__}: {error}"
            reason = reason[:4_000]  # it is sent to every worker, in a header of 64 KiB
            text = f"the coordinator failed on {description}: {reason}"
            kind = type(error).__name__ if is_own_error else ""
            self._carry(self._coordinator.stop(text, kind))

    def _log(self, frame: Frame) -> None:
        level, text = frame.header.get("level", ""), frame.header.get("text", "")
        self._coordinator.callbacks.emit(Log(slot=frame.slot, level=level, text=text))

    def _disconnect(self, peer: Peer) -> None:
        with self._lock:
            self._byte_counts.pop(peer, None)
            self._heartbeats = {
                slot: entry for slot, entry in self._heartbeats.items() if entry[0] is not peer
            }
            for slot, (asking_peer, hello) in list(self._pending_hellos.items()):
                if asking_peer is peer:
                    del self._pending_hellos[slot]
                    self._coordinator.leases.withdraw(hello)
            for slot in [slot for slot, holder in self._holders.items() if holder is peer]:
                del self._holders[slot]
                leases = self._coordinator.leases
                leases.gone(slot, leases[slot].lease, self._now())

    def _carry(
        self, frames: list[Frame], peer: Peer | None = None, request: Frame | None = None
    ) -> None:
        for reply in frames:
            for recipient in self._recipients(reply, peer, request):
                if reply not in recipient.waiting:  # asked for again before it was sent
                    recipient.send(reply)
        if not self._coordinator.is_snapshot_asked or self._coordinator.is_over:
            self._snapshot_done.set()
        if self._coordinator.is_over:
            self._ended.set()

    def _recipients(self, frame: Frame, peer: Peer | None, request: Frame | None) -> list[Peer]:
        """Returns who gets a frame.

        A grant goes to the peer that asked for the seat, a refusal to the sender of `request`,
        every other frame to the peer that holds the seat.
        """
        slot, pending = frame.slot, self._pending_hellos.get(frame.slot)
        if frame.kind == "grant" and pending is not None and _is_answer(frame, pending[1]):
            self._holders[slot] = self._pending_hellos.pop(slot)[0]
        is_asked = request is not None and request.slot == slot
        senders = [peer] if peer is not None and is_asked else []
        if frame.kind in ("busy", "fenced") and is_asked:
            return senders
        holders = [self._holders[slot]] if slot in self._holders else []
        if frame.kind in ("done", "stop"):
            recipients = [*holders, *([pending[0]] if pending is not None else []), *senders]
            return list(dict.fromkeys(recipients))
        return holders


def _is_answer(grant: Frame, hello: Frame) -> bool:
    """Returns whether a grant answers this hello.

    A grant for another phase goes to the holder of the seat, even while others wait for it.
    """
    return all(grant.header.get(name) == hello.header.get(name) for name in ("attempt", "hello"))
