"""When the next worker restores a lost shard, and when the run must go back."""

import pytest

from photinus.coordinator.leases import Leases
from photinus.coordinator.lost_shards import LostShards
from photinus.coordinator.reachability import FIRST_SECONDS
from photinus.transport.frames import Frame


@pytest.fixture
def leases():
    leases = Leases(3)
    for seat in leases:
        seat.is_live, seat.lease = True, 1
    return leases


def agreed(shards, version, guards=(True, True, True), lease=1):
    """All are ready in the round that leads to a version."""
    for slot, is_up_to_date in enumerate(guards):
        header = {"version": version - 1, "guards": is_up_to_date}
        shards.ready(Frame("ready", slot=slot, lease=lease, header=header))


def lose(leases, *slots):
    for slot in slots:
        leases[slot].is_live = False
    return [leases[slot] for slot in slots]


def test_one_lost_shard_is_restored_where_the_next_worker_is_up_to_date(leases):
    shards = LostShards(leases)
    agreed(shards, 4, guards=(True, False, True))
    assert shards.can_restore(lose(leases, 2), 4), "worker 0 keeps it"
    assert shards.lost_seats({0, 1, 2}) == [leases[2]]
    leases[2].is_live = True
    assert not shards.can_restore(lose(leases, 0), 4), "worker 1 was not up to date"


def test_a_round_that_is_not_agreed_on_yet_changes_nothing(leases):
    shards = LostShards(leases)
    agreed(shards, 4)
    agreed(shards, 5, guards=(False, False, False))
    [lost] = lose(leases, 1)
    assert shards.can_restore([lost], 4)
    assert not shards.can_restore([lost], 5)


def test_two_that_are_lost_at_once_are_not_restored(leases):
    shards = LostShards(leases)
    agreed(shards, 4)
    assert not shards.can_restore(lose(leases, 0, 1), 4)


def test_a_backup_is_lost_with_the_lease_that_kept_it(leases):
    shards = LostShards(leases)
    agreed(shards, 4)
    leases[2].lease = 2
    assert not shards.can_restore(lose(leases, 1), 4)


def test_while_one_is_restored_no_other_may_be_lost(leases):
    shards = LostShards(leases)
    agreed(shards, 4)
    leases[0].pending_push = Frame("fetch", run=bytes(16))
    assert not shards.can_restore(lose(leases, 1), 4)
    leases[1].is_live = True
    assert shards.can_restore(lose(leases, 0), 4), "but the same once more"


def test_from_the_loss_of_one_until_its_successor_is_up_to_date_no_other_may_be_lost(leases):
    shards = LostShards(leases)
    agreed(shards, 4)
    [first] = lose(leases, 0)
    shards.restore(first)
    first.is_live, first.lease = True, 2  # it loads its shard, and has asked for nothing yet
    assert not shards.can_restore(lose(leases, 1), 4)
    leases[1].is_live = True
    assert shards.can_restore(lose(leases, 0), 4), "but the same once more"
    first.is_live = True
    shards.ready(Frame("ready", slot=0, lease=2, header={"version": 4}))
    assert shards.can_restore(lose(leases, 1), 4)


def test_after_all_went_back_any_one_may_be_lost(leases):
    shards = LostShards(leases)
    shards.restore(leases[0])
    shards.forget()
    agreed(shards, 4)
    assert shards.can_restore(lose(leases, 1), 4)


@pytest.mark.parametrize("what", ["excluded", "closed"])
def test_whom_others_cannot_reach_and_who_is_lost_at_the_end_is_not_restored(what, leases):
    shards = LostShards(leases)
    agreed(shards, 4)
    if what == "excluded":
        leases[1].exclusions = 1
    else:
        leases[0].close_frame = Frame("close", run=bytes(16))
    assert not shards.can_restore(lose(leases, 1), 4)


def test_a_restoring_of_which_nothing_comes_for_long_is_stuck(leases):
    shards = LostShards(leases)
    assert shards.slots_to_ask(1.0) == []
    leases[1].pending_push = Frame("fetch", run=bytes(16), slot=1, lease=2)
    assert shards.slots_to_ask(2.0) == [1]
    assert shards.slots_to_ask(2.5) == [], "once a second"
    assert not shards.is_stuck(FIRST_SECONDS)
    assert shards.is_stuck(1.0 + FIRST_SECONDS)
    missing = Frame("missing", slot=1, lease=2, header={"wholes": [2], "start": 5})
    shards.missing(missing, 20.0)
    shards.missing(missing, 29.0)
    shards.missing(Frame("missing", slot=2, lease=1, header={"wholes": [1]}), 30.0)
    shards.missing(missing, 31.0)
    assert not shards.is_stuck(1.0 + FIRST_SECONDS), "a page has come"
    assert shards.is_stuck(20.0 + FIRST_SECONDS)


def test_two_that_report_the_same_in_turn_are_stuck(leases):
    shards = LostShards(leases)
    for slot in (0, 1):
        leases[slot].pending_push = Frame("fetch", run=bytes(16), slot=slot, lease=2)
    for second in range(1, 40):
        slot = second % 2
        missing = Frame("missing", slot=slot, lease=2, header={"wholes": [1 - slot], "start": 5})
        shards.missing(missing, float(second))
    assert shards.is_stuck(2.0 + FIRST_SECONDS)
