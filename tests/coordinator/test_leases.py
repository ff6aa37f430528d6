"""The four verdicts, and who is waited for."""

import pytest

from photinus.coordinator.leases import RETURN_SECONDS, Leases
from photinus.protocol.messages import Seat
from photinus.training.plan import LEASE_SECONDS


def hello(slot, attempt="a", number=1):
    note = {"attempt": attempt, "hello": number, "rows": 5, "has": 0}
    return Seat(bytes(16), slot=slot).frame("hello", note=note)


def push(slot, lease, sequence):
    return Seat(bytes(16), slot=slot, lease=lease).frame("push", sequence=sequence)


@pytest.fixture
def fence():
    fence = Leases(2)
    for seat in fence.seats.values():
        fence.grant(seat, hello(seat.slot), 0.0)
    fence.seats[0].sequence = 5
    return fence


@pytest.mark.parametrize(
    ("lease", "sequence", "verdict"),
    [(1, 5, "next"), (1, 4, "duplicate"), (1, 6, "gap"), (0, 5, "fenced"), (2, 5, "fenced")],
)
def test_a_push_counts_under_its_lease_and_once(fence, lease, sequence, verdict):
    assert fence.verdict(push(0, lease, sequence)) == verdict
    assert sum(fence.counts.values()) == (verdict != "next")


def test_a_slot_that_is_none_is_fenced(fence):
    assert fence.verdict(push(7, 1, 0)) == "fenced"


def test_a_lease_ends_after_the_last_sign_of_life(fence):
    fence.heard(push(0, 1, 5), 3.0)
    assert [s.slot for s in fence.ended(LEASE_SECONDS)] == [1]
    assert fence.members == {0}
    assert fence.ended(LEASE_SECONDS) == []
    assert fence.verdict(push(1, 1, 0)) == "fenced"


def test_a_lease_ends_soon_after_its_connection_closed(fence):
    fence.gone(0, 1, 2.0)
    fence.gone(1, 9, 2.0)  # of an older connection
    fence.gone(7, 1, 2.0)
    assert [s.slot for s in fence.ended(2.0 + RETURN_SECONDS)] == [0]


def test_a_new_lease_fences_the_one_before(fence):
    fence.vacate(fence.seats[0])
    fence.grant(fence.seats[0], hello(0, "b"), 1.0)
    assert fence.verdict(push(0, 1, 5)) == "fenced"
    assert fence.verdict(push(0, 2, 5)) == "next"


def test_no_round_waits_for_whom_its_share_is_done(fence):
    fence.close(fence.seats[0], push(0, 1, 5))
    assert fence.members == {1}
    fence.reopen()
    assert fence.members == {0, 1}


def test_a_hello_once_more_is_of_the_same_attempt(fence):
    assert fence.seats[0].is_again(hello(0, "a", 2))
    assert not fence.seats[0].is_again(hello(0, "b"))
    assert not Leases(1).seats[0].is_again(hello(0, ""))


def test_a_slot_is_starved_while_a_copy_waits_beside_another_one(fence):
    fence.vacate(fence.seats[1])
    assert not fence.starved, "nobody waits: a task may still come"
    fence.seats[0].asking = hello(0)
    assert fence.starved == {1}
    fence.seats[1].asking = hello(1)
    assert not fence.starved


def test_the_lease_of_a_process_that_has_ended_ends_at_once(fence):
    fence.lease_seconds = 60.0
    fence.died(0, "a", 1.0)
    fence.heard(push(0, 1, 5), 1.05)  # what it had sent before is no sign of life
    assert [seat.slot for seat in fence.ended(1.1)] == [0]
    assert fence.reason(fence.seats[0]) == "its process ended"
    fence.grant(fence.seats[0], hello(0, "b"), 2.0)
    assert [seat.slot for seat in fence.ended(60.0)] == [1], "the next one has a whole lease"


def test_an_attempt_that_ended_without_the_seat_ends_no_lease(fence):
    fence.died(0, "another", 1.0)
    fence.died(7, "a", 1.0)
    assert not fence.ended(1.1)


def beat(slot, lease, attempt="a"):
    return Seat(bytes(16), slot=slot, lease=lease).frame("beat", note={"attempt": attempt})


def test_a_lease_holds_while_its_grant_is_on_its_way_to_a_worker_that_lives():
    """Its worker cannot name the lease yet: it names its attempt."""
    fence = Leases(1)
    fence.grant(fence.seats[0], hello(0, "a"), 0.0)
    for second in range(1, 100):
        fence.heard(beat(0, 0), float(second))
        assert fence.ended(float(second)) == []
    assert [s.slot for s in fence.ended(99.0 + LEASE_SECONDS)] == [0]


def test_a_sign_of_life_of_another_attempt_holds_no_lease(fence):
    fence.heard(beat(0, 0, "b"), 4.0)
    assert [s.slot for s in fence.ended(LEASE_SECONDS)] == [0, 1]


def test_a_grant_whose_connection_closed_is_on_its_way_no_more(fence):
    fence.gone(0, 1, 2.0)
    fence.heard(beat(0, 0), 2.5)
    assert [s.slot for s in fence.ended(2.0 + RETURN_SECONDS)] == [0]


def test_who_asks_again_for_a_grant_that_a_closed_connection_lost_keeps_its_seat(fence):
    fence.gone(0, 1, 2.0)
    fence.heard(hello(0), 2.5)
    assert [s.slot for s in fence.ended(LEASE_SECONDS)] == [1]


def test_bytes_are_signs_of_life_of_the_lease_under_which_they_came(fence):
    fence.sent_bytes(0, 1, 4.0)
    fence.sent_bytes(1, 9, 4.0)
    assert [s.slot for s in fence.ended(LEASE_SECONDS)] == [1]
