"""Early stopping: measures on validation rows, keeps the best point, decides when to stop."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from photinus.coordinator.callbacks import Callbacks
from photinus.core.events import Evaluated
from photinus.models.metrics import finished
from photinus.training.snapshots import RunSnapshot

_ALMOST = 0.98
"""The progress at which the last trial begins, before any worker has left."""


def _means(sums: Mapping[str, float]) -> dict[str, float]:
    return finished((), sums)


class TrialResult(NamedTuple):
    """What one trial found."""

    examples: int
    metrics: Mapping[str, float]
    is_best: bool


class EarlyStopping:
    """About once an epoch the workers measure the agreed point, each on its own rows set aside.

    Their next pushes carry the sums. A point is better by its error, or its loss where there
    is no error; for a model that measures neither the metrics are shown, but nothing is decided.

    Args:
        epochs: of the stage; 0 for no trials.
        patience: so many trials in a row without a better point end the stage; 0 for never.
    """

    def __init__(self, epochs: float, patience: int) -> None:
        self._patience = patience
        self.restart()
        self.epochs = epochs

    def restart(self, finished: Callable[[Mapping[str, float]], dict[str, float]] = _means) -> None:
        """Another stage begins, of which nothing is measured yet.

        Args:
            finished: makes metrics of the workers' sums.
        """
        self._finished, self.epochs = finished, 0.0
        self.best: RunSnapshot | None = None
        """The best point so far."""
        self.is_stopped = False
        self._begun, self._since, self._value = 0, 0, math.inf
        self._version = -1
        self._cut: RunSnapshot | None = None
        self._missing, self._unasked = set[int](), set[int]()
        self._sums: dict[str, float] = {}

    def measure_for(self, epochs: float) -> None:
        """Measures about once in each of so many epochs of the stage."""
        self.epochs = epochs

    def begin(self, progress: float, version: int, slots: frozenset[int]) -> bool:
        """Begins a trial with this round where one is due; returns whether it did."""
        done = progress * self.epochs
        due = math.ceil(done) if progress >= _ALMOST else math.floor(done + 1e-9)
        if due <= self._begun or self.is_stopped:
            return False
        self._begun, self._version, self._cut = due, version, None
        self._missing, self._unasked, self._sums = set(slots), set(slots), {}
        return True

    def asks(self, slot: int) -> bool:
        """Returns whether a slot's worker must measure the point that it is sent now: True once."""
        is_asked = slot in self._unasked
        self._unasked.discard(slot)
        return is_asked

    def hold(self, cut: RunSnapshot) -> None:
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
        """Returns the result of the present trial once all workers have reported, and decides."""
        if self._missing or not self._sums.get("examples"):
            return None
        examples, metrics = self._sums["examples"], self._finished(self._sums)
        self._sums = {}
        value = metrics.get("error", metrics.get("loss", math.nan))
        is_best = value < self._value and self._cut is not None
        if is_best:
            self._value, self._since, self.best = value, 0, self._cut
        elif not math.isnan(value):
            self._since += 1
        self.is_stopped = bool(self._patience) and self._since >= self._patience
        return TrialResult(round(examples), metrics, is_best)

    def decide(self, phase: int, name: str, callbacks: Callbacks) -> None:
        """Emits the present trial's result once all workers have reported; keeps the best point."""
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
            wrong = f"{name}: no better point in {self._patience} measurements"
            callbacks.warn(wrong, then="the phase ends, at its best point")
