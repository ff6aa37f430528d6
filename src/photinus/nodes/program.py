"""What a run does, small enough to be sent to every worker: phases, seeds, shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from photinus.core.errors import UsageError
from photinus.core.parameters import Vector
from photinus.models.base import Model, Stage
from photinus.nodes.fence import LEASE_SECONDS
from photinus.strategies.base import Policy, Strategy

__all__ = ["Agrees", "Phase", "Program"]


class Agrees(Protocol):
    """How the workers agree: a recipe's `Agreement`, or an object of the user's own."""

    @property
    def is_deterministic(self) -> bool:
        """True when the same seed gives the same bits: shares are then fixed in advance."""

    def strategy(self) -> Strategy:
        """Returns the worker's half."""

    def policy(self) -> Policy:
        """Returns the owner's half."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """A part of a job with a model of its own, and how its workers agree."""

    stage: Stage
    agreement: Agrees

    @property
    def name(self) -> str:
        """The stage's name."""
        return self.stage.name


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """All that a worker must know; rows and parameters come to it by other ways."""

    phases: tuple[Phase, ...]
    workers: int
    seed: int = 0
    is_shared: bool = False
    """True when every worker can read all rows and takes its share of one permutation."""
    threads: int = 1
    """Of each worker's tensor library; a fixed count is part of "same seed, same bits"."""
    bandwidth: float | None = None
    """Bytes that each worker may send in a second; None for no cap."""
    lease_seconds: float = LEASE_SECONDS
    """A seat is free again so long after the last sign of life."""
    validation: float = 0.0
    """The share of the rows that is set aside to measure on."""
    patience: int = 0
    """So many measurements without a better one end a phase, at its best point; 0 for never."""
    start: Mapping[str, tuple[Vector, ...]] = field(default_factory=dict)
    """Phase name -> trained [n], and where there are any floats and integers, to start from; only
    the driver reads it."""

    def __post_init__(self) -> None:
        if not self.phases:
            raise UsageError("a program needs at least one phase", got=0)
        if self.workers < 1:
            raise UsageError("workers must be at least 1", got=self.workers)

    @property
    def has_peers(self) -> bool:
        """True when in any phase the workers speak to each other."""
        return any(getattr(p.agreement.policy(), "meets", False) for p in self.phases)

    def build(self, phase: int, history: tuple[Vector, ...]) -> Model:
        """Returns a phase's model with its first parameters."""
        stage = self.phases[phase].stage
        model = stage.build(history, self.seed)
        start = self.start.get(stage.name)
        if start is not None:
            model.load(*start)
        return model

    def sent(self) -> Program:
        """Returns what travels to the workers: the same without the parameters to start from."""
        return replace(self, start={})

    def described(self) -> list[dict[str, Any]]:
        """Returns the phases in words, for the journal."""
        return [{"name": p.name, "strategy": str(p.agreement)} for p in self.phases]
