"""The table of recipes: made from plain values and back, refused in clear words."""

import json

import pytest

from photinus.core.clock import Epochs, Seconds, Steps
from photinus.core.errors import UsageError
from photinus.strategies import recipes
from photinus.strategies.guard import Setting
from photinus.strategies.outer import Adagrad, Nesterov, Sgd
from photinus.strategies.recipes import DEFAULT, RECIPES, averaging, diloco, from_plain

VARIANTS = [
    averaging(),
    averaging(every=Seconds(3.0), outer=Sgd(0.5), merge="uniform", codec="fp32"),
    averaging(quorum=0.75, grace_seconds=2.0, gain="unsafe"),
    diloco(every=Steps(100), outer=Adagrad(lr=0.3)),
    recipes.all_reduce(codec="bf16"),
    recipes.full_gradient(),
    recipes.iterative_reduce(every=Epochs(2)),
]


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_known_by_the_name_of_its_function(name):
    agreement = getattr(recipes, name)()
    assert name in recipes.__all__
    assert from_plain(name) == agreement == RECIPES[name].build()
    assert agreement.recipe == name
    assert RECIPES[name].identities
    assert RECIPES[name].source
    assert agreement.to_dict() == {"recipe": name}


@pytest.mark.parametrize("agreement", VARIANTS, ids=str)
def test_plain_values_and_back(agreement):
    assert from_plain(json.loads(json.dumps(agreement.to_dict()))) == agreement


def test_without_a_name_it_is_the_default():
    assert from_plain({}) == RECIPES[DEFAULT].build()
    assert from_plain({"outer": "sgd"}).outer == Sgd()


def test_whichever_limit_comes_first():
    every = averaging().every
    assert every == Steps(50) | Seconds(2.0)
    assert from_plain({"every": {"steps": 7, "seconds": 1}}).every == Steps(7) | Seconds(1.0)


WRONG = [
    ("avreaging", "unknown strategy; got 'avreaging'; did you mean 'averaging'?"),
    ({"recipe": "mind_reading"}, "unknown strategy; got 'mind_reading'; known: all_reduce,"),
    ({"evry": 3}, "unknown part of averaging; got 'evry'; did you mean 'every'?"),
    ({"payload": "gradient"}, "unknown part of averaging; got 'payload'"),
    ({"every": {"steps": 0}}, "steps of Trigger must be a whole number of at least 1"),
    ({"every": {"step": 5}}, "unknown setting of Trigger; got 'step'; did you mean 'steps'?"),
    ({"every": 5}, "every of averaging must be a table; got 5"),
    ({"outer": 5}, "outer of averaging must be a table; got 5"),
    ({"outer": "nestrov"}, "unknown outer optimizer; got 'nestrov'; did you mean 'nesterov'?"),
    ({"outer": {"lr": 1}}, "unknown outer optimizer; got ''"),
    ({"quorum": 1.5}, "quorum of Agreement must be a number from 0.01 to 1; got 1.5"),
    ({"quorum": 0}, "quorum of Agreement must be a number from 0.01 to 1; got 0"),
    ({"grace_seconds": -1}, "grace_seconds of Agreement must be a number of at least 0; got -1"),
    ({"merge": "median"}, "merge of Agreement must be one of 'uniform', 'examples', 'nova'"),
    ({"codec": "int3"}, "codec of Agreement must be one of 'fp32', 'bf16'"),
    ({"gain": "yolo"}, "gain of Agreement must be one of 'safe', 'unsafe'"),
]


@pytest.mark.parametrize(("values", "words"), WRONG)
def test_what_is_wrong_is_refused_in_clear_words(values, words):
    with pytest.raises(UsageError) as raised:
        from_plain(values)
    assert str(raised.value).startswith(words)


def test_an_agreement_says_what_it_is():
    assert str(recipes.all_reduce()) == "all_reduce every step, merge examples, fp32"
    assert str(recipes.iterative_reduce()).startswith("iterative_reduce every 1 epochs, sgd(lr=1)")


@pytest.mark.parametrize(
    ("agreement", "same"),
    [
        (averaging(every=Steps(5)), True),
        (averaging(), False),
        (averaging(every=Steps(5), quorum=0.5), False),
        (recipes.all_reduce(), True),
        (recipes.full_gradient(), True),
        (recipes.iterative_reduce(), True),
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


def test_alone_or_on_gradients_there_is_nothing_to_guard():
    alone = Setting(workers=1, every=Steps(10), is_adaptive=False, rounds=100)
    wild = averaging(outer=Nesterov(0.7, 0.9))
    assert wild.guarded(alone) == (wild, "")
    many = Setting(workers=8, every=Steps(1), is_adaptive=False, rounds=100)
    assert recipes.all_reduce().guarded(many) == (recipes.all_reduce(), "")
