"""Every fault, in virtual time: what is promised of rounds, seats and the end of a run."""
# Over 400 lines: one small problem and one set of helpers serve every fault.

import json
import time

import numpy as np
import pytest

from photinus.core.clock import Epochs, Seconds, Steps
from photinus.core.errors import RunFailedError, UsageError
from photinus.engine.faults import Faults
from photinus.engine.simulate import Simulation, World
from photinus.feed.arrays import PartitionFeed
from photinus.nodes.life import Part
from photinus.run.resume import cut_from, files_of, meta_of
from photinus.strategies.outer import Nesterov, Sgd
from photinus.strategies.recipes import (
    RECIPES,
    all_reduce,
    averaging,
    diloco,
    full_gradient,
    gossip,
    iterative_reduce,
    post_local,
    publish,
    streaming,
)

SMALL = {
    "all_reduce": all_reduce(),
    "averaging": averaging(every=Steps(6)),
    "diloco": diloco(every=Steps(10), outer=Nesterov(0.7, 0.5)),
    "full_gradient": full_gradient(),
    "gossip": gossip(every=Steps(4), exact_every=3),
    "iterative_reduce": iterative_reduce(),
    "publish": publish(every=Steps(4), exact_every=3),
    "post_local": post_local(every=Steps(10)),
    "streaming": streaming(every=Steps(12), outer=Nesterov(0.4, 0.6), delay=2),
}
"""Every recipe of rounds, with rounds that fit the small field."""
BARRIERS = [name for name in SMALL if SMALL[name].is_deterministic]


def test_every_recipe_of_rounds_is_simulated():
    assert set(SMALL) == {n for n in RECIPES if RECIPES[n].build().release == "rounds"}


# -- same seed, same bits ----------------------------------------------------------------------


@pytest.mark.parametrize("name", BARRIERS)
def test_the_same_seed_gives_the_same_bits(field, name):
    one, two = (field.play(SMALL[name]).run() for _ in range(2))
    assert (one.vector == two.vector).all()
    assert one.simulation.now == two.simulation.now


def test_speeds_do_not_change_the_bits_of_a_barrier(field):
    even = field.play(SMALL["averaging"]).run()
    uneven = field.play(SMALL["averaging"], world={"step_seconds": (0.01, 0.07, 0.02)}).run()
    assert (even.vector == uneven.vector).all()
    assert uneven.simulation.now > even.simulation.now


@pytest.mark.parametrize("name", BARRIERS)
def test_a_network_that_loses_and_doubles_changes_nothing(field, name):
    clean = field.play(SMALL[name]).run()
    faults = Faults().lose(0.15).double(0.3)
    bad = field.play(SMALL[name], world={"faults": faults, "resend_seconds": 0.1}).run()
    assert (clean.vector == bad.vector).all()
    assert bad.counts["applied"] == clean.counts["applied"]
    assert bad.counts["duplicate"] > 0
    assert bad.counts["fenced"] == bad.counts["gap"] == 0
    bad.tape.assert_exact()


def test_a_slow_link_costs_time_only(field):
    quick = field.play(SMALL["averaging"]).run()
    slow = field.play(
        SMALL["averaging"], world={"bytes_per_second": 1e4, "latency_seconds": 0.2}
    ).run()
    assert (quick.vector == slow.vector).all()
    assert slow.simulation.now > quick.simulation.now + 1


# -- killed ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BARRIERS)
def test_each_push_counts_once_when_workers_die(field, name):
    played = field.play(SMALL[name], epochs=8)
    for at, slot, back in ((0.13, 1, 0.1), (0.3, 3, 0.4), (1.9, 1, 0.0), (2.6, 0, 0.2)):
        played.simulation.at(at, played.simulation.kill, slot, back)
    played.run()
    applied = played.tape.assert_exact()
    assert played.counts["applied"] == len(applied)
    examples = played.tape.examples(applied)
    assert examples == 8 * len(field.labels), "every example of the budget counts exactly once"
    assert field.loss(played.vector) < (0.9 if name == "full_gradient" else 0.3)


