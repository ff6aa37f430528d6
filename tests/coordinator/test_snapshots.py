"""A snapshot is whole when every worker of its round has sent its part."""

import numpy as np
import pytest

from photinus.coordinator.callbacks import Callbacks
from photinus.coordinator.early_stopping import EarlyStopping
from photinus.coordinator.leases import Leases
from photinus.coordinator.parameter_server import ParameterServer
from photinus.coordinator.snapshots import SnapshotCollector
from photinus.models.logistic import LogisticStage
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


class Made:
    """Two workers at version 7, all of whose rounds are saved."""

    def __init__(self, policy=None):
        stage = LogisticStage(features=1, classes=2, epochs=4, batch_size=1)
        plan = TrainingPlan(phases=(Phase(stage=stage, strategy=averaging()),), workers=2)
        self.saved, leases = [], Leases(2)
        for seat in leases.seats.values():
            hello = {"attempt": "a", "hello": 1, "has": 0}
            leases.grant(seat, Seat(bytes(16), slot=seat.slot).frame("hello", hello), 0.0)
        callbacks = Callbacks(save=self.saved.append, checkpoint_seconds=0)
        self.owner = ParameterServer(leases, callbacks)
        point = Message("heal", np.zeros(2), version=7, floats=FLOATS, integers=INTEGERS)
        self.owner.enter(0, policy or Rounds(), point)
        early_stopping = EarlyStopping(0.0, 0)
        self.snapshots = SnapshotCollector(plan, leases, self.owner, early_stopping, callbacks)

    def begin(self, asked=BOTH):
        return self.snapshots.begin(asked, 0.5, 1.0)

    def take(self, slot, version, value):
        self.snapshots.take(slot, version, state(value), 1.0)

    def lose(self, slot):
        self.snapshots.drop_slot(slot)
        self.snapshots.save_if_whole(1.0)

    def tell_shard(self, slot, value):
        kinds = {"vector": ("float64", (1,))}
        page = Page(7, "vector", 0, np.full(1, value), kinds)
        return self.snapshots.page(slot, page, 1.0)


def begun(policy=None):
    made = Made(policy)
    assert made.begin()
    return made


def test_a_cut_waits_for_all_its_workers():
    made = begun()
    made.take(1, 7, 1.0)
    assert not made.saved
    made.take(0, 7, 2.0)
    (whole,) = made.saved
    assert whole is made.snapshots.last is made.snapshots.saved
    assert list(whole.inner) == [0, 1]
    assert whole.point.vector.tolist() == [0.0, 0.0]
    made.snapshots.save_if_whole(2.0)
    assert len(made.saved) == 1, "it is saved once"


def test_where_the_owner_keeps_nothing_the_lowest_slot_says_what_was_agreed():
    made = begun(Meetings())
    made.take(1, 7, 1.0)
    made.take(0, 7, 2.0)
    assert made.saved[0].point.vector.tolist() == [2.0, 2.0]


def test_a_state_of_another_version_or_worker_does_not_count():
    made = begun()
    made.take(0, 6, 1.0)
    made.take(9, 7, 1.0)
    made.lose(1)
    assert not made.saved


def test_a_lost_worker_is_not_waited_for():
    made = begun()
    made.take(0, 7, 1.0)
    made.lose(1)
    assert list(made.saved[0].inner) == [0]


@pytest.mark.parametrize("policy", [Meetings(), Rounds()], ids=["meetings", "rounds"])
def test_when_all_are_lost_nobody_can_say_what_the_parameters_are(policy):
    made = begun(policy)
    made.snapshots.drop_slot(0)
    made.lose(1)
    assert bool(made.saved) is policy.keeps


def test_the_cut_of_a_table_waits_for_the_shards_of_all():
    made = begun(Meetings(rows=1, shards=2))
    made.tell_shard(0, 1.0)
    made.take(1, 7, 1.0)
    made.take(0, 7, 2.0)
    assert not made.saved
    assert not made.begin(), "it will be whole"
    made.tell_shard(1, 0.0)
    (whole,) = made.saved
    assert [whole.shards[slot]["vector"].tolist() for slot in (0, 1)] == [[1.0], [0.0]]
    assert whole.point.vector.tolist() == [0.0, 0.0]


def test_a_lost_shard_is_loaded_from_the_last_whole_cut_of_its_phase():
    made = begun(Meetings(rows=1, shards=2))
    assert made.snapshots.restorable_version == 0
    for slot in (0, 1):
        made.take(slot, 7, 1.0)
        made.tell_shard(slot, 1.0)
    assert made.snapshots.restorable_version == 7
    made.owner.phase = 1
    assert made.snapshots.restorable_version == 0


def test_a_worker_goes_on_loading_from_the_cut_that_it_was_granted():
    made = begun(Meetings(rows=1, shards=2))
    for version, value in ((7, 1.0), (8, 2.0)):
        made.owner.version = version
        if version == 8:
            made.begin()
            assert made.snapshots.load_shard(0)["vector"].tolist() == [1.0]
        for slot in (0, 1):
            made.take(slot, version, 1.0)
            kinds = {"vector": ("float64", (1,))}
            if (slot, version) == (0, 8):  # it was lost when its shard had come
                made.snapshots._shards.take(0, Page(8, "vector", 0, np.full(1, value), kinds))
            else:
                made.snapshots.page(slot, Page(version, "vector", 0, np.full(1, value), kinds), 1.0)
    assert made.snapshots.restorable_version == 8
    assert made.snapshots.page(0, Page(7, "vector", 0), 1.0).numbers.tolist() == [1.0]
    assert made.snapshots.load_shard(0)["vector"].tolist() == [2.0]
    made.snapshots.page(0, Page(9, "vector", 0, np.zeros(1), kinds), 1.0)
    assert not made.snapshots._loading_shards


def test_a_cut_that_is_not_whole_gives_way_to_the_next():
    made = begun()
    made.take(0, 7, 1.0)
    made.owner.version = 8
    assert made.begin(frozenset({1}))
    made.take(1, 8, 3.0)
    assert list(made.saved[0].inner) == [1]
    made.owner.version = 9
    assert made.begin()
    made.snapshots.drop()
    made.take(0, 9, 1.0)
    made.take(1, 9, 1.0)
    assert len(made.saved) == 1
    assert made.snapshots.saved is None
