from __future__ import annotations

import pytest

from photinus.core import events as e
from photinus.report.journal import read
from photinus.report.summary import Summary, summarise


def round_closed(examples: int, **fields) -> e.RoundClosed:
    round_fields = {
        "phase": 0,
        "version": 1,
        "slots": (0,),
        "progress": 0.5,
        "seconds": 0.1,
        **fields,
    }
    return e.RoundClosed(examples=examples, **round_fields)


def phase_started(budget: int = 1000) -> e.PhaseStarted:
    return e.PhaseStarted(phase=0, name="p", budget=budget, parameters=3, strategy="s")


def summary_of(*timeline) -> Summary:
    summary = Summary()
    for at, event in timeline:
        summary.add(at, event)
    return summary


def test_the_sample_adds_up(sample):
    summary = summarise(read(sample))
    assert (summary.run, summary.state, summary.expected_workers) == ("mnist-dbn", "done", 4)
    assert summary.examples == 3 * 900_000
    assert summary.training_seconds == pytest.approx(120, abs=0.1)
    assert summary.phase.name == "fine-tuning"
    assert summary.phase.examples_per_second == pytest.approx(22_500, rel=1e-3)
    assert [p.rounds for p in summary.phases.values()] == [60, 60, 60]
    assert summary.bytes_total == 2 * 1_573_000 * (3 * 60 * 4 - 15)
    assert summary.workers[2].losses == 1
    assert summary.workers[2].lease == 2
    assert (summary.warnings, summary.checkpoints) == (1, 6)
    assert summary.measured["test"].metrics["error"] == pytest.approx(0.0114)


def test_speed_and_time_left_follow_from_what_was_applied():
    summary = summary_of((10.0, phase_started()), (12.0, round_closed(400)))
    assert summary.phase.examples_per_second == 200
    assert summary.phase.seconds_left == 3.0
    assert summary_of((10.0, phase_started())).phase.seconds_left is None


def test_a_resumed_phase_keeps_its_count_but_not_its_speed():
    summary = summary_of(
        (0.0, phase_started()), (10.0, round_closed(500)),
        (100.0, e.RunStarted(run="r", term=2, engine="local", workers=1, resumed_from="00004")),
        (101.0, phase_started()), (102.0, round_closed(400)), (103.0, round_closed(600)),
    )  # fmt: skip
    assert summary.phase.examples == 600
    assert summary.phase.began == 101.0
    assert summary.phase.examples_per_second == 100
    assert summary.phase.rounds == 3


def test_events_without_their_beginning_are_no_error():
    summary = summary_of(
        (1.0, round_closed(5)),
        (2.0, e.WorkerLost(slot=3, lease=1, reason="x")),
        (3.0, e.PhaseEnded(phase=7, name="p", examples=1, seconds=1.0)),
        (4.0, e.Log(slot=0, level="info", text="t")),
        (5.0, e.CheckpointFailed(name="1", reason="full")),
    )
    assert list(summary.phases) == [0, 7]
    assert not summary.workers[3].is_here
    assert summary.workers[3].wait_share == 0.0
    assert summary.phases[7].mean_round_seconds == 0.0
    assert summary.at == 5.0
