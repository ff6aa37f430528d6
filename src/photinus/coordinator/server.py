"""Runs the coordinator behind a listener: a lock, a clock, one connection per slot."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from photinus.coordinator.advice import CodecAdvice
from photinus.coordinator.lease_server import LeaseServer
from photinus.coordinator.worker_reports import WorkerReports
from photinus.core.errors import PhotinusError
from photinus.core.events import Log, Warned
from photinus.protocol.headers import checked
from photinus.transport.frames import Frame
from photinus.transport.link import Gone, Hear, Listener, Peer

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
        listen: Callable[[Hear, Gone], Listener],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._coordinator, self._now, self._gauges = coordinator, now, WorkerReports()
        self._lock = threading.Lock()
        self._over, self._closed, self._cut = (threading.Event() for _ in range(3))
        self.interrupt: BaseException | None = None
        """What ended the run and is no error: a callback's KeyboardInterrupt or SystemExit."""
        self._payoff = CodecAdvice()
        self._lines: dict[int, Peer] = {}
        """Slot -> the peer that holds the seat."""
        self._asking: dict[int, tuple[Peer, Frame]] = {}
        """Slot -> the peer that asks for the seat, and its hello."""
        self._dead: set[tuple[int, str]] = set()
        """Slots and attempts whose processes have ended."""
        self._beats: dict[int, tuple[Peer, int]] = {}
        """Slot -> the connection that its heartbeats arrive on, and their lease."""
        self._seen: dict[Peer, tuple[int, int]] = {}
        """How many bytes a peer had sent and been sent when it was looked at last."""
        self.listener = listen(self._hear, self._gone)
        self._ticker = threading.Thread(target=self._ticks, name="photinus-ticks", daemon=True)
        self._ticker.start()

    def wait(self, seconds: float) -> bool:
        """Waits for the end of the run; returns whether it has ended."""
        return self._over.wait(seconds)

    def lease(self, slot: int) -> int:
        """Returns how often a slot was taken."""
        with self._lock:
            return self._coordinator.leases.seats[slot].lease

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
            self._dead.add((slot, attempt))
            asking = self._asking.get(slot)
            if asking is not None and asking[1].header.get("attempt") == attempt:
                self._coordinator.leases.withdraw(self._asking.pop(slot)[1])
            self._coordinator.leases.died(slot, attempt, self._now())

    def retire(self, slot: int, attempt: str) -> None:
        """Has an attempt give its seat up after its next push."""
        with self._lock:
            self._coordinator.leases.seats[slot].leaver = attempt

    def has_left(self, slot: int, attempt: str) -> bool:
        """Returns whether this attempt does not hold the seat."""
        with self._lock:
            seat = self._coordinator.leases.seats[slot]
            return not seat.is_live or seat.attempt != attempt

    @property
    def is_between_passes(self) -> bool:
        """True when the next pass over rows that stream is waited for."""
        return self._coordinator.is_between_passes

    def next_pass(self) -> None:
        """Every worker says hello again, with another pass over its rows."""
        with self._lock:
            self._coordinator.next_pass(self._now())

    def cut(self, seconds: float) -> bool | None:
        """Has the present round saved, and waits for that; None where there is none to save."""
        with self._lock:
            if not self._coordinator.ask_for_snapshot():
                return None
            self._cut.clear()
        return self._cut.wait(seconds)

    def stop(self, reason: str) -> None:
        """Ends the run without a result, and sends "stop" to the workers."""
        with self._lock:
            self._carry(self._coordinator.stop(reason))

    def close(self) -> None:
        """Stops listening."""
        self._closed.set()
        self._ticker.join()
        self.listener.close()

    def tick(self) -> None:
        """Lets time pass: leases end, late slots are left out, workers are reported."""
        with self._lock:
            self._guarded("the passing of time", self._tick)

    def _ticks(self) -> None:
        while not self._closed.wait(_TICK_SECONDS):
            self.tick()

    def _tick(self) -> None:
        now = self._now()
        self._look_at_bytes(now)
        self._carry(self._coordinator.tick(now))
        for report in self._gauges.due(now):
            self._coordinator.callbacks.emit(report)

    def _look_at_bytes(self, now: float) -> None:
        """Takes bytes that arrived since the last look as signs of life.

        They belong to a frame that is not whole yet, or to one that waits for the lock: while the
        coordinator merges a large round no frame is taken in, though bytes arrive.
        """
        leases = self._coordinator.leases
        for slot, peer in self._lines.items():
            received, sent = self._moved(peer)
            if received:
                leases.sent_bytes(slot, leases.seats[slot].lease, now)
            if (received and peer.arriving is not None) or (sent and peer.waiting):
                leases.moved(slot, now)
        for slot, (peer, lease) in self._beats.items():
            if self._moved(peer)[0]:
                leases.sent_bytes(slot, lease, now)

    def _moved(self, peer: Peer) -> tuple[int, int]:
        """Returns how many bytes a peer has sent and been sent since the last call."""
        now = peer.bytes_received, peer.bytes_sent
        received, sent = self._seen.get(peer, now)
        self._seen[peer] = now
        return now[0] - received, now[1] - sent

    def _hear(self, peer: Peer, frame: Frame) -> None:
        with self._lock:
            self._seen[peer] = peer.bytes_received, peer.bytes_sent
            what = f"a {frame.kind} of worker {frame.slot}"
            self._guarded(what, lambda: self._take_in(peer, checked(frame)))

    def _take_in(self, peer: Peer, frame: Frame) -> None:
        if frame.kind == "hello" and (frame.slot, frame.header["attempt"]) in self._dead:
            return
        leases, now = self._coordinator.leases, self._now()
        is_held = frame.term == self._coordinator.callbacks.term and leases.holds(frame)
        self._place(peer, frame, is_held=is_held)
        if is_held and frame.kind == "push" and frame.sequence == leases.seats[frame.slot].sequence:
            self._gauges.pushed(frame, peer, now)
            for asks in (self._payoff.pushed, self._payoff.sent):
                if warning := asks(frame, peer.bytes_per_second):
                    self._coordinator.callbacks.emit(Warned(text=warning))
        self._carry(self._coordinator.hear(frame, now), peer, frame)

    def _place(self, peer: Peer, frame: Frame, *, is_held: bool) -> None:
        """Notes which peer serves a slot; answers heartbeats, which have their own connection."""
        if frame.kind == "hello":
            self._asking[frame.slot] = peer, frame
        elif frame.kind == "note":
            self._log(frame)
        elif frame.kind == "beat":
            leases = self._coordinator.leases
            if is_held or leases.is_granted_to(frame):
                self._beats[frame.slot] = peer, leases.seats[frame.slot].lease
            if not peer.is_signed:
                peer.send(frame)
        elif is_held:
            self._lines[frame.slot] = peer

    def _guarded(self, what: str, do: Callable[[], None]) -> None:
        """Runs `do`; an error in it ends the run: it is the reason that every worker is sent."""
        try:
            do()
        except BaseException as error:  # sys.exit in a callback would end this thread alone
            if self._coordinator.is_over:
                return
            self.interrupt = None if isinstance(error, Exception) else error
            is_ours = isinstance(error, PhotinusError)
            reason = str(error) if is_ours else f"{type(error).__name__}: {error}"
            reason = reason[:4_000]  # it is sent to every worker, in a header of 64 KiB
            kind, text = type(error).__name__, f"the coordinator failed on {what}: {reason}"
            self._carry(self._coordinator.stop(text, kind if is_ours else ""))

    def _log(self, frame: Frame) -> None:
        level, text = frame.header.get("level", ""), frame.header.get("text", "")
        self._coordinator.callbacks.emit(Log(slot=frame.slot, level=level, text=text))

    def _gone(self, peer: Peer) -> None:
        with self._lock:
            self._seen.pop(peer, None)
            self._beats = {slot: held for slot, held in self._beats.items() if held[0] is not peer}
            for slot, (asks, hello) in list(self._asking.items()):
                if asks is peer:
                    del self._asking[slot]
                    self._coordinator.leases.withdraw(hello)
            for slot in [slot for slot, line in self._lines.items() if line is peer]:
                del self._lines[slot]
                leases = self._coordinator.leases
                leases.gone(slot, leases.seats[slot].lease, self._now())

    def _carry(self, out: list[Frame], peer: Peer | None = None, said: Frame | None = None) -> None:
        for frame in out:
            for line in self._listeners(frame, peer, said):
                if frame not in line.waiting:  # asked for again before it was sent
                    line.send(frame)
        if not self._coordinator.is_snapshot_asked or self._coordinator.is_over:
            self._cut.set()
        if self._coordinator.is_over:
            self._over.set()

    def _listeners(self, frame: Frame, peer: Peer | None, said: Frame | None) -> list[Peer]:
        """Returns who gets a frame.

        A grant goes to the peer that asked for the seat, a refusal to the sender of `said`, every
        other frame to the peer that holds the seat.
        """
        slot, asks = frame.slot, self._asking.get(frame.slot)
        if frame.kind == "grant" and asks is not None and _is_answer(frame, asks[1]):
            self._lines[slot] = self._asking.pop(slot)[0]
        if frame.kind in ("busy", "fenced") and said is not None and said.slot == slot:
            return [peer] if peer is not None else []
        holds = [self._lines[slot]] if slot in self._lines else []
        if frame.kind in ("done", "stop"):
            said_it = [peer] if peer is not None and said is not None and said.slot == slot else []
            all_here = [*holds, *([asks[0]] if asks is not None else []), *said_it]
            return list(dict.fromkeys(all_here))
        return holds


def _is_answer(grant: Frame, hello: Frame) -> bool:
    """Returns whether a grant answers this hello.

    A grant for another phase goes to the holder of the seat, even while others wait for it.
    """
    return all(grant.header.get(name) == hello.header.get(name) for name in ("attempt", "hello"))
