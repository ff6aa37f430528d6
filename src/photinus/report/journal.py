"""The journal: every event of a run in `events.jsonl`; all reports are made from it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from photinus.core.errors import UsageError
from photinus.core.events import Event, event_from_dict, event_to_dict
from photinus.report.json_lines import Lines, read_lines

_HEAD = "Journal"


@dataclass(frozen=True, slots=True)
class StampedEvent:
    """An event and when it happened."""

    at: float
    """Seconds since the run's first start."""
    wall: float
    """Seconds since 1970, by the clock at the start of that term."""
    event: Event


class Journal:
    """Appends events to a file, from any thread; a resumed run continues in the same file.

    Args:
        path: the file; the folder must exist.
        now: returns the seconds of a monotonic clock.
        wall: seconds since 1970.

    Raises:
        UsageError: the file cannot be opened.

    Example:
        >>> import tempfile
        >>> from photinus.core.events import Warned
        >>> path = Path(tempfile.mkdtemp()) / "events.jsonl"
        >>> journal = Journal(path)
        >>> journal.write(Warned(text="a slow worker"))
        >>> read(path)[0].event
        Warned(text='a slow worker')
    """

    def __init__(
        self,
        path: Path | str,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._lines = Lines(path)
        self._now = now
        began, last = _time_span(path)
        opened_at = wall()
        if began is None:
            began = opened_at
            self._lines.write({"kind": _HEAD, "version": 1, "started": began})
        # a wall clock set back between two processes must not turn the journal's time back
        self._start = now() - max(opened_at - began, last)

    def write(self, event: Event) -> None:
        """Appends one event."""
        self._lines.write({"at": round(self._now() - self._start, 4), **event_to_dict(event)})

    @property
    def lost(self) -> int:
        """Events that could not be written: the disk was full."""
        return self._lines.lost

    def close(self) -> None:
        """Closes the file; later events are counted as lost."""
        self._lines.close()


def read(path: Path | str) -> list[StampedEvent]:
    """Returns all events in order; lines that are cut, damaged or of an unknown kind are left out.

    Raises:
        DataError: the file cannot be read.
    """
    began, stamped = 0.0, []
    for values in read_lines(path):
        if values and values.get("kind") == _HEAD:
            began = _number(values.get("started"))
        elif values:
            at = _number(values.pop("at", 0.0))
            try:
                stamped.append(StampedEvent(at, began + at, event_from_dict(values)))
            except (UsageError, TypeError):
                continue
    return stamped


def _time_span(path: Path | str) -> tuple[float | None, float]:
    """Returns the wall time of the run's first start, and the last event's `at`."""
    began, last = None, 0.0
    for values in read_lines(path):
        if values and values.get("kind") == _HEAD:
            began = _number(values.get("started"))
        elif values:
            last = max(last, _number(values.get("at")))
    return began, last


def _number(value: Any) -> float:  # noqa: ANN401 - whatever a file holds
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number else 0.0
