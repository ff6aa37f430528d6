"""Faults by name: plain values, which the simulator and a real worker both understand."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import numpy as np
import pytest

from photinus.core.clock import Steps
from photinus.core.errors import LinkLostError, UsageError
from photinus.engine.driver_session import DriverSession
from photinus.engine.faults.plan import Fault, Faults
from photinus.engine.faults.process import Cable, Harm
from photinus.strategies.recipes import all_reduce, averaging
from photinus.transport.memory import Hub

ROUNDS = averaging(every=Steps(5))


def planned(faults):
    return [(fault.kind, fault.slot, fault.step, fault.at_seconds) for fault in faults.planned]


# -- plain values --------------------------------------------------------------------------------


def test_each_method_returns_one_fault_more_and_leaves_the_old_ones():
    one = Faults().kill(slot=2, step=40)
    two = one.freeze(slot=1, step=10, seconds=8.0).cut(slot=0, at_seconds=1.5, seconds=3.0)
    assert planned(one) == [("kill", 2, 40, None)]
    assert planned(two)[1:] == [("freeze", 1, 10, None), ("cut", 0, None, 1.5)]
    assert [f.kind for f in two.of(1)] == ["freeze"]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: Faults().kill(slot=-1, step=1), "slot of Fault must be a whole number"),
        (lambda: Faults().kill(slot=1, step=0), "step of Fault must be"),
        (lambda: Faults().kill(slot=1), "at a step, or at a time; got step=None"),
        (lambda: Faults().cut(slot=1, step=2, at_seconds=1.0, seconds=1.0), "name one"),
        (lambda: Faults().slow(slot=1, factor=0.5), "factor of Fault must be a number of at least"),
        (lambda: Faults().lose(1.1), "share of Lot must be a number from 0 to 1"),
        (lambda: Fault(kind="melt", slot=0, step=1), "kind of Fault must be one of"),
        (
            lambda: Faults().slow_link(slot=0, bytes_per_second=9e3),
            "must be a number of at least 1",
        ),
        (lambda: Faults().slow_link(slot=0, bytes_per_second="fast"), "at least .* got 'fast'"),
        (
            lambda: Faults().few_rows(slot=0, rows=1.5),
            "few_rows takes a whole .* got 1.5",
        ),
        (lambda: Faults().bad_row(slot=0, row=-1), "bad_row takes a whole number .* got -1"),
        (lambda: Faults().kill_driver(), "at a step, or at a time; got step=None"),
        (lambda: Faults().take_slots(1, seconds=-1.0), "seconds of Fault must be"),
    ],
)
def test_what_can_never_happen_is_refused_at_once(wrong, says):
    with pytest.raises(UsageError, match=says):
        wrong()


def test_more_slots_than_there_are_workers_cannot_be_taken(field):
    with pytest.raises(UsageError, match="at most 4 slots can be taken; got 5"):
        field.play(ROUNDS, world={"faults": Faults().take_slots(5, seconds=1.0)})


def test_what_befalls_rows_slots_and_drivers_is_no_workers_own():
    faults = Faults().few_rows(slot=1, rows=2).bad_row(slot=1, row=3).kill(slot=1, step=4)
    faults = faults.take_slots(1, seconds=9.0).flip_bit(5).kill_driver(at_seconds=0.5)
    assert [f.kind for f in faults.of(1)] == ["kill"]
    assert [f.kind for f in faults.of_driver] == ["flip_bit", "kill_driver"]
    assert (faults.rows_left(1), faults.rows_left(0)) == (2, None)
    assert (faults.bad_rows(1), faults.bad_rows(0)) == ([3], [])
    assert [faults.comes_after(slot, 3) for slot in range(3)] == [0.0, 0.0, 9.0]


def test_a_slot_that_the_run_has_not_is_refused(field):
    with pytest.raises(UsageError, match="a slot from 0 to 3; got 4"):
        field.play(ROUNDS, world={"faults": Faults().kill(slot=4, step=1)})


@pytest.mark.parametrize(
    "faults", [Faults().copy(slot=0, step=1), Faults().lose(0.1), Faults().double(0.1)]
)
def test_what_real_processes_cannot_do_is_refused(tiny, faults):
    with (
        DriverSession(tiny.assignment()) as session,
        pytest.raises(UsageError, match=r"only the simulator can do that; got (copy|lose|double)"),
    ):
        session.bootstrap(faults)


def test_a_road_without_sockets_cannot_be_slowed(tiny, tmp_path):
    slow = Faults().slow_link(slot=0, bytes_per_second=1e6)
    with (
        DriverSession(tiny.assignment(road=str(tmp_path))) as session,
        pytest.raises(UsageError, match="a slow link is one of sockets; got another road; use"),
    ):
        session.bootstrap(slow)


# -- in the simulator ----------------------------------------------------------------------------


def lost(played):
    return [e.slot for e in played.tape.of("WorkerLost")]


def test_nothing_happens_unasked_and_the_bits_are_the_same(field):
    plain = field.play(ROUNDS).run()
    never = Faults().kill(slot=1, step=10_000).nan(slot=2, step=10_000)
    armed = field.play(ROUNDS, world={"faults": never}).run()
    assert armed.simulation.happened == []
    assert (plain.vector == armed.vector).all()


def test_a_step_is_counted_under_a_lease_so_that_a_fault_happens_once(field):
    faults = Faults().kill(slot=1, step=7).kill(slot=1, step=3, lease=2)
    played = field.play(ROUNDS, epochs=4, world={"faults": faults}).run()
    assert [(f.step, f.lease) for f in played.simulation.happened] == [(7, 1), (3, 2)]
    assert [e.lease for e in played.tape.of("WorkerJoined") if e.slot == 1] == [1, 2, 3]
    assert lost(played) == [1, 1]
    played.tape.assert_exact()


def test_a_fault_may_come_at_a_time(field):
    faults = Faults().kill(slot=2, at_seconds=0.13)
    played = field.play(ROUNDS, world={"faults": faults}).run()
    assert lost(played) == [2]
    played.tape.assert_exact()


def test_a_frozen_worker_is_fenced_when_it_wakes(field):
    faults = Faults().freeze(slot=1, step=12, seconds=8.0)
    played = field.play(ROUNDS, epochs=40, world={"faults": faults}).run()
    assert lost(played) == [1]
    joined = [(e.attempt, e.lease) for e in played.tape.of("WorkerJoined") if e.slot == 1]
    assert joined == [("a2", 1), ("a2", 2)], "the same process"
    assert played.counts["fenced"] >= 1
    played.tape.assert_exact()


@pytest.mark.parametrize(("seconds", "losses"), [(0.5, []), (3.0, [1])])
def test_a_cut_that_is_mended_within_a_second_costs_no_lease(field, seconds, losses):
    faults = Faults().cut(slot=1, step=12, seconds=seconds)
    played = field.play(ROUNDS, epochs=20, world={"faults": faults}).run()
    assert [f.kind for f in played.simulation.happened] == ["cut"]
    assert lost(played) == losses
    applied = played.tape.assert_exact()
    assert played.tape.examples(applied) == 20 * len(field.labels)


def test_a_slow_worker_costs_time_and_no_bits(field):
    plain = field.play(ROUNDS).run()
    slow = field.play(ROUNDS, world={"faults": Faults().slow(slot=3, factor=4.0)}).run()
    assert (plain.vector == slow.vector).all()
    assert slow.simulation.now > 2 * plain.simulation.now


def test_a_copy_waits_beside_a_healthy_worker(field):
    plain = field.play(ROUNDS).run()
    copied = field.play(ROUNDS, world={"faults": Faults().copy(slot=1, step=4)}).run()
    assert (plain.vector == copied.vector).all()
    assert [e.lease for e in copied.tape.of("WorkerJoined") if e.slot == 1] == [1]


@pytest.mark.parametrize("recipe", [ROUNDS, all_reduce()], ids=["averaging", "all_reduce"])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_gradient_that_is_no_number_costs_one_push(field, recipe):
    faults = Faults().nan(slot=1, step=7)
    played = field.play(recipe, epochs=4, world={"faults": faults}).run()
    assert np.isfinite(played.vector).all()
    told, unused = played.tape.warnings()
    assert "worker 1 pushed values that are not finite" in told
    assert "examples of worker 1 were not used" in unused
    played.tape.assert_exact()


def test_lost_and_doubled_messages_are_the_same_ones_in_every_run(field):
    world = {"faults": Faults().lose(0.2).double(0.3), "resend_seconds": 0.1}
    one, two = (field.play(ROUNDS, world=world).run() for _ in range(2))
    assert one.simulation.messages == two.simulation.messages
    assert one.simulation.now == two.simulation.now


# -- in a real process ---------------------------------------------------------------------------


def doing(faults, folder):
    """Runs a process that does the first of the faults to itself, then says so; its notes."""
    path = folder / "diary.jsonl"
    script = (
        "from photinus.engine.faults.plan import Fault, Faults, Lot\n"
        "from photinus.engine.faults.process import Harm\n"
        f"faults = {faults!r}\n"
        "Harm(faults.diary).happen(faults.planned[0], 0.0)\n"
        "print('went on')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    return ended, [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.processes
def test_a_process_kills_itself_after_it_has_noted_so(tmp_path):
    faults = Faults().kill(slot=2, step=40).noted_in(str(tmp_path / "diary.jsonl"))
    ended, [note] = doing(faults, tmp_path)
    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout == ""
    assert abs(time.time() - note.pop("unix_seconds")) < 60
    assert note == {"kind": "kill", "slot": 2, "lease": 1, "step": 40}
    assert os.stat(tmp_path / "diary.jsonl").st_mode & 0o777 == 0o600


@pytest.mark.processes
def test_a_process_stops_itself_and_is_woken(tmp_path):
    faults = Faults().freeze(slot=0, step=1, seconds=0.4).noted_in(str(tmp_path / "diary.jsonl"))
    began = time.monotonic()
    ended, [note] = doing(faults, tmp_path)
    assert ended.stdout == "went on\n", ended.stderr
    assert time.monotonic() - began > 0.4
    assert note["kind"] == "freeze"


@pytest.mark.parametrize("fault", [Faults().kill, partial(Faults().freeze, seconds=1.0)])
def test_an_executor_that_is_no_process_of_its_own_is_refused(tmp_path, fault):
    planned = fault(slot=0, step=1, executor=True).planned[0]
    with pytest.raises(UsageError, match="an executor of Spark's; got a worker without one"):
        Harm(str(tmp_path / "diary")).happen(planned, 0.0)
    assert not list(tmp_path.iterdir()), "nothing is noted that does not happen"


def test_a_cut_ends_all_links_and_hinders_new_ones_for_a_while():
    hub, cable = Hub(lambda peer, frame: None, lambda peer: None), Cable()
    link = cable.linked(hub.link, 5.0)
    cable.cut(0.3)
    with pytest.raises(LinkLostError):
        link.exchange(None, 0.0)
    with pytest.raises(LinkLostError, match="cut off on purpose"):
        cable.linked(hub.link, 0.01)
    began = time.monotonic()
    assert cable.linked(hub.link, 5.0).exchange(None, 0.0) == []
    assert time.monotonic() - began > 0.1


def test_a_slow_step_takes_its_factor():
    fault = Faults().slow(slot=0, factor=4.0).planned[0]
    began = time.monotonic()
    Harm().happen(fault, 0.05)
    assert 0.14 < time.monotonic() - began < 5


def test_a_fault_at_a_time_comes_whatever_the_worker_does():
    harm, happened = Harm(), threading.Event()
    harm.cable.cut = lambda seconds: happened.set()
    harm.later(0.01, Faults().cut(slot=0, at_seconds=0.01, seconds=9.0).planned[0])
    assert happened.wait(5.0)
