"""Numbers that follow the phase's progress: learning rates and momenta."""

from __future__ import annotations

import math
from dataclasses import dataclass

from photinus.core.errors import UsageError
from photinus.core.settings import Limit, unknown_name

__all__ = ["SCHEDULE", "Schedule"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """A number as a function of progress: straight pieces between points, and jumps.

    Example:
        >>> Schedule(((0, 0.5), (0.1, 0.5), (0.1, 0.9))).at(0.2)
        0.9
        >>> round(Schedule.cosine(1.0, warm_up=0.1).at(0.55), 6)
        0.5
    """

    points: tuple[tuple[float, float], ...]
    """(progress, value) in order; two with one progress are a jump; held before and after."""

    falls: str = "straight"
    """"straight", or "cosine": a falling piece is half a cosine (Loshchilov and Hutter, 2017)."""

    def __post_init__(self) -> None:
        places = [p for p, _ in self.points]
        numbers = [n for point in self.points for n in point]
        if not places or places != sorted(places) or not all(map(math.isfinite, numbers)):
            raise UsageError(
                "points of Schedule must be finite, in the order of their progress",
                got=self.points,
            )
        if self.falls not in ("straight", "cosine"):
            raise unknown_name("falls of Schedule", self.falls, ("straight", "cosine"))

    @classmethod
    def constant(cls, value: float) -> Schedule:
        """The same value always."""
        return cls(((0.0, value),))

    @classmethod
    def cosine(cls, peak: float, warm_up: float = 0.0, floor: float = 0.0) -> Schedule:
        """Rises straight from a tenth of `peak` until `warm_up`, then falls to `floor` by a cosine.

        From 0 the first step, which may be an epoch, would change nothing.
        """
        rise = ((0.0, peak / 10),) if warm_up > 0 else ()
        return cls((*rise, (warm_up, peak), (1.0, floor)), "cosine")

    @classmethod
    def stairs(cls, value: float, factor: float, *places: float) -> Schedule:
        """Begins at `value` and is multiplied by `factor` at each of the places.

        Example:
            >>> steps = Schedule.stairs(0.1, 0.5, 0.4, 0.8)
            >>> [steps.at(progress) for progress in (0.0, 0.39, 0.4, 0.9)]
            [0.1, 0.1, 0.05, 0.025]
        """
        points = [(0.0, value)]
        for place in places:
            held = points[-1][1]
            points += [(place, held), (place, held * factor)]
        return cls(tuple(points))

    def at(self, progress: float) -> float:
        """Returns the value at a progress 0..1."""
        before = [p for p in self.points if p[0] <= progress]
        after = [p for p in self.points if p[0] > progress]
        if not before or not after:
            return (before[-1] if before else after[0])[1]
        (start, left), (end, right) = before[-1], after[0]
        share = (progress - start) / (end - start)
        if self.falls == "cosine" and right < left:
            share = (1 - math.cos(math.pi * share)) / 2
        return left + (right - left) * share


SCHEDULE = Limit(
    "a Schedule, such as photinus.Schedule.constant(0.1)",
    lambda v: isinstance(v, Schedule),
)
