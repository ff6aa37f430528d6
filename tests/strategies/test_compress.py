"""A strategy in a codec is the strategy, but for what its pushes travel in."""

import copy

import numpy as np
import pytest

from photinus.core.clock import Clock, Steps
from photinus.core.errors import UsageError
from photinus.strategies.base import Message, Turn
from photinus.strategies.codecs import decode
from photinus.strategies.compress import compress
from photinus.strategies.custom import CustomStrategy
from photinus.strategies.fragments import fragments
from photinus.strategies.recipes import all_reduce, averaging, diloco, from_plain
from photinus.strategies.rounds import AllReduce, Averaging, Rounds
from photinus.strategies.shards import Sharded
from photinus.testing.strategies import check_strategy
from photinus.training.strategy_state import keep, take_up

STRATEGIES = [Averaging(every=Steps(9)), AllReduce(whole_part=True, is_peer_to_peer=True)]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("codec", ["bf16", "int8"])
def test_what_a_strategy_says_of_itself_is_said_of_it_in_a_codec(strategy, codec):
    sent = compress(strategy, codec)
    for name in (
        "site",
        "has_late_answers",
        "is_peer_to_peer",
        *type(strategy).__dataclass_fields__,
    ):
        if name not in ("own_fields", "codec"):
            assert getattr(sent, name) == getattr(strategy, name), name


def test_a_sharded_table_encodes_its_rows_itself():
    with pytest.raises(UsageError, match="compress does not encode rows of a sharded table"):
        compress(Sharded(rows=2), "int8")


def test_it_has_nothing_that_the_strategy_has_not():
    assert not hasattr(compress(Averaging(), "int8"), "whole_part")


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy])
def test_it_can_be_copied(again):
    assert again(compress(Averaging(every=Steps(9)), "int8")).every == Steps(9)


class Warmed:
    """Of a user's own: no `Strategy`, and nothing but what the contract asks for."""

    site, first, later = "parameters", Averaging(every=Steps(1)), Averaging(every=Steps(16))

    def init(self, vector):
        return self.first.init(vector)

    def due(self, clock, state):
        return (self.first if clock.steps < 100 else self.later).due(clock, state)

    def offer(self, turn, vector, clock, state):
        return self.first.offer(turn, vector, clock, state)

    def accept(self, vector, incoming, state):
        return self.first.accept(vector, incoming, state)


class Halves:
    def __init__(self, codec):
        self.codec = codec

    def worker(self):
        return compress(Warmed(), self.codec)

    def owner(self):
        return Rounds(codec=self.codec)


@pytest.mark.parametrize("codec", ["bf16", "int8", "int4"])
def test_a_strategy_of_ones_own_keeps_the_contract_in_any_codec(codec):
    check_strategy(Halves(codec))


def test_in_full_precision_it_is_the_strategy_itself():
    strategy = Averaging()
    assert compress(strategy, "fp32") is strategy


def test_an_unknown_codec_is_refused_when_it_is_named():
    with pytest.raises(UsageError, match="unknown codec"):
        compress(Averaging(), "int9")


def test_error_feedback_is_used_in_int8_and_int4_or_as_asked_for():
    for strategy in (AllReduce(), Averaging()):
        for codec, has in (("bf16", False), ("int8", True), ("int4", True)):
            assert ("left" in compress(strategy, codec).own_fields) is has
            assert ("left" in all_reduce(codec=codec).worker().own_fields) is has
    assert compress(AllReduce(), "bf16", error_feedback=True).own_fields == ("left",)
    assert all_reduce(codec="int8", error_feedback=False).worker() == AllReduce(codec="int8")
    assert compress(Averaging(), "int8", error_feedback=False).own_fields == Averaging().own_fields


@pytest.mark.parametrize("codec", ["bf16", "int8", "int4"])
def test_with_error_feedback_gradients_that_round_to_nothing_arrive_in_the_end(codec):
    worker = all_reduce(codec=codec, error_feedback=True).worker()
    gradient = np.array([1.0, 1e-3, 1.001], np.float32)
    state, arrived = worker.init(gradient), np.zeros(3)
    for step in range(1, 1001):
        message, state = worker.offer(Turn("swap"), gradient, Clock(step, 8 * step), state)
        mean = decode(codec, message.vector)
        arrived += mean
        state = worker.accept(gradient.copy(), Message("agreed", mean, version=step), state)
    np.testing.assert_allclose(arrived / 1000, gradient, atol=2e-4)
    assert gradient.tolist() == np.float32([1.0, 1e-3, 1.001]).tolist(), "it is the model's own"


def test_a_recipe_takes_error_feedback_only_with_a_codec_that_leaves_something_out():
    coded = compress(all_reduce(), "int4", error_feedback=True)
    assert coded == all_reduce(codec="int4", error_feedback=True)
    assert str(coded) == "all_reduce every step, merge examples, int4 with error feedback"
    with pytest.raises(UsageError, match="error_feedback of all_reduce needs another codec"):
        all_reduce(error_feedback=True)
    with pytest.raises(UsageError, match="error_feedback"):
        compress(averaging(), "int8", error_feedback=False)


def test_a_checkpoint_holds_what_was_left_out_beside_what_the_strategy_knows():
    strategy = compress(fragments(Averaging(every=Steps(4)), 2, delay=1), "int4")
    vector = np.zeros(6, np.float32)
    state = strategy.init(vector)._replace(left=np.arange(6, dtype=np.float32))
    vector -= 1
    _, state = strategy.offer(Turn("swap", (0, 3)), vector, Clock(2, 16), state)
    snapshot = keep(strategy, vector, Clock(3, 24), state, 24)
    assert sorted(snapshot) == [
        f"agreement.{name}" for name in ("counted", "left", "parameters", "position", "sent")
    ]
    names = {name.removeprefix("agreement."): value for name, value in snapshot.items()}
    back = take_up(np.zeros(6, np.float32), strategy.init(vector), names)
    assert (back.left == state.left).all()
    assert back.sent.steps == -1, "a step before the checkpoint"


def test_a_copy_of_its_state_holds_the_same_values():
    state = compress(Averaging(), "int8").init(np.ones(3, np.float32))
    again = copy.deepcopy(state)
    assert (again.anchor == state.anchor).all()
    assert again.anchor is not state.anchor


def test_a_recipe_that_is_compressed_is_the_recipe_with_that_codec():
    assert compress(diloco(every=Steps(9)), "bf16") == diloco(every=Steps(9), codec="bf16")
    with pytest.raises(UsageError, match="codec of averaging must be"):
        compress(averaging(), "int9")


@pytest.mark.parametrize(
    "other", ["averaging", None, CustomStrategy("photinus.strategies.recipes:averaging")], ids=repr
)
def test_what_is_no_strategy_cannot_be_compressed(other):
    with pytest.raises(UsageError, match="compress wraps a recipe"):
        compress(other, "int8")


@pytest.mark.parametrize("strategy", [all_reduce(), Averaging()])
def test_error_feedback_that_is_neither_true_nor_false_is_refused(strategy):
    with pytest.raises(UsageError, match=r"True or False, or left out; got 'no'"):
        compress(strategy, "int8", error_feedback="no")


@pytest.mark.parametrize("told", [0, 1])
def test_error_feedback_of_a_job_of_before_may_be_a_number(told):
    plain = {"recipe": "all_reduce", "codec": "int8", "error_feedback": told}
    assert from_plain(plain) == all_reduce(codec="int8", error_feedback=bool(told))
