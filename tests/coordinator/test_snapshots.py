"""A snapshot is whole when every worker of its round has sent its part."""

import numpy as np
import pytest

from photinus.coordinator.callbacks import Callbacks
from photinus.coordinator.early_stopping import EarlyStopping
from photinus.coordinator.leases import Leases
from photinus.coordinator.parameter_server import ParameterServer
from photinus.coordinator.snapshots import SnapshotCollector
from photinus.models.logistic import LogisticConfig
from photinus.protocol.messages import Seat
from photinus.strategies.base import Message
from photinus.strategies.peers import Meetings
from photinus.strategies.recipes import averaging
from photinus.strategies.rounds import Rounds
from photinus.training.plan import Phase, TrainingPlan
from photinus.training.requests import Page, WorkerSnapshot

BOTH = frozenset({0, 1})
FLOATS, INTEGERS = np.zeros(0, np.float32), np.zeros(0, np.int64)


def state(value):
    return WorkerSnapshot(32, {"m": np.full(2, value)}, np.full(2, value), FLOATS, INTEGERS)


class Harness:
    """Two workers at version 7, all of whose rounds are saved."""

    def __init__(self, policy=None):
        config = LogisticConfig(features=1, classes=2, epochs=4, batch_size=1)
        plan = TrainingPlan(phases=(Phase(config=config, strategy=averaging()),), workers=2)
        self.saved, leases = [], Leases(2)
        for seat in leases:
            hello = {"attempt": "a", "hello": 1, "has": 0}
            leases.grant(seat, Seat(bytes(16), slot=seat.slot).frame("hello", hello), 0.0)
        callbacks = Callbacks(save=self.saved.append, checkpoint_seconds=0)
        self.owner = ParameterServer(leases, callbacks)
        point = Message("heal", np.zeros(2), version=7, floats=FLOATS, integers=INTEGERS)
        self.owner.enter(0, policy or Rounds(), point)
        early_stopping = EarlyStopping(0.0, 0)
        self.snapshots = SnapshotCollector(plan, leases, self.owner, early_stopping, callbacks)

    def begin(self, slots=BOTH):
        return self.snapshots.begin(slots, 0.5, 1.0)

    def take(self, slot, version, value):
        self.snapshots.take(slot, version, state(value), 1.0)

    def lose(self, slot):
        self.snapshots.drop_slot(slot)
        self.snapshots.save_if_whole(1.0)

    def send_shard(self, slot, value):
        kinds = {"vector": ("float64", (1,))}
        page = Page(7, "vector", 0, np.full(1, value), kinds)
        return self.snapshots.page(slot, page, 1.0)


def with_begun_snapshot(policy=None):
    harness = Harness(policy)
    assert harness.begin()
    return harness


def test_a_cut_waits_for_all_its_workers():
    harness = with_begun_snapshot()
    harness.take(1, 7, 1.0)
    assert not harness.saved
    harness.take(0, 7, 2.0)
    (snapshot,) = harness.saved
    assert snapshot is harness.snapshots.last is harness.snapshots.saved
    assert list(snapshot.inner) == [0, 1]
    assert snapshot.point.vector.tolist() == [0.0, 0.0]
    harness.snapshots.save_if_whole(2.0)
    assert len(harness.saved) == 1, "it is saved once"


def test_where_the_owner_keeps_nothing_the_lowest_slot_says_what_was_agreed():
    harness = with_begun_snapshot(Meetings())
    harness.take(1, 7, 1.0)
    harness.take(0, 7, 2.0)
    assert harness.saved[0].point.vector.tolist() == [2.0, 2.0]


def test_a_state_of_another_version_or_worker_does_not_count():
    harness = with_begun_snapshot()
    harness.take(0, 6, 1.0)
    harness.take(9, 7, 1.0)
    harness.lose(1)
    assert not harness.saved


def test_a_lost_worker_is_not_waited_for():
    harness = with_begun_snapshot()
    harness.take(0, 7, 1.0)
    harness.lose(1)
    assert list(harness.saved[0].inner) == [0]


@pytest.mark.parametrize("policy", [Meetings(), Rounds()], ids=["meetings", "rounds"])
def test_when_all_are_lost_nobody_can_say_what_the_parameters_are(policy):
    harness = with_begun_snapshot(policy)
    harness.snapshots.drop_slot(0)
    harness.lose(1)
    assert bool(harness.saved) is policy.holds_parameters


def test_the_cut_of_a_table_waits_for_the_shards_of_all():
    harness = with_begun_snapshot(Meetings(rows=1, shards=2))
    harness.send_shard(0, 1.0)
    harness.take(1, 7, 1.0)
    harness.take(0, 7, 2.0)
    assert not harness.saved
    assert not harness.begin(), "it will be whole"
    harness.send_shard(1, 0.0)
    (snapshot,) = harness.saved
    assert [snapshot.shards[slot]["vector"].tolist() for slot in (0, 1)] == [[1.0], [0.0]]
    assert snapshot.point.vector.tolist() == [0.0, 0.0]


def test_a_lost_shard_is_loaded_from_the_last_whole_cut_of_its_phase():
    harness = with_begun_snapshot(Meetings(rows=1, shards=2))
    assert harness.snapshots.restorable_version == 0
    for slot in (0, 1):
        harness.take(slot, 7, 1.0)
        harness.send_shard(slot, 1.0)
    assert harness.snapshots.restorable_version == 7
    harness.owner.phase = 1
    assert harness.snapshots.restorable_version == 0


def test_a_worker_continues_loading_from_the_cut_that_it_was_granted():
    harness = with_begun_snapshot(Meetings(rows=1, shards=2))
    for version, value in ((7, 1.0), (8, 2.0)):
        harness.owner.version = version
        if version == 8:
            harness.begin()
            assert harness.snapshots.load_shard(0)["vector"].tolist() == [1.0]
        for slot in (0, 1):
            harness.take(slot, version, 1.0)
            kinds = {"vector": ("float64", (1,))}
            if (slot, version) == (0, 8):  # it was lost when its shard had come
                harness.snapshots._shards.take(0, Page(8, "vector", 0, np.full(1, value), kinds))
            else:
                harness.snapshots.page(
                    slot, Page(version, "vector", 0, np.full(1, value), kinds), 1.0
                )
    assert harness.snapshots.restorable_version == 8
    assert harness.snapshots.page(0, Page(7, "vector", 0), 1.0).numbers.tolist() == [1.0]
    assert harness.snapshots.load_shard(0)["vector"].tolist() == [2.0]
    harness.snapshots.page(0, Page(9, "vector", 0, np.zeros(1), kinds), 1.0)
    assert not harness.snapshots._loading_shards


def test_a_cut_that_is_not_whole_gives_way_to_the_next():
    harness = with_begun_snapshot()
    harness.take(0, 7, 1.0)
    harness.owner.version = 8
    assert harness.begin(frozenset({1}))
    harness.take(1, 8, 3.0)
    assert list(harness.saved[0].inner) == [1]
    harness.owner.version = 9
    assert harness.begin()
    harness.snapshots.drop()
    harness.take(0, 9, 1.0)
    harness.take(1, 9, 1.0)
    assert len(harness.saved) == 1
    assert harness.snapshots.saved is None
