"""Who is left out of a meeting that stands still: by what its members say they lack."""

import itertools

import pytest

from photinus.coordinator.reachability import LATE_SECONDS, MissingPieces, Reachability, late_after

PATIENCE = 6.0


def told(slots, cut, until=PATIENCE + 1.0):
    """A meeting in which all tell the truth once a second; `cut` are pairs (x, y): y ↛ x."""
    reach = Reachability()
    reach.open(slots, 0.0)
    parts = {x: frozenset(y for y in slots if (x, y) in cut) for x in slots}
    stuck = {x for x in slots if parts[x]}
    now = 0.0
    while now < until:
        now += 1.0
        for x in slots:
            wholes = frozenset(y for y in slots if y != x and ((x, y) in cut or y in stuck))
            near = frozenset(slots) - parts[x] - {x}
            reach.take(x, MissingPieces(parts[x], wholes, near), now)
    return reach, now


def both(*pairs):
    return {p for x, y in pairs for p in ((x, y), (y, x))}


@pytest.mark.parametrize(
    ("cut", "slots"),
    [
        (both((1, 3)), {3}),
        ({(1, 3)}, {3}),
        ({(3, 1)}, {1}),
        (both((0, 1), (0, 2), (0, 3)), {0}),
        (both((0, 1), (2, 3)), {3}),
        (both((0, 1), (0, 2), (1, 2)), {2}),
    ],
)
def test_who_is_missed_by_most_is_left_out_and_of_equals_the_highest_slot(cut, slots):
    reach, now = told((0, 1, 2, 3), cut)
    found = reach.unreached(now, PATIENCE, have_met=False)
    assert found.slots == slots
    assert not found.is_split
    (slot,) = slots
    other = min(x for x, y in cut if y == slot)
    assert found.text.startswith(f"workers {other} and {slot} could not reach each other for 6 s")
    assert "open the workers' ports" in found.text


def test_nobody_is_left_out_where_no_two_reach_each_other():
    reach, now = told((0, 2, 5), both(*itertools.combinations((0, 2, 5), 2)))
    found = reach.unreached(now, PATIENCE, have_met=False)
    assert (found.slots, found.is_split) == (frozenset(), True)
    assert found.text.startswith("no two of the workers 0, 2, 5 can reach each other")


def test_the_lowest_slot_goes_on_where_no_two_reach_each_other_any_more():
    reach, now = told((0, 2, 5), both(*itertools.combinations((0, 2, 5), 2)))
    found = reach.unreached(now, PATIENCE, have_met=True)
    assert (found.slots, found.is_split) == (frozenset({2, 5}), False)
    assert found.text.startswith("no two of the workers 0, 2, 5 can reach each other any more")
    reach, now = told((1, 4), both((1, 4)))
    found = reach.unreached(now, PATIENCE, have_met=True)
    assert (found.slots, found.is_split) == (frozenset({4}), False)
    assert found.text.startswith("workers 1 and 4 could not reach each other for 6 s")


def test_nobody_is_left_out_before_the_patience_is_over():
    reach, now = told((0, 1, 2), both((0, 1)), until=PATIENCE - 1.0)
    assert reach.unreached(now, PATIENCE, have_met=False) is None
    assert reach.unreached(now + 2.0, PATIENCE, have_met=False).slots == {1}


def test_whoever_waits_only_for_those_that_are_cut_off_misses_nobody():
    """Worker 2 has neither merged shard of 0 and 1, who could merge none."""
    reach, now = told((0, 1, 2), both((0, 1)))
    assert reach.unreached(now, PATIENCE, have_met=False).slots == {1}
    assert all(2 not in pair for pair in reach._pairs(now - PATIENCE))


def test_a_link_over_which_anything_comes_is_not_cut():
    reach, lossy = Reachability(), MissingPieces(frozenset({1}), frozenset({1}), frozenset({1}))
    reach.open((0, 1), 0.0)
    for now in range(1, 30):
        reach.take(0, lossy, float(now))
        reach.take(1, MissingPieces(), float(now))
    assert reach.unreached(29.0, PATIENCE, have_met=False) is None
    for now in range(30, 40):
        reach.take(0, lossy._replace(near=frozenset()), float(now))
    assert reach.unreached(39.0, PATIENCE, have_met=False).is_split


def test_who_says_nothing_at_all_is_late_and_nobody_is_told_of_a_cut():
    reach = Reachability()
    reach.open((0, 1, 2), 0.0)
    for now in range(1, 14):
        reach.take(0, MissingPieces(frozenset({2}), frozenset({1, 2})), float(now))
        reach.take(1, MissingPieces(frozenset({2}), frozenset({0, 2})), float(now))
    assert reach.unreached(2 * PATIENCE, PATIENCE, have_met=False) is None
    found = reach.unreached(2 * PATIENCE + 1.0, PATIENCE, have_met=False)
    assert (found.slots, found.text) == ({2}, "")


def test_all_silent_is_the_coordinators_own_trouble():
    reach = Reachability()
    reach.open((0, 1), 0.0)
    assert reach.unreached(1e6, PATIENCE, have_met=False) is None


def test_only_who_lacks_something_is_asked_and_in_another_order_each_time():
    reach = Reachability()
    reach.open(tuple(range(8)), 0.0)
    assert reach.slots_to_ask(0.1, PATIENCE) == []
    orders = [tuple(reach.slots_to_ask(float(n), PATIENCE)) for n in range(1, 9)]
    assert {frozenset(order) for order in orders} == {frozenset(range(8))}
    assert len({order[-1] for order in orders}) > 2
    reach.take(3, MissingPieces(), 9.0)
    assert sorted(reach.slots_to_ask(10.0, PATIENCE)) == [0, 1, 2, 4, 5, 6, 7]


def test_patience_is_three_median_rounds_and_at_least_five_seconds():
    assert late_after([9.0, 9.0]) is None
    assert late_after([0.1, 0.1, 9.0]) == LATE_SECONDS
    assert late_after([4.0, 2.0, 9.0]) == 12.0
