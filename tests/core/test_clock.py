"""Triggers fire when work or time since the last exchange says so."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from photinus.core.clock import Clock, Epochs, Examples, Seconds, Steps, Trigger
from photinus.core.errors import UsageError


def test_a_clock_counts_steps_and_takes_time_as_told():
    clock = Clock().after(32, 0.5, 0.1).after(16, 0.9, 0.2)
    assert clock == Clock(2, 48, 0.2, 0.9)
    assert clock.since(Clock(1, 32, 0.1, 0.5)) == Clock(1, 16, pytest.approx(0.1), 0.4)


@given(st.integers(1, 20))
def test_steps_fire_every_n(n):
    fired = [s for s in range(1, 100) if Steps(n).fires(Clock(s), Clock(s - s % n or 0))]
    assert not fired
    assert all(Steps(n).fires(Clock(s + n), Clock(s)) for s in range(50))


@pytest.mark.parametrize(
    ("trigger", "now"),
    [
        (Steps(5), Clock(5)),
        (Examples(40), Clock(5, 40)),
        (Epochs(0.5), Clock(5, 40, 0.5 - 1e-12)),
        (Seconds(2), Clock(5, 40, 0.1, 2.0)),
    ],
)
def test_each_unit_fires_at_its_limit_and_not_before(trigger, now):
    assert trigger.fires(now, Clock())
    assert not trigger.fires(Clock(4, 39, 0.4, 1.9), Clock())
    assert not trigger.fires(now._replace(steps=0), Clock()), "never without a step"


def test_whichever_comes_first():
    either = Steps(50) | Seconds(2.0)
    assert either.fires(Clock(3, seconds=2.1), Clock())
    assert either.fires(Clock(50, seconds=0.1), Clock())
    assert not either.fires(Clock(49, seconds=1.9), Clock())
    assert Steps(5) | Steps(3) == Steps(3)
    assert str(either) == "50 steps or 2 seconds"
    assert str(Steps(1)) == "1 step"
    assert not either.is_deterministic
    assert (Steps(5) | Epochs(1)).is_deterministic


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"steps": 0},
            "steps of a trigger must be a whole number of at least 1, or left out; got 0",
        ),
        ({"steps": 1.5}, "steps of a trigger must be a whole number"),
        ({"steps": True}, "steps of a trigger must be a whole number"),
        ({"seconds": 0}, "seconds of a trigger must be a number above 0, or left out; got 0"),
        ({"seconds": float("nan")}, "seconds of a trigger must be a number above 0"),
        ({"epochs": -1}, "epochs of a trigger"),
        ({"examples": "5"}, "examples of a trigger"),
    ],
)
def test_wrong_limits_are_refused(values, words):
    with pytest.raises(UsageError) as raised:
        Trigger(**values)
    assert str(raised.value).startswith(words)


def test_a_trigger_joins_nothing_but_a_trigger():
    with pytest.raises(UsageError, match=r"got 3; such as Steps\(50\) \| Seconds\(2.0\)"):
        Steps(5) | 3


def test_a_limit_out_of_range_is_named_as_it_was_written():
    with pytest.raises(UsageError, match=r"^Seconds takes a number above 0; got -1$"):
        Seconds(-1)
