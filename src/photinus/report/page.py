"""The report: one HTML file, made from the journal, that loads and runs nothing."""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from photinus.core import events as e
from photinus.core.errors import UsageError
from photinus.report.chart import chart, lanes
from photinus.report.curves import (
    speed_charts,
    training_began,
    training_charts,
    worker_lanes,
)
from photinus.report.event_text import (
    interval_text,
    line_of,
    metrics_text,
    virtual_line_of,
    workers_text,
)
from photinus.report.formatting import bytes_text, count_text, number_text, seconds_text
from photinus.report.glossary import words_for
from photinus.report.journal import StampedEvent, read
from photinus.report.markup import Markup, table, tag
from photinus.report.style import STYLE
from photinus.report.summary import Summary, WorkerState, summarise
from photinus.report.weight_images import data_uri, mosaic, unpack

_MAX_LOG_LINES = 200
_SIMULATION_NOTE = (
    "A simulated run: the duration of a round, and of a phase in its last line, are virtual time. "
    "All else is the time of this machine."
)
_CELL_SIZE = 34.0


def save(journal: Path, target: Path, evaluate: str = "") -> Path:
    """Writes the report of a journal to a file.

    Raises:
        DataError: the journal cannot be read.
        UsageError: the file cannot be written.
    """
    page = render(journal, evaluate)
    try:
        target.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{target} cannot be written", got=error.strerror) from error
    return target


def render(journal: Path, evaluate: str = "") -> str:
    """Returns the report of a journal as one HTML page.

    Args:
        journal: `events.jsonl` of a run, finished or not.
        evaluate: the command that measures the saved model again.

    Raises:
        DataError: the journal cannot be read.
    """
    stamped = read(journal)
    summary = summarise(stamped)
    command = evaluate or f"photinus evaluate {shlex.quote(str(journal.parent))}"
    sections = [
        _head(summary, stamped),
        _section("Training", _grid(chart(c) for c in training_charts(summary, stamped))),
        _section("First-layer filters", _filters(summary)),
        _section("Confusion", _confusion(summary)),
        _section("Phases", _phases(summary)),
        _section("Speed", _grid(chart(c) for c in speed_charts(summary, stamped))),
        _section("Workers", _worker_timelines(summary, stamped), _workers(summary)),
        _section("What happened", _log(summary, stamped)),
        _section("Settings", _settings(summary)),
        _section(
            "Words", table(("word", "meaning"), words_for([n for n, _ in _flat(summary.job)]))
        ),
        _section("Evaluate the saved model", tag("pre", command)),
        tag("footer", "Made by photinus from the run's journal. This page loads nothing."),
    ]
    return "<!doctype html>\n" + tag("html", _meta(summary), tag("body", *sections), lang="en")


def _meta(summary: Summary) -> Markup:
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:"
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{summary.run or 'run'} – photinus"),
        tag("style", Markup(STYLE)),
    )


def _section(title: str, *parts: Markup | None) -> Markup | None:
    shown = [part for part in parts if part]
    return tag("section", tag("h2", title), *shown) if shown else None


def _grid(figures: Iterable[Markup]) -> Markup | None:
    charts = list(figures)
    return tag("div", *charts, class_="charts") if charts else None


def _head(summary: Summary, stamped: Sequence[StampedEvent]) -> Markup:
    began = _time_text(stamped[0].wall) if stamped else "nothing has happened yet"
    term = f", term {summary.term}" if summary.term > 1 else ""
    resumed = f", resumed from {summary.resumed_from}" if summary.resumed_from else ""
    workers = workers_text(summary.expected_workers)
    subtitle = f"{began} · {workers}, engine {summary.engine}{term}{resumed}"
    state_class = f"state {summary.state}" if summary.state in {"done", "failed"} else "state"
    title = tag("h1", summary.run or "run", tag("span", summary.state, class_=state_class))
    reason = tag("p", summary.reason) if summary.reason else None
    simulation_note = (
        tag("p", _SIMULATION_NOTE, class_="soft") if summary.engine == "simulate" else None
    )
    return tag(
        "header", title, tag("p", subtitle, class_="soft"), simulation_note, reason, _facts(summary)
    )


def _time_text(wall: float) -> str:
    try:
        return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, ValueError, OSError):
        return ""