def test_a_killed_worker_resumes_at_its_cursor(field):
    played = field.play(SMALL["averaging"], epochs=4)
    played.simulation.at(0.31, played.simulation.kill, 2, 0.1)
    played.run()
    redone = played.simulation.steps[2] - 4 * 15
    assert 0 < redone <= 6, "at most one round of its work is done again"
    grants = [f for op, f, _ in played.tape.lines if op == "grant" and f.slot == 2]
    assert len(grants) == 2
    assert len(played.tape.of("WorkerLost")) == 1


def test_the_others_go_on_while_one_is_away(field):
    played = field.play(SMALL["averaging"], epochs=20)
    played.simulation.at(0.31, played.simulation.kill, 2, None)
    played.run(until=4.0)
    rounds = played.tape.of("RoundClosed")
    assert rounds[-1].slots == (0, 1, 3)
    assert len([r for r in rounds if 2 not in r.slots]) > 10


def test_an_all_reduce_joiner_heals_bit_for_bit_from_a_survivor(field):
    clean = field.play(all_reduce(), epochs=6).run()
    played = field.play(all_reduce(), epochs=6)
    played.simulation.at(0.31, played.simulation.kill, 2, 0.2)
    played.run()
    assert not played.tape.warnings(), "all ended with the same bits"
    assert not (clean.vector == played.vector).all(), "the others went on without it"
    assert field.loss(played.vector) == pytest.approx(field.loss(clean.vector), rel=0.05)


def test_all_reduce_without_any_survivor_goes_back_to_the_start(field):
    clean = field.play(all_reduce(), epochs=3).run()
    played = field.play(all_reduce(), epochs=3)
    for slot in range(4):
        played.simulation.at(0.4, played.simulation.kill, slot, 2.0)
    played.run()
    assert "all workers were lost" in played.tape.warnings()[0]
    assert (played.vector == clean.vector).all(), "from the start again, with the same bits"


def test_all_reduce_without_any_survivor_goes_back_to_the_last_cut(field):
    clean = field.play(all_reduce(), epochs=6).run()
    played = field.play(all_reduce(), epochs=6, desk={"checkpoint_seconds": 0.3})
    for slot in range(4):
        played.simulation.at(0.8, played.simulation.kill, slot, 2.0)
    played.run()
    assert "all workers were lost" in played.tape.warnings()[0]
    assert (played.vector == clean.vector).all()
    assert sum(played.simulation.steps) < 1.6 * sum(clean.simulation.steps)


@pytest.mark.parametrize("name", ["averaging", "diloco", "iterative_reduce"])
def test_without_any_survivor_the_owner_keeps_what_was_agreed(field, name):
    played = field.play(SMALL[name], epochs=6)
    for slot in range(4):
        played.simulation.at(0.41, played.simulation.kill, slot, 2.0)
    played.run()
    assert not played.tape.warnings()
    versions = [r.version for r in played.tape.of("RoundClosed")]
    assert versions == sorted(versions)
    played.tape.assert_exact()


def test_a_worker_that_never_comes_back_ends_the_phase_after_patience(field):
    played = field.play(SMALL["averaging"], epochs=2, desk={"patience_seconds": 20.0})
    played.simulation.at(0.2, played.simulation.kill, 2, None)
    played.run()
    assert played.tape.warnings() == [
        "worker 2 did not come back; got the rest of its share is lost"
    ]
    assert 20 < played.simulation.now < 30
    assert field.loss(played.vector) < 0.6


def test_all_reduce_whose_last_worker_dies_goes_back_to_one_that_was_done(field):
    """Slot 0 is done early; slot 1 dies near its end: what slot 0 held is not lost."""
    played = field.play(all_reduce(), 2, parts=field.parts(2, [80, 400]), epochs=2)
    played.simulation.at(0.9, played.simulation.kill, 1, 0.5)
    played.run()
    (warning,) = played.tape.warnings()
    assert "went back from version 74" in warning
    assert "to 20 of phase 0" in warning
    assert field.loss(played.vector) < 0.5


