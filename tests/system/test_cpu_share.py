"""A worker uses its share of the processors and no more, measured in virtual time and in real."""

import os
import random
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from photinus.core.clock import Steps
from photinus.core.errors import FencedError, NotReadyError, UsageError
from photinus.data.rows import Rows
from photinus.engine import cpu_share, worker_bootstrap
from photinus.engine.base import ArrayData, part_of
from photinus.engine.cpu_share import (
    BURST_SECONDS,
    CpuShare,
    check_processors,
    check_share,
    paced,
    share_report_lines,
)
from photinus.engine.driver_session import DriverSession
from photinus.engine.local.engine import LocalEngine
from photinus.engine.simulation.cluster import SimulatedCluster
from photinus.engine.simulation.simulator import Simulation
from photinus.models.module import ModuleConfig
from photinus.strategies.recipes import averaging
from photinus.testing import Faults
from photinus.training.plan import Phase, TrainingPlan, WorkerLimits
from photinus.training.requests import Exchange, Hello, StepDone, StepReply


class Machine:
    """A process in virtual time: it computes, waits for others, or stands still."""

    def __init__(self, share):
        self.seconds = self.used = 0.0
        self.share = CpuShare(share, lambda: self.used, lambda: self.seconds, self.idle)
        self.looks = [(0.0, 0.0)]

    def idle(self, seconds):
        self.seconds += seconds

    def batch(self, used, threads=1, contention=1.0):
        """One batch that takes so much of the processors, by some threads at once."""
        self.used += used
        self.seconds += used / threads * contention
        self.share.settle()
        self.looks.append((self.seconds, self.used))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 1.5])
@pytest.mark.parametrize("batch", [0.001, 0.3, 7.0])
def test_the_average_is_the_share_whatever_a_batch_takes(share, batch):
    machine = Machine(share)
    for _ in range(200):
        machine.batch(batch, threads=2)
    assert machine.used / machine.seconds == pytest.approx(share, rel=1e-9)


def test_in_no_stretch_of_time_is_more_used_than_the_share_a_burst_and_a_batch():
    rng, machine, most = random.Random(0), Machine(0.5), 0.2
    for _ in range(500):
        machine.batch(rng.uniform(0, most), rng.choice([1, 2]), rng.uniform(1, 3))
        if rng.random() < 0.1:
            machine.idle(rng.expovariate(1.0))
    for first, (began, before) in enumerate(machine.looks):
        for ended, after in machine.looks[first + 1 :]:
            assert after - before <= 0.5 * (ended - began + BURST_SECONDS) + most + 1e-9


def test_a_batch_that_was_held_up_for_long_does_not_wait_for_what_it_earned_meanwhile():
    machine = Machine(0.5)
    machine.batch(5.0, contention=2.0)
    assert machine.seconds == 10.0


def test_a_pause_earns_one_burst_and_no_more():
    machine = Machine(0.5)
    machine.idle(3600.0)
    machine.batch(0.0)
    began = machine.seconds
    for _ in range(2):
        machine.batch(1.0)
    assert machine.seconds - began == pytest.approx(2 * 2.0 - BURST_SECONDS, abs=1e-9)


def test_a_wait_that_took_too_long_is_made_up_for():
    machine = Machine(0.5)
    machine.idle = lambda seconds: setattr(machine, "seconds", machine.seconds + 1.05 * seconds)
    machine.share = CpuShare(0.5, lambda: machine.used, lambda: machine.seconds, machine.idle)
    for _ in range(100):
        machine.batch(0.1)
    assert machine.used / machine.seconds == pytest.approx(0.5, rel=0.01)


def test_a_life_waits_in_its_batches_and_hears_and_says_the_same():
    requests = [Hello(3, 0), StepDone(1, {}), Exchange(None, None, 1), StepDone(1, {})]
    replies, settled = [], []

    def life():
        for ask in requests:
            try:
                replies.append((yield ask))
            except FencedError:
                replies.append("fenced")

    class Counted:
        def settle(self):
            settled.append(len(replies))

    generator = paced(life(), Counted())
    assert next(generator) is requests[0]
    assert generator.send("grant") is requests[1]
    assert generator.send(StepReply(1.0)) is requests[2]
    assert generator.throw(FencedError("another one")) is requests[3]
    with pytest.raises(StopIteration):
        generator.send(StepReply(2.0))
    assert replies == ["grant", StepReply(1.0), "fenced", StepReply(2.0)]
    assert settled == [1, 3], "before a step is told of, so that its wait is a part of it"


def test_a_life_that_is_left_is_closed_and_one_that_fails_says_so():
    closed = []

    def life():
        try:
            yield Hello(3, 0)
            raise ValueError("mine")
        finally:
            closed.append(True)

    generator = paced(life(), CpuShare(1.0))
    next(generator)
    generator.close()
    failing = paced(life(), CpuShare(1.0))
    next(failing)
    with pytest.raises(ValueError, match="mine"):
        failing.send(None)
    assert closed == [True, True]


