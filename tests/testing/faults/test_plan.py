"""Faults by name: plain values, which the simulator and a real worker both understand."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import pytest

from photinus.core.clock import Steps
from photinus.core.errors import LinkLostError, UsageError
from photinus.engine.driver_session import DriverSession
from photinus.engine.simulation.cluster import SimulatedCluster
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.strategies.recipes import averaging
from photinus.testing import Faults
from photinus.testing.faults.fault import Fault
from photinus.testing.faults.process import Cable, WorkerFaults
from photinus.testing.memory_link import MemoryListener

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
        (lambda: Faults().lose(1.1), "share of Selection must be a number from 0 to 1"),
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


def test_faults_of_rows_slots_and_drivers_are_no_workers_own():
    faults = Faults().few_rows(slot=1, rows=2).bad_row(slot=1, row=3).kill(slot=1, step=4)
    faults = faults.take_slots(1, seconds=9.0).flip_bit(5).kill_driver(at_seconds=0.5)
    assert [f.kind for f in faults.of(1)] == ["kill"]
    assert [f.kind for f in faults.of_driver] == ["flip_bit", "kill_driver"]
    assert (faults.rows_left(1), faults.rows_left(0)) == (2, None)
    assert (faults.bad_rows(1), faults.bad_rows(0)) == ([3], [])
    assert [faults.comes_after(slot, 3) for slot in range(3)] == [0.0, 0.0, 9.0]


@pytest.mark.parametrize(
    "faults", [Faults().copy(slot=0, step=1), Faults().lose(0.1), Faults().double(0.1)]
)
def test_what_real_processes_cannot_do_is_refused(tiny, faults):
    with (
        DriverSession(tiny.assignment()) as session,
        pytest.raises(UsageError, match=r"only the simulator can do that; got (copy|lose|double)"),
    ):
        session.bootstrap(faults)


def test_a_transport_without_sockets_cannot_be_slowed(tiny, tmp_path):
    slow = Faults().slow_link(slot=0, bytes_per_second=1e6)
    with (
        DriverSession(tiny.assignment(transport=str(tmp_path))) as session,
        pytest.raises(
            UsageError, match="a slow link is one of sockets; got another transport; use"
        ),
    ):
        session.bootstrap(slow)


# -- in a real process ---------------------------------------------------------------------------


def doing(faults, folder):
    """Runs a process that does the first of the faults to itself, then says so; its notes."""
    path = folder / "diary.jsonl"
    script = (
        "from photinus.testing import Faults\n"
        "from photinus.testing.faults.fault import Fault, Selection\n"
        "from photinus.testing.faults.process import WorkerFaults\n"
        f"faults = {faults!r}\n"
        "WorkerFaults(diary=faults.diary).happen(faults.planned[0], 0.0)\n"
        "print('continued')\n"
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
    assert ended.stdout == "continued\n", ended.stderr
    assert time.monotonic() - began > 0.4
    assert note["kind"] == "freeze"


@pytest.mark.parametrize("fault", [Faults().kill, partial(Faults().freeze, seconds=1.0)])
def test_an_executor_that_is_no_process_of_its_own_is_refused(tmp_path, fault):
    planned = fault(slot=0, step=1, executor=True).planned[0]
    with pytest.raises(UsageError, match="needs an executor of Spark; got a worker without one"):
        WorkerFaults(diary=str(tmp_path / "diary")).happen(planned, 0.0)
    assert not list(tmp_path.iterdir()), "nothing is noted that does not happen"


def test_a_cut_ends_all_links_and_hinders_new_ones_for_a_while():
    hub, cable = MemoryListener(lambda peer, frame: None, lambda peer: None), Cable()
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
    WorkerFaults().happen(fault, 0.05)
    assert 0.14 < time.monotonic() - began < 5


def test_a_slow_step_is_one_until_there_is_a_file(tmp_path):
    fault = Faults().slow(slot=0, factor=4.0, until=str(tmp_path / "enough")).planned[0]
    began = time.monotonic()
    WorkerFaults().happen(fault, 0.05)
    assert time.monotonic() - began > 0.14
    (tmp_path / "enough").touch()
    WorkerFaults().happen(fault, 1e6)
    assert time.monotonic() - began < 60


def test_a_simulated_worker_looks_for_no_file(tiny):
    slow = Faults().slow(slot=0, factor=4.0, until="enough")
    with pytest.raises(UsageError, match="looks for no file; got slow with until; leave until out"):
        SimulatedEngine(SimulatedCluster(faults=slow)).run(tiny.assignment())


def test_a_fault_at_a_time_comes_whatever_the_worker_does():
    worker, happened = WorkerFaults(), threading.Event()
    worker.cable.cut = lambda seconds: happened.set()
    worker.later(0.01, Faults().cut(slot=0, at_seconds=0.01, seconds=9.0).planned[0])
    assert happened.wait(5.0)