def _facts(summary: Summary) -> Markup:
    facts: list[tuple[str, str]] = []
    for name in ("test", "validation"):
        facts += [] if facts else _metric_facts(summary.measured.get(name))
    seconds = summary.training_seconds
    facts += [
        (seconds_text(seconds), "training"),
        (count_text(summary.examples / seconds if seconds else 0), "examples per second"),
        (count_text(sum(p.rounds for p in summary.phases.values())), "rounds"),
        (bytes_text(summary.bytes_total), "sent and received"),
    ]
    boxes = [
        tag("div", tag("div", value, class_="n"), tag("small", label), class_="" if n else "first")
        for n, (value, label) in enumerate(facts)
    ]
    return tag("div", *boxes, class_="facts")


def _metric_facts(evaluated: e.Evaluated | None) -> list[tuple[str, str]]:
    if evaluated is None or not evaluated.metrics:
        return []
    if "error" not in evaluated.metrics:
        name, value = next(iter(evaluated.metrics.items()))
        return [(number_text(value), f"{evaluated.name} {name}")]
    interval = interval_text(evaluated)
    label = f"{evaluated.name} error, {interval}" if interval else f"{evaluated.name} error"
    return [(f"{evaluated.metrics['error']:.2%}", label)]


def _newest_extra(summary: Summary, name: str) -> tuple[str, Any]:
    measurements = [m for m in summary.measured.values() if name in m.extra]
    return (measurements[-1].name, measurements[-1].extra[name]) if measurements else ("", None)


def _filters(summary: Summary) -> Markup | None:
    _, packed = _newest_extra(summary, "filters")
    images = unpack(packed if isinstance(packed, Mapping) else {})
    if len(images) == 0:
        return None
    description = f"{len(images)} filters of {images.shape[1]} × {images.shape[2]}; grey is zero"
    picture = tag("img", src=data_uri(mosaic(images)), alt=description, class_="filters")
    return tag("figure", picture, tag("figcaption", tag("span", description)))


def _confusion(summary: Summary) -> Markup | None:
    name, rows = _newest_extra(summary, "confusion")
    if not _is_square(rows):
        return None
    size = len(rows)
    max_mistakes = (
        max((rows[r][c] for r in range(size) for c in range(size) if r != c), default=0) or 1
    )
    parts = []
    for r in range(size):
        total = sum(rows[r]) or 1
        parts.append(_label(str(r), 30.0, 48 + r * _CELL_SIZE))
        parts.append(_label(str(r), 40 + _CELL_SIZE / 2 + r * _CELL_SIZE, 20.0))
        for c in range(size):
            share = rows[r][c] / total if r == c else rows[r][c] / max_mistakes
            parts += _cell(r, c, rows[r][c], share)
    width = 48 + size * _CELL_SIZE
    caption = tag(
        "figcaption",
        tag("b", f"{name} set"),
        " ",
        tag("span", "rows: the true class; columns: what the model said"),
    )
    box = f"0 0 {width:g} {width - 12:g}"
    picture = tag("svg", *parts, viewBox=box, role="img", aria_label="confusion matrix")
    return tag("div", tag("figure", caption, picture), _mistakes(rows), class_="two")


def _is_square(rows: object) -> bool:
    return (
        isinstance(rows, list)
        and 0 < len(rows) <= 100
        and all(isinstance(row, list) and len(row) == len(rows) for row in rows)
        and all(isinstance(value, int) and value >= 0 for row in rows for value in row)
    )


def _label(text: str, x: float, y: float) -> Markup:
    return tag("text", text, x=x, y=y, text_anchor="middle")


def _cell(row: int, column: int, count: int, share: float) -> list[Markup]:
    x, y = 40 + column * _CELL_SIZE, 27 + row * _CELL_SIZE
    kind = "right" if row == column else "wrong"
    opacity = 0.04 + 0.5 * share if count else 0.04
    square = tag(
        "rect", tag("title", f"{row} taken for {column}: {count}"), x=x, y=y,
        width=_CELL_SIZE - 2, height=_CELL_SIZE - 2, rx=3, class_=kind, fill_opacity=opacity,
    )  # fmt: skip
    middle = x + _CELL_SIZE / 2 - 1
    label = tag("text", count, x=middle, y=y + 20, text_anchor="middle", class_="cell")
    return [square, label] if count else [square]


