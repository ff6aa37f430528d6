"""Rows that stream: every pass is a life of its own, and all continue from the same point."""

from dataclasses import replace

import numpy as np
import pytest

from photinus.core.clock import Seconds, Steps
from photinus.data.base import Block
from photinus.data.stream import Stream, StreamFeed
from photinus.models.module import ModuleConfig
from photinus.models.schedules import Schedule
from photinus.report.ledger import audit
from photinus.run.ledger_writer import LedgerWriter
from photinus.strategies.outer import Nesterov
from photinus.strategies.recipes import (
    all_reduce,
    averaging,
    diloco,
    full_gradient,
    iterative_reduce,
)
from photinus.training.worker_loop import WorkerData

RECIPES = {
    "all_reduce": all_reduce(codec="fp32"),
    "averaging": averaging(every=Steps(5), outer=Nesterov(0.7, 0.5)),
    "diloco": diloco(every=Steps(15), outer=Nesterov(0.7, 0.5)),
    "full_gradient": full_gradient(),
    "iterative_reduce": iterative_reduce(),
    "int8": averaging(every=Steps(5), codec="int8"),
}
"""15 steps an epoch are whole rounds of each: nothing is unsent at the end of a pass."""


def one_pass(part):
    return replace(part, passes=1)


def streamed(field, workers, passes=1):
    """Each worker's rows in blocks of 7, in order of arrival."""

    def blocks(rows):
        for start in range(0, len(rows.features), 7):
            yield Block(rows.features[start : start + 7], rows.labels[start : start + 7])

    parts = []
    for slot in range(workers):
        rows = field.rows(np.arange(slot, len(field.features), workers))

        def opened(order, rows=rows):
            return StreamFeed(Stream(blocks(rows)), order, rows=len(rows))

        parts.append(WorkerData(len(rows), opened, passes))
    return parts


@pytest.mark.parametrize("name", RECIPES)
def test_a_life_for_each_pass_gives_the_bits_of_one_life(field, name):
    whole = field.play(RECIPES[name], epochs=3).run()
    parts = [one_pass(part) for part in field.parts(4)]
    passes = field.play(RECIPES[name], parts=parts, epochs=3).run()
    assert np.array_equal(passes.vector, whole.vector)
    assert {s.lease for s in passes.simulation.coordinator.leases} == {3}
    passes.tape.assert_exact()


@pytest.mark.parametrize("name", ["averaging", "all_reduce"])
def test_the_inner_optimizer_continues_over_the_passes(field, name):
    config = ModuleConfig(
        module="torch.nn:Linear",
        arguments={"in_features": 6, "out_features": 3},
        epochs=3.0,
        batch_size=8,
        optimizer="adam",
        lr=Schedule.constant(0.01),
    )
    parts = field.parts(4, dtype="float32")
    tape = field.play(RECIPES[name], parts=parts, configs=[config]).run()
    passes = field.play(RECIPES[name], parts=list(map(one_pass, parts)), configs=[config]).run()
    assert np.array_equal(passes.vector, tape.vector)


def test_a_stream_learns_as_rows_in_memory_do(field, tmp_path):
    at_rest = field.play(RECIPES["averaging"], epochs=4).run()
    played = field.play(RECIPES["averaging"], parts=streamed(field, 4, passes=0), epochs=4).run()
    assert field.loss(played.vector) < 1.05 * field.loss(at_rest.vector)
    [ended] = played.tape.of("PhaseEnded")
    assert ended.examples == 4 * len(field.features)
    assert len(played.tape.of("PhaseStarted")) == 1
    assert len(played.tape.of("WorkerJoined")) == 4 * 4, "the pass that counts grants no seat"
    book = LedgerWriter(tmp_path / "ledger.jsonl", bytes(16))
    for op, frame, fields in played.tape.lines:
        book.enter(op, frame, fields)
    book.close()
    report = audit(tmp_path / "ledger.jsonl")
    assert report.is_exact, report.offences


def test_phases_and_shares_that_end_inside_a_pass(field):
    configs = [field.config("first", epochs=1.5), field.config("second", epochs=0.5)]
    played = field.play(RECIPES["averaging"], parts=streamed(field, 4), configs=configs).run()
    assert [e.examples for e in played.tape.of("PhaseEnded")] == [720, 240]
    assert len(played.tape.of("WorkerJoined")) == 4 * 3
    played.tape.assert_exact()


def test_rows_in_memory_wait_for_those_that_stream(field):
    parts = [*streamed(field, 4)[:2], *map(one_pass, field.parts(4)[2:])]
    played = field.play(RECIPES["averaging"], parts=parts, epochs=3).run()
    [ended] = played.tape.of("PhaseEnded")
    assert ended.examples == 3 * len(field.features)
    assert all(len(e.slots) == 4 for e in played.tape.of("RoundClosed"))


def test_whoever_is_faster_does_more_within_each_pass(field):
    free = averaging(every=Seconds(0.05))
    cluster = {"step_seconds": (0.01, 0.01, 0.01, 0.03)}
    played = field.play(free, parts=streamed(field, 4), epochs=4, cluster=cluster).run()
    [ended] = played.tape.of("PhaseEnded")
    assert 4 * len(field.features) <= ended.examples < 4.5 * len(field.features)
    played.tape.assert_exact()


@pytest.mark.parametrize("name", ["averaging", "all_reduce"])
def test_a_worker_killed_in_a_pass_continues_in_it(field, name):
    played = field.play(RECIPES[name], parts=streamed(field, 4), epochs=3)
    played.simulation.at(0.22, played.simulation.kill, 2, 0.3)
    played.run()
    [ended] = played.tape.of("PhaseEnded")
    assert ended.examples == 3 * len(field.features)
    assert len(played.tape.of("WorkerLost")) == 1
    played.tape.assert_exact()


def test_a_worker_that_lost_its_seat_gives_the_rest_of_its_pass_to_the_next_life(field):
    played = field.play(RECIPES["averaging"], parts=streamed(field, 4), epochs=3)
    played.simulation.at(0.22, played.simulation.freeze, 2, 6.0)
    played.run()
    [ended] = played.tape.of("PhaseEnded")
    assert ended.examples == 3 * len(field.features)
    assert played.counts["fenced"] > 0
    played.tape.assert_exact()


def test_a_run_resumes_between_passes(field):
    whole = field.play(RECIPES["averaging"], parts=streamed(field, 4, passes=0), epochs=3).run()
    snapshot = whole.tape.snapshots[0]
    assert snapshot.positions == dict.fromkeys(range(4), 120)
    again = field.play(
        RECIPES["averaging"], parts=streamed(field, 4, passes=0), epochs=3, snapshot=snapshot
    ).run()
    assert np.array_equal(again.vector, whole.vector)
