from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from photinus.report.chart import Chart, Series, Timeline, chart, lanes, thinned, ticks, time_unit


@given(st.floats(-1e12, 1e12), st.floats(1e-9, 1e12))
def test_ticks_are_few_round_and_within(low, span):
    high = low + span
    positions = ticks(low, high)
    assert len(positions) <= 6
    tolerance = 1e-6 * max(abs(low), abs(high), span)
    assert all(low - tolerance <= t <= high + tolerance for t in positions)


def test_ticks_of_nothing_are_one():
    assert ticks(3.0, 3.0) == [3.0]
    assert ticks(0.0, math.inf) == [0.0]


def test_many_points_become_means_of_neighbours():
    points = [(float(n), float(n % 2)) for n in range(2400)]
    few = thinned(points)
    assert len(few) == 240
    assert all(y == 0.5 for _, y in few)
    assert thinned(points[:5]) == points[:5]


def draw(points, **fields) -> str:
    return chart(Chart(title="t", x_label="epochs", series=[Series("s", points, **fields)]))


def test_a_curve_stays_within_its_axes():
    text = draw([(0.0, 5.0), (1.0, 7.0), (2.0, 6.1)])
    (points,) = re.findall(r'points="([^"]+)"', text)
    pairs = [tuple(map(float, p.split(","))) for p in points.split()]
    assert all(44 <= x <= 350 and 8 <= y <= 146 for x, y in pairs)
    assert [x for x, _ in pairs] == sorted(x for x, _ in pairs)
    assert min(pairs, key=lambda p: p[1]) == pairs[1]
    assert "6.1</b>" in text
    assert "epochs</text>" in text


def test_numbers_that_are_not_finite_interrupt_a_curve():
    text = draw([(0, 1), (1, 2), (2, math.nan), (3, 4), (4, 3), (5, math.inf), (6, 1)])
    assert text.count("<polyline") == 2
    assert text.count("<circle") == 1
    assert "nan" not in text
    assert "inf" not in text


@pytest.mark.parametrize("points", [[], [(1.0, 2.0)], [(0, math.nan)], [(0, 3), (9, 3)], [(0, 0)]])
def test_an_empty_or_flat_curve_is_drawn_without_error(points):
    for has_dots in (True, False):
        assert "<svg" in draw(points, has_dots=has_dots)


def test_big_numbers_are_short_on_the_axis():
    text = draw([(0.0, 0.0), (6e6, 40_000.0)])
    assert ">40 k</text>" in text
    assert ">6 M</text>" in text


def test_a_lane_is_as_full_as_its_work():
    text = lanes([Timeline("worker 0", [(0.0, 50.0, 0.5), (60.0, 100.0, 1.2)])], [(0, "p")], 100.0)
    heights = [float(h) for h in re.findall(r'height="([\d.]+)"[^>]*class="work"', text)]
    assert heights == [9.0, 18.0]
    assert "50% work" in text
    assert lanes([], [], 0.0)


def test_the_unit_of_time_fits_the_length():
    assert [time_unit(s)[0] for s in (60, 600, 1e5)] == ["seconds", "minutes", "hours"]


@pytest.mark.parametrize("apart", [0.0, 1e-16, 1e-13, 1e-10, 1e-8])
def test_values_that_are_nearly_one_are_drawn(apart):
    points = [(0.1, 2.3025850929), (0.2, 2.3025850929 + apart)]
    assert "<svg" in chart(Chart(title="t", x_label="s", series=[Series("a", points)]))


@pytest.mark.parametrize("loss", [0.0, 5e-324, 1e-15])
def test_a_loss_that_vanishes_is_drawn(loss):
    assert "<polyline" in draw([(0.0, loss), (1.0, loss / 2), (2.0, 0.0)])
