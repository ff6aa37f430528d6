"""Frames that take longer than a lease: nobody loses a seat for them, and none travels twice."""

import functools
from collections import Counter

import numpy as np
import pytest

from photinus.core.clock import Steps
from photinus.core.events import RoundClosed, WorkerJoined, WorkerLost
from photinus.engine import driver_session
from photinus.engine.base import ArrayData, RunSpec
from photinus.engine.local.engine import LocalEngine
from photinus.engine.simulation import simulator
from photinus.engine.simulation.simulator import Simulation
from photinus.models.logistic import LogisticConfig
from photinus.strategies.recipes import all_reduce, averaging, downpour, gossip, publish
from photinus.testing import Faults
from photinus.training.plan import LEASE_SECONDS, Phase, TrainingPlan
from photinus.transport.rate_limit import RateLimit
from photinus.transport.tcp_listener import TcpListener
from photinus.transport.wire import Limits

NUMBERS = 21  # of a softmax regression of 6 features and 3 classes, each of 8 bytes
SECONDS = 60.0
"""So long a model takes on its way: twelve leases."""
WAYS = {
    "averaging": averaging(every=Steps(6), codec="fp32"),
    "a shard each": averaging(every=Steps(6), owners=2, codec="fp32"),
    "all_reduce": all_reduce(codec="fp32"),
    "all_reduce, a shard each": all_reduce(owners=2, codec="fp32"),
    "downpour": downpour(every=Steps(6), codec="fp32"),
    "publish": publish(every=Steps(6), exact_every=2, codec="fp32"),
    "gossip": gossip(every=Steps(6), exact_every=2, codec="fp32"),
}


def slow(**fields):
    """A cluster in which a frame with the model in it is on its way for a minute."""
    return {"bytes_per_second": 8 * NUMBERS / SECONDS, **fields}


@pytest.fixture(autouse=True)
def _heads_weigh_nothing(monkeypatch):
    """So small a model weighs less than a frame's head; a large one does not."""
    monkeypatch.setattr(simulator, "HEAD_BYTES", 0.001)


@pytest.mark.parametrize("name", WAYS)
def test_a_model_that_takes_minutes_to_travel_costs_no_lease(field, name):
    played = field.play(WAYS[name], workers=2, cluster=slow(), epochs=0.6).run(until=1e6)
    assert [e.slot for e in played.tape.of("WorkerLost")] == []
    assert [e.lease for e in played.tape.of("WorkerJoined")] == [1, 1]
    assert len(played.tape.of("RoundClosed")) >= 2
    assert played.tape.warnings() == []
    played.tape.assert_exact()


@pytest.mark.parametrize("name", ["averaging", "a shard each"])
def test_nothing_that_is_on_its_way_is_sent_twice(field, name):
    """As many bytes of parameters as where they take no time."""

    def sent(cluster, monkeypatch):
        kinds, weigh = Counter(), Simulation._weigh

        def weighing(self, frame):
            kinds[frame.kind] += frame.size_bytes
            return weigh(self, frame)

        monkeypatch.setattr(Simulation, "_weigh", weighing)
        field.play(WAYS[name], workers=2, cluster=cluster, epochs=0.6).run(until=1e6)
        monkeypatch.undo()
        return {kind: size for kind, size in kinds.items() if size and kind != "meet"}

    with pytest.MonkeyPatch.context() as patch:
        assert sent(slow(), patch) == sent({}, patch)


def test_a_frame_that_is_lost_on_a_slow_line_is_said_again_once_it_is_due(field):
    cluster = slow(faults=Faults().lose(0.2))
    played = field.play(WAYS["averaging"], workers=2, cluster=cluster, epochs=0.6).run(until=1e6)
    assert played.result is not None
    assert [e.slot for e in played.tape.of("WorkerLost")] == []
    sent = played.simulation.bytes / (8 * NUMBERS)
    assert sent < 40, "two grants, and ten rounds of a push and an answer each, some of them lost"


@pytest.mark.parametrize("name", ["averaging", "downpour"])
def test_a_worker_that_freezes_while_its_grant_is_on_its_way_loses_its_lease(field, name):
    played = field.play(WAYS[name], workers=2, cluster=slow(), epochs=0.6)
    played.simulation.at(10.0, played.simulation.freeze, 1, 1000.0)
    played.simulation.run(until=10.0 + LEASE_SECONDS + 0.5)
    assert [e.slot for e in played.tape.of("WorkerLost")] == [1]


def test_a_joiner_is_seated_while_a_round_is_on_its_way(field):
    """Its grant, and where nobody else holds the parameters a survivor's state, take minutes."""
    for name in ("averaging", "a shard each"):
        played = field.play(WAYS[name], workers=2, cluster=slow(), epochs=2)
        played.simulation.at(300.0, played.simulation.kill, 1, 5.0)
        played.run(until=1e6)
        assert [e.lease for e in played.tape.of("WorkerLost")] == [1]
        assert [e.lease for e in played.tape.of("WorkerJoined") if e.slot == 1] == [1, 2]
        played.tape.assert_exact()


def paced(bytes_per_second):
    """A listener that sends to all its workers together at a rate."""
    return functools.partial(TcpListener, limits=Limits(rate_limit=RateLimit(bytes_per_second)))


@pytest.mark.processes
def test_workers_whose_grants_take_longer_than_a_lease_keep_it(monkeypatch):
    """480 kB for each of two workers at 250 kB a second, and a lease of two seconds."""
    monkeypatch.setattr(driver_session, "TcpListener", paced(250e3))
    events, chance = [], np.random.default_rng(0)
    config = LogisticConfig(features=12_000, classes=10, epochs=1, batch_size=8)
    phase = Phase(config=config, strategy=averaging(every=Steps(1), codec="bf16"))
    plan = TrainingPlan(phases=(phase,), workers=2, lease_seconds=2.0)
    data = ArrayData(chance.random((16, 12_000), dtype=np.float32), chance.integers(0, 10, 16))
    run = bytes(range(16))
    LocalEngine().run(RunSpec(plan=plan, data=data, run=run, emit=events.append))
    of = {kind: [e for e in events if isinstance(e, kind)] for kind in (WorkerLost, WorkerJoined)}
    assert of[WorkerLost] == []
    assert [e.lease for e in of[WorkerJoined]] == [1, 1]
    assert [e for e in events if isinstance(e, RoundClosed)]
