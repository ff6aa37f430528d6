"""A gradient that leaves its worker while the rest of it is still computed, segment by segment."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from photinus.core.clock import Clock
from photinus.core.parameters import Vector
from photinus.strategies.base import Message, Strategy, Turn

SEGMENT = 1 << 16
"""How many numbers of a vector are merged at a time; only whole segments leave early."""

Span = tuple[int, int]
"""(start, stop) in a vector: adjacent segments."""


class EarlySending(NamedTuple):
    """How segments of the next push reach the other workers ahead of it."""

    send: Callable[[Message, int, str], None]
    """Sends a run of them, given the size of the whole vector and the merge that makes the mean."""
    pays: Callable[[], bool]
    """Returns whether this step should."""


def starts(start: int, stop: int) -> range | list[int]:
    """Returns where the segments of start..stop begin; the first may begin inside of one.

    Example:
        >>> starts(60_000, 140_000)
        [60000, 65536, 131072]
    """
    first = start - start % SEGMENT + SEGMENT
    return [start, *range(first, stop, SEGMENT)] if start < stop else []


def runs(starts: Iterable[int], end: int) -> list[Span]:
    """Returns the runs of segments that begin at these places, in order; none goes beyond `end`.

    Example:
        >>> runs([0, 131_072, 196_608], 200_000)
        [(0, 65536), (131072, 200000)]
    """
    found: list[Span] = []
    for at in sorted(starts):
        stop = min(at - at % SEGMENT + SEGMENT, end)
        if found and found[-1][1] == at:
            at, _ = found.pop()
        found.append((at, stop))
    return found


class EarlyGradient:
    """Offers each segment of a step's gradient to the others as soon as all of it is final.

    Args:
        strategy: whose meeting merges the gradients.
        clock: as it will be after the step.
        state: the strategy's.
        size: of the gradient.
        send: sends what the strategy offers.
    """

    def __init__(
        self,
        strategy: Strategy,
        clock: Clock,
        state: Any,  # noqa: ANN401 - each strategy has a state of its own
        size: int,
        send: Callable[[Message, int, str], None],
    ) -> None:
        self._strategy, self._clock, self._state = strategy, clock, state
        self._size, self._send = size, send
        self._open = {at: min(SEGMENT, size - at) for at in starts(0, size)}
        """Where a segment starts -> how many of its numbers are not final."""

    def final(self, gradient: Vector, start: int, stop: int) -> None:
        """Notes that the numbers start..stop of the gradient [n] will not change any more."""
        whole = []
        for at in range(start - start % SEGMENT, stop, SEGMENT):
            self._open[at] -= min(at + SEGMENT, stop) - max(at, start)
            if not self._open[at]:
                whole.append(at)
        self._offer(gradient, whole)

    def rest(self, gradient: Vector) -> None:
        """Notes that all of the gradient [n] is final."""
        self._offer(gradient, [at for at, count in self._open.items() if count])
        self._open.clear()

    def _offer(self, gradient: Vector, whole: Iterable[int]) -> None:
        for run in runs(whole, self._size):
            turn = Turn("meet", run)
            message, _ = self._strategy.offer(turn, gradient, self._clock, self._state)
            if message is not None:
                self._send(message, self._size, getattr(self._strategy, "merge", ""))
