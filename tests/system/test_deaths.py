"""Workers are killed, freeze, come twice or late, in virtual time: what is promised then."""

import pytest

from photinus.core.clock import Seconds, Steps
from photinus.strategies.recipes import (
    RECIPES,
    all_reduce,
    averaging,
    downpour,
)

BARRIERS = [
    name
    for name, strategy in ((name, recipe.build()) for name, recipe in RECIPES.items())
    if strategy.release == "rounds" and not strategy.is_without_owner
]


# -- killed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BARRIERS)
def test_each_push_counts_once_when_workers_die(field, name):
    played = field.play(field.small[name], epochs=8)
    for at, slot, back in ((0.13, 1, 0.1), (0.3, 3, 0.4), (1.9, 1, 0.0), (2.6, 0, 0.2)):
        played.simulation.at(at, played.simulation.kill, slot, back)
    played.run()
    applied = played.tape.assert_exact()
    assert played.counts["applied"] == len(applied)
    examples = played.tape.examples(applied)
    assert examples == 8 * len(field.labels), "every example of the budget counts exactly once"
    assert field.loss(played.vector) < (0.9 if name == "full_gradient" else 0.3)


def test_a_killed_worker_resumes_at_its_cursor(field):
    played = field.play(field.small["averaging"], epochs=4)
    played.simulation.at(0.31, played.simulation.kill, 2, 0.1)
    played.run()
    redone = played.simulation.steps[2] - 4 * 15
    assert 0 < redone <= 6, "at most one round of its work is done again"
    grants = [f for op, f, _ in played.tape.lines if op == "grant" and f.slot == 2]
    assert len(grants) == 2
    assert len(played.tape.of("WorkerLost")) == 1


def test_the_others_go_on_while_one_is_away(field):
    played = field.play(field.small["averaging"], epochs=20)
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
    assert not (clean.vector == played.vector).all(), "the others continued without it"
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
    played = field.play(all_reduce(), epochs=6, callbacks={"checkpoint_seconds": 0.3})
    for slot in range(4):
        played.simulation.at(0.8, played.simulation.kill, slot, 2.0)
    played.run()
    assert "all workers were lost" in played.tape.warnings()[0]
    assert (played.vector == clean.vector).all()
    assert sum(played.simulation.steps) < 1.6 * sum(clean.simulation.steps)


@pytest.mark.parametrize("name", ["averaging", "diloco", "iterative_reduce"])
def test_without_any_survivor_the_owner_keeps_what_was_agreed(field, name):
    played = field.play(field.small[name], epochs=6)
    for slot in range(4):
        played.simulation.at(0.41, played.simulation.kill, slot, 2.0)
    played.run()
    assert not played.tape.warnings()
    versions = [r.version for r in played.tape.of("RoundClosed")]
    assert versions == sorted(versions)
    played.tape.assert_exact()


def test_a_worker_that_never_comes_back_ends_the_phase_after_patience(field):
    played = field.play(field.small["averaging"], epochs=2, callbacks={"rejoin_seconds": 20.0})
    played.simulation.at(0.2, played.simulation.kill, 2, None)
    played.run()
    assert played.tape.warnings() == [
        "worker 2 did not come back; the rest of its share is not trained on",
        "logistic: 96 examples of worker 2 were not used; "
        "got 1.20 passes over its 120 rows, not 2.00",
    ]
    assert 20 < played.simulation.now < 30
    assert field.loss(played.vector) < 0.6


def test_all_reduce_whose_last_worker_dies_goes_back_to_one_that_was_done(field):
    """Slot 0 has fewer rows than steps and is done early; slot 1 dies: what 0 held is not lost."""
    played = field.play(all_reduce(), 2, parts=field.parts(2, [10, 470]), epochs=2)
    played.simulation.at(0.9, played.simulation.kill, 1, 0.5)
    played.run()
    (warning,) = [text for text in played.tape.warnings() if "all workers were lost" in text]
    assert "went back from version 4" in warning
    assert "to 20 of phase 0" in warning
    assert field.loss(played.vector) < 0.5


def test_a_worker_that_is_killed_after_its_share_holds_nobody_up(field):
    played = field.play(field.small["averaging"], 2, parts=field.parts(2, [10, 470]), epochs=2)
    played.simulation.at(0.6, played.simulation.kill, 0, None)
    played.run()
    assert played.simulation.now < 5
    (warning,) = played.tape.warnings()
    assert warning.startswith("worker 1 holds 98% of the rows")


