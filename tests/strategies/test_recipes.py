"""The table of recipes: made from plain values and back, refused in clear words."""

import inspect
import json
import re

import pytest

from photinus.core.clock import Epochs, Seconds, Steps, Trigger
from photinus.core.errors import UsageError
from photinus.strategies import recipes
from photinus.strategies.outer import Adagrad, DelayedNesterov, Sgd
from photinus.strategies.recipes import (
    DEFAULT,
    RECIPES,
    averaging,
    diloco,
    downpour,
    elastic,
    from_plain,
    to_plain,
)

VARIANTS = [
    averaging(),
    averaging(every=Seconds(3.0), outer=Sgd(0.5), merge="uniform", codec="fp32"),
    averaging(quorum=0.75, grace_seconds=2.0, gain="unsafe"),
    diloco(every=Steps(100), outer=Adagrad(lr=0.3)),
    recipes.all_reduce(codec="bf16"),
    recipes.full_gradient(),
    recipes.iterative_reduce(every=Epochs(2)),
    diloco(codec="int4", codec_down="bf16"),
    recipes.streaming(fragments=2, delay=0, alpha=0.3),
    averaging(quorum=3),
    diloco(release="immediate", outer=DelayedNesterov(pushes=4), staleness=40),
    downpour(every=Steps(3), fetch=Steps(9) | Seconds(1.0), staleness="inverse"),
    downpour(payload="gradient", outer=Adagrad(lr=0.05)),
    elastic(alpha=0.5, every=Steps(4)),
]


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_known_by_the_name_of_its_function(name):
    strategy = getattr(recipes, name)()
    assert from_plain(name) == strategy == RECIPES[name].build()
    assert strategy.recipe == name
    assert RECIPES[name].identities
    assert RECIPES[name].source
    assert to_plain(strategy) == {"recipe": name}


@pytest.mark.parametrize("strategy", VARIANTS, ids=str)
def test_plain_values_and_back(strategy):
    assert from_plain(json.loads(json.dumps(to_plain(strategy)))) == strategy


def test_without_a_name_it_is_the_default():
    assert from_plain({}) == RECIPES[DEFAULT].build()
    assert from_plain({"outer": "sgd"}).outer == Sgd()


def test_whichever_limit_comes_first():
    assert averaging(every=Steps(50) | Seconds(2.0)).every == Trigger(steps=50, seconds=2.0)
    assert from_plain({"every": {"steps": 7, "seconds": 1}}).every == Steps(7) | Seconds(1.0)


