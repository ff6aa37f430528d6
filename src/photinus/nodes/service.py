"""The coordinator at work: a lock, a clock, a listener, and one line to each slot."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from photinus.core.errors import PhotinusError
from photinus.nodes.coordinator import Coordinator
from photinus.transport.frames import Frame
from photinus.transport.link import Gone, Hear, Listener, Peer

__all__ = ["Service"]

TICK_SECONDS = 0.1


class Service:
    """Carries frames between a listener's peers and the coordinator, one at a time.

    Args:
        coordinator: the state machine; nobody else may call it while the service is open.
        listen: opens the listener with the functions that hear its peers.
    """

    def __init__(self, coordinator: Coordinator, listen: Callable[[Hear, Gone], Listener]) -> None:
        self._coordinator = coordinator
        self._lock, self._over, self._stopped = (
            threading.Lock(),
            threading.Event(),
            threading.Event(),
        )
        self._lines: dict[int, Peer] = {}
        self._asking: dict[int, Peer] = {}
        self.listener = listen(self._hear, self._gone)
        self._ticker = threading.Thread(target=self._tick, name="photinus-ticks", daemon=True)
        self._ticker.start()

    def wait(self, seconds: float) -> bool:
        """Waits for the end of the run; returns whether it has come."""
        return self._over.wait(seconds)

    def stop(self, reason: str) -> None:
        """Ends the run without a result; the workers are told."""
        with self._lock:
            self._carry(self._coordinator.stop(reason))

    def close(self) -> None:
        """Stops listening."""
        self._stopped.set()
        self._ticker.join()
        self.listener.close()

    def _hear(self, peer: Peer, frame: Frame) -> None:
        with self._lock:
            now = time.monotonic()
            if frame.kind == "hello":
                self._asking[frame.slot] = peer
            elif frame.kind != "beat" and self._coordinator.fence.holds(frame):
                self._lines[frame.slot] = peer
            try:
                out = self._coordinator.hear(frame, now)
            except PhotinusError as error:
                out = self._coordinator.stop(str(error))
            self._carry(out, peer, frame)

    def _gone(self, peer: Peer) -> None:
        with self._lock:
            for slot, line in self._lines.items():
                if line is peer:
                    lease = self._coordinator.fence.seats[slot].lease
                    self._coordinator.gone(slot, lease, time.monotonic())

    def _tick(self) -> None:
        while not self._stopped.wait(TICK_SECONDS):
            with self._lock:
                self._carry(self._coordinator.tick(time.monotonic()))

    def _carry(self, out: list[Frame], peer: Peer | None = None, said: Frame | None = None) -> None:
        for frame in out:
            line = self._line(frame, peer, said)
            if line is not None:
                with suppress(PhotinusError):  # a worker that is gone says hello again
                    line.send(frame)
        if self._coordinator.is_over:
            self._over.set()

    def _line(self, frame: Frame, peer: Peer | None, said: Frame | None) -> Peer | None:
        """A grant goes to who asked, a refusal to who spoke, all else to who holds the seat."""
        if frame.kind == "grant" and frame.slot in self._asking:
            self._lines[frame.slot] = self._asking.pop(frame.slot)
        is_refusal = frame.kind in ("busy", "fenced") and said is not None
        if is_refusal and said is not None and frame.slot == said.slot:
            return peer
        if frame.kind in ("done", "stop") and frame.slot in self._asking:
            return self._asking[frame.slot]
        return self._lines.get(frame.slot)
