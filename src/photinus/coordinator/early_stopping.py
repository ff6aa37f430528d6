"""Early stopping: measures on validation rows, keeps the best point, decides when to stop."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from photinus.coordinator.callbacks import Callbacks
from photinus.core.events import Evaluated
from photinus.models.metrics import finished
from photinus.training.snapshots import RunSnapshot

_LAST_TRIAL_PROGRESS = 0.98
"""The progress at which the last trial begins, before any worker has left."""

_mean_metrics = partial(finished, ())


class TrialResult(NamedTuple):
    """What one trial found."""

    examples: int
    metrics: Mapping[str, float]
    is_best: bool


class EarlyStopping:
    """About once an epoch the workers measure the agreed point, each on its own rows set aside.

    Their next pushes carry the sums. A point is better by its error. The loss decides where there
    is no error, and between points of the same error above 0. For a model that measures neither
    the metrics are shown, but nothing is decided.

    Args:
        epochs: of the stage, or how many trials it has where these are fewer; 0 for no trials.
        patience: so many trials in a row without a better point end the stage; 0 for never.
    """

    def __init__(self, epochs: float, patience: int) -> None:
        self._patience = patience
        self.restart()
        self.epochs = epochs

    def restart(
        self, to_metrics: Callable[[Mapping[str, float]], dict[str, float]] = _mean_metrics
    ) -> None:
        """Another stage begins, of which nothing is measured yet.

        Args:
            to_metrics: makes metrics of the workers' sums.
        """
        self._to_metrics, self.epochs = to_metrics, 0.0
        self.best: RunSnapshot | None = None
        """The best point so far."""
        self.is_stopped = False
        self._trials_begun, self._trials_since_best = 0, 0
        self._best_values: tuple[float, ...] = (math.inf,)
        self._trial_version = -1
        self._candidate: RunSnapshot | None = None
        self._slots_awaited, self._slots_to_ask = set[int](), set[int]()
        self._sums: dict[str, float] = {}

    def begin(self, progress: float, version: int, slots: frozenset[int]) -> bool:
        """Begins a trial with this round where one is due; returns whether it did."""
        epochs_done = progress * self.epochs
        trials_due = (
            math.ceil(epochs_done)
            if progress >= _LAST_TRIAL_PROGRESS
            else math.floor(epochs_done + 1e-9)
        )
        if trials_due <= self._trials_begun or self.is_stopped:
            return False
        self._trials_begun, self._trial_version, self._candidate = trials_due, version, None
        self._slots_awaited, self._slots_to_ask, self._sums = set(slots), set(slots), {}
        return True

    def should_measure(self, slot: int) -> bool:
        """Returns whether a slot's worker must measure the point that it is sent now: True once."""
        is_asked = slot in self._slots_to_ask
        self._slots_to_ask.discard(slot)
        return is_asked

    def offer_candidate(self, snapshot: RunSnapshot) -> None:
        """Takes the point of the present trial: it may be the best."""
        if snapshot.version == self._trial_version:
            self._candidate = snapshot

    def drop_slot(self, slot: int) -> None:
        """Continues without a worker that was lost."""
        self._slots_awaited.discard(slot)

    def add_sums(self, slot: int, sums: Mapping[str, float]) -> None:
        """Takes what one worker measured."""
        if slot in self._slots_awaited:
            self._slots_awaited.discard(slot)
            for name, value in sums.items():
                self._sums[name] = self._sums.get(name, 0.0) + float(value)

    def finish_trial(self) -> TrialResult | None:
        """Returns the result of the present trial once all workers have reported, and decides."""
        if self._slots_awaited or not self._sums.get("examples"):
            return None
        examples, metrics = self._sums["examples"], self._to_metrics(self._sums)
        self._sums = {}
        names = ("error",) if metrics.get("error") == 0 else ("error", "loss")
        values = tuple(metrics[name] for name in names if name in metrics)
        is_best = bool(values) and values < self._best_values and self._candidate is not None
        if is_best:
            self._best_values, self._trials_since_best, self.best = values, 0, self._candidate
        elif values and not math.isnan(values[0]):
            self._trials_since_best += 1
        self.is_stopped = bool(self._patience) and self._trials_since_best >= self._patience
        return TrialResult(round(examples), metrics, is_best)

    def decide(self, phase: int, name: str, callbacks: Callbacks) -> None:
        """Emits the present trial's result once all workers have reported; keeps the best point."""
        result = self.finish_trial()
        if result is None:
            return
        callbacks.emit(
            Evaluated(
                phase=phase,
                name="validation",
                examples=result.examples,
                metrics=result.metrics,
                extra={"best": True} if result.is_best else {},
            )
        )
        if result.is_best and self.best is not None:
            callbacks.best(self.best)
        if self.is_stopped:
            wrong = f"{name}: no better point in {self._patience} measurements"
            callbacks.warn(wrong, then="the phase ends, at its best point")
