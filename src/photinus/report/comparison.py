"""Compares strategies side by side: one table and one chart."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from photinus.report.chart import Chart, Point, Series, chart, time_unit
from photinus.report.formatting import bytes_text, count_text, number_text, seconds_text
from photinus.report.markup import Markup, table, tag
from photinus.report.style import STYLE

NOTES = (
    "rounds: how often the workers synchronized; of publish and gossip the exact averages alone;"
    " where nobody waits, each push.",
    "staleness: how many versions old the point was that a push started from, where nobody waits;"
    " elsewhere all start from the newest.",
    "spread: the workers' RMS distance from their mean, as a share of its length, when last taken;"
    " none where gradients travel, as all hold the same.",
)
"""What the columns count."""

_COLUMN_NAMES = (
    "strategy", "#error", "#loss", "#seconds", "#sent", "#rounds", "#staleness", "#spread",
    "#examples", "#passes",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """What one strategy cost, and what it reached."""

    strategy: str
    """In words."""
    seconds: float
    """Of training: virtual ones in the simulator, else the clock's."""
    wall_seconds: float = math.nan
    """The clock's, where the others are virtual."""
    rounds: int = 0
    """Or pushes applied, where workers do not wait."""
    bytes: float = math.nan
    """Of all workers, both ways; NaN where nothing was counted."""
    error: float = math.nan
    """On the test rows, 0 to 1; NaN where there are none."""
    loss: float = math.nan
    """On the test rows, else the last of training."""
    staleness: float = math.nan
    """The mean number of versions that a push was behind."""
    spread: float = math.nan
    """The workers' RMS distance from their mean, as a share of its length, when last taken."""
    examples: int = 0
    """Trained on, in all phases and by all workers."""
    passes: tuple[float, float] = (math.nan, math.nan)
    """Over a worker's rows in the last stage: the fewest of any worker, and the most."""
    curve: tuple[Point, ...] = ()
    """Seconds and training loss, in the last phase."""
    failure: str = ""
    settings: str = ""
    """All settings of the strategy, as JSON: the texts `strategy` of two may be the same."""
    trained: tuple[str, ...] = ()
    """What its phases did, in words: a short one has shorter rounds than were asked for."""
    warnings: tuple[str, ...] = ()
    """Of its training."""


def comparison_table(rows: Sequence[Compared]) -> list[tuple[str, ...]]:
    """Returns names, then a line of texts for each strategy; numbers' names begin with #."""
    lines = [(name, *_cells(row)) for name, row in zip(strategy_names(rows), rows, strict=True)]
    if all(math.isnan(row.wall_seconds) for row in rows):
        return [_COLUMN_NAMES, *((*line[:4], *line[5:]) for line in lines)]
    return [(*_COLUMN_NAMES[:3], "#virtual", "#wall", *_COLUMN_NAMES[4:]), *lines]


def comparison_remarks(rows: Sequence[Compared]) -> list[str]:
    """Returns which strategies a training changed, and to what; and the warnings of all."""
    remarks: list[str] = []
    for name, row in zip(strategy_names(rows), rows, strict=True):
        if row.trained not in ((), (row.strategy,)):
            remarks.append(f"{name}: trained as {', then '.join(row.trained)}")
        remarks += [f"{name}: warning: {text}" for text in row.warnings]
    return remarks


def strategy_names(rows: Sequence[Compared]) -> list[str]:
    """Returns each strategy in words; where two read the same, with the settings that differ.

    Example:
        >>> start = '{"recipe": "averaging"}', '{"gradients_until": 0.5, "recipe": "averaging"}'
        >>> strategy_names([Compared(strategy="averaging", seconds=1, settings=s) for s in start])
        ['averaging', 'averaging, gradients_until 0.5']
    """
    settings = [json.loads(row.settings or "{}") for row in rows]
    names = []
    for row, own in zip(rows, settings, strict=True):
        pairs = zip(rows, settings, strict=True)
        alike = [plain for other, plain in pairs if other.strategy == row.strategy]
        apart = {k: v for k, v in own.items() if any(plain.get(k) != v for plain in alike)}
        names.append(", ".join((row.strategy, *(f"{k} {_plain(v)}" for k, v in apart.items()))))
    return names


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _cells(row: Compared) -> tuple[str, ...]:
    if row.failure:
        return (row.failure, *[""] * (len(_COLUMN_NAMES) - 1))
    return (
        _text_or_dash(row.error, f"{row.error:.2%}"),
        _text_or_dash(row.loss, number_text(row.loss)),
        seconds_text(row.seconds),
        seconds_text(row.wall_seconds),
        bytes_text(int(row.bytes)) if math.isfinite(row.bytes) else "–",
        count_text(row.rounds),
        _text_or_dash(row.staleness, f"{row.staleness:.1f}"),
        _text_or_dash(row.spread, number_text(row.spread)),
        count_text(row.examples),
        _text_or_dash(row.passes[0], "–".join(sorted({f"{passes:.2f}" for passes in row.passes}))),
    )


def _text_or_dash(value: float, text: str) -> str:
    return text if math.isfinite(value) else "–"


def comparison_page(rows: Sequence[Compared], title: str, target: Path) -> Path:
    """Writes the table and the curves as one HTML file that loads and runs nothing."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("title", title),
        tag("style", Markup(STYLE)),
    )
    names, *lines = comparison_table(rows)
    unit, unit_seconds = time_unit(max((row.seconds for row in rows), default=0.0))
    curves = [
        Series(name, [(seconds / unit_seconds, loss) for seconds, loss in row.curve])
        for name, row in zip(strategy_names(rows), rows, strict=True)
        if row.curve
    ]
    picture = chart(Chart(title="Training loss", x_label=unit, series=curves))
    notes = [tag("p", note) for note in (*comparison_remarks(rows), *NOTES)]
    body = tag("body", tag("h1", title), tag("section", table(names, lines), *notes), picture)
    target.write_text("<!doctype html>\n" + tag("html", head, body, lang="en"), encoding="utf-8")
    return target
