"""The training summary of a model, from the run's journal."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from photinus.core.errors import UsageError
from photinus.core.events import RoundClosed, Warned, WorkerLost
from photinus.models.losses import SEQUENCE_LOSS
from photinus.report.event_text import confusion_table, labels_table
from photinus.report.journal import StampedEvent
from photinus.report.summary import Summary, summarise
from photinus.run.evaluate import metrics_from_sums


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """What was measured on rows with labels.

    Example:
        >>> print(Evaluation(metrics={"error": 0.0108}, examples=10_000, interval=(0.009, 0.013)))
        error 1.08 % (95 %: 0.90 % to 1.30 %) on 10000 rows
    """

    metrics: Mapping[str, float]
    """By name: loss; error of a classifier; rmse, mae and r2 of a regression; those asked for."""
    examples: int
    """Rows, or tokens with a label, that were measured on."""
    interval: tuple[float, float] | None = None
    """The error's 95 % Wilson interval."""
    confusion: list[list[int]] = field(default_factory=list)
    """Of a classifier: rows are true classes, columns predicted ones."""
    labels: list[list[int]] = field(default_factory=list)
    """Of a model of several labels a row, for each label: true positives, false positives, false
    negatives, true negatives."""
    unit: str = "rows"
    """What an example is: rows or tokens."""

    @classmethod
    def of(
        cls,
        settings: Any,  # noqa: ANN401 - one of MODELS
        parts: Iterable[str],
        metrics: Collection[str] = (),
    ) -> Evaluation:
        """Adds up what tasks measured, as JSON.

        Raises:
            DataError: there were no rows.
        """
        sums: dict[str, float] = {}
        for name, value in (pair for part in parts for pair in json.loads(part).items()):
            sums[name] = sums.get(name, 0.0) + value
        means_by_name, extra = metrics_from_sums(settings, sums, metrics)
        interval = tuple(extra["interval"]) if "interval" in extra else None
        examples, confusion = round(sums["examples"]), extra.get("confusion", [])
        return cls(
            metrics=means_by_name,
            examples=examples,
            interval=interval,
            confusion=confusion,
            labels=extra.get("labels", []),
            unit="tokens" if getattr(settings, "loss", "") == SEQUENCE_LOSS else "rows",
        )

    @property
    def error(self) -> float:
        """The share of rows that were put into a wrong class.

        Raises:
            UsageError: the metrics hold no error of classes.
        """
        if "error" not in self.metrics:
            wrong, got = "there is no error of classes here", ", ".join(self.metrics)
            do = (
                "read labels, the counts of each label"
                if self.labels
                else "read one of the metrics"
            )
            raise UsageError(wrong, got=f"the metrics {got}", do=do)
        return self.metrics["error"]

    @property
    def accuracy(self) -> float:
        """1 - error."""
        return 1 - self.error

    def __str__(self) -> str:
        texts = {name: f"{name} {value:.4g}" for name, value in self.metrics.items()}
        if "error" in texts:
            low, high = (f"{100 * bound:.2f} %" for bound in self.interval or (0.0, 1.0))
            interval_text = f" (95 %: {low} to {high})" if self.interval else ""
            texts = {"error": "", **texts} | {
                "error": f"error {100 * self.error:.2f} %{interval_text}"
            }
        table = f"\n{confusion_table(self.confusion)}" if self.confusion else ""
        table += f"\n{labels_table(self.labels)}" if self.labels else ""
        return f"{', '.join(texts.values())} on {self.examples} {self.unit}{table}"


@dataclass(frozen=True, slots=True)
class TrainingSummary:
    """The history of one fit."""

    state: Summary
    """The run's last state: phases, workers, counts."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """One row a round: phase, round, seconds since the start, progress, examples, loss ..."""
    lostWorkers: list[dict[str, Any]] = field(default_factory=list)  # noqa: N815 - Spark ML's way
    """One row a lost lease: seconds, slot, reason."""
    warnings: list[str] = field(default_factory=list)
    folder: Path | str | None = None
    """Where the run is kept, if it is: a folder of this machine, or an address."""

    @classmethod
    def of(
        cls, stamped: Iterable[StampedEvent], folder: Path | str | None = None
    ) -> TrainingSummary:
        """Folds a journal."""
        stamped = list(stamped)
        state = summarise(stamped)
        history = [
            {
                "phase": state.phases[event.phase].name,
                "round": event.version,
                "seconds": entry.at,
                "progress": event.progress,
                "examples": event.examples,
                "bytes": event.bytes_up + event.bytes_down,
                **event.metrics,
            }
            for entry in stamped
            if isinstance(event := entry.event, RoundClosed)
        ]
        lost = [
            {"seconds": entry.at, "slot": event.slot, "reason": event.reason}
            for entry in stamped
            if isinstance(event := entry.event, WorkerLost)
        ]
        warnings = [entry.event.text for entry in stamped if isinstance(entry.event, Warned)]
        return cls(state, history, lost, warnings, folder)

    @property
    def seconds(self) -> float:
        """Of training; the start and the saving are not in it."""
        return self.state.training_seconds

    @property
    def bytes(self) -> int:
        """To and from the coordinator, of all workers together."""
        return self.state.bytes_total

    def show(self) -> None:
        """Prints one line a phase, the workers that were lost, and the warnings."""
        print(self)  # noqa: T201 - what show is for, as in DataFrame.show

    def __str__(self) -> str:
        lines = [f"{'phase':<12}{'rounds':>8}{'examples':>12}{'seconds':>9}{'MB':>9}{'loss':>10}"]
        for p in self.state.phases.values():
            mb, loss = (p.bytes_up + p.bytes_down) / 1e6, p.metrics.get("loss")
            loss_text = "" if loss is None else f"{loss:10.4g}"
            lines.append(
                f"{p.name:<12}{p.rounds:8d}{p.examples:12d}{p.seconds:9.1f}{mb:9.1f}{loss_text}"
            )
        lines += [f"lost worker {row['slot']}: {row['reason']}" for row in self.lostWorkers]
        lines += [f"warning: {text}" for text in self.warnings]
        return "\n".join(lines)
