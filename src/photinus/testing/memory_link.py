"""Links within one process, without sockets, for tests.

Frames pass through the same bytes as on a wire, and `hear` runs in the thread that sends, so a test
repeats exactly. Faults are injected by name: `cut` a link, lose or double a frame.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from photinus.core.errors import LinkLostError
from photinus.transport.frames import Decoder, Frame, encode_frame
from photinus.transport.link import Link, Listener, OnClosed, OnFrame, Peer

Copies = Callable[[Frame], int]


def _once(frame: Frame) -> int:  # noqa: ARG001 - whatever it is
    return 1


class MemoryListener(Listener):
    """A listener in memory; `link()` makes links to it.

    Args:
        hear: called for each frame.
        gone: called once for each link that ended.

    Example:
        >>> hub = MemoryListener(lambda peer, frame: peer.send(frame), lambda peer: None)
        >>> [frame.kind for frame in hub.link().exchange(Frame("hello"), 0)]
        ['hello']
    """

    address = "memory"

    def __init__(self, hear: OnFrame, gone: OnClosed) -> None:
        self.hear, self.gone = hear, gone
        self.up: Copies = _once
        """How often a frame towards the hub arrives: 0 loses it, 2 doubles it."""
        self.down: Copies = _once
        """The same for a frame towards a worker."""
        self._lock = threading.Lock()
        self._links: list[MemoryLink] = []
        self._link_count = 0
        self._is_closed = False

    def link(self) -> MemoryLink:
        """Returns a new link.

        Raises:
            LinkLostError: the hub is closed.
        """
        with self._lock:
            if self._is_closed:
                raise LinkLostError("nobody listens any more")
            link = MemoryLink(self, f"memory-{self._link_count}")
            self._link_count += 1
            self._links.append(link)
        return link

    def ended(self, link: MemoryLink) -> None:
        """Keeps nothing of a link, as a real listener does."""
        with self._lock:
            self._links.remove(link)
        self.gone(link.peer)

    def peers(self) -> list[Peer]:
        with self._lock:
            return [link.peer for link in self._links]

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            links = list(self._links)
        for link in links:
            link.peer.close()


class MemoryPeer(Peer):
    """The hub's side of a link in memory."""

    def __init__(self, link: MemoryLink, name: str) -> None:
        super().__init__()
        self._link = link
        self.name = name

    def send(self, frame: Frame) -> None:
        """Puts a copy of `frame` into the link's queue."""
        data = b"".join(encode_frame(frame))
        for _ in range(self._link.hub.down(frame)):
            self.bytes_sent += len(data)
            self._link.inbox.put(data)

    def close(self) -> None:
        self._link.inbox.put(None)
        self._link.part()


class MemoryLink(Link):
    """A worker's link in memory."""

    def __init__(self, hub: MemoryListener, name: str) -> None:
        self.hub = hub
        self.peer = MemoryPeer(self, name)
        self.inbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._up, self._down = Decoder(), Decoder()
        self._lock = threading.Lock()
        self.is_parted = False
        self._is_over = False

    def exchange(self, frame: Frame | None, seconds: float) -> list[Frame]:
        if frame is not None:
            self._send(frame)
        frames: list[Frame] = []
        while not self._is_over:
            try:
                data = self.inbox.get(timeout=seconds) if seconds > 0 else self.inbox.get_nowait()
            except queue.Empty:
                return frames
            seconds = 0
            if data is None:
                self._is_over = True
            else:
                self.bytes_received += len(data)
                frames += self._down.feed(data)
        if not frames:
            raise LinkLostError("the other side is gone", do="make a new link")
        return frames

    def _send(self, frame: Frame) -> None:
        data = b"".join(encode_frame(frame))
        for _ in range(self.hub.up(frame)):
            if self.is_parted:
                return
            self.bytes_sent += len(data)
            self.peer.bytes_received += len(data)
            for copy in self._up.feed(data):
                self.hub.hear(self.peer, copy)

    def close(self) -> None:
        """Ends the link, and reports that to the hub."""
        self._is_over = True
        self.inbox.put(None)
        self.part()

    def cut(self) -> None:
        """Cuts the link as a broken network would: what is under way is lost."""
        self.close()

    def part(self) -> None:
        """Reports to the hub, once, that this link ended."""
        with self._lock:
            is_first, self.is_parted = not self.is_parted, True
        if is_first:
            self.hub.ended(self)
