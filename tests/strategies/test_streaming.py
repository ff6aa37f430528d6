"""Fragments: when they go, what is mixed in when they come, and what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from photinus.core.clock import Clock, Epochs, Examples, Seconds, Steps
from photinus.core.errors import UsageError
from photinus.strategies.base import Message, Turn, fragments_of
from photinus.strategies.outer import Adam, Nesterov
from photinus.strategies.recipes import from_plain, streaming
from photinus.strategies.streaming import Streaming

EMPTY = {"floats": np.zeros(0, np.float32), "integers": np.zeros(0, np.int64)}


def at(steps, closing=False):
    return Clock(steps, 8 * steps, closing=closing)


def agreed(state, fragment, mean):
    return Message("agreed", np.asarray(mean), fragment, version=state.version + 1)


@given(st.integers(1, 200), st.integers(1, 200))
def test_fragments_cover_the_vector_and_differ_by_one_number_at_most(size, fragments):
    if fragments > size:
        with pytest.raises(UsageError, match="there can be at most"):
            fragments_of(size, fragments)
        return
    cut = fragments_of(size, fragments)
    assert [n for start, stop in cut for n in range(start, stop)] == list(range(size))
    assert {stop - start for start, stop in cut} <= {size // fragments, size // fragments + 1}


def test_each_fragment_goes_once_in_each_period_and_is_taken_after_the_delay():
    """H = 12, P = 3, d = 2: pushes at 4, 8, 12, …, takes two steps later."""
    strategy = Streaming(every=Steps(12), fragments=3, delay=2)
    vector, happened = np.zeros(6), []
    state = strategy.init(vector)
    for n in range(1, 31):
        for turn in strategy.due(at(n), state):
            happened.append((n, turn.kind, turn.fragment))
            _, state = strategy.offer(turn, vector, at(n), state)
            if turn.kind == "take":
                state = strategy.accept(vector, agreed(state, turn.fragment, np.zeros(2)), state)
    fragments = ((0, 2), (2, 4), (4, 6))
    pushed = [(4 * n, "push", fragments[(n - 1) % 3]) for n in range(1, 8)]
    taken = [(n + 2, "take", f) for n, _, f in pushed]
    assert happened == sorted(pushed + taken)


def test_what_arrives_is_mixed_with_what_went_on_meanwhile():
    strategy = Streaming(every=Steps(6), fragments=2, delay=2, alpha=0.25)
    vector = np.zeros(4)
    state = strategy.init(vector)
    vector -= 1.0
    message, state = strategy.offer(Turn("push", (0, 2)), vector, at(2), state)
    assert message.vector.tolist() == [1.0, 1.0]
    assert message.since.steps == 2
    vector -= 3.0
    _, state = strategy.offer(Turn("take", (0, 2)), vector, at(4), state)
    state = strategy.accept(vector, agreed(state, (0, 2), [2.0, 2.0]), state)
    # anchor 0 - 2; of one's own -4 a fourth: 0.25·(-4) + 0.75·(-2); the other half is left alone
    assert vector.tolist() == [-2.5, -2.5, -4.0, -4.0]
    assert state.anchor.tolist() == [-2.0, -2.0, 0.0, 0.0]
    assert [c.steps for c in state.counted] == [2, 0], "what was trained meanwhile is still unsent"
    again, _ = strategy.offer(Turn("push", (2, 4)), vector, at(4), state)
    assert again.vector.tolist() == [4.0, 4.0]
    assert again.since.steps == 4, "the work in a fragment since that fragment was agreed on"


@pytest.mark.parametrize("kind", ["swap", "push"])
def test_where_nothing_went_on_the_agreed_fragment_is_taken_as_it_is(kind):
    strategy = Streaming(every=Steps(4), fragments=2, delay=0 if kind == "swap" else 1)
    vector = np.zeros(4)
    state = strategy.init(vector)
    vector -= 1.0
    _, state = strategy.offer(Turn(kind, (0, 2)), vector, at(2), state)
    if kind == "push":
        _, state = strategy.offer(Turn("take", (0, 2)), vector, at(2, closing=True), state)
    strategy.accept(vector, agreed(state, (0, 2), [2.0, 2.0]), state)
    assert vector.tolist() == [-2.0, -2.0, -1.0, -1.0]


def test_who_missed_a_round_keeps_what_is_unsent_in_every_fragment():
    strategy = Streaming(every=Steps(4), fragments=2, delay=1)
    vector = np.zeros(4)
    state = strategy.init(vector)
    vector -= [1.0, 2.0, 3.0, 4.0]
    _, state = strategy.offer(Turn("push", (0, 2)), vector, at(2), state)
    point = Message("heal", np.full(4, 10.0), version=5, **EMPTY)
    state = strategy.accept(vector, point, state)
    assert vector.tolist() == [9.0, 8.0, 7.0, 6.0]
    assert not state.is_under_way
    (turn,) = strategy.due(at(4), state)
    assert turn.fragment == (2, 4), "the fragment of round 5, as all others have it"


def test_at_the_end_every_fragment_is_drained():
    strategy = Streaming(every=Steps(9), fragments=3, delay=1)
    vector = np.zeros(6)
    state, fragments = strategy.init(vector), []
    vector -= 1.0
    while turns := strategy.due(at(1, closing=True), state):
        (turn,) = turns
        fragments.append(turn.fragment)
        _, state = strategy.offer(turn, vector, at(1, closing=True), state)
        state = strategy.accept(vector, agreed(state, turn.fragment, np.ones(2)), state)
    assert fragments == [(0, 2), (2, 4), (4, 6)]


@pytest.mark.parametrize(
    ("every", "gap"),
    [
        (Steps(10), Steps(4)),
        (Seconds(3.0), Seconds(1.0)),
        (Examples(100), Examples(34)),
        (Epochs(1), Epochs(1 / 3)),
    ],
    ids=str,
)
def test_the_next_fragment_goes_after_its_part_of_the_period(every, gap):
    assert Streaming(every=every, fragments=3).gap == gap


WRONG = [
    ({"fragments": 3, "every": {"steps": 9}, "delay": 3}, "a fragment must arrive before the next"),
    ({"delay": -1}, "delay of streaming must be a whole number of at least 0"),
    ({"alpha": 1.5}, "alpha of streaming must be a number from 0 to 1"),
    ({"fragments": 1.5}, "fragments of streaming must be a whole number of at least 0"),
    ({"fragments": 0}, 'delay needs fragments, and fragments need payload="delta"; got delay 1,'),
    ({"recipe": "all_reduce", "fragments": 4}, "unknown part of all_reduce; got 'fragments'"),
    ({"outer": "adam"}, "adam keeps state of a whole vector, which fragments would share"),
    ({"outer": "delayed_nesterov"}, "delayed_nesterov keeps state of a whole vector"),
    ({"outer": "row_adagrad"}, "row_adagrad keeps state of a whole vector"),
]


@pytest.mark.parametrize(("parts", "words"), WRONG)
def test_what_does_not_go_together_is_refused(parts, words):
    with pytest.raises(UsageError) as raised:
        from_plain({"recipe": "streaming", **parts})
    assert str(raised.value).startswith(words)


def test_more_fragments_than_numbers_are_refused_by_the_owner_before_anybody_works():
    owner = streaming(fragments=5, every=Steps(50)).owner()
    wrong = "there can be at most 4 fragments, one for each parameter; got 5"
    with pytest.raises(UsageError, match=wrong):
        owner.init(Message("heal", np.zeros(4), **EMPTY))


def test_an_outer_state_by_number_goes_by_fragments():
    assert streaming(outer=Nesterov(0.4, 0.9)).outer == Nesterov(0.4, 0.9)
    with pytest.raises(UsageError, match="adam keeps state"):
        streaming(outer=Adam())
