"""Parts as plain values: what comes back, and what never travels as text."""

import json

import pytest

from photinus.core.clock import Seconds, Steps
from photinus.core.errors import UsageError
from photinus.strategies.outer import OUTERS, Descent, Sgd
from photinus.strategies.plain import parts_of, plain_of, shown


@pytest.mark.parametrize("outer", [make() for make in OUTERS.values()], ids=lambda o: o.name)
def test_an_outer_optimizer_comes_back(outer):
    plain = json.loads(json.dumps(plain_of(outer)))
    assert parts_of("averaging", {"outer": plain}) == {"outer": outer}
    assert shown(outer).startswith(f"{outer.name}(lr=")


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


def test_a_function_is_named_and_never_read_from_text():
    plain = plain_of(Descent(max))
    assert plain == {"name": "descent", "function": "max"}
    assert shown(Descent(max)) == "descent(function=max)"
    with pytest.raises(UsageError, match="unknown outer optimizer; got 'descent'"):
        parts_of("downpour", {"outer": plain})
