"""Parts as plain values: what comes back, and what never travels as text."""

import json

import pytest

from photinus.core.clock import Epochs, Partitions, Seconds, Steps
from photinus.core.errors import UsageError
from photinus.strategies.outer import OUTERS, Descent, Sgd
from photinus.strategies.recipe_settings import outer_text, parts_of, plain_of


@pytest.mark.parametrize("outer", [make() for make in OUTERS.values()], ids=lambda o: o.name)
def test_an_outer_optimizer_comes_back(outer):
    plain = json.loads(json.dumps(plain_of(outer)))
    assert parts_of("averaging", {"outer": plain}) == {"outer": outer}
    assert outer_text(outer).startswith(f"{outer.name}(lr=")


@pytest.mark.parametrize("name", ["every", "fetch"])
def test_a_trigger_comes_back(name):
    trigger = Steps(7) | Seconds(1.5)
    assert plain_of(trigger) == {"steps": 7, "seconds": 1.5}
    assert parts_of("downpour", {name: plain_of(trigger)}) == {name: trigger}


def test_what_is_plain_stays_as_it_is():
    assert plain_of("bf16") == "bf16"
    assert parts_of("averaging", {"outer": "sgd", "codec": "bf16"}) == {
        "outer": Sgd(),
        "codec": "bf16",
    }


def downhill(vector, delta):
    return vector - delta


def test_a_function_is_named_by_its_module():
    plain = plain_of(Descent(downhill))
    assert plain == {"name": "descent", "function": f"{__name__}:downhill"}
    assert outer_text(Descent(downhill)) == "descent(function=downhill)"
    assert parts_of("downpour", {"outer": plain}) == {"outer": Descent(downhill)}


@pytest.mark.parametrize("name", ["builtins:exec", "subprocess:getoutput", "torch.hub:load"])
def test_a_function_of_a_library_is_no_descent(name):
    with pytest.raises(UsageError, match="a descent must be the user's own code"):
        parts_of("downpour", {"outer": {"name": "descent", "function": name}})


def test_a_function_without_a_place_in_a_module_is_refused():
    plain = plain_of(Descent(lambda vector, delta: vector - delta))
    with pytest.raises(UsageError, match=r"is named package.module:name; got .*<lambda>'"):
        parts_of("downpour", {"outer": plain})


def test_partitions_are_passes_over_a_worker_s_own_rows():
    assert parts_of("averaging", {"every": {"partitions": 2}}) == {"every": Epochs(2)}
    both = {"every": {"partitions": 1, "steps": 7}}
    assert parts_of("averaging", both) == {"every": Steps(7) | Partitions(1)}
