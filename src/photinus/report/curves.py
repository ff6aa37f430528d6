"""The curves of a run, from its journal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from photinus.core import events as e
from photinus.report.chart import Chart, Point, Series, Timeline, time_unit
from photinus.report.journal import StampedEvent
from photinus.report.summary import PhaseState, Summary

_MAX_METRICS = 4
_MAX_WORKERS = 8


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
        for name in names[:_MAX_METRICS]:
            points = [
                (_progress_x(phase, r.examples), r.metrics[name])
                for r in rounds
                if name in r.metrics
            ]
            series = [Series("training", points), *_validation(phase, name, stamped)]
            unit = "epochs" if phase.epochs else "examples"
            charts.append(Chart(title=phase.name, subtitle=name, x_label=unit, series=series))
    return charts


def _progress_x(phase: PhaseState, examples: int) -> float:
    if phase.epochs and phase.budget:
        return examples / phase.budget * phase.epochs
    return float(examples)


def _validation(phase: PhaseState, name: str, stamped: Sequence[StampedEvent]) -> list[Series]:
    """Returns measurements at the progress at which the last round before each ended."""
    examples, points_by_set = 0, dict[str, list[Point]]()
    for entry in stamped:
        event = entry.event
        if isinstance(event, e.RoundClosed) and event.phase == phase.phase:
            examples = event.examples
        elif (
            isinstance(event, e.Evaluated) and event.phase == phase.phase and name in event.metrics
        ):
            point = (_progress_x(phase, examples), event.metrics[name])
            points_by_set.setdefault(event.name, []).append(point)
    return [Series(set_name, points, has_dots=True) for set_name, points in points_by_set.items()]


def speed_charts(summary: Summary, stamped: Sequence[StampedEvent]) -> list[Chart]:
    """Returns the charts over time: speed of all, of each worker, and the rounds."""
    unit, unit_seconds = time_unit(summary.at)
    reports: dict[int, list[Point]] = {}
    durations: list[Point] = []
    for entry in stamped:
        if isinstance(entry.event, e.WorkerReport):
            point = (entry.at / unit_seconds, entry.event.examples_per_second)
            reports.setdefault(entry.event.slot, []).append(point)
        elif isinstance(entry.event, e.RoundClosed):
            mean = entry.event.seconds / max(1, entry.event.rounds)
            durations.append((entry.at / unit_seconds, mean))
    workers = [Series(f"worker {s}", reports[s]) for s in sorted(reports)[:_MAX_WORKERS]]
    hidden = len(reports) - len(workers)
    suffix = f", {_MAX_WORKERS} of {len(reports)} workers" if hidden else ""
    panels = (
        (
            "All workers",
            "examples per second",
            [Series("applied", _speed_points(stamped, unit_seconds))],
        ),
        ("Each worker", f"examples per second{suffix}", workers),
        ("Rounds", "seconds from first push to end", [Series("round", durations)]),
    )
    begin = training_began(stamped) / unit_seconds
    return [
        Chart(
            title=title,
            subtitle=text,
            x_label=unit,
            series=series,
            starts_at_zero=True,
            x_from=begin,
        )
        for title, text, series in panels
        if any(s.points for s in series)
    ]


def training_began(stamped: Sequence[StampedEvent]) -> float:
    """Returns when the first phase began, in seconds: before it nothing was trained."""
    return next((s.at for s in stamped if isinstance(s.event, e.PhaseStarted)), 0.0)


def _speed_points(stamped: Sequence[StampedEvent], unit_seconds: float) -> list[Point]:
    """Returns the speed between rounds, over spans of at least a hundredth of the run."""
    min_span = (stamped[-1].at - stamped[0].at) / 100 if stamped else 0.0
    points: list[Point] = []
    previous: tuple[int, float, int] | None = None
    for entry in stamped:
        event = entry.event
        if isinstance(event, e.PhaseStarted):
            points.append((entry.at / unit_seconds, math.nan))
            previous = (event.phase, entry.at, 0)
        elif isinstance(event, e.RoundClosed):
            if previous is None or previous[0] != event.phase or event.examples < previous[2]:
                previous = (event.phase, entry.at, event.examples)
            elif entry.at - previous[1] > min_span:
                speed = (event.examples - previous[2]) / (entry.at - previous[1])
                points.append((entry.at / unit_seconds, speed))
                previous = (event.phase, entry.at, event.examples)
    return points


def worker_lanes(summary: Summary, stamped: Sequence[StampedEvent]) -> list[Timeline]:
    """Returns each worker's time at its seat, and how much of it was work."""
    spans: dict[int, list[tuple[float, float, float]]] = {}
    last_seen: dict[int, tuple[float, e.WorkerReport | None]] = {}
    for entry in stamped:
        event = entry.event
        if isinstance(event, e.WorkerJoined):
            last_seen[event.slot] = (entry.at, None)
        elif isinstance(event, e.WorkerLost):
            last_seen.pop(event.slot, None)
        elif isinstance(event, e.WorkerReport):
            began, last = last_seen.get(event.slot, (entry.at, None))
            spans.setdefault(event.slot, []).append((began, entry.at, _work_share(event, last)))
            last_seen[event.slot] = (entry.at, event)
    return [
        Timeline(f"worker {slot}", _merge_spans(spans[slot], summary.at)) for slot in sorted(spans)
    ]


def _work_share(event: e.WorkerReport, last: e.WorkerReport | None) -> float:
    work, wait = event.compute_seconds, event.wait_seconds
    if last and last.phase == event.phase and last.compute_seconds <= work:
        work, wait = work - last.compute_seconds, wait - last.wait_seconds
    return work / (work + wait) if work + wait > 0 else 0.0


def _merge_spans(
    spans: Sequence[tuple[float, float, float]], end: float
) -> list[tuple[float, float, float]]:
    """Joins neighbours until each is at least 1/200 of the picture wide, and those alike."""
    merged: list[tuple[float, float, float]] = []
    for began, ended, work in spans:
        last_began, last_ended, last_work = merged[-1] if merged else (began, began - 1, work)
        is_short = ended - last_began < end / 200 or abs(work - last_work) < 0.02
        if began <= last_ended and is_short:
            whole = max(ended - last_began, 1e-9)
            work = (last_work * (last_ended - last_began) + work * (ended - began)) / whole
            merged[-1] = (last_began, ended, work)
        else:
            merged.append((began, ended, work))
    return merged
