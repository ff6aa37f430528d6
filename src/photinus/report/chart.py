"""Curves and swim-lanes as inline SVG; the page loads nothing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from photinus.report.formatting import number_text
from photinus.report.markup import Markup, tag

Point = tuple[float, float]

_COLOUR_COUNT = 8
"""How many the style knows: s0 to s7; more series begin again."""
_MAX_POINTS = 240
_WIDTH, _HEIGHT = 360.0, 176.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 44.0, 10.0, 8.0, 30.0
_LANE_HEIGHT = 24.0
_MIN_SPAN = 1e-11


@dataclass(frozen=True, slots=True)
class Series:
    """One curve; points whose y is not finite interrupt it."""

    name: str
    points: Sequence[Point]
    has_dots: bool = False
    """True for a few measurements: each is marked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Axes and curves."""

    title: str
    subtitle: str = ""
    x_label: str
    series: Sequence[Series]
    starts_at_zero: bool = False
    """True for rates: half as high is then half as much."""
    x_from: float = 0.0
    """Where the horizontal axis begins, unless a point lies before it."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """One worker's time: spans (from, to, share of it that was work: 0 to 1)."""

    name: str
    spans: Sequence[tuple[float, float, float]]


def time_unit(seconds: float) -> tuple[str, float]:
    """Returns the unit for an axis that is so long, and its length in seconds."""
    if seconds < 180:
        return "seconds", 1.0
    return ("minutes", 60.0) if seconds < 3 * 3600 else ("hours", 3600.0)


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Returns round numbers from `low` to `high`.

    Example:
        >>> ticks(0.0, 0.39)
        [0.0, 0.1, 0.2, 0.3]
    """
    span = high - low
    if not (span > 0 and math.isfinite(span)):
        return [low]
    rough = span / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((m * power for m in (1, 2, 5) if m * power >= rough * 0.999), 10 * power)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(n * step, 12) for n in range(first, last + 1)]


def thinned(points: Sequence[Point]) -> list[Point]:
    """Returns not too many points: means of neighbours, so that no peak is made up."""
    finite = [p for p in points if math.isfinite(p[0]) and math.isfinite(p[1])]
    if len(finite) <= _MAX_POINTS:
        return list(points) if len(points) <= _MAX_POINTS else finite
    edges = [len(finite) * n // _MAX_POINTS for n in range(_MAX_POINTS + 1)]
    groups = [finite[a:b] for a, b in itertools.pairwise(edges)]
    return [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]


class _Scale:
    """From numbers to pixels."""

    def __init__(self, series: Sequence[Series], spec: Chart) -> None:
        finite = [p for s in series for p in s.points if all(map(math.isfinite, p))]
        xs, ys = [x for x, _ in finite] or [0.0], [y for _, y in finite] or [0.0]
        self.x_low, self.x_high = _widen(min(spec.x_from, *xs), max(xs))
        low, high = _widen(0.0 if spec.starts_at_zero else min(ys), max(ys))
        steps = ticks(low, high)
        # the axis ends on round numbers just outside of the curve
        step = steps[1] - steps[0] if len(steps) > 1 else high - low
        self.y_low = math.floor(low / step + 1e-9) * step
        self.y_high = math.ceil(high / step - 1e-9) * step

    def x(self, value: float) -> float:
        return _LEFT + (value - self.x_low) / (self.x_high - self.x_low) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        fraction = (value - self.y_low) / (self.y_high - self.y_low)
        return _HEIGHT - _BOTTOM - fraction * (_HEIGHT - _TOP - _BOTTOM)


def _widen(low: float, high: float) -> tuple[float, float]:
    # below that no ticks are apart: they are rounded
    if high - low > max(1e-9 * max(abs(low), abs(high)), _MIN_SPAN):
        return low, high
    size = max(abs(low), abs(high))
    margin = size / 2 if size > _MIN_SPAN else 0.5
    return (low - margin if low < 0 else max(0.0, low - margin)), high + margin


def chart(spec: Chart) -> Markup:
    """Returns a figure: title, legend, axes, curves."""
    series = [Series(s.name, thinned(s.points), s.has_dots) for s in spec.series]
    scale = _Scale(series, spec)
    picture = tag(
        "svg",
        *_grid(scale, spec.x_label),
        *(part for n, s in enumerate(series) for part in _curve(scale, s, n)),
        viewBox=f"0 0 {_WIDTH:g} {_HEIGHT:g}",
        role="img",
        aria_label=f"{spec.title} {spec.subtitle}",
    )
    caption = tag("figcaption", tag("b", spec.title), " ", tag("span", spec.subtitle))
    return tag("figure", caption, _legend(series), picture)


def _legend(series: Sequence[Series]) -> Markup:
    last_values = [
        next((y for _, y in reversed(s.points) if math.isfinite(y)), None) for s in series
    ]
    entries = [
        tag(
            "span",
            tag("i", "", class_=f"key k{n % _COLOUR_COUNT}"),
            f"{s.name} ",
            tag("b", "–" if value is None else number_text(value)),
        )
        for n, (s, value) in enumerate(zip(series, last_values, strict=True))
    ]
    return tag("div", *entries, class_="legend")


def _grid(scale: _Scale, x_label: str) -> list[Markup]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = []
    for value in ticks(scale.y_low, scale.y_high):
        y = scale.y(value)
        parts.append(tag("line", x1=_LEFT, x2=right, y1=y, y2=y, class_="grid"))
        parts.append(tag("text", _tick(value), x=_LEFT - 6, y=y + 3.5, text_anchor="end"))
    for value in ticks(scale.x_low, scale.x_high, 5):
        x = scale.x(value)
        parts.append(tag("line", x1=x, x2=x, y1=bottom, y2=bottom + 4, class_="axis"))
        parts.append(tag("text", _tick(value), x=x, y=bottom + 14, text_anchor="middle"))
    parts.append(tag("line", x1=_LEFT, x2=right, y1=bottom, y2=bottom, class_="axis"))
    parts.append(
        tag("text", x_label, x=(_LEFT + right) / 2, y=_HEIGHT - 3, text_anchor="middle", class_="u")
    )
    return parts


def _tick(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):g} {letter}"
    return f"{value:g}"


def _curve(scale: _Scale, series: Series, number: int) -> list[Markup]:
    colour = f"s{number % _COLOUR_COUNT}"
    parts, segment = [], list[Point]()
    for point in [*series.points, (math.nan, math.nan)]:
        if all(map(math.isfinite, point)):
            segment.append(point)
            continue
        if len(segment) > 1:
            path = " ".join(f"{scale.x(x):.1f},{scale.y(y):.1f}" for x, y in segment)
            parts.append(tag("polyline", tag("title", series.name), points=path, class_=colour))
        if series.has_dots or len(segment) == 1:
            parts += [_dot(scale, series.name, p, colour) for p in segment]
        segment = []
    return parts


def _dot(scale: _Scale, name: str, point: Point, colour: str) -> Markup:
    title = tag("title", f"{name} {number_text(point[1])}")
    return tag(
        "circle", title, cx=scale.x(point[0]), cy=scale.y(point[1]), r=2.5, class_=f"dot {colour}"
    )


def lanes(
    timelines: Sequence[Timeline],
    marks: Sequence[tuple[float, str]],
    end: float,
    begin: float = 0.0,
) -> Markup:
    """Returns the workers' swim-lanes.

    Args:
        timelines: a lane each; the height of its filling is the share of work in that time.
        marks: (seconds, name) of the phases.
        end: of the time axis, seconds.
        begin: of the time axis; what came before is not drawn.
    """
    width, left, top = 1060.0, 70.0, 20.0
    bottom = top + _LANE_HEIGHT * len(timelines)
    unit, unit_seconds = time_unit(end)

    def x_of(seconds: float) -> float:
        fraction = (max(seconds, begin) - begin) / max(end - begin, 1e-9)
        return left + fraction * (width - left - 12)

    parts = []
    for seconds, name in marks:
        x = x_of(seconds)
        parts.append(tag("line", x1=x, x2=x, y1=top - 14, y2=bottom + 4, class_="grid"))
        parts.append(tag("text", name, x=x + 3, y=top - 6))
    for row, lane in enumerate(timelines):
        y = top + row * _LANE_HEIGHT + 3
        parts.append(tag("text", lane.name, x=left - 8, y=y + 13, text_anchor="end"))
        visible = [span for span in lane.spans if span[1] > begin]
        parts += [part for span in visible for part in _span(x_of, span, y, _LANE_HEIGHT - 6)]
    for value in ticks(begin / unit_seconds, end / unit_seconds, 8):
        x = x_of(value * unit_seconds)
        parts.append(tag("text", f"{value:g}", x=x, y=bottom + 16, text_anchor="middle"))
    parts.append(tag("line", x1=left, x2=width - 12, y1=bottom + 2, y2=bottom + 2, class_="axis"))
    parts.append(tag("text", unit, x=left - 8, y=bottom + 16, text_anchor="end", class_="u"))
    box = f"0 0 {width:g} {bottom + 22:g}"
    return tag("svg", *parts, viewBox=box, role="img", aria_label="workers over time")


def _span(
    x_of: Callable[[float], float], span: tuple[float, float, float], y: float, height: float
) -> list[Markup]:
    began, ended, work = span
    x, width = x_of(began), max(0.5, x_of(ended) - x_of(began))
    work_height = height * min(1.0, max(0.0, work))
    title = tag("title", f"{work:.0%} work")
    return [
        tag("rect", x=x, y=y, width=width, height=height, class_="wait"),
        tag(
            "rect",
            title,
            x=x,
            y=y + height - work_height,
            width=width,
            height=work_height,
            class_="work",
        ),
    ]
