"""Faults by name in the simulator."""

import resource

import numpy as np
import pytest

from photinus.core.clock import Steps
from photinus.core.errors import UsageError
from photinus.strategies.recipes import all_reduce, averaging
from photinus.testing import Faults
from photinus.testing.faults.worker import FaultyWorker

ROUNDS = averaging(every=Steps(5))


def test_more_slots_than_there_are_workers_cannot_be_taken(field):
    with pytest.raises(UsageError, match="at most 4 slots can be taken; got 5"):
        field.play(ROUNDS, cluster={"faults": Faults().take_slots(5, seconds=1.0)})


def test_a_slot_that_the_run_has_not_is_refused(field):
    with pytest.raises(UsageError, match="a slot from 0 to 3; got 4"):
        field.play(ROUNDS, cluster={"faults": Faults().kill(slot=4, step=1)})


def lost(played):
    return [e.slot for e in played.tape.of("WorkerLost")]


def test_nothing_happens_unasked_and_the_bits_are_the_same(field):
    plain = field.play(ROUNDS).run()
    never = Faults().kill(slot=1, step=10_000).nan(slot=2, step=10_000)
    armed = field.play(ROUNDS, cluster={"faults": never}).run()
    assert armed.simulation.happened == []
    assert (plain.vector == armed.vector).all()


def test_a_step_is_counted_under_a_lease_so_that_a_fault_happens_once(field):
    faults = Faults().kill(slot=1, step=7).kill(slot=1, step=3, lease=2)
    played = field.play(ROUNDS, epochs=4, cluster={"faults": faults}).run()
    assert [(f.step, f.lease) for f in played.simulation.happened] == [(7, 1), (3, 2)]
    assert [e.lease for e in played.tape.of("WorkerJoined") if e.slot == 1] == [1, 2, 3]
    assert lost(played) == [1, 1]
    played.tape.assert_exact()


def test_a_fault_may_come_at_a_time(field):
    faults = Faults().kill(slot=2, at_seconds=0.13)
    played = field.play(ROUNDS, cluster={"faults": faults}).run()
    assert lost(played) == [2]
    played.tape.assert_exact()


def test_a_frozen_worker_is_fenced_when_it_wakes(field):
    faults = Faults().freeze(slot=1, step=12, seconds=8.0)
    played = field.play(ROUNDS, epochs=40, cluster={"faults": faults}).run()
    assert lost(played) == [1]
    joined = [(e.attempt, e.lease) for e in played.tape.of("WorkerJoined") if e.slot == 1]
    assert joined == [("a2", 1), ("a2", 2)], "the same process"
    assert played.counts["fenced"] >= 1
    played.tape.assert_exact()


@pytest.mark.parametrize(("seconds", "losses"), [(0.5, []), (3.0, [1])])
def test_a_cut_that_is_mended_within_a_second_costs_no_lease(field, seconds, losses):
    faults = Faults().cut(slot=1, step=12, seconds=seconds)
    played = field.play(ROUNDS, epochs=20, cluster={"faults": faults}).run()
    assert [f.kind for f in played.simulation.happened] == ["cut"]
    assert lost(played) == losses
    applied = played.tape.assert_exact()
    assert played.tape.examples(applied) == 20 * len(field.labels)


def test_a_slow_worker_costs_time_and_no_bits(field):
    plain = field.play(ROUNDS).run()
    slow = field.play(ROUNDS, cluster={"faults": Faults().slow(slot=3, factor=4.0)}).run()
    assert (plain.vector == slow.vector).all()
    assert slow.simulation.now > 2 * plain.simulation.now


def test_a_copy_waits_beside_a_healthy_worker(field):
    plain = field.play(ROUNDS).run()
    copied = field.play(ROUNDS, cluster={"faults": Faults().copy(slot=1, step=4)}).run()
    assert (plain.vector == copied.vector).all()
    assert [e.lease for e in copied.tape.of("WorkerJoined") if e.slot == 1] == [1]


@pytest.mark.parametrize("recipe", [ROUNDS, all_reduce()], ids=["averaging", "all_reduce"])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_gradient_that_is_no_number_costs_one_push(field, recipe):
    faults = Faults().nan(slot=1, step=7)
    played = field.play(recipe, epochs=4, cluster={"faults": faults}).run()
    assert np.isfinite(played.vector).all()
    dropped, unused = played.tape.warnings()
    assert "worker 1 pushed values that are not finite" in dropped
    assert "examples of worker 1 were not used" in unused
    played.tape.assert_exact()


def test_lost_and_doubled_messages_are_the_same_ones_in_every_run(field):
    cluster = {"faults": Faults().lose(0.2).double(0.3), "resend_seconds": 0.1}
    one, two = (field.play(ROUNDS, cluster=cluster).run() for _ in range(2))
    assert one.simulation.messages == two.simulation.messages
    assert one.simulation.now == two.simulation.now


def test_an_allocation_fails_in_the_step_that_was_named_and_the_limit_is_taken_back(field):
    before = resource.getrlimit(resource.RLIMIT_AS)
    cluster = {"faults": Faults().no_memory(slot=1, step=7)}
    played = field.play(averaging(every=Steps(5)), cluster=cluster)
    with pytest.raises(MemoryError, match=r"Unable to allocate 1\.00 GiB") as failed:
        played.run()
    assert played.simulation.steps[1] == 6
    assert "memory ran out: use a smaller batch, or fewer workers" in failed.value.__notes__
    assert resource.getrlimit(resource.RLIMIT_AS) == before
    assert len(np.ones(64 << 20, np.uint8)) == 64 << 20


def test_what_lasts_is_done_after_every_step_and_the_rest_once(field):
    happened = []
    faults = Faults().slow(slot=1, factor=2.0, step=3).cut(slot=1, step=3, seconds=0.0)
    life = FaultyWorker(faults.of(1), lambda fault, _: happened.append(fault.kind), None)
    life.lease = 1
    for _ in range(5):
        life.stepped(0.0)
    assert happened == ["slow", "cut", "slow", "slow"]
