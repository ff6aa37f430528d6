"""Signs of life over a link of their own, however busy a worker's main thread is."""

from __future__ import annotations

import threading
from collections.abc import Callable

from photinus.core.errors import LinkError
from photinus.transport.frames import Frame
from photinus.transport.link import Link

__all__ = ["Beater"]


class Beater:
    """Sends a frame every few seconds, from a thread of its own, until it is closed.

    A link that is lost is made again at the next beat; what comes back is given to `hear`.

    Args:
        make_link: makes the link; it should give up within a beat or two.
        frame: the sign of life; the attribute may be set anew at any time.
        every_seconds: between two beats.
        hear: called, in the beater's thread, for each frame that comes back.

    Example:
        >>> from photinus.transport.memory import Hub
        >>> heard = threading.Event()
        >>> hub = Hub(lambda peer, frame: heard.set(), lambda peer: None)
        >>> with Beater(hub.link, Frame("beat"), every_seconds=1.0) as beater:
        ...     heard.wait(5.0)
        True
    """

    def __init__(
        self,
        make_link: Callable[[], Link],
        frame: Frame,
        every_seconds: float,
        hear: Callable[[Frame], None] | None = None,
    ) -> None:
        self.frame = frame
        self.every_seconds = every_seconds
        self.beats = 0
        """How many were sent."""
        self.last_error: LinkError | None = None
        """Why the last beat failed; None once one got through again."""
        self._make_link = make_link
        self._hear = hear or _ignore
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="beat", daemon=True)
        self._thread.start()

    def __enter__(self) -> Beater:
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
        while not self._stop.is_set():
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
                for answer in answers:
                    self._hear(answer)
            self._stop.wait(self.every_seconds)
        if link is not None:
            link.close()


def _ignore(frame: Frame) -> None:
    pass
