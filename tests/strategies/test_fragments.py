"""Fragments: when they go, what is mixed in when they come, and what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from photinus.core.clock import Clock, Epochs, Examples, Seconds, Steps
from photinus.core.errors import UsageError
from photinus.strategies.base import Message, Turn, fragments_of
from photinus.strategies.compress import compress
from photinus.strategies.fragments import fragments
from photinus.strategies.outer import Adam, Nesterov
from photinus.strategies.recipes import all_reduce, averaging, elastic, from_plain, streaming
from photinus.strategies.rounds import AllReduce, Averaging

EMPTY = {"floats": np.zeros(0, np.float32), "integers": np.zeros(0, np.int64)}


def at(steps, closing=False):
    return Clock(steps, 8 * steps, closing=closing)


def agreed(state, fragment, mean):
    return Message("agreed", np.asarray(mean), fragment, version=state.version + 1)


@given(st.integers(1, 200), st.integers(1, 200))
def test_fragments_cover_the_vector_and_differ_by_one_number_at_most(size, count):
    if count > size:
        with pytest.raises(UsageError, match="there can be at most"):
            fragments_of(size, count)
        return
    cut = fragments_of(size, count)
    assert [n for start, stop in cut for n in range(start, stop)] == list(range(size))
    assert {stop - start for start, stop in cut} <= {size // count, size // count + 1}


def test_each_fragment_goes_once_in_each_period_and_is_taken_after_the_delay():
    """H = 12, P = 3, d = 2: pushes at 4, 8, 12, …, takes two steps later."""
    strategy = fragments(Averaging(every=Steps(12)), 3, delay=2)
    vector, happened = np.zeros(6), []
    state = strategy.init(vector)
    for n in range(1, 31):
        for turn in strategy.due(at(n), state):
            happened.append((n, turn.kind, turn.fragment))
            _, state = strategy.offer(turn, vector, at(n), state)
            if turn.kind == "take":
                state = strategy.accept(vector, agreed(state, turn.fragment, np.zeros(2)), state)
    cut = ((0, 2), (2, 4), (4, 6))
    pushed = [(4 * n, "push", cut[(n - 1) % 3]) for n in range(1, 8)]
    taken = [(n + 2, "take", f) for n, _, f in pushed]
    assert happened == sorted(pushed + taken)


def test_what_arrives_is_mixed_with_what_went_on_meanwhile():
    strategy = fragments(Averaging(every=Steps(6)), 2, delay=2, alpha=0.25)
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
    assert [s.anchor.tolist() for s in state.states] == [[-2.0, -2.0], [0.0, 0.0]]
    assert [c.steps for c in state.counted] == [2, 0], "what was trained meanwhile is still unsent"
    again, _ = strategy.offer(Turn("push", (2, 4)), vector, at(4), state)
    assert again.vector.tolist() == [4.0, 4.0]
    assert again.since.steps == 4, "the work in a fragment since that fragment was agreed on"


@pytest.mark.parametrize("kind", ["swap", "push"])
def test_where_nothing_went_on_the_agreed_fragment_is_taken_as_it_is(kind):
    strategy = fragments(Averaging(every=Steps(4)), 2, delay=0 if kind == "swap" else 1)
    vector = np.zeros(4)
    state = strategy.init(vector)
    vector -= 1.0
    _, state = strategy.offer(Turn(kind, (0, 2)), vector, at(2), state)
    if kind == "push":
        _, state = strategy.offer(Turn("take", (0, 2)), vector, at(2, closing=True), state)
    strategy.accept(vector, agreed(state, (0, 2), [2.0, 2.0]), state)
    assert vector.tolist() == [-2.0, -2.0, -1.0, -1.0]


def test_who_missed_a_round_keeps_what_is_unsent_in_every_fragment():
    strategy = fragments(Averaging(every=Steps(4)), 2, delay=1)
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
    strategy = fragments(Averaging(every=Steps(9)), 3, delay=1)
    vector = np.zeros(6)
    state, drained = strategy.init(vector), []
    vector -= 1.0
    while turns := strategy.due(at(1, closing=True), state):
        (turn,) = turns
        drained.append(turn.fragment)
        _, state = strategy.offer(turn, vector, at(1, closing=True), state)
        state = strategy.accept(vector, agreed(state, turn.fragment, np.ones(2)), state)
    assert drained == [(0, 2), (2, 4), (4, 6)]


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
    assert fragments(Averaging(every=every), 3).gap == gap


WRONG = [
    ({"fragments": 3, "every": {"steps": 9}, "delay": 3}, "a fragment must arrive before the next"),
    ({"delay": -1}, "delay of streaming must be a whole number of at least 0"),
    ({"alpha": 1.5}, "alpha of streaming must be a number from 0 to 1"),
    ({"fragments": 1.5}, "fragments of streaming must be a whole number of at least 0"),
    ({"fragments": 0}, "delay of streaming needs fragments; got 1; leave delay out"),
    ({"recipe": "all_reduce", "fragments": 4}, "unknown argument of all_reduce; got 'fragments'"),
    ({"outer": "adam"}, "adam keeps state of a whole vector, which fragments would share"),
    ({"outer": "delayed_nesterov"}, "delayed_nesterov keeps state of a whole vector"),
    ({"outer": "row_adagrad"}, "row_adagrad keeps state of a whole vector"),
]


@pytest.mark.parametrize(("parts", "words"), WRONG)
def test_what_does_not_go_together_is_refused(parts, words):
    with pytest.raises(UsageError) as raised:
        from_plain({"recipe": "streaming", **parts})
    assert str(raised.value).startswith(words)


def test_so_many_fragments_that_each_has_a_step_are_advised_to_be_fewer():
    words = "1 step after it; got delay 1 and 1000000000 fragments every 100 steps; set fewer frag"
    with pytest.raises(UsageError, match=words):
        streaming(fragments=10**9)


def test_more_fragments_than_numbers_are_refused_by_the_owner_before_anybody_works():
    owner = streaming(fragments=5, every=Steps(50)).owner()
    wrong = "there can be at most 4 fragments, one for each parameter; got 5"
    with pytest.raises(UsageError, match=wrong):
        owner.init(Message("heal", np.zeros(4), **EMPTY))


def test_an_outer_state_by_number_goes_by_fragments():
    assert streaming(outer=Nesterov(0.4, 0.9)).outer == Nesterov(0.4, 0.9)
    with pytest.raises(UsageError, match="adam keeps state"):
        streaming(outer=Adam())


def test_a_recipe_in_fragments_is_the_recipe_with_these_parts():
    assert fragments(averaging(every=Steps(9)), 3) == averaging(every=Steps(9), fragments=3)
    again = fragments(streaming(), 8, alpha=0.25)
    assert again == streaming(fragments=8, alpha=0.25)
    assert again.delay == 1, "the recipe's own"


@pytest.mark.parametrize("codec", ["bf16", "int4"])
def test_a_codec_goes_round_the_fragments_whichever_is_named_first(codec):
    codec_first = fragments(compress(Averaging(every=Steps(4)), codec), 2)
    fragments_first = compress(fragments(Averaging(every=Steps(4)), 2), codec)
    start, vector = np.zeros(6, np.float32), np.linspace(0, 1, 6, dtype=np.float32)
    sent = [
        w.offer(Turn("swap", (0, 3)), vector, at(2), w.init(start))[0]
        for w in (codec_first, fragments_first)
    ]
    assert sent[0].codec == sent[1].codec == codec
    assert sent[0].vector.tobytes() == sent[1].vector.tobytes()
    assert codec_first.own_fields == fragments_first.own_fields


class Halved(Averaging):
    """A strategy of one's own: half of each delta is offered."""

    def offer(self, turn, vector, clock, state):
        message, state = super().offer(turn, vector, clock, state)
        return message._replace(vector=message.vector / 2), state