def _mistakes(rows: list[list[int]]) -> Markup:
    size = len(rows)
    pairs = [(rows[r][c], r, c) for r in range(size) for c in range(size) if r != c and rows[r][c]]
    most_frequent = sorted(pairs, key=lambda p: (-p[0], p[1], p[2]))[:10]
    body = [
        (str(true), str(predicted), count_text(count), f"{count / (sum(rows[true]) or 1):.2%}")
        for count, true, predicted in most_frequent
    ]
    return table(("the most frequent mistakes", "taken for", "#times", "#of its class"), body)


def _phases(summary: Summary) -> Markup | None:
    names = (
        "phase", "how the workers agree", "#parameters", "#examples", "#time", "#examples/s",
        "#rounds", "#round", "#up", "#down", "at the end",
    )  # fmt: skip
    rows = [
        (
            p.name,
            p.strategy,
            count_text(p.parameters),
            count_text(p.examples),
            seconds_text(p.seconds),
            count_text(p.examples_per_second),
            count_text(p.rounds),
            seconds_text(p.mean_round_seconds),
            bytes_text(p.bytes_up),
            bytes_text(p.bytes_down),
            metrics_text(p.metrics),
        )
        for p in summary.phases.values()
    ]
    return table(names, rows) if rows else None


def _worker_timelines(summary: Summary, stamped: Sequence[StampedEvent]) -> Markup | None:
    timelines = worker_lanes(summary, stamped)
    marks = [(s.at, s.event.name) for s in stamped if isinstance(s.event, e.PhaseStarted)]
    description = (
        "how full a lane is says how much of that time was work; a gap is a lost worker; "
        "the time before the first step is not shown"
    )
    if not timelines:
        return None
    caption = tag("figcaption", tag("span", description))
    picture = lanes(timelines, marks, summary.at, training_began(stamped))
    return tag("figure", caption, picture, class_="wide")


def _workers(summary: Summary) -> Markup | None:
    names = (
        "worker",
        "host",
        "#rows",
        "#passes",
        "#examples/s",
        "#waits",
        "#sent",
        "#received",
        "#lost",
        "why",
    )
    rows = [_worker_row(w) for _, w in sorted(summary.workers.items())]
    return table(names, rows) if rows else None


def _worker_row(w: WorkerState) -> tuple[str, ...]:
    measured = (
        count_text(w.examples_per_second),
        f"{w.wait_share:.0%}",
        bytes_text(w.bytes_sent),
        bytes_text(w.bytes_received),
    )
    has_reported = w.steps > 0 or w.bytes_sent > 0  # a simulated worker never has
    return (
        str(w.slot),
        w.host,
        count_text(w.rows),
        f"{w.passes:.2f}",
        *(measured if has_reported else ("–",) * len(measured)),
        str(w.losses),
        w.reason,
    )


def _log(summary: Summary, stamped: Sequence[StampedEvent]) -> Markup | None:
    formatter = virtual_line_of if summary.engine == "simulate" else line_of
    lines = [(s, formatter(s.event)) for s in stamped]
    shown = [(s, line) for s, line in lines if line]
    rows = [
        tag(
            "tr",
            tag("td", seconds_text(s.at)),
            tag("td", line),
            class_=type(s.event).__name__,
        )
        for s, line in shown[-_MAX_LOG_LINES:]
    ]
    hidden = len(shown) - len(rows)
    note = tag("p", f"{hidden} earlier lines are in events.jsonl", class_="soft")
    table = tag("table", tag("tbody", *rows), class_="log")
    return tag("div", note if hidden else None, table) if rows else None


def _settings(summary: Summary) -> Markup | None:
    counts = {name: count_text(count) for name, count in summary.counts.items()}
    tables = [
        table((title, ""), pairs)
        for title, pairs in (
            ("job", _flat(summary.job)),
            ("version", _flat(summary.versions)),
            ("pushes", _flat(counts)),
        )
        if pairs
    ]
    return tag("div", *tables, class_="two") if tables else None


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested settings as `a.b`, value."""
    pairs = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            pairs += _flat(value, f"{prefix}{name}.")
        else:
            pairs.append((f"{prefix}{name}", str(value)))
    return pairs
