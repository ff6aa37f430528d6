"""The simulator: same seed, same bits; shares of rows, phases, and numbers that are none."""

import time
from dataclasses import replace

import numpy as np
import pytest

from photinus.core.clock import Epochs, Seconds, Steps
from photinus.core.errors import DataError, RunFailedError, UsageError
from photinus.data.arrays import PartitionFeed
from photinus.engine.simulation.cluster import SimulatedCluster
from photinus.engine.simulation.simulator import Simulation
from photinus.strategies.outer import Sgd
from photinus.strategies.recipes import (
    RECIPES,
    averaging,
    full_gradient,
    iterative_reduce,
)
from photinus.testing import Faults
from photinus.training.plan import WorkerLimits
from photinus.training.worker_loop import WorkerData

BARRIERS = [
    name
    for name, strategy in ((name, recipe.build()) for name, recipe in RECIPES.items())
    if strategy.release == "rounds" and not strategy.is_without_owner
]


def test_every_recipe_of_rounds_is_simulated(field):
    rounds = {n for n in RECIPES if RECIPES[n].build().release == "rounds"}
    assert set(field.small) == {*rounds, "owners"}
    deterministic = [name for name, strategy in field.small.items() if strategy.is_deterministic]
    assert sorted([*BARRIERS, "owners"]) == sorted(deterministic)


# -- same seed, same bits -------------------------------------------------------------------------


@pytest.mark.parametrize("name", BARRIERS)
def test_the_same_seed_gives_the_same_bits(field, name):
    one, two = (field.play(field.small[name]).run() for _ in range(2))
    assert (one.vector == two.vector).all()
    assert one.simulation.now == two.simulation.now


def test_speeds_do_not_change_the_bits_of_a_barrier(field):
    even = field.play(field.small["averaging"]).run()
    uneven = field.play(
        field.small["averaging"], cluster={"step_seconds": (0.01, 0.07, 0.02)}
    ).run()
    assert (even.vector == uneven.vector).all()
    assert uneven.simulation.now > even.simulation.now


@pytest.mark.parametrize("name", BARRIERS)
def test_a_network_that_loses_and_doubles_changes_nothing(field, name):
    clean = field.play(field.small[name]).run()
    faults = Faults().lose(0.15).double(0.3)
    bad = field.play(field.small[name], cluster={"faults": faults, "resend_seconds": 0.1}).run()
    assert (clean.vector == bad.vector).all()
    assert bad.counts["applied"] == clean.counts["applied"]
    assert bad.counts["duplicate"] > 0
    assert bad.counts["fenced"] == bad.counts["gap"] == 0
    bad.tape.assert_exact()


def test_a_slow_link_costs_time_only(field):
    quick = field.play(field.small["averaging"]).run()
    slow = field.play(
        field.small["averaging"], cluster={"bytes_per_second": 1e4, "latency_seconds": 0.2}
    ).run()
    assert (quick.vector == slow.vector).all()
    assert slow.simulation.now > quick.simulation.now + 1


def test_a_step_of_a_whole_part_takes_as_long_as_the_mini_batches_in_it(field):
    """120 rows in mini-batches of 8, three epochs, whichever way they are agreed on."""
    cluster = {"step_seconds": (0.01, 0.04), "latency_seconds": 0.0, "bytes_per_second": 1e12}
    for strategy in (full_gradient(), iterative_reduce()):
        played = field.play(strategy, parts=field.parts(4), epochs=3, cluster=cluster).run()
        assert played.simulation.now == pytest.approx(3 * 15 * 0.04, rel=1e-3)


@pytest.mark.parametrize("wrong", [-1.0, (0.01, -1.0), (), float("nan")])
def test_no_step_takes_less_than_no_time(wrong):
    with pytest.raises(
        UsageError, match="step_seconds of SimulatedCluster must be a number of at least 0"
    ):
        SimulatedCluster(step_seconds=wrong)