def test_a_share_that_threads_or_processors_cannot_use_is_refused(monkeypatch):
    check_share(None, 1)
    check_share(2.0, 2)
    pattern = (
        "more than a worker's threads use; got 1.5 of 1; set threads to 2, or cpu_share to at "
    )
    with pytest.raises(UsageError, match=pattern + "most 1"):
        check_share(1.5, 1)
    monkeypatch.setattr(cpu_share, "processors", lambda: 2)
    check_processors(2.0, 7)
    with pytest.raises(NotReadyError, match=r"that worker 7 may run on; got 3, and 2 on .*most 2"):
        check_processors(3.0, 7)


def test_shares_that_this_machine_does_not_have_are_told(monkeypatch):
    monkeypatch.setattr(cpu_share, "processors", lambda: 2)
    assert len(share_report_lines(0.5, 4, is_here=True)) == 1
    assert len(share_report_lines(0.75, 4, is_here=False)) == 1
    assert share_report_lines(0.75, 4, is_here=True)[1] == (
        "the workers' shares are more than the processors here; got 4 · 0.75, and 2; "
        "each gets less than its share"
    )


@pytest.mark.parametrize(("threads", "share", "times"), [(1, 0.25, 4), (2, 0.5, 4), (1, 1.0, 1)])
def test_in_the_simulator_a_share_makes_steps_longer_and_changes_no_bit(
    field, threads, share, times
):
    cluster = {"step_seconds": 0.01, "latency_seconds": 0.0, "bytes_per_second": 1e12}
    free = field.play(field.small["averaging"], cluster=cluster)
    plan = replace(free.simulation.plan, limits=WorkerLimits(cpu_share=share, threads=threads))
    simulation = Simulation(plan, field.parts(4), SimulatedCluster(**cluster))
    result = simulation.run()
    assert (free.run().vector == result.vectors[-1]).all()
    assert simulation.now == pytest.approx(times * free.simulation.now, rel=1e-3)


def test_a_fault_that_slows_a_simulated_worker_comes_on_top_of_its_share(field):
    cluster = {"step_seconds": 0.01, "latency_seconds": 0.0, "bytes_per_second": 1e12}
    plain = field.play(field.small["averaging"], cluster=cluster)
    plan = replace(plain.simulation.plan, limits=WorkerLimits(cpu_share=0.5))
    slowed = SimulatedCluster(**cluster, faults=Faults().slow(0, factor=3.0))
    simulation = Simulation(plan, field.parts(4), slowed)
    simulation.run()
    plain.run()
    assert simulation.now > 5 * plain.simulation.now


def rows_and_config(epochs):
    rng = np.random.default_rng(0)
    data = ArrayData(rng.random((256, 500), dtype=np.float32), rng.integers(0, 10, 256))
    arguments = {"in_features": 500, "out_features": 500}
    return data, ModuleConfig(
        module="torch.nn:Linear", arguments=arguments, epochs=epochs, batch_size=128
    )


def used_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="reads processes as Linux shows them"
)
def test_a_real_worker_uses_no_more_than_its_share_to_the_same_bits(tiny):
    """A machine that is busy with other work may leave it less: `benchmarks/shares.py`."""
    data, config = rows_and_config(600.0)
    phase = Phase(config=config, strategy=averaging(every=Steps(50), codec="fp32"))
    looks, pids = [], []

    def note(event):
        if type(event).__name__ == "WorkerJoined":
            pids.append(event.pid)
        if type(event).__name__ == "RoundClosed":
            looks.append((time.monotonic(), used_seconds(pids[0])))

    plan = TrainingPlan(phases=(phase,), workers=1, limits=WorkerLimits(cpu_share=0.25))
    capped = LocalEngine().run(tiny.assignment(plan, data=data, emit=note))
    free = LocalEngine().run(tiny.assignment(replace(plan, limits=WorkerLimits()), data=data))
    assert all(np.array_equal(a, b) for a, b in zip(capped.vectors, free.vectors, strict=True))
    (began, before), (ended, after) = looks[0], looks[-1]
    assert ended - began > 2.0, "long enough to be measured"
    assert 0 < (after - before) / (ended - began) <= 1.1 * 0.25


@pytest.mark.processes
def test_a_share_that_a_workers_machine_lacks_ends_the_run_before_training(tiny):
    data, config = rows_and_config(1.0)
    phase = Phase(config=config, strategy=averaging(every=Steps(50), codec="fp32"))
    plan = TrainingPlan(
        phases=(phase,), workers=1, limits=WorkerLimits(threads=1000, cpu_share=999.0)
    )
    events = []
    with pytest.raises(NotReadyError, match="more than the processors that worker 0 may run on"):
        LocalEngine().run(tiny.assignment(plan, data=data, emit=events.append))
    assert not [e for e in events if type(e).__name__ == "RoundClosed"]


def test_every_worker_of_a_plan_is_held_to_its_share(tiny, monkeypatch):
    shares = []

    class Counted(CpuShare):
        def __init__(self, processors):
            super().__init__(processors)
            shares.append(processors)

    monkeypatch.setattr(worker_bootstrap, "CpuShare", Counted)
    plan = tiny.plan(workers=1, recipes=tiny.recipes[:1])
    plan = replace(plan, limits=WorkerLimits(cpu_share=0.75))
    with DriverSession(tiny.assignment(plan)) as session:
        part = part_of(Rows.of(*tiny.data.part(plan, 0)), plan)
        session.bootstrap().run(0, "0-0", lambda: part)
        assert session.wait(60)
    assert shares == [0.75]
