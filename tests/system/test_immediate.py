"""StrategySpec without waiting, in virtual time: who waits, what is counted, how a phase closes."""

import json

import numpy as np
import pytest

from photinus.core.clock import Steps
from photinus.report.ledger import audit
from photinus.run.ledger_writer import LedgerWriter
from photinus.strategies.outer import Adagrad, DelayedNesterov
from photinus.strategies.recipes import RECIPES, averaging, downpour, elastic
from photinus.testing import Faults

AT_ONCE = {
    "downpour": downpour(every=Steps(6)),
    "fetch apart": downpour(every=Steps(3), fetch=Steps(9)),
    "gradients": downpour(every=Steps(6), payload="gradient", outer=Adagrad(lr=0.2)),
    "inverse": downpour(every=Steps(6), staleness="inverse"),
    "dropped": downpour(every=Steps(6), staleness=5),
    "asynchronous diloco": averaging(
        every=Steps(6), release="immediate", outer=DelayedNesterov(pushes=4)
    ),
    "elastic": elastic(every=Steps(6)),
}
"""Every recipe that waits for nobody, and its parts."""
TRAINED = 0.4
"""A loss far below the 1.1 of the start, for the slowest of them too."""
FAULTS = {"faults": Faults().lose(0.15).double(0.3), "resend_seconds": 0.1}


@pytest.fixture(params=AT_ONCE)
def strategy(request):
    return AT_ONCE[request.param]


def counted(played):
    """Examples that were applied, after the ledger's promise was checked."""
    applied = played.tape.assert_exact()
    assert played.counts["applied"] == len(applied)
    return sum(frame.header.get("examples", 0) for frame in applied.values())


def dropped(played):
    """Examples of pushes that came too late to count: their rows are behind the cursor."""
    return sum(f.header.get("examples", 0) for op, f, _ in played.tape.lines if op == "miss")


def test_every_recipe_that_waits_for_nobody_is_simulated():
    named = {a.recipe for a in AT_ONCE.values()} - {"averaging"}
    assert named == {n for n in RECIPES if RECIPES[n].build().release == "immediate"}


def test_it_trains_uses_the_budget_up_and_repeats(field, strategy):
    one, two = (field.play(strategy, epochs=12).run() for _ in range(2))
    assert (one.vector == two.vector).all()
    assert counted(one) + dropped(one) == 12 * len(field.labels)
    assert one.simulation.steps == [12 * 15] * 4, "each worker its own rows, twelve times"
    assert field.loss(one.vector) < TRAINED


def test_where_speed_comes_first_the_budget_is_used_up_whoever_does_it(field, strategy):
    speeds = {"step_seconds": (0.01, 0.01, 0.01, 0.04)}
    played = field.play(strategy, epochs=12, cluster=speeds, share="fastest").run()
    budget = 12 * len(field.labels)
    # at the end each of four workers may have two pushes' work of its own
    assert budget <= counted(played) <= budget + 4 * 2 * 8 * 6
    steps = played.simulation.steps
    assert min(steps[:3]) > 3 * steps[3], "whoever is faster does more"
    assert sum(steps) * 8 == counted(played) + dropped(played), "the drain pushes what is unsent"


def test_each_push_counts_once_when_messages_are_lost_and_doubled(field, strategy):
    played = field.play(strategy, epochs=12, cluster=FAULTS).run()
    counted(played)
    assert played.counts["duplicate"] > 0
    if strategy.recipe != "elastic":  # which waits for every answer
        assert played.counts["gap"] > 0, "what was pushed behind a lost push is said again"
    assert played.counts["fenced"] == 0
    assert field.loss(played.vector) < TRAINED


def test_each_push_counts_once_when_workers_die_as_well(field, strategy, tmp_path):
    played = field.play(strategy, epochs=20, cluster=FAULTS)
    book = LedgerWriter(tmp_path / "ledger.jsonl", bytes(16))
    enter = played.tape._enter
    callbacks = played.simulation.coordinator.callbacks
    object.__setattr__(callbacks, "enter", lambda *a: (enter(*a), book.enter(*a)))
    for at, slot, back in ((0.43, 1, 0.1), (0.6, 3, 0.4), (1.9, 1, 0.0), (2.6, 0, 0.2)):
        played.simulation.at(at, played.simulation.kill, slot, back)
    played.run()
    book.close()
    assert counted(played) + dropped(played) == 20 * len(field.labels)
    assert len(played.tape.of("WorkerLost")) == 4
    proof = audit(tmp_path / "ledger.jsonl")
    assert proof.is_exact, proof.offences
    assert proof.applied == played.counts["applied"]
    lines = (tmp_path / "ledger.jsonl").read_text(encoding="utf-8").splitlines()
    operations = [json.loads(line)["op"] for line in lines]
    assert ("fetch" in operations) == (strategy.recipe != "elastic")
    assert field.loss(played.vector) < TRAINED


@pytest.mark.parametrize("name", ["fetch apart", "elastic"])
def test_a_frozen_workers_late_push_is_fenced(field, name):
    played = field.play(AT_ONCE[name], epochs=150)
    simulation = played.simulation
    simulation.at(0.31, simulation.freeze, 2, 9.0)
    simulation.at(1.0, simulation.seat, 2)
    played.run()
    (lost,) = played.tape.of("WorkerLost")
    assert (lost.slot, lost.lease) == (2, 1)
    joined = [e.attempt for e in played.tape.of("WorkerJoined") if e.slot == 2]
    assert joined == ["a3", "a5"], "the second attempt took the seat over"
    assert counted(played) >= 150 * len(field.labels)


