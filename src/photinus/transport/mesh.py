"""Links between workers: one listener, and one connection to each other worker.

Each connection has a thread and a queue: no one waits for a slow peer. The frames of a connection
that breaks are lost, and reported with `broken`. Of publications that pile up, the oldest are
dropped.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress

from photinus.core.errors import LinkError
from photinus.core.seeds import backoff
from photinus.transport.frames import Frame
from photinus.transport.link import Link, Listener, OnClosed, OnFrame, Peer

_MOST_WAITING, _MOST_WAITING_BYTES = 16, 256 << 20
"""How many publications wait for one slow peer, and how many bytes beside the newest one."""
_STALL_SECONDS = 5.0
"""A frame of which no byte arrived for so long is stalled."""
_RETRY_SECONDS = 0.1
"""How long the first pause after a broken connection is."""
_POLL_SECONDS = 0.5
"""How often an idle connection is checked."""


class Mesh:
    """One worker's side of all links to the others.

    Args:
        listen: opens the listener with the functions that take its peers' frames and their ends.
        connect: makes a link to an address; it should give up within seconds.

    Example:
        >>> from photinus.testing.memory_link import MemoryListener
        >>> hubs = {}
        >>> def listen(hear, gone):
        ...     hubs["a"] = MemoryListener(hear, gone)
        ...     return hubs["a"]
        >>> mesh = Mesh(listen, lambda address: hubs[address].link())
        >>> mesh.send("a", Frame("publish", slot=3))
        >>> [frame.slot for frame in mesh.take(5.0)]
        [3]
        >>> mesh.close()
    """

    def __init__(
        self, listen: Callable[[OnFrame, OnClosed], Listener], connect: Callable[[str], Link]
    ) -> None:
        self._inbox: queue.SimpleQueue[Frame] = queue.SimpleQueue()
        self._has_arrived = threading.Event()
        self._connect = connect
        self._senders: dict[str, _PeerSender] = {}
        self._progress: dict[Peer, tuple[int, float]] = {}
        """How many bytes had arrived from a peer, and when that was noticed."""
        self._listener = listen(self._receive, _ignore_disconnect)

    @property
    def address(self) -> str:
        """Where the others find this worker."""
        return self._listener.address

    @property
    def lost(self) -> int:
        """How many frames could not be sent."""
        return sum(sender.lost for sender in self._senders.values())

    def send(self, address: str, frame: Frame) -> None:
        """Sends soon, without waiting."""
        if address not in self._senders:
            self._senders[address] = _PeerSender(lambda: self._connect(address), address)
        self._senders[address].enqueue(frame)

    def take(self, seconds: float) -> list[Frame]:
        """Returns what has arrived, after at most `seconds` for the first frame; 0 only looks."""
        frames: list[Frame] = []
        self._has_arrived.clear()
        with suppress(queue.Empty):
            if seconds > 0:
                frames.append(self._inbox.get(timeout=seconds))
            while True:
                frames.append(self._inbox.get_nowait())
        return frames

    def wait(self, seconds: float) -> bool:
        """Waits until `take` has something to return, at most so long; takes nothing."""
        return self._has_arrived.wait(seconds)

    def keep(self, addresses: Iterable[str]) -> None:
        """Ends the connections to all others."""
        for address in self._senders.keys() - set(addresses):
            self._senders.pop(address).close()

    def broken(self) -> list[str]:
        """Returns the addresses whose connections broke since the last call; frames may be lost."""
        return [address for address, sender in self._senders.items() if sender.was_broken()]

    def arriving(self) -> set[int]:
        """Returns the slots from which a frame is arriving: it is not whole, and makes progress."""
        now = time.monotonic()
        progress = {p: (p.bytes_received, now) for p in self._listener.peers()}
        for peer, (received, _) in progress.items():
            last = self._progress.get(peer)
            if last is not None and last[0] == received:
                progress[peer] = last
        self._progress = progress
        heads = {p.arriving for p, (_, since) in progress.items() if now - since < _STALL_SECONDS}
        return {head.slot for head in heads if head is not None}

    def close(self) -> None:
        """Ends all connections and stops listening."""
        self.keep(())
        self._listener.close()

    def _receive(self, peer: Peer, frame: Frame) -> None:  # noqa: ARG002 - as a listener calls it
        self._inbox.put(frame)
        self._has_arrived.set()


def _ignore_disconnect(peer: Peer) -> None:
    """Does nothing: the coordinator notices a worker that is gone."""


class _PeerSender:
    """Sends to one worker from its own thread; the link is made when it is needed."""

    def __init__(self, connect: Callable[[], Link], name: str) -> None:
        self.lost = 0
        self._connect = connect
        self._queue: deque[Frame] = deque()
        self._changed = threading.Condition()
        self._in_flight: Frame | None = None
        self._is_closed = self._was_broken = False
        self._tries = 0
        self._link: Link | None = None
        self._thread = threading.Thread(target=self._run, name=f"mesh {name}", daemon=True)
        self._thread.start()

    def enqueue(self, frame: Frame) -> None:
        with self._changed:
            if any(is_same(frame, waiting) for waiting in (*self._queue, self._in_flight)):
                return
            if frame.kind == "publish":
                self._drop_oldest()
            self._queue.append(frame)
            self._changed.notify()

    def _drop_oldest(self) -> None:
        """Drops the oldest publications, by number and by bytes."""
        waiting = [f for f in self._queue if f.kind == "publish"]
        queued_bytes = sum(f.size_bytes for f in waiting)
        while waiting and (len(waiting) >= _MOST_WAITING or queued_bytes > _MOST_WAITING_BYTES):
            oldest = waiting.pop(0)
            self._queue.remove(oldest)
            queued_bytes -= oldest.size_bytes
            self.lost += 1

    def was_broken(self) -> bool:
        with self._changed:
            was_broken, self._was_broken = self._was_broken, False
        return was_broken

    def close(self, seconds: float = 5.0) -> None:
        with self._changed:
            self._is_closed = True
            self._queue.clear()
            self._changed.notify()
        link = self._link
        if link is not None:
            link.close()
        self._thread.join(seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._is_closed, _POLL_SECONDS)
                if self._is_closed:
                    break
                frame = self._in_flight = self._queue.popleft() if self._queue else None
            if frame is not None or self._link is not None:
                self._transmit(frame)
                self._pause_after_failure()
        if self._link is not None:  # it may have been made while this was closed
            self._link.close()

    def _pause_after_failure(self) -> None:
        """Waits before an unreachable peer is tried again; the pause grows to seconds."""
        with self._changed:
            self._in_flight = None
            if self._tries:
                pause = _RETRY_SECONDS * backoff(self._tries - 1, self._thread.name, most=32)
                self._changed.wait_for(lambda: self._is_closed, pause)

    def _transmit(self, frame: Frame | None) -> None:
        try:
            self._link = self._link or self._connect()
            self._link.exchange(frame, 0.0)
            self._tries = 0
        except LinkError:
            self._tries += 1
            self.lost += frame is not None
            with self._changed:
                self._was_broken = True
            link, self._link = self._link, None
            if link is not None:
                link.close()


def is_same(one: Frame, other: Frame | None) -> bool:
    """Returns whether the same piece of a meeting, or question for it, is on its way already.

    Example:
        >>> is_same(Frame("part", header={"version": 3}), Frame("part", header={"version": 3}))
        True
    """
    if other is None or one.kind == "publish":
        return False
    return _identity(one) == _identity(other)


def _identity(frame: Frame) -> tuple[object, ...]:
    """Returns which meeting a piece belongs to, or which rows or page a question is for."""
    header, start = frame.header, frame.arrays.get("start")
    page = None if start is None else start.tolist()
    names = ("version", "slots", "leases", "start", "restores", "reading", "to")
    return frame.kind, frame.phase, frame.lease, page, *map(header.get, names)
