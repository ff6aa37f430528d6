"""Early stopping: measures on validation rows, keeps the best point, decides when to stop."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from photinus.coordinator.callbacks import Callbacks
from photinus.core.events import Evaluated
from photinus.models.metrics import finished
from photinus.training.snapshots import Cut

_ALMOST = 0.98
"""Of a phase: then the last trial begins, while nobody has gone yet."""


def _means(sums: Mapping[str, float]) -> dict[str, float]:
    return finished((), sums)


class TrialResult(NamedTuple):
    """What one trial found."""

    examples: int
    metrics: Mapping[str, float]
    is_best: bool


@dataclass(slots=True)
class EarlyStopping:
    """About once an epoch the workers measure the agreed point, each on its own rows set aside.

    Their sums ride on their next pushes. A point is better by its error, or its loss where there
    is no error; a model that measures neither is shown, but nothing is decided.
    """

    epochs: float
    """Of the phase; 0 for no trials."""
    patience: int
    """So many trials in a row without a better point end the phase; 0 for never."""
    finished: Callable[[Mapping[str, float]], dict[str, float]] = _means
    """Makes metrics of the workers' sums."""
    best: Cut | None = None
    """The best point so far."""
    is_stopped: bool = False
    _begun: int = 0
    _since: int = 0
    _value: float = math.inf
    _version: int = -1
    _missing: set[int] = field(default_factory=set)
    _unasked: set[int] = field(default_factory=set)
    _sums: dict[str, float] = field(default_factory=dict)
    _cut: Cut | None = None

    def begin(self, progress: float, version: int, slots: frozenset[int]) -> bool:
        """Begins a trial with this round where one is due; tells whether it did."""
        done = progress * self.epochs
        due = math.ceil(done) if progress >= _ALMOST else math.floor(done + 1e-9)
        if due <= self._begun or self.is_stopped:
            return False
        self._begun, self._version, self._cut = due, version, None
        self._missing, self._unasked, self._sums = set(slots), set(slots), {}
        return True

    def asks(self, slot: int) -> bool:
        """Tells, once, whether a slot's worker shall measure the point that it is sent now."""
        is_asked = slot in self._unasked
        self._unasked.discard(slot)
        return is_asked

    def hold(self, cut: Cut) -> None:
        """Holds the point of the present trial: it may be the best."""
        if cut.version == self._version:
            self._cut = cut

    def without(self, slot: int) -> None:
        """Continues without a worker that was lost."""
        self._missing.discard(slot)

    def take(self, slot: int, sums: Mapping[str, float]) -> None:
        """Takes what one worker measured."""
        if slot in self._missing:
            self._missing.discard(slot)
            for name, value in sums.items():
                self._sums[name] = self._sums.get(name, 0.0) + float(value)

    def whole(self) -> TrialResult | None:
        """Returns what the present trial found, once all have told, and decides."""
        if self._missing or not self._sums.get("examples"):
            return None
        examples, metrics = self._sums["examples"], self.finished(self._sums)
        self._sums = {}
        value = metrics.get("error", metrics.get("loss", math.nan))
        is_best = value < self._value and self._cut is not None
        if is_best:
            self._value, self._since, self.best = value, 0, self._cut
        elif not math.isnan(value):
            self._since += 1
        self.is_stopped = bool(self.patience) and self._since >= self.patience
        return TrialResult(round(examples), metrics, is_best)

    def decide(self, phase: int, name: str, callbacks: Callbacks) -> None:
        """Tells what the present trial found, once all have told; the best point is kept."""
        found = self.whole()
        if found is None:
            return
        callbacks.emit(
            Evaluated(
                phase=phase,
                name="validation",
                examples=found.examples,
                metrics=found.metrics,
                extra={"best": True} if found.is_best else {},
            )
        )
        if found.is_best and self.best is not None:
            callbacks.best(self.best)
        if self.is_stopped:
            wrong = f"{name}: no better point in {self.patience} measurements"
            callbacks.warn(wrong, then="the phase ends, at its best point")