def test_a_cap_on_what_a_worker_sends_costs_time_and_no_bits(field):
    """A push and its answer are 424 bytes; the answer's way is not capped."""

    def played(bandwidth, **cluster):
        cluster = {"step_seconds": 0.0, "latency_seconds": 0.0, **cluster}
        one = field.play(field.small["averaging"], cluster=cluster)
        plan = replace(one.simulation.plan, limits=WorkerLimits(bandwidth=bandwidth))
        return Simulation(plan, field.parts(4), SimulatedCluster(**cluster))

    free, capped, both = played(None), played(424.0), played(None, bytes_per_second=424.0)
    results = [simulation.run().vectors[-1] for simulation in (free, capped, both)]
    assert all((result == results[0]).all() for result in results)
    assert free.now < 1 < capped.now < both.now


# -- shares ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BARRIERS)
def test_an_empty_partition_holds_nobody_up(field, name):
    played = field.play(field.small[name], parts=field.parts(4, [100, 0, 60, 120])).run()
    assert played.simulation.now < 10
    assert played.simulation.steps[1] == 0
    warnings = [text for text in played.tape.warnings() if "empty" in text]
    assert warnings == ["1 of 4 partitions are empty; repartition the data, or use fewer workers"]
    applied = played.tape.assert_exact()
    assert played.tape.examples(applied) == 2 * 280


@pytest.mark.parametrize("name", BARRIERS)
def test_a_skew_of_a_hundred_to_one_is_trained_to_its_end(field, name):
    played = field.play(field.small[name], 3, parts=field.parts(3, [400, 40, 4])).run()
    applied = played.tape.assert_exact()
    assert played.tape.examples(applied) == 2 * 444
    [warning] = played.tape.warnings()
    assert warning == (
        "worker 0 holds 90% of the rows; got 3 workers; repartition the data, or use fewer workers"
    )


def test_all_partitions_empty_are_an_error_at_once(field):
    played = field.play(field.small["averaging"], parts=field.parts(4, [0, 0, 0, 0]))
    with pytest.raises(DataError, match="there are no rows to train on; look at where the data"):
        played.run()
    assert played.simulation.now < 1
    assert played.simulation.steps == [0] * 4


def test_a_budget_that_is_counted_centrally_is_used_up_with_a_bounded_overshoot(field):
    strategy = averaging(every=Seconds(0.2))
    speeds = {"step_seconds": (0.01, 0.01, 0.01, 0.04)}
    played = field.play(strategy, epochs=20, cluster=speeds, share="fastest").run()
    (ended,) = played.tape.of("PhaseEnded")
    budget = 20 * len(field.labels)
    a_round = 8 * (3 * 21 + 6)
    assert budget <= ended.examples <= budget + a_round
    steps = played.simulation.steps
    assert min(steps[:3]) > 3 * steps[3], "whoever is faster does more"


def test_rows_come_before_speed_unless_it_is_asked_for(field):
    speeds = {"step_seconds": (0.01, 0.01, 0.01, 0.04)}
    played = field.play(averaging(every=Seconds(0.2)), epochs=20, cluster=speeds).run()
    (ended,) = played.tape.of("PhaseEnded")
    assert ended.examples == 20 * len(field.labels)
    assert played.simulation.steps == [20 * 15] * 4


def test_a_joiner_after_the_budget_has_nothing_to_do(field):
    played = field.play(averaging(every=Seconds(0.2)), epochs=4)
    played.simulation.at(0.5, played.simulation.kill, 1, 1.5)
    played.run()
    (ended,) = played.tape.of("PhaseEnded")
    assert ended.examples <= 4 * len(field.labels) + 4 * 8 * 21
    assert played.result is not None


def test_progress_goes_from_nothing_to_all(field):
    played = field.play(field.small["averaging"], epochs=4).run()
    progress = [r.progress for r in played.tape.of("RoundClosed")]
    assert progress == sorted(progress)
    assert progress[-1] == 1.0


# -- not a number ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BARRIERS)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_numbers_that_are_not_finite_never_reach_the_model(field, name):
    played = field.play(field.small[name], parts=field.parts(4, bad={2}), epochs=6).run()
    assert np.isfinite(played.vector).all()
    refusals = [w for w in played.tape.warnings() if "not finite" in w]
    if name == "iterative_reduce":
        assert len(refusals) == 3
    assert "worker 2 pushed values that are not finite" in refusals[0]
    if len(refusals) == 3:
        assert "its rows are not used any more" in refusals[2]
    played.tape.assert_exact()
    assert 2 not in played.tape.of("RoundClosed")[-1].slots


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_when_nobodys_numbers_are_finite_the_run_fails(field):
    played = field.play(field.small["averaging"], parts=field.parts(4, bad={0, 1, 2, 3}))
    with pytest.raises(RunFailedError, match="every worker's values are not finite"):
        played.run()


