"""A cut is whole when every worker of its round has told its part."""

import dataclasses

import numpy as np

from photinus.strategies.base import Message
from photinus.strategies.peers import Meetings
from photinus.strategies.rounds import Rounds
from photinus.training.asks import Snapshot
from photinus.training.snapshots import Cut, Cuts

HERE = Cut(
    phase=1,
    version=7,
    applied=64,
    budget=100,
    point=Message("heal", np.zeros(2), version=7),
    positions={0: 32, 1: 32},
    rows={0: 50, 1: 50},
)


def state(value):
    return Snapshot(
        32, {"m": np.full(2, value)}, np.full(2, value), np.zeros(0), np.zeros(0, np.int64)
    )


def begun():
    cuts = Cuts(None)
    cuts.begin(HERE, frozenset({0, 1}))
    return cuts


def test_a_cut_waits_for_all_its_workers():
    cuts = begun()
    cuts.take(1, 7, state(1.0))
    assert cuts.whole(Rounds()) is None
    cuts.take(0, 7, state(2.0))
    whole = cuts.whole(Rounds())
    assert whole is cuts.last is cuts.at(1, 7)
    assert list(whole.inner) == [0, 1]
    assert whole.point is HERE.point
    assert cuts.whole(Rounds()) is None, "it is told once"


def test_where_the_owner_keeps_nothing_the_lowest_slot_says_what_was_agreed():
    cuts = begun()
    cuts.take(1, 7, state(1.0))
    cuts.take(0, 7, state(2.0))
    assert cuts.whole(Meetings()).point.vector.tolist() == [2.0, 2.0]


def test_a_state_of_another_version_or_worker_does_not_count():
    cuts = begun()
    cuts.take(0, 6, state(1.0))
    cuts.take(9, 7, state(1.0))
    cuts.without(1)
    assert cuts.whole(Rounds()) is None


def test_a_lost_worker_is_not_waited_for():
    cuts = begun()
    cuts.take(0, 7, state(1.0))
    cuts.without(1)
    assert list(cuts.whole(Rounds()).inner) == [0]


def test_when_all_are_lost_nobody_can_say_what_the_parameters_are():
    for policy in (Meetings(), Rounds()):
        cuts = begun()
        cuts.without(0)
        cuts.without(1)
        assert (cuts.whole(policy) is not None) is policy.keeps


def test_the_cut_of_a_table_waits_for_the_shards_of_all():
    policy = Meetings(rows=1, shards=2)
    cuts, shards = begun(), {0: {"vector": np.ones(2)}}
    cuts.take(1, 7, state(1.0))
    cuts.take(0, 7, state(2.0))
    assert cuts.whole(policy, shards) is None
    shards[1] = {"vector": np.zeros(2)}
    assert cuts.version == 7
    assert cuts.whole(policy, shards).shards is shards
    assert cuts.last.point is HERE.point
    assert cuts.version == -1


def test_a_cut_that_is_not_whole_gives_way_to_the_next():
    cuts = begun()
    cuts.take(0, 7, state(1.0))
    cuts.begin(dataclasses.replace(HERE, version=8), frozenset({1}))
    cuts.take(1, 8, state(3.0))
    assert list(cuts.whole(Rounds()).inner) == [1]
    cuts.begin(HERE, frozenset())
    cuts.drop()
    cuts.take(0, 7, state(1.0))
    assert cuts.whole(Rounds()) is None
    assert cuts.at(1, 7) is None


def test_names_sort_by_the_order_of_saving():
    later = dataclasses.replace(HERE, version=10)
    assert HERE.name < later.name < dataclasses.replace(HERE, phase=2, version=0).name


def test_a_phase_starts_where_nobody_has_used_a_row_yet():
    """The rest of a stage continues in the rows: as many workers as before must hold them."""
    rest = dataclasses.replace(HERE, version=0)
    assert not rest.is_phase_start
    assert not HERE.is_phase_start
    assert dataclasses.replace(rest, positions={0: 0, 1: 0}).is_phase_start
