"""What an agreement says of itself, refuses and is guarded against."""

import pytest

from photinus.core.clock import Steps
from photinus.core.errors import UsageError
from photinus.strategies import recipes
from photinus.strategies.guard import Setting
from photinus.strategies.outer import Adagrad, DelayedNesterov, Descent, Nesterov, Sgd
from photinus.strategies.recipes import RECIPES, averaging, diloco, downpour, elastic


def test_an_agreement_says_what_it_is():
    assert str(recipes.all_reduce()) == "all_reduce every step, merge examples, fp32"
    assert str(recipes.iterative_reduce()).startswith("iterative_reduce every 1 epochs, sgd(lr=1)")
    flowing = recipes.streaming(codec_down="int8")
    assert str(flowing) == (
        "streaming every 100 steps in 4 fragments, nesterov(lr=0.4, momentum=0.9), "
        "merge uniform, int4 up, int8 down"
    )
    assert str(recipes.post_local()).startswith(
        "post_local every step until 50%, then every 16 steps, sgd(lr=1)"
    )
    late = downpour(fetch=Steps(20), outer=Descent(max))
    assert str(late) == (
        "downpour every 10 steps, fetch every 20 steps, descent(function=max), "
        "staleness none, bf16 up, fp32 down"
    )
    assert str(elastic()) == "elastic every 10 steps, alpha 0.9/K, fp32 up, bf16 down"


@pytest.mark.parametrize(
    ("agreement", "same"),
    [
        (averaging(every=Steps(5)), True),
        (averaging(), False),
        (averaging(every=Steps(5), quorum=0.5), False),
        (recipes.all_reduce(), True),
        (recipes.full_gradient(), True),
        (recipes.iterative_reduce(), True),
        (downpour(), False),
        (elastic(), False),
    ],
    ids=str,
)
def test_bits_repeat_with_a_barrier_and_triggers_that_count_work(agreement, same):
    assert agreement.is_deterministic is same


def test_the_guard_clamps_what_carries_too_far():
    setting = Setting(workers=8, every=Steps(10), is_adaptive=False, rounds=100)
    wild = averaging(outer=Nesterov(0.7, 0.9))
    tamed, warning = wild.guarded(setting)
    assert tamed.outer.gain == pytest.approx(2.0)
    assert warning
    unsafe = averaging(outer=Nesterov(0.7, 0.9), gain="unsafe")
    assert unsafe.guarded(setting) == (unsafe, "")


EIGHT = Setting(workers=8, every=Steps(10), is_adaptive=False, rounds=100)


def test_the_guard_watches_what_is_released_at_once():
    tamed, warning = downpour(outer=Sgd(2.0)).guarded(EIGHT)
    assert tamed.outer == Sgd(1.0)
    assert "the outer gain lr/(1-momentum) is above 1/K for each push" in warning
    naive, warning = diloco(release="immediate").guarded(EIGHT)
    assert naive.outer.gain == pytest.approx(1.0)
    assert warning
    unsafe = downpour(outer=Sgd(2.0), gain="unsafe")
    assert unsafe.guarded(EIGHT) == (unsafe, "")


@pytest.mark.parametrize(
    "agreement",
    [
        downpour(),
        downpour(outer=Adagrad()),
        downpour(payload="gradient", outer=Sgd(3.0)),
        downpour(outer=Descent(max)),
        elastic(),
    ],
    ids=str,
)
def test_the_guard_leaves_learning_rates_and_the_users_functions_alone(agreement):
    assert agreement.guarded(EIGHT) == (agreement, "")


def test_a_delayed_momentum_waits_for_as_many_pushes_as_there_are_workers():
    asked = diloco(release="immediate", outer=DelayedNesterov())
    tamed, warning = asked.guarded(EIGHT)
    assert (tamed.outer.pushes, warning) == (8, "")


@pytest.mark.parametrize("gain", ["safe", "unsafe"])
def test_a_quorum_that_can_never_come_together_is_refused(gain):
    with pytest.raises(UsageError, match="a quorum of 9 can never come together; got 8 workers"):
        averaging(quorum=9, gain=gain).check_workers(8)
    averaging(quorum=8, gain=gain).check_workers(8)
    assert averaging(quorum=8).guarded(EIGHT) == (averaging(quorum=8), "")


def test_a_grace_needs_a_quorum():
    with pytest.raises(UsageError, match="a round that waits for all has no grace"):
        averaging(grace_seconds=2.0)


def test_a_quorum_and_its_grace_are_shown():
    assert "nova, quorum of 0.75 and 2 s, bf16" in str(averaging(quorum=0.75, grace_seconds=2.0))


def test_alone_or_on_gradients_there_is_nothing_to_guard():
    alone = Setting(workers=1, every=Steps(10), is_adaptive=False, rounds=100)
    wild = averaging(outer=Nesterov(0.7, 0.9))
    assert wild.guarded(alone) == (wild, "")
    many = Setting(workers=8, every=Steps(1), is_adaptive=False, rounds=100)
    assert recipes.all_reduce().guarded(many) == (recipes.all_reduce(), "")


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"every": 5}, r"every of Agreement must be a trigger, such as Steps\(10\); got 5"),
        ({"outer": "nesterov"}, "outer of Agreement must be an outer optimizer"),
    ],
)
def test_a_part_of_another_kind_is_named(parts, said):
    with pytest.raises(UsageError, match=said):
        RECIPES["averaging"].build(**parts)
