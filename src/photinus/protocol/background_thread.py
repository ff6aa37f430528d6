"""A thread that works while the worker's own thread computes, and never beside it."""

from __future__ import annotations

import threading
from collections.abc import Callable

_LOOK_SECONDS = 0.05
"""How long its end may have to wait for it."""


class BackgroundThread:
    """Calls a function whenever there is something to do, between `begin` and `pause` only.

    Args:
        wait: waits for something to do, at most so many seconds.
        work: does it.

    Example:
        >>> ready, done = threading.Event(), threading.Event()
        >>> background = BackgroundThread(ready.wait, done.set)
        >>> ready.set()
        >>> background.begin()
        >>> done.wait(5.0)
        True
        >>> background.end()
    """

    def __init__(self, wait: Callable[[float], object], work: Callable[[], object]) -> None:
        self._wait, self._work = wait, work
        self._turn = threading.Lock()
        self._turn.acquire()
        self._is_paused, self._is_over = True, False
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Has it work from now on."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="photinus background", daemon=True
            )
            self._thread.start()
        if self._is_paused:
            self._is_paused = False
            self._turn.release()

    def pause(self) -> None:
        """Returns once it does nothing.

        Raises:
            Exception: what the function raised.
        """
        if not self._is_paused:
            self._turn.acquire()
            self._is_paused = True
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """Ends the thread; it does nothing any more."""
        self._is_over = True
        if self._thread is not None:
            if self._is_paused:
                self._turn.release()
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while not self._is_over:
            self._wait(_LOOK_SECONDS)
            with self._turn:
                if self._is_over or self._error is not None:
                    return
                try:
                    self._work()
                except Exception as error:  # the worker's thread raises it
                    self._error = error
