"""Who is left out of a meeting that stands still: by what its members say they lack."""

import itertools

import pytest

from photinus.coordinator.reachability import LATE_SECONDS, MissingPieces, Reachability, late_after

PATIENCE = 6.0


def stalled_meeting(slots, cut, until=PATIENCE + 1.0):
    """A meeting in which all tell the truth once a second; `cut` are pairs (x, y): y ↛ x."""
    reachability = Reachability()
    reachability.open(slots, 0.0)
    parts = {x: frozenset(y for y in slots if (x, y) in cut) for x in slots}
    stuck = {x for x in slots if parts[x]}
    now = 0.0
    while now < until:
        now += 1.0
        for x in slots:
            wholes = frozenset(y for y in slots if y != x and ((x, y) in cut or y in stuck))
            near = frozenset(slots) - parts[x] - {x}
            reachability.take(x, MissingPieces(parts[x], wholes, near), now)
    return reachability, now


def both_ways(*pairs):
    return {p for x, y in pairs for p in ((x, y), (y, x))}


@pytest.mark.parametrize(
    ("cut", "slots"),
    [
        (both_ways((1, 3)), {3}),
        ({(1, 3)}, {3}),
        ({(3, 1)}, {1}),
        (both_ways((0, 1), (0, 2), (0, 3)), {0}),
        (both_ways((0, 1), (2, 3)), {3}),
        (both_ways((0, 1), (0, 2), (1, 2)), {2}),
    ],
)
def test_who_is_missed_by_most_is_left_out_and_of_equals_the_highest_slot(cut, slots):
    reachability, now = stalled_meeting((0, 1, 2, 3), cut)
    unreachable = reachability.unreached(now, PATIENCE, have_met=False)
    assert unreachable.slots == slots
    assert not unreachable.is_split
    (slot,) = slots
    lowest_peer = min(x for x, y in cut if y == slot)
    assert unreachable.text.startswith(
        f"workers {lowest_peer} and {slot} could not reach each other for 6 s"
    )
    assert "open the workers' ports" in unreachable.text


def test_nobody_is_left_out_where_no_two_reach_each_other():
    reachability, now = stalled_meeting((0, 2, 5), both_ways(*itertools.combinations((0, 2, 5), 2)))
    unreachable = reachability.unreached(now, PATIENCE, have_met=False)
    assert (unreachable.slots, unreachable.is_split) == (frozenset(), True)
    assert unreachable.text.startswith("no two of the workers 0, 2, 5 can reach each other")


def test_the_lowest_slot_continues_where_no_two_reach_each_other_any_more():
    reachability, now = stalled_meeting((0, 2, 5), both_ways(*itertools.combinations((0, 2, 5), 2)))
    unreachable = reachability.unreached(now, PATIENCE, have_met=True)
    assert (unreachable.slots, unreachable.is_split) == (frozenset({2, 5}), False)
    assert unreachable.text.startswith(
        "no two of the workers 0, 2, 5 can reach each other any more"
    )
    reachability, now = stalled_meeting((1, 4), both_ways((1, 4)))
    unreachable = reachability.unreached(now, PATIENCE, have_met=True)
    assert (unreachable.slots, unreachable.is_split) == (frozenset({4}), False)
    assert unreachable.text.startswith("workers 1 and 4 could not reach each other for 6 s")


def test_nobody_is_left_out_before_the_patience_is_over():
    reachability, now = stalled_meeting((0, 1, 2), both_ways((0, 1)), until=PATIENCE - 1.0)
    assert reachability.unreached(now, PATIENCE, have_met=False) is None
    assert reachability.unreached(now + 2.0, PATIENCE, have_met=False).slots == {1}


def test_whoever_waits_only_for_those_that_are_cut_off_misses_nobody():
    """Worker 2 has neither merged shard of 0 and 1, who could merge none."""
    reachability, now = stalled_meeting((0, 1, 2), both_ways((0, 1)))
    assert reachability.unreached(now, PATIENCE, have_met=False).slots == {1}
    assert all(2 not in pair for pair in reachability._pairs(now - PATIENCE))


def test_a_link_over_which_anything_comes_is_not_cut():
    reachability, lossy = (
        Reachability(),
        MissingPieces(frozenset({1}), frozenset({1}), frozenset({1})),
    )
    reachability.open((0, 1), 0.0)
    for now in range(1, 30):
        reachability.take(0, lossy, float(now))
        reachability.take(1, MissingPieces(), float(now))
    assert reachability.unreached(29.0, PATIENCE, have_met=False) is None
    for now in range(30, 40):
        reachability.take(0, lossy._replace(near=frozenset()), float(now))
    assert reachability.unreached(39.0, PATIENCE, have_met=False).is_split


def test_who_says_nothing_at_all_is_late_and_nobody_is_told_of_a_cut():
    reachability = Reachability()
    reachability.open((0, 1, 2), 0.0)
    for now in range(1, 14):
        reachability.take(0, MissingPieces(frozenset({2}), frozenset({1, 2})), float(now))
        reachability.take(1, MissingPieces(frozenset({2}), frozenset({0, 2})), float(now))
    assert reachability.unreached(2 * PATIENCE, PATIENCE, have_met=False) is None
    unreachable = reachability.unreached(2 * PATIENCE + 1.0, PATIENCE, have_met=False)
    assert (unreachable.slots, unreachable.text) == ({2}, "")


def test_all_silent_is_the_coordinators_own_trouble():
    reachability = Reachability()
    reachability.open((0, 1), 0.0)
    assert reachability.unreached(1e6, PATIENCE, have_met=False) is None


def test_only_who_lacks_something_is_asked_and_in_another_order_each_time():
    reachability = Reachability()
    reachability.open(tuple(range(8)), 0.0)
    assert reachability.slots_to_ask(0.1, PATIENCE) == []
    orders = [tuple(reachability.slots_to_ask(float(n), PATIENCE)) for n in range(1, 9)]
    assert {frozenset(order) for order in orders} == {frozenset(range(8))}
    assert len({order[-1] for order in orders}) > 2
    reachability.take(3, MissingPieces(), 9.0)
    assert sorted(reachability.slots_to_ask(10.0, PATIENCE)) == [0, 1, 2, 4, 5, 6, 7]


def test_patience_is_three_median_rounds_and_at_least_five_seconds():
    assert late_after([9.0, 9.0]) is None
    assert late_after([0.1, 0.1, 9.0]) == LATE_SECONDS
    assert late_after([4.0, 2.0, 9.0]) == 12.0
