"""What a claim and an experiment are, and the strategies that many of them share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from photinus.core.clock import Steps
from photinus.strategies.outer import OuterOptimizer, Sgd
from photinus.strategies.recipes import all_reduce, averaging, downpour
from photinus.strategies.spec import StrategySpec
from strategies.trial import Outcome, Scale, Trial, measured

WORKERS = 8


@dataclass(frozen=True)
class Claim:
    """An ordering of a few trials, with a margin."""

    says: str
    of: tuple[str, ...]
    """Names of the trials."""
    holds: Callable[..., bool]
    """Of their outcomes, in that order."""
    is_short: bool = True
    """True when short trials show it too; others need the long ones."""


@dataclass(frozen=True)
class Experiment:
    """Trials by name, and what must be seen."""

    title: str
    trials: Mapping[str, Trial]
    claims: tuple[Claim, ...]

    def outcomes(self, names: set[str], scale: Scale) -> dict[str, Outcome]:
        """Runs those of the trials."""
        return {name: measured(self.trials[name], scale) for name in self.trials if name in names}

    def short_names(self) -> set[str]:
        """Returns the trials that the short claims need."""
        return {name for claim in self.claims if claim.is_short for name in claim.of}


def rounds(steps: int = 10, outer: OuterOptimizer | None = None, **parts: Any) -> StrategySpec:
    """Plain averaging, after so many steps, in full precision."""
    usual = {"every": Steps(steps), "merge": "uniform", "codec": "fp32", "gain": "unsafe"}
    return averaging(**{**usual, "outer": outer or Sgd(), **parts})


def at_once(steps: int = 10, outer: OuterOptimizer | None = None, **parts: Any) -> StrategySpec:
    """Deltas that are applied as they come, 1/K of each."""
    usual = {"every": Steps(steps), "codec": "fp32", "gain": "unsafe"}
    return downpour(**{**usual, "outer": outer or Sgd(), **parts})


def per_step(codec: str = "fp32", workers: int = WORKERS, **parts: Any) -> Trial:
    """The mean gradient after every step, at the learning rate that it needs."""
    lr = {1: 0.05, 2: 0.05}.get(workers, 0.1)
    return Trial(strategy=all_reduce(codec=codec), workers=workers, **{"lr": lr, **parts})


def within(points: float) -> Callable[[Outcome, Outcome], bool]:
    """The second's error is at most so many points above the first's."""
    return lambda a, b: b.error <= a.error + points


def beats(points: float) -> Callable[[Outcome, Outcome], bool]:
    """The second's error is at least so many points above the first's."""
    return lambda a, b: b.error >= a.error + points


def untrained(outcome: Outcome) -> bool:
    """More than half is told wrongly, or nothing is a number any more."""
    return not outcome.error <= 50