def test_nobody_waits_for_a_slow_worker(field, strategy):
    speeds = {"step_seconds": (0.01, 0.01, 0.01, 0.04)}
    played = field.play(strategy, epochs=9000, cluster=speeds).run(until=4.0)
    possible = (3 / 0.01 + 1 / 0.04) * 4
    assert sum(played.simulation.steps) > 0.85 * possible


def test_a_push_is_not_waited_for_on_a_slow_link(field):
    """A fetch costs a round trip of 0.2 s, a push none."""
    cluster = {"latency_seconds": 0.1}
    strategy = downpour(every=Steps(5), fetch=Steps(40))
    played = field.play(strategy, epochs=9000, cluster=cluster).run(until=12.0)
    a_fetch = 40 * 0.01 + 0.2
    assert min(played.simulation.steps) >= 40 * int((12 - 0.4) / a_fetch)


def test_who_runs_far_ahead_of_its_answers_waits_at_last(field):
    """At most eight pushes are under way: sixteen steps on a link of two seconds each way."""
    strategy = downpour(every=Steps(2), fetch=Steps(1000))
    cluster = {"latency_seconds": 2.0}
    played = field.play(strategy, 2, epochs=9000, cluster=cluster).run(until=7.9)
    assert set(played.simulation.steps) == {16}


@pytest.mark.parametrize("deaths", [False, True])
def test_phases_close_by_a_drain_and_hand_the_owners_point_on(field, strategy, deaths):
    configs = [field.config(name=n, epochs=8) for n in ("first", "second", "third")]
    played = field.play(strategy, configs=configs)
    simulation = played.simulation
    if deaths:
        played.tape.hooks["PhaseStarted"] = lambda e: simulation.at(
            0.15, simulation.kill, e.phase + 1, 0.1
        )
    played.run()
    assert len(played.result.vectors) == 3
    assert [c.phase for c in played.tape.snapshots] == [1, 2]
    assert [len(c.history) for c in played.tape.snapshots] == [1, 2]
    assert counted(played) >= 3 * 8 * len(field.labels)
    per_phase = [e.examples for e in played.tape.of("PhaseEnded")]
    assert all(n >= 8 * len(field.labels) for n in per_phase)
    assert len(played.tape.of("WorkerLost")) == (3 if deaths else 0)
    assert all(field.loss(v) < TRAINED + 0.05 for v in played.result.vectors)


def test_a_late_joiner_starts_from_what_the_owner_has(field, strategy):
    played = field.play(strategy, epochs=12)
    simulation = played.simulation
    grants = []
    deliver = simulation._deliver

    def watch(node, frame):
        if frame.kind == "grant" and frame.slot == 2 and frame.lease == 2:
            point = simulation.coordinator.owner.point
            is_held = (frame.arrays["vector"] == point.vector).all()
            grants.append(is_held and frame.header["version"] > 0)
        deliver(node, frame)

    simulation._deliver = watch
    simulation.at(0.31, simulation.kill, 2, 0.2)
    played.run()
    assert grants == [True]


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_numbers_that_are_not_finite_never_reach_the_model(field, strategy):
    played = field.play(strategy, parts=field.parts(4, bad={2}), epochs=12).run()
    assert np.isfinite(played.vector).all()
    refusals = [w for w in played.tape.warnings() if "not finite" in w]
    assert len(refusals) == 3, "what was under way behind the first is not counted against it"
    assert "its rows are not used any more" in refusals[2]
    counted(played)
    assert field.loss(played.vector) < TRAINED


def test_a_push_above_the_staleness_limit_is_dropped_and_counted_as_missed(field):
    speeds = {"step_seconds": (0.01, 0.01, 0.01, 0.08)}
    played = field.play(downpour(every=Steps(5), staleness=9), epochs=20, cluster=speeds).run()
    missed = {f.slot for op, f, _ in played.tape.lines if op == "miss"}
    assert missed == {3}
    assert counted(played) + dropped(played) == 20 * len(field.labels)


def test_a_cut_of_the_owner_is_gone_on_from_with_every_position(field, strategy):
    played = field.play(strategy, epochs=12, callbacks={"checkpoint_seconds": 0.5}).run(until=2.0)
    snapshot = played.tape.snapshots[-1]
    assert snapshot.version > 0
    resumed = field.play(strategy, epochs=12, snapshot=snapshot).run()
    first = {slot: snapshot.positions[slot] for slot in range(4)}
    starts = {}
    for op, frame, _ in resumed.tape.lines:
        if op == "apply":
            header = frame.header
            starts.setdefault(frame.slot, header["position"] - header.get("examples", 0))
    assert starts == first, "every example position counts once"
    assert counted(resumed) + snapshot.applied >= 12 * len(field.labels)
    assert field.loss(resumed.vector) < TRAINED


def test_empty_and_skewed_partitions_hold_nobody_up(field, strategy):
    played = field.play(strategy, parts=field.parts(4, [400, 0, 40, 4]), epochs=6).run()
    assert played.simulation.steps[1] == 0
    assert played.simulation.now < 30
    assert counted(played) + dropped(played) == 6 * 444
