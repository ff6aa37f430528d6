"""What the measuring scripts share is checked by hand-made numbers."""

import importlib
import subprocess
import sys
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
    early = scaling.Speed(rounds=[(0.0, 0, 0.0), (10.0, 1000, 20.0)])  # 100 a second, 2 CPUs
    late = scaling.Speed(rounds=[(4.0, 100, 8.0), (6.0, 500, 12.0), (12.0, 560, 24.0)])
    # from 4 to 10 s: 600 of the one, 400 and 40 of the other, and 12 CPU seconds of all
    assert scaling.rate([early, late]) == pytest.approx(((600 + 400 + 40) / 6, 12 / 1040))
    assert scaling.rate([early]) == pytest.approx((100, 20 / 1000))


def test_cpu_time_counts_what_a_child_did(module):
    cpu_seconds = module("scaling").cpu_seconds
    code = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    started = cpu_seconds()
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        child.stdout.readline()
        assert cpu_seconds() - started >= 0.25
        child.communicate(b"\n")


def test_the_interval_holds_the_median_and_narrows_with_more_turns(module):
    interval = module("scaling").interval
    few, many = interval([0.9, 1.0, 1.1]), interval([0.9, 1.0, 1.1] * 20)
    assert few[0] <= 1.0 <= few[1]
    assert many[1] - many[0] < few[1] - few[0]


def test_a_picture_stands_alone_with_a_name_and_a_curve_for_each_series(module):
    series = [Series("one & all", [(0, 1.0), (1, 2.0)]), Series("other", [(0, 2.0), (1, 0.5)])]
    svg = module("pictures").curves(
        Chart(title="Loss", subtitle="of two", x_label="steps", series=series)
    )
    root = ET.fromstring(svg)
    assert root.tag == f"{SVG}svg"
    assert {"Loss: of two", "one & all", "other"} <= {t.text for t in root.iter(f"{SVG}text")}
    assert len(list(root.iter(f"{SVG}polyline"))) == 2
