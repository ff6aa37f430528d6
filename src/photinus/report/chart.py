"""Curves and swim-lanes as inline SVG; the page loads nothing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from photinus.report.formatting import number_text
from photinus.report.markup import Markup, tag

Point = tuple[float, float]

_COLOURS = 8
"""How many the style knows: s0 to s7; more series begin again."""
_MOST_POINTS = 240
_WIDTH, _HEIGHT = 360.0, 176.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 44.0, 10.0, 8.0, 30.0
_LANE = 24.0
_LEAST_SPAN = 1e-11


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


def ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Returns round numbers from `low` to `high`.

    Example:
        >>> ticks(0.0, 0.39)
        [0.0, 0.1, 0.2, 0.3]
    """
    span = high - low
    if not (span > 0 and math.isfinite(span)):
        return [low]
    rough = span / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((m * power for m in (1, 2, 5) if m * power >= rough * 0.999), 10 * power)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(n * step, 12) for n in range(first, last + 1)]


def thinned(points: Sequence[Point], most: int = _MOST_POINTS) -> list[Point]:
    """Returns at most `most` points: means of neighbours, so that no peak is made up."""
    finite = [p for p in points if math.isfinite(p[0]) and math.isfinite(p[1])]
    if len(finite) <= most:
        return list(points) if len(points) <= most else finite
    edges = [len(finite) * n // most for n in range(most + 1)]
    groups = [finite[a:b] for a, b in itertools.pairwise(edges)]
    return [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]


class _Plane:
    """From numbers to pixels."""

    def __init__(self, drawn: Sequence[Series], given: Chart) -> None:
        finite = [p for s in drawn for p in s.points if all(map(math.isfinite, p))]
        xs, ys = [x for x, _ in finite] or [0.0], [y for _, y in finite] or [0.0]
        self.x_low, self.x_high = _widened(min(given.x_from, *xs), max(xs))
        low, high = _widened(0.0 if given.starts_at_zero else min(ys), max(ys))
        steps = ticks(low, high)
        # the axis ends on round numbers just outside of the curve
        step = steps[1] - steps[0] if len(steps) > 1 else high - low
        self.y_low = math.floor(low / step + 1e-9) * step
        self.y_high = math.ceil(high / step - 1e-9) * step

    def x(self, value: float) -> float:
        return _LEFT + (value - self.x_low) / (self.x_high - self.x_low) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        share = (value - self.y_low) / (self.y_high - self.y_low)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def _widened(low: float, high: float) -> tuple[float, float]:
    # below that no ticks are apart: they are rounded
    if high - low > max(1e-9 * max(abs(low), abs(high)), _LEAST_SPAN):
        return low, high
    size = max(abs(low), abs(high))
    wide = size / 2 if size > _LEAST_SPAN else 0.5
    return (low - wide if low < 0 else max(0.0, low - wide)), high + wide


def chart(given: Chart) -> Markup:
    """Returns a figure: title, legend, axes, curves."""
    drawn = [Series(s.name, thinned(s.points), s.has_dots) for s in given.series]
    plane = _Plane(drawn, given)
    picture = tag(
        "svg",
        *_grid(plane, given.x_label),
        *(part for n, s in enumerate(drawn) for part in _curve(plane, s, n)),
        viewBox=f"0 0 {_WIDTH:g} {_HEIGHT:g}",
        role="img",
        aria_label=f"{given.title} {given.subtitle}",
    )
    caption = tag("figcaption", tag("b", given.title), " ", tag("span", given.subtitle))
    return tag("figure", caption, _legend(drawn), picture)


def _legend(drawn: Sequence[Series]) -> Markup:
    last = [next((y for _, y in reversed(s.points) if math.isfinite(y)), None) for s in drawn]
    entries = [
        tag(
            "span",
            tag("i", "", class_=f"key k{n % _COLOURS}"),
            f"{s.name} ",
            tag("b", "–" if value is None else number_text(value)),
        )
        for n, (s, value) in enumerate(zip(drawn, last, strict=True))
    ]
    return tag("div", *entries, class_="legend")


def _grid(plane: _Plane, x_label: str) -> list[Markup]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = []
    for value in ticks(plane.y_low, plane.y_high):
        y = plane.y(value)
        parts.append(tag("line", x1=_LEFT, x2=right, y1=y, y2=y, class_="grid"))
        parts.append(tag("text", _tick(value), x=_LEFT - 6, y=y + 3.5, text_anchor="end"))
    for value in ticks(plane.x_low, plane.x_high, 5):
        x = plane.x(value)
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


def _curve(plane: _Plane, series: Series, number: int) -> list[Markup]:
    colour = f"s{number % _COLOURS}"
    parts, run = [], list[Point]()
    for point in [*series.points, (math.nan, math.nan)]:
        if all(map(math.isfinite, point)):
            run.append(point)
            continue
        if len(run) > 1:
            path = " ".join(f"{plane.x(x):.1f},{plane.y(y):.1f}" for x, y in run)
            parts.append(tag("polyline", tag("title", series.name), points=path, class_=colour))
        if series.has_dots or len(run) == 1:
            parts += [_dot(plane, series.name, p, colour) for p in run]
        run = []
    return parts


def _dot(plane: _Plane, name: str, point: Point, colour: str) -> Markup:
    title = tag("title", f"{name} {number_text(point[1])}")
    return tag(
        "circle", title, cx=plane.x(point[0]), cy=plane.y(point[1]), r=2.5, class_=f"dot {colour}"
    )


def lanes(
    given: Sequence[Timeline], marks: Sequence[tuple[float, str]], end: float, begin: float = 0.0
) -> Markup:
    """Returns the workers' swim-lanes.

    Args:
        given: a lane each; the height of its filling is the share of work in that time.
        marks: (seconds, name) of the phases.
        end: of the time axis, seconds.
        begin: of the time axis; what came before is not drawn.
    """
    width, left, top = 1060.0, 70.0, 20.0
    bottom = top + _LANE * len(given)
    unit, length = time_unit(end)

    def at(seconds: float) -> float:
        share = (max(seconds, begin) - begin) / max(end - begin, 1e-9)
        return left + share * (width - left - 12)

    parts = []
    for seconds, name in marks:
        x = at(seconds)
        parts.append(tag("line", x1=x, x2=x, y1=top - 14, y2=bottom + 4, class_="grid"))
        parts.append(tag("text", name, x=x + 3, y=top - 6))
    for row, lane in enumerate(given):
        y = top + row * _LANE + 3
        parts.append(tag("text", lane.name, x=left - 8, y=y + 13, text_anchor="end"))
        drawn = [span for span in lane.spans if span[1] > begin]
        parts += [part for span in drawn for part in _span(at, span, y, _LANE - 6)]
    for value in ticks(begin / length, end / length, 8):
        x = at(value * length)
        parts.append(tag("text", f"{value:g}", x=x, y=bottom + 16, text_anchor="middle"))
    parts.append(tag("line", x1=left, x2=width - 12, y1=bottom + 2, y2=bottom + 2, class_="axis"))
    parts.append(tag("text", unit, x=left - 8, y=bottom + 16, text_anchor="end", class_="u"))
    box = f"0 0 {width:g} {bottom + 22:g}"
    return tag("svg", *parts, viewBox=box, role="img", aria_label="workers over time")


def _span(
    at: Callable[[float], float], span: tuple[float, float, float], y: float, height: float
) -> list[Markup]:
    began, ended, work = span
    x, width = at(began), max(0.5, at(ended) - at(began))
    full = height * min(1.0, max(0.0, work))
    title = tag("title", f"{work:.0%} work")
    return [
        tag("rect", x=x, y=y, width=width, height=height, class_="wait"),
        tag("rect", title, x=x, y=y + height - full, width=width, height=full, class_="work"),
    ]
