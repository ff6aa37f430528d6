"""The curves of a run, from its journal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from photinus.core import events as e
from photinus.report.chart import Chart, Point, Series, Timeline, time_unit
from photinus.report.journal import StampedEvent
from photinus.report.summary import PhaseState, Summary

_MOST_METRICS = 4
_MOST_WORKERS = 8


def training_charts(summary: Summary, stamped: Sequence[StampedEvent]) -> list[Chart]:
    """Returns a chart for every phase and metric: what was trained on, and the validation."""
    charts = []
    for phase in summary.phases.values():
        rounds = [
            s.event
            for s in stamped
            if isinstance(s.event, e.RoundClosed) and s.event.phase == phase.phase
        ]
        names = list(dict.fromkeys(name for r in rounds for name in r.metrics))
        for name in names[:_MOST_METRICS]:
            trained = [
                (_along(phase, r.examples), r.metrics[name]) for r in rounds if name in r.metrics
            ]
            series = [Series("training", trained), *_validation(phase, name, stamped)]
            unit = "epochs" if phase.epochs else "examples"
            charts.append(Chart(title=phase.name, subtitle=name, x_label=unit, series=series))
    return charts


def _along(phase: PhaseState, examples: int) -> float:
    if phase.epochs and phase.budget:
        return examples / phase.budget * phase.epochs
    return float(examples)


def _validation(phase: PhaseState, name: str, stamped: Sequence[StampedEvent]) -> list[Series]:
    """Returns measurements at the progress at which the last round before each ended."""
    reached, found = 0, dict[str, list[Point]]()
    for one in stamped:
        event = one.event
        if isinstance(event, e.RoundClosed) and event.phase == phase.phase:
            reached = event.examples
        elif (
            isinstance(event, e.Evaluated) and event.phase == phase.phase and name in event.metrics
        ):
            point = (_along(phase, reached), event.metrics[name])
            found.setdefault(event.name, []).append(point)
    return [Series(kind, points, has_dots=True) for kind, points in found.items()]


def speed_charts(summary: Summary, stamped: Sequence[StampedEvent]) -> list[Chart]:
    """Returns the charts over time: speed of all, of each worker, and the rounds."""
    unit, length = time_unit(summary.at)
    reports: dict[int, list[Point]] = {}
    durations: list[Point] = []
    for one in stamped:
        if isinstance(one.event, e.WorkerReport):
            point = (one.at / length, one.event.examples_per_second)
            reports.setdefault(one.event.slot, []).append(point)
        elif isinstance(one.event, e.RoundClosed):
            mean = one.event.seconds / max(1, one.event.rounds)
            durations.append((one.at / length, mean))
    workers = [Series(f"worker {s}", reports[s]) for s in sorted(reports)[:_MOST_WORKERS]]
    hidden = len(reports) - len(workers)
    some = f", {_MOST_WORKERS} of {len(reports)} workers" if hidden else ""
    drawn = (
        ("All workers", "examples per second", [Series("applied", _applied(stamped, length))]),
        ("Each worker", f"examples per second{some}", workers),
        ("Rounds", "seconds from first push to end", [Series("round", durations)]),
    )
    begin = training_began(stamped) / length
    return [
        Chart(
            title=title,
            subtitle=text,
            x_label=unit,
            series=series,
            starts_at_zero=True,
            x_from=begin,
        )
        for title, text, series in drawn
        if any(s.points for s in series)
    ]


def training_began(stamped: Sequence[StampedEvent]) -> float:
    """Returns when the first phase began, in seconds: before it nothing was trained."""
    return next((s.at for s in stamped if isinstance(s.event, e.PhaseStarted)), 0.0)


def _applied(stamped: Sequence[StampedEvent], length: float) -> list[Point]:
    """Returns the speed between rounds, over spans of at least a hundredth of the run."""
    least = (stamped[-1].at - stamped[0].at) / 100 if stamped else 0.0
    points: list[Point] = []
    last: tuple[int, float, int] | None = None
    for one in stamped:
        event = one.event
        if isinstance(event, e.PhaseStarted):
            points.append((one.at / length, math.nan))
            last = (event.phase, one.at, 0)
        elif isinstance(event, e.RoundClosed):
            if last is None or last[0] != event.phase or event.examples < last[2]:
                last = (event.phase, one.at, event.examples)
            elif one.at - last[1] > least:
                speed = (event.examples - last[2]) / (one.at - last[1])
                points.append((one.at / length, speed))
                last = (event.phase, one.at, event.examples)
    return points


def worker_lanes(summary: Summary, stamped: Sequence[StampedEvent]) -> list[Timeline]:
    """Returns each worker's time at its seat, and how much of it was work."""
    spans: dict[int, list[tuple[float, float, float]]] = {}
    seen: dict[int, tuple[float, e.WorkerReport | None]] = {}
    for one in stamped:
        event = one.event
        if isinstance(event, e.WorkerJoined):
            seen[event.slot] = (one.at, None)
        elif isinstance(event, e.WorkerLost):
            seen.pop(event.slot, None)
        elif isinstance(event, e.WorkerReport):
            began, last = seen.get(event.slot, (one.at, None))
            spans.setdefault(event.slot, []).append((began, one.at, _share(event, last)))
            seen[event.slot] = (one.at, event)
    return [Timeline(f"worker {slot}", _merged(spans[slot], summary.at)) for slot in sorted(spans)]


def _share(event: e.WorkerReport, last: e.WorkerReport | None) -> float:
    work, wait = event.compute_seconds, event.wait_seconds
    if last and last.phase == event.phase and last.compute_seconds <= work:
        work, wait = work - last.compute_seconds, wait - last.wait_seconds
    return work / (work + wait) if work + wait > 0 else 0.0


def _merged(
    spans: Sequence[tuple[float, float, float]], end: float
) -> list[tuple[float, float, float]]:
    """Joins neighbours until each is at least 1/200 of the picture wide, and those alike."""
    merged: list[tuple[float, float, float]] = []
    for began, ended, work in spans:
        first, middle, before = merged[-1] if merged else (began, began - 1, work)
        is_short = ended - first < end / 200 or abs(work - before) < 0.02
        if began <= middle and is_short:
            whole = max(ended - first, 1e-9)
            work = (before * (middle - first) + work * (ended - began)) / whole
            merged[-1] = (first, ended, work)
        else:
            merged.append((began, ended, work))
    return merged
