"""Limits the bytes per second that one worker sends, over all its connections."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic

BURST_BYTES = 64 << 10
"""How many bytes pass at once after a pause; no larger piece may be handed to the system."""


def _wait(seconds: float) -> None:
    threading.Event().wait(seconds)


class RateLimit:
    """A token bucket: in any t seconds it lets rate · t + 64 KiB pass, and the last piece.

    Args:
        bytes_per_second: the rate.
        now: returns the seconds of a monotonic clock.
        wait: stands still for so many seconds.

    Example:
        >>> waited = []
        >>> rate_limit = RateLimit(65536.0, now=lambda: 0.0, wait=waited.append)
        >>> for _ in range(3):
        ...     rate_limit.spend(65536)
        >>> waited
        [1.0, 2.0]
    """

    def __init__(
        self,
        bytes_per_second: float,
        now: Callable[[], float] = monotonic,
        wait: Callable[[float], None] = _wait,
    ) -> None:
        self._rate, self._now, self._wait = bytes_per_second, now, wait
        self._lock = threading.Lock()
        self._free_at = -float("inf")

    def slow_to(self, bytes_per_second: float) -> None:
        """Lowers the rate to at most this one from now on."""
        with self._lock:
            self._rate = min(self._rate, bytes_per_second)

    def spend(self, count: int) -> None:
        """Waits until `count` bytes that were just sent are paid for."""
        with self._lock:
            now = self._now()
            self._free_at = max(self._free_at, now - BURST_BYTES / self._rate)
            self._free_at += count / self._rate
            delay = self._free_at - now
        if delay > 0:
            self._wait(delay)