def test_a_strategy_of_ones_own_goes_in_fragments_too():
    strategy = fragments(Halved(every=Steps(4)), 2, delay=1)
    vector = np.zeros(4)
    state = strategy.init(vector)
    vector -= [2.0, 4.0, 6.0, 8.0]
    message, state = strategy.offer(Turn("push", (0, 2)), vector, at(2), state)
    assert message.vector.tolist() == [1.0, 2.0]
    assert message.fragment == (0, 2)


@pytest.mark.parametrize(
    "wrong", [AllReduce(), Averaging(is_peer_to_peer=True), fragments(Averaging(every=Steps(4)), 2)]
)
def test_what_is_not_of_rounds_of_whole_vectors_at_one_owner_is_not_cut(wrong):
    with pytest.raises(UsageError, match="only rounds of whole vectors at one owner can be cut"):
        fragments(wrong, 2)


@pytest.mark.parametrize(
    ("wrap", "said"),
    [
        (
            lambda: fragments(averaging(), 0),
            "count of fragments must be a whole number of at least",
        ),
        (lambda: fragments(Averaging(), 2.5), "count of fragments must be a whole number of at le"),
        (
            lambda: fragments(averaging(), 2, alpha=0.2),
            "unknown argument of averaging; got 'alpha'",
        ),
        (lambda: fragments(all_reduce(), 2), "recipes whose rounds push a delta; got all_reduce"),
        (lambda: compress(elastic(), "int8"), "elastic has none; got codec 'int8'; elastic"),
    ],
)
def test_a_part_that_a_recipe_does_not_have_is_refused_where_it_is_given(wrap, said):
    with pytest.raises(UsageError, match=said):
        wrap()


@pytest.mark.parametrize("wrong", ["averaging", None, averaging])
def test_what_is_no_strategy_is_not_cut(wrong):
    with pytest.raises(UsageError, match="fragments wraps a recipe, or the worker's half"):
        fragments(wrong, 2)
