"""The interfaces of links and listeners."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from photinus.transport.frames import Frame


class Link(ABC):
    """A worker's side: one ordered stream to a listener. Used by one thread at a time."""

    bytes_sent: int = 0
    bytes_received: int = 0

    @abstractmethod
    def exchange(self, frame: Frame | None, seconds: float) -> list[Frame]:
        """Sends `frame` if one is given, then returns what has arrived, in order.

        Args:
            frame: what to send, or None to listen only.
            seconds: the longest to wait for at least one frame; 0 only looks.

        Raises:
            LinkLostError: the other side is gone, or this side was closed.
            FrameError: `frame` is out of its limits, or what arrived is no frame.
        """

    @abstractmethod
    def close(self) -> None:
        """Ends the link, from any thread; a second call does nothing."""


class Peer(ABC):
    """The listener's side of one link."""

    name: str = ""
    """Its origin, for people to read."""
    bytes_sent: int = 0
    bytes_received: int = 0
    bytes_per_second: float = 0.0
    """The speed within the vectors that arrived so far; 0 while that is not known."""
    arriving: Frame | None = None
    """The head of a frame whose arrays are still arriving; they must not be read yet."""
    is_signed: bool = False
    """The transport shows whether the listener is alive: heartbeats need no answer."""

    def __init__(self) -> None:
        self.waiting: set[Frame] = set()
        """Frames that were sent, and that the system has not taken yet."""

    @abstractmethod
    def send(self, frame: Frame) -> None:
        """Sends soon, from any thread, without waiting; to a peer that is gone, never.

        The frame's arrays must not be written to afterwards: they are not copied.

        Raises:
            FrameError: `frame` is out of its limits.
        """

    @abstractmethod
    def close(self) -> None:
        """Ends the link after what was sent before; a second call does nothing."""


class Listener(ABC):
    """The listening side: it receives frames of many peers.

    `hear(peer, frame)` runs for each frame, one at a time for one peer but in several threads for
    several; `gone(peer)` runs once, after the last frame of a peer.
    """

    address: str = ""
    """What a worker needs to find it."""

    @abstractmethod
    def peers(self) -> list[Peer]:
        """Returns the peers whose links are open, also those that have sent no whole frame yet."""

    @abstractmethod
    def close(self) -> None:
        """Ends all links and stops listening; a second call does nothing."""


OnFrame = Callable[[Peer, Frame], None]
OnClosed = Callable[[Peer], None]
