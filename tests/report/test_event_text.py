from __future__ import annotations

import math

import pytest

from photinus.core import events as e
from photinus.report.event_text import interval_text, line_of
from photinus.report.formatting import bytes_text, count_text, number_text, seconds_text

LINES = [
    (
        e.RunStarted(run="a", term=2, engine="spark", workers=4, resumed_from="00041"),
        "a: 4 workers, engine spark, term 2, resumed from 00041",
    ),
    (
        e.PhaseStarted(
            phase=0, name="rbm", budget=60000, parameters=9, strategy="mean", batch_size=100
        ),
        "rbm: 60,000 examples, 100 a step, 9 parameters, mean",
    ),
    (
        e.PhaseEnded(phase=0, name="rbm", examples=600, seconds=2.0, metrics={"loss": 0.5}),
        "rbm: done in 2.0 s, 300 examples/s  loss 0.5",
    ),
    (e.WorkerJoined(slot=1, lease=2, examples=5), "worker 1: 5 rows, lease 2"),
    (
        e.CheckpointFailed(name="7", reason="disk full"),
        "checkpoint 7 failed: disk full; training continues",
    ),
    (e.RunEnded(state="failed", seconds=61, reason="why"), "failed after 1 min 01 s: why"),
    (e.CheckpointSaved(name="7", phase=0, version=1, seconds=0.1), ""),
    (e.Log(slot=0, level="info", text="x"), ""),
]


@pytest.mark.parametrize(("event", "line"), LINES, ids=lambda v: type(v).__name__)
def test_an_event_is_worth_this_line(event, line):
    assert line_of(event) == line


@pytest.mark.parametrize("interval", [None, [], [1], "ab", ["a", "b"], {"low": 1}])
def test_what_is_no_interval_is_not_shown(interval):
    event = e.Evaluated(phase=0, name="test", examples=1, metrics={}, extra={"interval": interval})
    assert interval_text(event) == ""


def test_units_turn_over_at_their_limits():
    assert [seconds_text(s) for s in (0.9999, 59.94, 59.96, 3599.6, math.inf)] == [
        "1.0 s", "59.9 s", "1 min 00 s", "1 h 00 min", "–",
    ]  # fmt: skip
    assert [bytes_text(n) for n in (0, 999.7, 123_456, 999_960, 5e15)] == [
        "0 B", "1.0 kB", "123 kB", "1.0 MB", "5000.0 TB",
    ]  # fmt: skip
    assert count_text(math.nan) == "–"
    assert number_text(-12345.6) == "-12,346"
