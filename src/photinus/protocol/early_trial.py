"""Whether it pays that a gradient leaves before its step is over: tried, and measured."""

from __future__ import annotations

import statistics

TURN, TURNS, PERIOD = 8, 4, 1000
"""Of each `PERIOD` steps the first take turns: `TURN` early, as many not, and so on."""


class EarlyTrial:
    """Compares the time of a step both ways; the bits are the same.

    Where a step waits for the network, to send early hides the wait. Where all processors are busy,
    what it costs them makes the step longer. Workers are at the same version at the same time, so
    all try the same way.

    Args:
        version: at which the worker begins.
        now: in seconds.

    Example:
        >>> trial, now = EarlyTrial(0, 0.0), 0.0
        >>> for version in range(TURN * TURNS):
        ...     now += 0.05 if trial.pays() else 0.04
        ...     trial.reached(version + 1, now)
        >>> trial.pays()
        False
    """

    def __init__(self, version: int, now: float) -> None:
        self._version, self._at = version, now
        self._seconds: dict[bool, list[float]] = {True: [], False: []}
        self._is_faster = True

    def pays(self) -> bool:
        """Returns whether the present step should send early."""
        step = self._version % PERIOD
        return step // TURN % 2 == 0 if step < TURN * TURNS else self._is_faster

    def reached(self, version: int, now: float) -> None:
        """Takes in that the step to a version is over."""
        step, seconds = self._version % PERIOD, now - self._at
        if step % TURN and step < TURN * TURNS:  # the first of a turn waits for the one before
            self._seconds[self.pays()].append(seconds)
        if step == TURN * TURNS - 1:
            early, late = self._seconds[True], self._seconds[False]
            if early and late:
                self._is_faster = statistics.median(early) <= statistics.median(late)
            self._seconds = {True: [], False: []}
        self._version, self._at = version, now