def test_a_worker_that_is_killed_after_its_share_holds_nobody_up(field):
    played = field.play(SMALL["averaging"], 2, parts=field.parts(2, [80, 400]), epochs=2)
    played.simulation.at(0.6, played.simulation.kill, 0, None)
    played.run()
    assert played.simulation.now < 5
    assert not played.tape.warnings()


# -- frozen, doubled, late ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["averaging", "all_reduce"])
def test_a_frozen_worker_that_wakes_is_fenced(field, name):
    played = field.play(SMALL[name], epochs=150)
    simulation = played.simulation
    simulation.at(0.31, simulation.freeze, 2, 9.0)
    simulation.at(1.0, simulation.seat, 2)
    played.run()
    (lost,) = played.tape.of("WorkerLost")
    assert (lost.slot, lost.lease) == (2, 1)
    joined = [e.attempt for e in played.tape.of("WorkerJoined") if e.slot == 2]
    assert joined == ["a3", "a5"], "the second attempt took the seat over"
    assert played.counts["fenced"] >= 1, "the first one's late push did not count"
    applied = played.tape.assert_exact()
    assert played.tape.examples(applied) == 150 * len(field.labels)


def test_a_frozen_worker_that_is_not_replaced_comes_back(field):
    played = field.play(SMALL["averaging"], epochs=150)
    played.simulation.at(0.31, played.simulation.freeze, 2, 9.0)
    played.run()
    joined = [(e.attempt, e.lease) for e in played.tape.of("WorkerJoined") if e.slot == 2]
    assert joined == [("a3", 1), ("a3", 2)]
    played.tape.assert_exact()


def test_a_short_freeze_costs_no_lease(field):
    played = field.play(SMALL["averaging"], epochs=20)
    played.simulation.at(0.31, played.simulation.freeze, 2, 2.0)
    played.run()
    assert not played.tape.of("WorkerLost")
    assert played.counts["fenced"] == 0


def test_a_speculative_copy_waits_and_takes_over(field):
    played = field.play(SMALL["averaging"], epochs=20)
    simulation = played.simulation
    simulation.at(0.3, simulation.seat, 1)
    played.run(until=1.0)
    first = simulation.standbys[0]
    assert [e.slot for e in played.tape.of("WorkerJoined")] == [0, 1, 2, 3], "it stands by"
    first.is_dead = True
    played.run()
    joined = [e.attempt for e in played.tape.of("WorkerJoined") if e.slot == 1]
    assert joined == ["a2", "a5"]
    played.tape.assert_exact()


def test_a_speculative_copy_of_a_healthy_worker_changes_nothing(field):
    clean = field.play(SMALL["averaging"]).run()
    played = field.play(SMALL["averaging"])
    played.simulation.at(0.1, played.simulation.seat, 1)
    played.run()
    assert (played.vector == clean.vector).all()


@pytest.mark.parametrize("seconds", [0.32, 0.3], ids=["whole steps", "the last step is late"])
def test_rounds_in_seconds_use_a_slow_worker_fully(field, seconds):
    speeds = {"step_seconds": (0.01, 0.01, 0.01, 0.04)}
    fixed = field.play(averaging(every=Steps(32)), epochs=9000, world=speeds).run(until=4.0)
    every = Steps(64) | Seconds(seconds)
    timed = field.play(averaging(every=every), epochs=9000, world=speeds).run(until=4.0)
    possible = (3 / 0.01 + 1 / 0.04) * 4
    assert sum(fixed.simulation.steps) < 0.36 * possible
    assert sum(timed.simulation.steps) > 0.9 * possible


@pytest.mark.parametrize("grace", [0.0, 0.05])
def test_a_quorum_goes_on_and_the_late_keep_their_progress(field, grace):
    speeds = {"step_seconds": (0.01, 0.01, 0.01, 0.033)}
    agreement = averaging(every=Steps(16), quorum=0.75, grace_seconds=grace)
    played = field.play(agreement, epochs=20, world=speeds).run()
    assert played.counts["missed"] > 0
    applied = played.tape.assert_exact()
    mine = [f for (slot, _), f in applied.items() if slot == 3]
    assert sum(f.examples for f in mine) == mine[-1].position, "no step of the late one is lost"
    assert any(f.steps > 16 for f in mine), "its unsent progress went into a later round"
    assert field.loss(played.vector) < 0.2


