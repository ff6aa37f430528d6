"""What the measuring scripts share is checked by hand-made numbers."""

import importlib
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from photinus.report.chart import Chart, Series

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def module(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def test_a_rate_is_of_the_time_in_which_all_were_under_way(module):
    scaling = module("scaling")
    early = scaling.Speed(rounds=[(0.0, 0), (10.0, 1000)])  # 100 a second
    late = scaling.Speed(rounds=[(4.0, 100), (6.0, 500), (12.0, 560)])  # 200, then 10
    # from 4 to 10 s: 600 of the one, 400 and 40 of the other
    assert scaling.rate([early, late]) == pytest.approx((600 + 400 + 40) / 6)
    assert scaling.rate([early]) == pytest.approx(100)


def test_the_interval_holds_the_median_and_narrows_with_more_turns(module):
    interval = module("scaling").interval
    few, many = interval([0.9, 1.0, 1.1]), interval([0.9, 1.0, 1.1] * 20)
    assert few[0] <= 1.0 <= few[1]
    assert many[1] - many[0] < few[1] - few[0]


def test_a_picture_stands_alone_with_a_name_and_a_curve_for_each_series(module):
    series = [Series("one & all", [(0, 1.0), (1, 2.0)]), Series("other", [(0, 2.0), (1, 0.5)])]
    drawn = module("pictures").curves(
        Chart(title="Loss", subtitle="of two", x_label="steps", series=series)
    )
    root = ET.fromstring(drawn)
    assert root.tag == f"{SVG}svg"
    assert {"Loss: of two", "one & all", "other"} <= {t.text for t in root.iter(f"{SVG}text")}
    assert len(list(root.iter(f"{SVG}polyline"))) == 2
