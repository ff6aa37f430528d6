"""Heartbeats over a connection of their own, independent of the worker's main thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from photinus.core.errors import LinkError
from photinus.transport.frames import Frame
from photinus.transport.link import Link

_MAX_COUNTED_BEATS = 10
"""Beats."""


class HeartbeatSender:
    """Sends a frame every few seconds, from its own thread, until it is closed.

    A link that is lost is made again at the next beat. The listener sends each beat back.

    Args:
        make_link: makes the link; it should give up within a beat or two.
        frame: the sign of life; it and `heard` may be set anew at any time.
        every_seconds: between two beats.
        heard: called, in the beater's thread, after each beat with the seconds since the last
            answer. Where this process itself stood still, ten beats at most are counted.

    Example:
        >>> from photinus.testing.memory_link import MemoryListener
        >>> heard = threading.Event()
        >>> hub = MemoryListener(lambda peer, frame: heard.set(), lambda peer: None)
        >>> with HeartbeatSender(hub.link, Frame("beat"), every_seconds=1.0):
        ...     heard.wait(5.0)
        True
    """

    def __init__(
        self,
        make_link: Callable[[], Link],
        frame: Frame,
        every_seconds: float,
        heard: Callable[[float], object] | None = None,
    ) -> None:
        self.frame = frame
        self.every_seconds = every_seconds
        self.beats = 0
        """How many were sent."""
        self.last_error: LinkError | None = None
        """Why the last beat failed; None once a beat succeeds again."""
        self._make_link = make_link
        self.heard = heard or _ignore
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="beat", daemon=True)
        self._thread.start()

    def __enter__(self) -> HeartbeatSender:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self, seconds: float = 5.0) -> None:
        """Stops, waiting at most `seconds` for the thread; a second call does nothing."""
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def _run(self) -> None:
        link: Link | None = None
        silent_seconds, last_check = 0.0, time.monotonic()
        while not self._stop.is_set():
            answers: list[Frame] = []
            try:
                link = link or self._make_link()
                answers = link.exchange(self.frame, 0)
            except LinkError as error:
                self.last_error = error
                if link is not None:
                    link.close()
                link = None
            else:
                self.beats += 1
                self.last_error = None
            now = time.monotonic()
            silent_seconds = (
                0.0
                if answers
                else silent_seconds + min(now - last_check, _MAX_COUNTED_BEATS * self.every_seconds)
            )
            last_check = now
            self.heard(silent_seconds)
            self._stop.wait(self.every_seconds)
        if link is not None:
            link.close()


def _ignore(seconds: float) -> None:
    pass
