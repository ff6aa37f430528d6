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
        self._held: list[RoundClosed] = []
        self._wrote = -every_seconds

    def write(self, event: Event) -> None:
        """Takes in one event."""
        with self._lock:
            if not isinstance(event, RoundClosed):
                self._let_go()
                self._write(event)
                return
            self._held.append(event)
            if self._now() - self._wrote >= self._every_seconds:
                self._let_go()

    def flush(self) -> None:
        """Passes on what is held back."""
        with self._lock:
            self._let_go()

    def _let_go(self) -> None:
        if self._held:
            held, self._held, self._wrote = self._held, [], self._now()
            self._write(_joined(held))


def _joined(rounds: Sequence[RoundClosed]) -> RoundClosed:
    last = rounds[-1]
    names = {name for one in rounds for name in one.metrics}
    told = {name: [one.metrics[name] for one in rounds if name in one.metrics] for name in names}
    return replace(
        last,
        rounds=sum(one.rounds for one in rounds),
        slots=tuple(sorted({slot for one in rounds for slot in one.slots})),
        seconds=sum(one.seconds for one in rounds),
        metrics={name: sum(values) / len(values) for name, values in sorted(told.items())},
        bytes_up=sum(one.bytes_up for one in rounds),
        bytes_down=sum(one.bytes_down for one in rounds),
    )
