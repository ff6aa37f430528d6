"""Joins many round events of one second into one; the sums stay exact."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from photinus.core.events import Event, RoundClosed


class ThinnedEvents:
    """Passes events on; rounds that follow each other quickly become one event.

    Its `rounds` counts those that it stands for: bytes and seconds are their sums, metrics their
    means. Before any other event what was held back is written, so that no phase loses its last
    round.

    Args:
        write: takes the events.
        every_seconds: between two events of rounds, at least.
        now: returns the seconds of a monotonic clock.

    Example:
        >>> written = []
        >>> thinned = ThinnedEvents(written.append, now=lambda: 0.0)
        >>> for n in (1, 2, 3):
        ...     thinned.write(RoundClosed(phase=0, version=n, slots=(0,), examples=8 * n,
        ...                               progress=0.1, seconds=0.01, bytes_up=100))
        >>> thinned.flush()
        >>> [(round.version, round.rounds, round.bytes_up) for round in written]
        [(1, 1, 100), (3, 2, 200)]
    """

    def __init__(
        self,
        write: Callable[[Event], None],
        every_seconds: float = 0.05,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write, self._every_seconds, self._now = write, every_seconds, now
        self._lock = threading.Lock()
        self._pending: list[RoundClosed] = []
        self._last_write = -every_seconds

    def write(self, event: Event) -> None:
        """Takes in one event."""
        with self._lock:
            if not isinstance(event, RoundClosed):
                self._flush_pending()
                self._write(event)
                return
            self._pending.append(event)
            if self._now() - self._last_write >= self._every_seconds:
                self._flush_pending()

    def flush(self) -> None:
        """Passes on what is held back."""
        with self._lock:
            self._flush_pending()

    def _flush_pending(self) -> None:
        if self._pending:
            pending, self._pending, self._last_write = self._pending, [], self._now()
            self._write(_merge_rounds(pending))


def _merge_rounds(rounds: Sequence[RoundClosed]) -> RoundClosed:
    last = rounds[-1]
    names = {name for event in rounds for name in event.metrics}
    values_by_name = {
        name: [event.metrics[name] for event in rounds if name in event.metrics] for name in names
    }
    return replace(
        last,
        rounds=sum(event.rounds for event in rounds),
        slots=tuple(sorted({slot for event in rounds for slot in event.slots})),
        seconds=sum(event.seconds for event in rounds),
        metrics={
            name: sum(values) / len(values) for name, values in sorted(values_by_name.items())
        },
        bytes_up=sum(event.bytes_up for event in rounds),
        bytes_down=sum(event.bytes_down for event in rounds),
    )
