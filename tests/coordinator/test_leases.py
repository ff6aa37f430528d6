"""The four verdicts, and who is waited for."""

import pytest

from photinus.coordinator.leases import RETURN_SECONDS, Leases
from photinus.protocol.messages import Seat
from photinus.training.plan import LEASE_SECONDS


def hello(slot, attempt="a", number=1):
    note = {"attempt": attempt, "hello": number, "rows": 5, "has": 0}
    return Seat(bytes(16), slot=slot).frame("hello", note)


def push(slot, lease, sequence):
    return Seat(bytes(16), slot=slot, lease=lease).frame("push", sequence=sequence)


@pytest.fixture
def leases():
    leases = Leases(2)
    for seat in leases:
        leases.grant(seat, hello(seat.slot), 0.0)
    leases[0].sequence = 5
    return leases


@pytest.mark.parametrize(
    ("lease", "sequence", "verdict"),
    [(1, 5, "next"), (1, 4, "duplicate"), (1, 6, "gap"), (0, 5, "fenced"), (2, 5, "fenced")],
)
def test_a_push_counts_under_its_lease_and_once(leases, lease, sequence, verdict):
    assert leases.verdict(push(0, lease, sequence)) == verdict
    assert sum(leases.counts.values()) == (verdict != "next")


def test_a_slot_that_is_none_is_fenced(leases):
    assert leases.verdict(push(7, 1, 0)) == "fenced"


def test_a_lease_ends_after_the_last_sign_of_life(leases):
    leases.heard(push(0, 1, 5), 3.0)
    assert [s.slot for s in leases.expire(LEASE_SECONDS)] == [1]
    assert leases.members == {0}
    assert leases.expire(LEASE_SECONDS) == []
    assert leases.verdict(push(1, 1, 0)) == "fenced"


def test_a_lease_ends_soon_after_its_connection_closed(leases):
    leases.gone(0, 1, 2.0)
    leases.gone(1, 9, 2.0)  # of an older connection
    leases.gone(7, 1, 2.0)
    assert [s.slot for s in leases.expire(2.0 + RETURN_SECONDS)] == [0]


def test_a_new_lease_fences_the_one_before(leases):
    leases.vacate(leases[0])
    leases.grant(leases[0], hello(0, "b"), 1.0)
    assert leases.verdict(push(0, 1, 5)) == "fenced"
    assert leases.verdict(push(0, 2, 5)) == "next"


def test_no_round_waits_for_whom_its_share_is_done(leases):
    leases.close(leases[0], push(0, 1, 5))
    assert leases.members == {1}
    leases.reopen()
    assert leases.members == {0, 1}


def test_a_hello_once_more_is_of_the_same_attempt(leases):
    assert leases[0].is_same_attempt(hello(0, "a", 2))
    assert not leases[0].is_same_attempt(hello(0, "b"))
    assert not Leases(1)[0].is_same_attempt(hello(0, ""))


def test_a_slot_is_starved_while_a_copy_waits_beside_another_one(leases):
    leases.vacate(leases[1])
    assert not leases.starved, "nobody waits: a task may still come"
    leases[0].pending_hello = hello(0)
    assert leases.starved == {1}
    leases[1].pending_hello = hello(1)
    assert not leases.starved


def test_the_lease_of_a_process_that_has_ended_ends_at_once(leases):
    leases.lease_seconds = 60.0
    leases.died(0, "a", 1.0)
    leases.heard(push(0, 1, 5), 1.05)  # what it had sent before is no sign of life
    assert [seat.slot for seat in leases.expire(1.1)] == [0]
    assert leases.reason(leases[0]) == "its process ended"
    leases.grant(leases[0], hello(0, "b"), 2.0)
    assert [seat.slot for seat in leases.expire(60.0)] == [1], "the next one has a whole lease"


def test_an_attempt_that_ended_without_the_seat_ends_no_lease(leases):
    leases.died(0, "another", 1.0)
    leases.died(7, "a", 1.0)
    assert not leases.expire(1.1)


def beat(slot, lease, attempt="a"):
    return Seat(bytes(16), slot=slot, lease=lease).frame("beat", {"attempt": attempt})


def test_a_lease_holds_while_its_grant_is_on_its_way_to_a_worker_that_lives():
    """Its worker cannot name the lease yet: it names its attempt."""
    leases = Leases(1)
    leases.grant(leases[0], hello(0, "a"), 0.0)
    for second in range(1, 100):
        leases.heard(beat(0, 0), float(second))
        assert leases.expire(float(second)) == []
    assert [s.slot for s in leases.expire(99.0 + LEASE_SECONDS)] == [0]


def test_a_sign_of_life_of_another_attempt_holds_no_lease(leases):
    leases.heard(beat(0, 0, "b"), 4.0)
    assert [s.slot for s in leases.expire(LEASE_SECONDS)] == [0, 1]


def test_a_grant_whose_connection_closed_is_on_its_way_no_more(leases):
    leases.gone(0, 1, 2.0)
    leases.heard(beat(0, 0), 2.5)
    assert [s.slot for s in leases.expire(2.0 + RETURN_SECONDS)] == [0]


def test_who_asks_again_for_a_grant_that_a_closed_connection_lost_keeps_its_seat(leases):
    leases.gone(0, 1, 2.0)
    leases.heard(hello(0), 2.5)
    assert [s.slot for s in leases.expire(LEASE_SECONDS)] == [1]


def test_bytes_are_signs_of_life_of_the_lease_under_which_they_came(leases):
    leases.sent_bytes(0, 1, 4.0)
    leases.sent_bytes(1, 9, 4.0)
    assert [s.slot for s in leases.expire(LEASE_SECONDS)] == [1]
