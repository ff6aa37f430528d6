"""Counts connections that a listener refused, and reports them now and then."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from time import monotonic

from photinus.core.errors import user_message

OnRefused = Callable[[Mapping[str, int]], None]

_REASON_TEXTS = {
    "foreign": "without a key of this run",
    "run": "of another run",
    "silent": "silent",
    "frame": "damaged",
    "full": "too many at once",
}
"""Reason -> its text for people."""


def refused(counts: Mapping[str, int]) -> str:
    """Returns the warning about the connections that were refused so far, by reason.

    Example:
        >>> refused({"foreign": 2, "frame": 1}).partition("; look")[0]
        'strangers were turned away; got 2 without a key of this run, 1 damaged'
    """
    got = ", ".join(f"{count} {_REASON_TEXTS[reason]}" for reason, count in counts.items())
    do = "look who else can reach the port, or write into the folder, of this run"
    return user_message("strangers were turned away", got=got, do=do)


class Refusals:
    """Counts by reason.

    Args:
        report: called with the counts so far, at most every `every_seconds`.
        every_seconds: between two calls, at least.

    Example:
        >>> refusals = Refusals(lambda counts: print(dict(counts)))
        >>> refusals.add("foreign"), refusals.add("foreign")
        {'foreign': 1}
        (None, None)
        >>> refusals.counts["foreign"]
        2
    """

    def __init__(self, report: OnRefused | None = None, every_seconds: float = 60.0) -> None:
        self.counts: Counter[str] = Counter()
        self._report, self._every_seconds = report, every_seconds
        self._reported_at = -every_seconds
        self._lock = threading.Lock()

    def add(self, reason: str) -> None:
        """Counts one."""
        with self._lock:
            self.counts[reason] += 1
            now = monotonic()
            is_due = now - self._reported_at >= self._every_seconds
            if is_due:
                self._reported_at = now
            counts = dict(self.counts)
        if is_due and self._report is not None:
            self._report(counts)