QUORUM = "quorum of averaging must be a share from 0.01 to 1, or a whole number of workers"
WRONG = [
    ("avreaging", "unknown strategy; got 'avreaging'; did you mean 'averaging'?"),
    ({"recipe": "mind_reading"}, "unknown strategy; got 'mind_reading'; known: all_reduce,"),
    ({"evry": 3}, "unknown argument of averaging; got 'evry'; did you mean 'every'?"),
    ({"payload": "gradient"}, "unknown argument of averaging; got 'payload'"),
    ({"every": {"steps": 0}}, "Steps takes a whole number of at least 1; got 0"),
    ({"every": {"step": 5}}, "unknown limit of every of averaging; got 'step'; did you mean 'ste"),
    ({"every": 5}, "every of averaging must be a table; got 5; such as every = {steps = 10}"),
    ({"outer": 5}, "outer of averaging must be a table; got 5; such as outer = {name = "),
    ({"outer": "nestrov"}, "unknown outer optimizer; got 'nestrov'; did you mean 'nesterov'?"),
    ({"outer": {"lr": 1}}, "unknown outer optimizer; got ''"),
    (
        {"quorum": 1.5},
        f"{QUORUM}; got 1.5",
    ),
    (
        {"quorum": 0},
        f"{QUORUM}; got 0",
    ),
    ({"grace_seconds": -1}, "grace_seconds of averaging must be a number of at least 0; got -1"),
    ({"merge": "median"}, "merge of averaging must be one of 'uniform', 'examples', 'nova'"),
    ({"codec": "int3"}, "codec of averaging must be one of 'fp32', 'bf16'"),
    ({"fetch": {"steps": 5}}, 'fetch of averaging needs release="immediate"; got Steps(5); leave'),
    ({"staleness": "inverse"}, "staleness of averaging needs release=\"immediate\"; got 'inverse'"),
    ({"exact": 3}, "exact of averaging needs rows; got 3; leave exact out"),
    ({"grace_seconds": 2.0}, "grace_seconds of averaging needs a quorum; got 2.0"),
    ({"per_step_until": 0.5}, "unknown argument of averaging; got 'per_step_until'"),
    (
        {"recipe": "all_reduce", "gradients_until": 1},
        "unknown argument of all_reduce; got 'gradients",
    ),
    (
        {"recipe": "full_gradient", "outer": "adam"},
        "unknown argument of full_gradient; got 'outer'",
    ),
    ({"merge": "nova", "release": "immediate"}, "merge of averaging is a part of rounds; got"),
    ({"every": {}}, "every of averaging needs a limit; such as {steps = 10}"),
    ({"gradients_until": 2}, "gradients_until of averaging must be a number from 0 to 1, or"),
    ({"quorum": 2, "release": "immediate"}, 'quorum of averaging needs release="rounds"; got 2'),
    (
        {"recipe": "downpour", "payload": "elastic"},
        "payload of downpour must be one of 'delta', 'g",
    ),
    ({"recipe": "downpour", "fragments": 2}, "unknown argument of downpour; got 'fragments'"),
    ({"recipe": "downpour", "fetch": 5}, "fetch of downpour must be a table; got 5"),
    (
        {"recipe": "downpour", "merge": "nova"},
        "merge of downpour is for sharded tables; got owners=1, rows=0; leave it out",
    ),
    ({"recipe": "downpour", "merge": "nova", "owners": 2, "rows": 4}, "rows of several owners"),
    (
        {"recipe": "downpour", "payload": "gradient", "owners": 2, "rows": 4},
        "rows of several owners are for deltas, merge uniform or reads, an optimizer by row",
    ),
    ({"recipe": "downpour", "owners": 2}, "several owners are for rounds of whole vectors"),
    ({"recipe": "downpour", "outer": "descent"}, "a descent is named package.module:name; got ''"),
    ({"gain": "yolo"}, "gain of averaging must be one of 'safe', 'unsafe'"),
]


@pytest.mark.parametrize(("values", "words"), WRONG)
def test_what_is_wrong_is_refused_in_clear_words(values, words):
    with pytest.raises(UsageError) as raised:
        from_plain(values)
    assert str(raised.value).startswith(words)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_s_signature_shows_what_it_builds(name):
    recipe, strategy = RECIPES[name].build, RECIPES[name].build()
    parts = inspect.signature(recipe).parameters
    assert {part: p.default for part, p in parts.items()} == {
        part: getattr(strategy, part) for part in parts
    }
    assert strategy.usual <= parts.keys()


def test_a_part_that_is_said_is_not_the_recipe_s_choice_even_if_it_is_its_default():
    assert averaging().usual == {"every", "outer", "merge", "codec", "gradients_until"}
    recipe = averaging(every=Steps(50), codec="bf16")
    assert recipe.usual == {"outer", "merge", "gradients_until"}
    assert to_plain(recipe) == {"recipe": "averaging", "every": {"steps": 50}, "codec": "bf16"}


def test_an_error_names_the_recipe_and_the_part_that_the_user_wrote():
    with pytest.raises(UsageError, match=r"^unknown argument of diloco; got 'evry'; did you mean"):
        diloco(evry=Steps(3))
    with pytest.raises(UsageError, match=r"^fetch of downpour must be a trigger"):
        downpour(fetch=10)
    with pytest.raises(UsageError, match=r"^every of diloco must be a trigger, such as Steps\(10"):
        diloco(every=3)
    with pytest.raises(TypeError, match=r"^averaging\(\) takes 0 positional arguments"):
        averaging(Steps(3))


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"owners": 4, "fragments": 4}, "got fragments=4; change it"),
        ({"owners": 4, "codec": "int8"}, "got codec='int8'; change it"),
        ({"owners": 2, "codec_down": "int8"}, "got codec_down='int8'; change it"),
        ({"owners": 2, "release": "immediate"}, "got release='immediate'"),
        ({"rows": 4, "merge": "uniform", "quorum": 0.5}, "got quorum=0.5; change it"),
        (
            {"rows": 4, "merge": "uniform", "outer": DelayedNesterov()},
            "no descent or delayed_nesterov outside, and no codec_down; got outer=",
        ),
    ],
)
def test_arguments_that_do_not_go_together_are_named_as_they_were_written(parts, said):
    with pytest.raises(UsageError, match=re.escape(said)):
        averaging(**parts)