# -- phases ---------------------------------------------------------------------------------------


def three(field):
    return [field.config(name=n, epochs=3) for n in ("first", "second", "third")]


@pytest.mark.parametrize("name", BARRIERS)
def test_phases_hand_their_history_on(field, name):
    played = field.play(field.small[name], configs=three(field)).run()
    assert len(played.result.vectors) == 3
    ended = played.tape.of("PhaseEnded")
    assert [e.name for e in ended] == ["first", "second", "third"]
    assert [c.phase for c in played.tape.snapshots] == [1, 2]
    assert [len(c.history) for c in played.tape.snapshots] == [1, 2]
    first = field.play(field.small[name], configs=three(field)[:1]).run()
    assert (played.result.vectors[0] == first.vector).all()


@pytest.mark.parametrize("name", BARRIERS)
def test_deaths_in_every_phase(field, name):
    played = field.play(field.small[name], configs=three(field))
    simulation = played.simulation
    played.tape.hooks["PhaseStarted"] = lambda e: simulation.at(
        0.16, simulation.kill, e.phase + 1, 0.1
    )
    played.run()
    assert len(played.result.vectors) == 3
    assert [e.slot for e in played.tape.of("WorkerLost")] == [1, 2, 3]
    applied = played.tape.assert_exact()
    assert played.tape.examples(applied) == 3 * 3 * len(field.labels)


def test_a_joiner_of_a_late_phase_gets_the_history_that_it_lacks(field):
    class Chained(type(field.config())):
        def build(self, history, seed):
            assert len(history) == ("first", "second", "third").index(self.name)
            return super().build(history, seed)

    configs = [
        Chained(features=6, classes=3, name=n, epochs=3, batch_size=8, lr=0.2, dtype="float64")
        for n in ("first", "second", "third")
    ]
    played = field.play(field.small["averaging"], configs=configs)
    played.simulation.at(1.2, played.simulation.kill, 1, 0.2)
    played.simulation.at(1.3, played.simulation.seat, 0)
    played.simulation.at(1.4, played.simulation.kill, 3, 0.2)
    assert len(played.run().result.vectors) == 3


# -- the simulator itself -------------------------------------------------------------------------


def test_a_thousand_workers_take_seconds(field):
    workers = 1000
    rows = [field.rows([i % 480, (7 * i) % 480]) for i in range(workers)]
    parts = [WorkerData(2, lambda order, r=r: PartitionFeed(r, order)) for r in rows]
    began = time.process_time()
    played = field.play(averaging(every=Steps(2)), workers, parts=parts, epochs=2, batch_size=1)
    played.run()
    assert played.counts["applied"] == 2 * workers
    assert time.process_time() - began < 15  # about 1 s on a machine that does nothing else


def test_parts_and_workers_must_be_as_many(field):
    plan = field.plan(averaging(), 4)
    with pytest.raises(UsageError, match="one part for each of 4 workers; got 3"):
        Simulation(plan, field.parts(3))


def test_a_world_has_limits():
    with pytest.raises(
        UsageError, match="bytes_per_second of SimulatedCluster must be a number above 0"
    ):
        SimulatedCluster(bytes_per_second=0)


def test_a_run_that_is_stopped_says_why(field):
    played = field.play(field.small["averaging"], epochs=50)
    played.simulation.at(0.5, played.simulation.coordinator.stop, "enough")
    with pytest.raises(RunFailedError, match="enough"):
        played.run()


def test_epochs_and_steps_agree_on_when_a_round_is_due(field):
    by_steps = field.play(averaging(every=Steps(15), outer=Sgd(), codec="fp32")).run()
    by_epochs = field.play(averaging(every=Epochs(1), outer=Sgd(), codec="fp32")).run()
    assert (by_steps.vector == by_epochs.vector).all()