def test_who_is_much_slower_than_three_rounds_is_left_out(field):
    played = field.play(SMALL["averaging"], epochs=60)
    simulation = played.simulation
    # it stands still for less than a lease, but for longer than three rounds
    for at in (1.0, 8.0):
        simulation.at(at, lambda: simulation.nodes[1].__setattr__("is_frozen", True))
        simulation.at(at + 6.5, lambda: simulation.nodes[1].__setattr__("is_frozen", False))
    beats = simulation.coordinator.fence.heard
    seat = simulation.coordinator.fence.seats[1]

    def keep_alive():
        seat.ends_at = simulation.now + 5.0
        simulation.at(1.0, keep_alive)

    simulation.at(0.5, keep_alive)
    played.run()
    assert beats
    assert not played.tape.of("WorkerLost")
    assert played.counts["missed"] >= 1
    applied = played.tape.assert_exact()
    assert played.tape.examples(applied) == 60 * len(field.labels)


def test_an_all_reduce_worker_that_was_left_out_heals_from_the_others(field):
    played = field.play(all_reduce(), epochs=60)
    simulation = played.simulation
    simulation.at(1.0, lambda: simulation.nodes[1].__setattr__("is_frozen", True))
    simulation.at(7.0, lambda: simulation.nodes[1].__setattr__("is_frozen", False))
    seat = simulation.coordinator.fence.seats[1]

    def keep_alive():
        seat.ends_at = max(seat.ends_at, simulation.now + 5.0)
        if simulation.now < 7.0:
            simulation.at(1.0, keep_alive)

    simulation.at(0.5, keep_alive)
    played.run()
    joined = [(e.attempt, e.lease) for e in played.tape.of("WorkerJoined") if e.slot == 1]
    assert joined == [("a2", 1), ("a2", 2)]
    assert not played.tape.warnings(), "all ended with the same bits"
    played.tape.assert_exact()


# -- shares ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BARRIERS)
def test_an_empty_partition_holds_nobody_up(field, name):
    played = field.play(SMALL[name], parts=field.parts(4, [100, 0, 60, 120])).run()
    assert played.simulation.now < 10
    assert played.simulation.steps[1] == 0
    [told] = played.tape.warnings()
    assert told.startswith("1 of 4 partitions are empty; repartition the data")
    applied = played.tape.assert_exact()
    assert played.tape.examples(applied) == 2 * 280


@pytest.mark.parametrize("name", BARRIERS)
def test_a_skew_of_a_hundred_to_one_is_trained_to_its_end(field, name):
    played = field.play(SMALL[name], 3, parts=field.parts(3, [400, 40, 4])).run()
    applied = played.tape.assert_exact()
    assert played.tape.examples(applied) == 2 * 444
    [told] = played.tape.warnings()
    assert told == (
        "worker 0 holds 90% of the rows; got 3 workers; repartition the data, or use fewer workers"
    )


def test_all_partitions_empty_end_at_once(field):
    played = field.play(SMALL["averaging"], parts=field.parts(4, [0, 0, 0, 0])).run()
    assert (played.vector == 0).all()


def test_a_budget_that_is_counted_centrally_is_used_up_with_a_bounded_overshoot(field):
    agreement = averaging(every=Seconds(0.2))
    speeds = {"step_seconds": (0.01, 0.01, 0.01, 0.04)}
    played = field.play(agreement, epochs=20, world=speeds).run()
    (ended,) = played.tape.of("PhaseEnded")
    budget = 20 * len(field.labels)
    a_round = 8 * (3 * 21 + 6)
    assert budget <= ended.examples <= budget + a_round
    steps = played.simulation.steps
    assert min(steps[:3]) > 3 * steps[3], "whoever is faster does more"


def test_a_joiner_after_the_budget_has_nothing_to_do(field):
    played = field.play(averaging(every=Seconds(0.2)), epochs=4)
    played.simulation.at(0.5, played.simulation.kill, 1, 1.5)
    played.run()
    (ended,) = played.tape.of("PhaseEnded")
    assert ended.examples <= 4 * len(field.labels) + 4 * 8 * 21
    assert played.result is not None


