"""Who speaks to whom, and what a publication does: by hand."""

import numpy as np
import pytest

from photinus.core.clock import Clock, Steps
from photinus.core.errors import UsageError
from photinus.strategies.base import Message, Turn
from photinus.strategies.codecs import decode
from photinus.strategies.peers import GRAPHS, Gossip, Publish, partner
from photinus.strategies.phase_defaults import PhaseFacts
from photinus.strategies.recipes import from_plain, gossip, publish


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("count", [2, 3, 4, 7, 8])
def test_a_partner_is_another_one_and_all_are_met(graph, count):
    slots = tuple(range(10, 10 + count))
    for slot in slots:
        met = {partner(graph, slot, slots, r) for r in range(64)}
        assert met <= set(slots) - {slot}
        if graph == "random":
            assert len(met) == count - 1


@pytest.mark.parametrize("count", [2, 4, 8, 16])
def test_the_exponential_graph_spreads_everything_in_log2_rounds(count):
    slots, knows = tuple(range(count)), {s: {s} for s in range(count)}
    for round_ in range((count - 1).bit_length()):
        before = {s: set(k) for s, k in knows.items()}
        for slot in slots:
            knows[partner("exponential", slot, slots, round_)] |= before[slot]
    assert all(len(k) == count for k in knows.values())


def test_nobody_speaks_to_itself_when_alone():
    assert partner("ring", 3, (3,), 0) is None
    assert partner("ring", 9, (1, 2), 0) is None


def started(strategy, slot=0, slots=(0, 1, 2, 3)):
    vector = np.zeros(3)
    state = strategy.accept(vector, Message("here", slot=slot, slots=slots), strategy.init(vector))
    return vector, state


def test_ones_own_publication_counts_as_much_as_anybodys():
    strategy = Publish(every=Steps(2), codec="fp32")
    vector, state = started(strategy)
    vector -= 1.0
    clock = Clock(2, 16)
    (turn,) = strategy.due(clock, state)
    message, state = strategy.offer(turn, vector, clock, state)
    np.testing.assert_array_equal(message.vector, np.ones(3))
    assert message.slots == (1, 2, 3)
    np.testing.assert_array_equal(vector, np.full(3, -0.25))
    state = strategy.accept(vector, message._replace(vector=np.full(3, 2.0)), state)
    np.testing.assert_array_equal(vector, np.full(3, -0.75))
    vector -= 0.5
    message, state = strategy.offer(turn, vector, Clock(4, 32), state)
    np.testing.assert_array_equal(message.vector, np.full(3, 0.5))
    push, _ = strategy.offer(Turn("meet"), vector, Clock(4, 32), state)
    np.testing.assert_array_equal(push.vector, np.full(3, 1.5))
    assert push.since == Clock(4, 32)


def test_what_a_codec_leaves_out_is_published_later():
    strategy = Publish(every=Steps(1), codec="int4")
    vector, state = started(strategy)
    steps = np.random.default_rng(1).normal(size=(40, 3))
    published = np.zeros(3)
    for n, step in enumerate(steps, 1):
        vector -= step
        message, state = strategy.offer(Turn("publish"), vector, Clock(n, n), state)
        published += decode("int4", message.vector)
    np.testing.assert_allclose(published, steps.sum(0), atol=0.5)
    push, _ = strategy.offer(Turn("meet"), vector, Clock(41, 41), state)
    np.testing.assert_allclose(push.vector, steps.sum(0), atol=1e-12)


def test_gossip_moves_half_way_and_keeps_its_own_account():
    strategy = Gossip(every=Steps(1), codec="fp32")
    vector, state = started(strategy)
    vector -= 1.0
    message, state = strategy.offer(Turn("publish"), vector, Clock(1, 8), state)
    assert message.slots == (1,)
    sent = message.vector.copy()
    vector += 5
    np.testing.assert_array_equal(message.vector, sent)
    vector -= 5
    state = strategy.accept(vector, Message("publish", np.full(3, 3.0)), state)
    np.testing.assert_array_equal(vector, np.full(3, 1.0))
    push, _ = strategy.offer(Turn("meet"), vector, Clock(1, 8), state)
    np.testing.assert_array_equal(push.vector, np.ones(3))


def test_a_strategy_says_what_it_is():
    assert str(publish()) == "publish every 10 steps to all, exact every 10 rounds, int8"
    expected = "gossip every 5 steps to one by one, ring, exact every 3 rounds, bf16"
    assert str(gossip(every=Steps(5), graph="ring", exact_every=3)) == expected
    assert from_plain({"recipe": "gossip", "graph": "ring"}).graph == "ring"


def test_what_is_late_does_not_pull_back_the_steps_that_were_taken_meanwhile():
    """Two who do the same: what one said before its last steps changes nothing for the other."""
    strategy = Gossip(every=Steps(1), codec="fp32")
    vector, state = started(strategy)
    for step in range(1, 5):
        vector -= 1.0
        message, state = strategy.offer(Turn("publish"), vector, Clock(step, step), state)
        twin = message._replace(kind="publish", vector=message.vector.copy())
        vector -= 0.5  # while the twin's is under way
        state = strategy.accept(vector, twin, state)
        np.testing.assert_allclose(vector, np.full(3, -1.5 * step))
    vector -= 1.0
    message, state = strategy.offer(Turn("publish"), vector, Clock(5, 5), state)
    ahead = message._replace(kind="publish", vector=message.vector - 1.0)
    strategy.accept(vector, ahead, state)
    np.testing.assert_allclose(vector, np.full(3, -7.0 - 0.5))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"recipe": "publish", "outer": "sgd"}, "unknown argument of publish; got 'outer'"),
        ({"recipe": "publish", "graph": "ring"}, "unknown argument of publish; got 'graph'"),
        (
            {"recipe": "averaging", "exact_every": 3},
            "unknown argument of averaging; got 'exact_every'",
        ),
        ({"recipe": "gossip", "graph": "rnig"}, "graph of gossip must be one of"),
        ({"recipe": "gossip", "exact_every": 0}, "exact_every of gossip must be a whole number"),
    ],
)
def test_what_is_wrong_is_refused_in_clear_words(values, words):
    with pytest.raises(UsageError) as raised:
        from_plain(values)
    assert str(raised.value).startswith(words)


@pytest.mark.parametrize(
    "parts",
    [
        {"recipe": "diloco", "owners": 3},
        {"recipe": "averaging", "owners": 3, "codec": "bf16", "fragments": 2},
        {"recipe": "averaging", "owners": 3, "codec": "bf16", "release": "immediate"},
        {"recipe": "all_reduce", "owners": 3, "codec": "int8"},
        {"recipe": "all_reduce", "owners": 3, "codec": "bf16", "codec_down": "fp32"},
    ],
)
def test_several_owners_are_for_rounds_of_what_can_be_cut_anywhere(parts):
    with pytest.raises(UsageError, match="several owners are for rounds of whole vectors"):
        from_plain(parts)


def test_several_owners_of_deltas_wait_for_all():
    parts = {"recipe": "averaging", "owners": 3, "quorum": 0.5}
    with pytest.raises(UsageError, match=r"loses its work since the last one; got quorum 0\.5"):
        from_plain(parts)


def test_there_are_as_many_owners_as_workers_or_one():
    with pytest.raises(UsageError, match="owners must be 1, or 4, the number of workers; got 5"):
        from_plain({"recipe": "all_reduce", "owners": 5}).check_workers(4)
    four = from_plain({"recipe": "all_reduce", "owners": 4})
    four.check_workers(4)
    assert four.settled(PhaseFacts(workers=4, steps=9)) == (four, [])
