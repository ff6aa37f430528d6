"""Describes the simulated machines: speeds, links and faults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from photinus.core.errors import UsageError
from photinus.core.settings import Limit, above, at_least, validate
from photinus.engine.hooks import Hooks


def _is_urgent(run: Any) -> bool:  # noqa: ANN401 - what a user may give
    is_triple = isinstance(run, tuple) and [type(n) in (int, float) for n in run] == [True] * 3
    return is_triple and run[0] >= 0 and run[1] > 0 and type(run[2]) is int and run[2] > 0


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedCluster:
    """How fast everything is."""

    step_seconds: float | tuple[float, ...] = 0.01
    """Of every worker, or of each: for a mini-batch; a whole part takes as many as are in it."""
    latency_seconds: float = 1e-3
    """Of a message, one way."""
    bytes_per_second: float = 1e9
    """Of each worker's own link, and of each direction; the driver's link is never the limit."""
    resend_seconds: float = 0.5
    """How long until an unanswered frame is sent again; each time longer."""
    urgent: tuple[tuple[float, float, int], ...] = ()
    """More urgent runs on these machines: (after so many seconds, for so many, so many seats)."""
    faults: Hooks = field(default_factory=Hooks)
    """`photinus.testing.Faults`; a message is doubled on its way up only: a copy is detected
    there."""
    LIMITS = {  # noqa: RUF012
        "step_seconds": Limit.each(at_least(0)),
        "latency_seconds": at_least(0),
        "bytes_per_second": above(0),
        "resend_seconds": above(0),
        "urgent": Limit(
            "tuples of seconds, seconds and seats: ((5.0, 60.0, 2),)",
            lambda v: isinstance(v, tuple) and all(map(_is_urgent, v)),
        ),
    }

    def __post_init__(self) -> None:
        if isinstance(self.step_seconds, list):
            object.__setattr__(self, "step_seconds", tuple(self.step_seconds))
        validate(self)

    def check_workers(self, workers: int) -> None:
        """Refuses speeds that are not those of so many workers.

        Raises:
            UsageError: there are more speeds than workers, or fewer.
        """
        if isinstance(self.step_seconds, tuple) and len(self.step_seconds) != workers:
            wrong = "step seconds must be one number for all workers, or one for each"
            raise UsageError(wrong, got=f"{len(self.step_seconds)} numbers for {workers} workers")

    def step(self, slot: int) -> float:
        """Returns the seconds that a step of this slot takes."""
        seconds = self.step_seconds
        return seconds[slot % len(seconds)] if isinstance(seconds, tuple) else seconds