def test_progress_goes_from_nothing_to_all(field):
    played = field.play(SMALL["averaging"], epochs=4).run()
    progress = [r.progress for r in played.tape.of("RoundClosed")]
    assert progress == sorted(progress)
    assert progress[-1] == 1.0


# -- not a number ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BARRIERS)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_numbers_that_are_not_finite_never_reach_the_model(field, name):
    played = field.play(SMALL[name], parts=field.parts(4, bad={2}), epochs=6).run()
    assert np.isfinite(played.vector).all()
    refusals = [w for w in played.tape.warnings() if "not finite" in w]
    if name == "iterative_reduce":
        assert len(refusals) == 3
    assert "worker 2 pushed numbers that are not finite" in refusals[0]
    if len(refusals) == 3:
        assert "its rows are left out from now on" in refusals[2]
    played.tape.assert_exact()
    assert 2 not in played.tape.of("RoundClosed")[-1].slots


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_when_nobodys_numbers_are_finite_the_run_fails(field):
    played = field.play(SMALL["averaging"], parts=field.parts(4, bad={0, 1, 2, 3}))
    with pytest.raises(RunFailedError, match="every worker's numbers are not finite"):
        played.run()


# -- phases ------------------------------------------------------------------------------------


def three(field):
    return [field.stage(name=n, epochs=3) for n in ("first", "second", "third")]


@pytest.mark.parametrize("name", BARRIERS)
def test_phases_hand_their_history_on(field, name):
    played = field.play(SMALL[name], stages=three(field)).run()
    assert len(played.result.vectors) == 3
    ended = played.tape.of("PhaseEnded")
    assert [e.name for e in ended] == ["first", "second", "third"]
    assert [c.phase for c in played.tape.cuts] == [1, 2]
    assert [len(c.history) for c in played.tape.cuts] == [1, 2]
    first = field.play(SMALL[name], stages=three(field)[:1]).run()
    assert (played.result.vectors[0] == first.vector).all()


@pytest.mark.parametrize("name", BARRIERS)
def test_deaths_in_every_phase(field, name):
    played = field.play(SMALL[name], stages=three(field))
    simulation = played.simulation
    played.tape.hooks["PhaseStarted"] = lambda e: simulation.at(
        0.015 if name == "full_gradient" else 0.15, simulation.kill, e.phase + 1, 0.1
    )
    played.run()
    assert len(played.result.vectors) == 3
    assert [e.slot for e in played.tape.of("WorkerLost")] == [1, 2, 3]
    applied = played.tape.assert_exact()
    assert played.tape.examples(applied) == 3 * 3 * len(field.labels)


def test_a_joiner_of_a_late_phase_gets_the_history_that_it_lacks(field):
    class Chained(type(field.stage())):
        def build(self, history, seed):
            assert len(history) == ("first", "second", "third").index(self.name)
            return super().build(history, seed)

    stages = [
        Chained(features=6, classes=3, name=n, epochs=3, batch_size=8, lr=0.2, dtype="float64")
        for n in ("first", "second", "third")
    ]
    played = field.play(SMALL["averaging"], stages=stages)
    played.simulation.at(1.2, played.simulation.kill, 1, 0.2)
    played.simulation.at(1.3, played.simulation.seat, 0)
    played.simulation.at(1.4, played.simulation.kill, 3, 0.2)
    assert len(played.run().result.vectors) == 3


