"""Finds out from Spark's scheduler which tasks' Python processes have ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


class _Seats(Protocol):
    def died(self, slot: int, attempt: str) -> None:
        """An attempt's process has ended."""


class _Tasks(Protocol):
    def failure_count(self) -> int:
        """Returns how many tasks have failed so far."""

    def ended_tasks(self) -> list[tuple[int, str]]:
        """Returns the partition and the attempt of each that failed in its Python process."""


@dataclass
class LostTaskReporter:
    """Reports them to the coordinator: over a folder no connection closes.

    Args:
        seats: which worker holds which seat.
    """

    seats: _Seats
    _failures_seen: int = 0
    _reported: set[tuple[int, str]] = field(default_factory=set)

    def look(self, job: _Tasks) -> None:
        """Called some times a second.

        Args:
            job: that runs now.
        """
        failures = job.failure_count()
        if failures == self._failures_seen:
            return
        self._failures_seen = failures
        for slot, attempt in job.ended_tasks():
            if (slot, attempt) not in self._reported:
                self._reported.add((slot, attempt))
                self.seats.died(slot, attempt)