# -- frozen, doubled, late ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["averaging", "all_reduce"])
def test_a_frozen_worker_that_wakes_is_fenced(field, name):
    played = field.play(field.small[name], epochs=150)
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
    played = field.play(field.small["averaging"], epochs=150)
    played.simulation.at(0.31, played.simulation.freeze, 2, 9.0)
    played.run()
    joined = [(e.attempt, e.lease) for e in played.tape.of("WorkerJoined") if e.slot == 2]
    assert joined == [("a3", 1), ("a3", 2)]
    played.tape.assert_exact()


def test_a_short_freeze_costs_no_lease(field):
    played = field.play(field.small["averaging"], epochs=20)
    played.simulation.at(0.31, played.simulation.freeze, 2, 2.0)
    played.run()
    assert not played.tape.of("WorkerLost")
    assert played.counts["fenced"] == 0


def test_a_speculative_copy_waits_and_takes_over(field):
    played = field.play(field.small["averaging"], epochs=20)
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
    clean = field.play(field.small["averaging"]).run()
    played = field.play(field.small["averaging"])
    played.simulation.at(0.1, played.simulation.seat, 1)
    played.run()
    assert (played.vector == clean.vector).all()


@pytest.mark.parametrize("seconds", [0.32, 0.3], ids=["whole steps", "the last step is late"])
def test_rounds_in_seconds_use_a_slow_worker_fully(field, seconds):
    speeds = {"step_seconds": (0.01, 0.01, 0.01, 0.04)}
    fixed = field.play(averaging(every=Steps(32)), epochs=9000, cluster=speeds).run(until=4.0)
    every = Steps(64) | Seconds(seconds)
    timed = field.play(averaging(every=every), epochs=9000, cluster=speeds).run(until=4.0)
    possible = (3 / 0.01 + 1 / 0.04) * 4
    assert sum(fixed.simulation.steps) < 0.36 * possible
    assert sum(timed.simulation.steps) > 0.9 * possible


@pytest.mark.parametrize("grace", [0.0, 0.05])
def test_a_quorum_continues_and_the_late_keep_their_progress(field, grace):
    speeds = {"step_seconds": (0.01, 0.01, 0.01, 0.033)}
    strategy = averaging(every=Steps(16), quorum=0.75, grace_seconds=grace)
    played = field.play(strategy, epochs=20, cluster=speeds).run()
    assert played.counts["missed"] > 0
    applied = played.tape.assert_exact()
    headers = [f.header for (slot, _), f in applied.items() if slot == 3]
    assert sum(header.get("examples", 0) for header in headers) == headers[-1]["position"], (
        "no step is lost"
    )
    assert any(header["steps"] > 16 for header in headers if "steps" in header), (
        "of a later round, too"
    )
    assert field.loss(played.vector) < 0.2


def test_who_is_much_slower_than_three_rounds_is_left_out(field):
    played = field.play(field.small["averaging"], epochs=60)
    simulation = played.simulation
    # it stands still for less than a lease, but for longer than three rounds
    for at in (1.0, 8.0):
        simulation.at(at, lambda: simulation.nodes[1].__setattr__("is_frozen", True))
        simulation.at(at + 6.5, lambda: simulation.nodes[1].__setattr__("is_frozen", False))
    beats = simulation.coordinator.leases.heard
    seat = simulation.coordinator.leases[1]

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
    seat = simulation.coordinator.leases[1]

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


@pytest.mark.parametrize("name", ["averaging", "streaming", "all_reduce", "publish", "downpour"])
def test_a_worker_that_is_told_to_leave_loses_nothing(field, name):
    """Its seat is taken by another attempt; it stays beside it and is not heard any more."""
    played = field.play(field.small.get(name) or downpour(every=Steps(4)), epochs=6)
    simulation, seats = played.simulation, played.simulation.coordinator.leases

    def leave():
        seats[1].leaving_attempt = seats[1].attempt
        look()

    def look():
        if seats[1].is_live and seats[1].attempt == seats[1].leaving_attempt:
            return simulation.at(0.001, look)
        return simulation.seat(1)

    simulation.at(0.1, leave)
    played.run()
    applied = played.tape.assert_exact()
    assert seats[1].lease >= 2
    assert seats[1].attempt != seats[1].leaving_attempt
    assert played.tape.examples(applied) >= 6 * 480
    assert played.tape.of("WorkerLost") == []
