from __future__ import annotations

import math

import pytest

from photinus.core import events as e
from photinus.report.curves import speed_charts, training_charts, worker_lanes
from photinus.report.journal import StampedEvent, read
from photinus.report.summary import summarise


def stamped_events(*timeline) -> list[StampedEvent]:
    return [StampedEvent(at, at, event) for at, event in timeline]


def report(slot: int, phase: int, compute: float, wait: float) -> e.WorkerReport:
    return e.WorkerReport(
        slot=slot, phase=phase, steps=1, examples=1, examples_per_second=9.0,
        compute_seconds=compute, wait_seconds=wait,
    )  # fmt: skip


def round_closed(examples: int, **metrics: float) -> e.RoundClosed:
    return e.RoundClosed(
        phase=0, version=1, slots=(), examples=examples, progress=0.5, seconds=0.2, metrics=metrics
    )


BEGAN = e.PhaseStarted(phase=0, name="p", budget=100, parameters=1, strategy="s", epochs=10)


def test_every_phase_and_metric_has_a_chart(sample):
    stamped = read(sample)
    charts = training_charts(summarise(stamped), stamped)
    assert [(c.title, c.subtitle) for c in charts] == [
        ("rbm 784-500", "reconstruction"),
        ("rbm 500-500", "reconstruction"),
        ("fine-tuning", "loss"),
        ("fine-tuning", "error"),
    ]
    assert charts[0].series[0].points[-1][0] == 15
    assert [s.name for s in charts[3].series] == ["training", "validation", "test"]


def test_a_measurement_lies_where_the_round_before_it_ended():
    measured = e.Evaluated(phase=0, name="validation", examples=5, metrics={"error": 0.25})
    stamped = stamped_events(
        (0, BEGAN),
        (1, round_closed(30, error=0.5)),
        (2, measured),
        (3, round_closed(60, error=0.4)),
    )
    (chart,) = training_charts(summarise(stamped), stamped)
    assert chart.series[0].points == [(3.0, 0.5), (6.0, 0.4)]
    assert chart.series[1].points == [(3.0, 0.25)]


def test_the_speed_of_all_is_what_was_applied_between_rounds():
    stamped = stamped_events((0, BEGAN), (2, round_closed(30)), (4, round_closed(40)))
    chart = speed_charts(summarise(stamped), stamped)[0]
    assert chart.starts_at_zero
    assert [y for _, y in chart.series[0].points if math.isfinite(y)] == [15.0, 5.0]
    resumed = stamped_events(
        (0, BEGAN),
        (2, round_closed(90)),
        (50, BEGAN),
        (51, round_closed(80)),
        (53, round_closed(90)),
    )
    chart = speed_charts(summarise(resumed), resumed)[0]
    assert max(y for _, y in chart.series[0].points if math.isfinite(y)) <= 80


def test_a_lane_has_a_gap_while_its_worker_is_lost():
    joined = e.WorkerJoined(slot=0, lease=1)
    stamped = stamped_events(
        (0, joined), (10, report(0, 0, 6.0, 2.0)), (20, report(0, 0, 8.0, 8.0)),
        (22, e.WorkerLost(slot=0, lease=1, reason="x")),
        (50, joined), (60, report(0, 0, 5.0, 0.0)), (80, report(0, 1, 1.0, 3.0)),
    )  # fmt: skip
    (lane,) = worker_lanes(summarise(stamped), stamped)
    assert lane.spans == [(0, 10, 0.75), (10, 20, 0.25), (50, 60, 1.0), (60, 80, 0.25)]


def test_short_and_equal_spans_are_joined_by_their_mean():
    stamped = stamped_events((0, e.WorkerJoined(slot=0, lease=1)))
    stamped += stamped_events(*((n, report(0, n, n % 2, 1 - n % 2)) for n in range(1, 2001)))
    (lane,) = worker_lanes(summarise(stamped), stamped)
    assert len(lane.spans) <= 250
    assert lane.spans[0][0] == 0
    assert lane.spans[-1][1] == 2000
    total = sum((ended - began) * work for began, ended, work in lane.spans)
    assert total == pytest.approx(1000, rel=0.01)


def test_nothing_draws_nothing():
    assert training_charts(summarise([]), []) == []
    assert speed_charts(summarise([]), []) == []
    assert worker_lanes(summarise([]), []) == []