# -- cuts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in BARRIERS if n != "full_gradient"])
def test_a_run_that_is_resumed_ends_with_the_same_bits(field, name):
    stages = [field.stage(name=n, epochs=5) for n in ("first", "second")]
    usual = {"stages": stages, "desk": {"checkpoint_seconds": 0.2}}
    whole = field.play(SMALL[name], **usual).run()
    cuts = whole.tape.cuts
    assert len(cuts) >= (2 if name == "iterative_reduce" else 4)
    for cut in (cuts[0], cuts[len(cuts) // 2], cuts[-1]):
        resumed = field.play(SMALL[name], stages=stages, desk={"term": 2}, cut=cut).run()
        assert len(resumed.result.vectors) == 2
        pairs = zip(whole.result.vectors, resumed.result.vectors, strict=True)
        assert all((a == b).all() for a, b in pairs), cut.name
        assert sum(resumed.simulation.steps) < sum(whole.simulation.steps)


def heavy(field):
    """A stage with momentum inside: part of the bits that only a worker knows."""
    torch_inner = pytest.importorskip("photinus.models.inner")
    from photinus.models.schedules import Schedule

    class Heavy(type(field.stage())):
        def inner(self):
            layout = self.build((), 0).parameters.layout
            lr = Schedule.constant(0.1)
            return torch_inner.TorchInner(layout, "sgd", {"momentum": 0.9}, lr)

    return Heavy(features=6, classes=3, epochs=6, batch_size=8, dtype="float64")


@pytest.mark.parametrize("name", ["all_reduce", "averaging"])
def test_cuts_since_a_lost_worker_came_back_resume_to_the_same_bits(field, name):
    stage = heavy(field)
    whole = field.play(SMALL[name], stages=[stage], desk={"checkpoint_seconds": 0.0})
    whole.simulation.at(0.25, whole.simulation.kill, 2, 0.2)
    whole.run()
    [lost] = whole.tape.of("WorkerLost")
    back = [e for e in whole.tape.events if type(e).__name__ in ("WorkerJoined", "RoundClosed")]
    joined = max(n for n, e in enumerate(back) if type(e).__name__ == "WorkerJoined")
    since = next(e.version for e in back[joined:] if lost.slot in getattr(e, "slots", ()))
    cuts = [cut for cut in whole.tape.cuts if cut.version >= since]
    for cut in (cuts[0], cuts[len(cuts) // 2]):
        resumed = field.play(SMALL[name], stages=[stage], desk={"term": 2}, cut=cut).run()
        assert (resumed.vector == whole.vector).all(), cut.name


@pytest.mark.parametrize("name", ["all_reduce", "averaging", "iterative_reduce"])
def test_a_resumed_run_goes_on_with_the_momentum_that_it_had(field, name):
    stage = heavy(field)
    whole = field.play(SMALL[name], stages=[stage], desk={"checkpoint_seconds": 0.2}).run()
    cut = whole.tape.cuts[len(whole.tape.cuts) // 2]
    assert {len(v) for v in cut.inner.values()} == {1}
    resumed = field.play(SMALL[name], stages=[stage], desk={"term": 2}, cut=cut).run()
    assert (resumed.vector == whole.vector).all()
    fresh = field.play(
        SMALL[name], stages=[stage], desk={"term": 2}, cut=type(cut)(**fields(cut) | {"inner": {}})
    ).run()
    assert not (fresh.vector == whole.vector).all(), "the momentum matters"


@pytest.mark.parametrize("codec", ["int8", "int4"])
def test_a_resumed_run_goes_on_with_what_its_codec_left_out(field, codec):
    agreement = averaging(every=Steps(6), codec=codec)
    whole = field.play(agreement, epochs=6, desk={"checkpoint_seconds": 0.2}).run()
    cut = whole.tape.cuts[len(whole.tape.cuts) // 2]
    assert all("agreement.left" in held for held in cut.inner.values())
    assert cut.point.left.any()
    cut = cut_from(twin(cut), "")
    resumed = field.play(agreement, epochs=6, desk={"term": 2}, cut=cut).run()
    assert (resumed.vector == whole.vector).all()
    bare = type(cut)(**fields(cut) | {"inner": {}})
    fresh = field.play(agreement, epochs=6, desk={"term": 2}, cut=bare).run()
    assert not (fresh.vector == whole.vector).all(), "the feedback matters"


def twin(cut):
    """A cut as the checkpoint that is read again."""
    from photinus.checkpoint.store import Checkpoint

    return Checkpoint(cut.name, json.loads(json.dumps(meta_of(cut, ""))), files_of(cut), True)


def fields(cut):
    return {name: getattr(cut, name) for name in cut.__slots__}


def test_healing_carries_the_momentum_of_a_survivor(field):
    from photinus.models.inner import TorchInner
    from photinus.models.schedules import Schedule

    class Heavy(type(field.stage())):
        def inner(self):
            layout = self.build((), 0).parameters.layout
            return TorchInner(layout, "sgd", {"momentum": 0.9}, Schedule.constant(0.1))

    stage = Heavy(features=6, classes=3, epochs=6, batch_size=8, dtype="float64")
    played = field.play(all_reduce(), stages=[stage])
    played.simulation.at(0.31, played.simulation.kill, 2, 0.2)
    played.run()
    assert not played.tape.warnings(), "all ended with the same bits"


def test_a_cut_of_a_lossy_network_is_made_all_the_same(field):
    faults = {"faults": Faults().lose(0.2), "resend_seconds": 0.05}
    desk = {"checkpoint_seconds": 0.2}
    whole = field.play(SMALL["averaging"], epochs=20, world=faults, desk=desk).run()
    assert len(whole.tape.cuts) > 1


def test_a_cut_of_other_workers_is_refused_within_a_phase(field):
    whole = field.play(SMALL["averaging"], desk={"checkpoint_seconds": 0.1}, epochs=6).run()
    with pytest.raises(UsageError, match="as many workers as it has, 4; got 3; resume with 4"):
        field.play(SMALL["averaging"], 3, cut=whole.tape.cuts[0])


def test_between_phases_a_run_goes_on_with_other_workers(field):
    stages = [field.stage(name=n, epochs=2) for n in ("first", "second")]
    whole = field.play(SMALL["averaging"], stages=stages).run()
    resumed = field.play(SMALL["averaging"], 3, stages=stages, cut=whole.tape.cuts[0]).run()
    assert (resumed.result.vectors[0] == whole.result.vectors[0]).all()
    with pytest.raises(UsageError, match="this program has fewer phases; got 1"):
        field.play(SMALL["averaging"], stages=stages[:1], cut=whole.tape.cuts[0])


def test_a_cut_of_other_rows_is_told(field):
    whole = field.play(SMALL["averaging"], desk={"checkpoint_seconds": 0.1}, epochs=6).run()
    parts = field.parts(4, [100, 100, 100, 180])
    resumed = field.play(SMALL["averaging"], parts=parts, cut=whole.tape.cuts[0], epochs=6).run()
    assert "the workers hold other rows than at the checkpoint" in resumed.tape.warnings()[0]


# -- the simulator itself ----------------------------------------------------------------------


def test_a_thousand_workers_take_seconds(field):
    workers = 1000
    rows = [field.rows([i % 480, (7 * i) % 480]) for i in range(workers)]
    parts = [Part(2, lambda order, r=r: PartitionFeed(r, order)) for r in rows]
    began = time.process_time()
    played = field.play(averaging(every=Steps(2)), workers, parts=parts, epochs=2, batch_size=1)
    played.run()
    assert played.counts["applied"] == 2 * workers
    assert time.process_time() - began < 15  # about 1 s on a machine that does nothing else


def test_parts_and_workers_must_be_as_many(field):
    program = field.program(averaging(), 4)
    with pytest.raises(UsageError, match="one part for each of 4 workers; got 3"):
        Simulation(program, field.parts(3))


def test_a_world_has_limits():
    with pytest.raises(UsageError, match="bytes_per_second of World must be a number above 0"):
        World(bytes_per_second=0)


def test_a_run_that_is_stopped_says_why(field):
    played = field.play(SMALL["averaging"], epochs=50)
    played.simulation.at(0.5, played.simulation.coordinator.stop, "enough")
    with pytest.raises(RunFailedError, match="enough"):
        played.run()


def test_epochs_and_steps_agree_on_when_a_round_is_due(field):
    by_steps = field.play(averaging(every=Steps(15), outer=Sgd(), codec="fp32")).run()
    by_epochs = field.play(averaging(every=Epochs(1), outer=Sgd(), codec="fp32")).run()
    assert (by_steps.vector == by_epochs.vector).all()
