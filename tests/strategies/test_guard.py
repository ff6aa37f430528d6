"""The guard's table: which gain is taken as asked."""

import pytest

from photinus.core.clock import Epochs, Seconds, Steps
from photinus.strategies.guard import Setting, clamp, limit
from photinus.strategies.outer import Adam, DelayedNesterov, Nesterov, Sgd, SlowMo

TABLE = [
    # workers, every, adaptive, rounds, limit
    (8, Steps(10), False, 100, 2.0),
    (8, Steps(4), False, 100, 1.5),
    (8, Steps(4), True, 100, 1.5),
    (8, Steps(5), True, 100, 7.0),
    (4, Steps(50), True, 30, 7.0),
    (3, Steps(50), True, 100, 2.0),
    (8, Steps(50), True, 29, 2.0),
    (8, Seconds(2), False, 100, 2.0),
    (8, Epochs(1), True, 50, 7.0),
    (8, Steps(2) | Seconds(9), False, 100, 1.5),
]


@pytest.mark.parametrize(("workers", "every", "adaptive", "rounds", "most"), TABLE)
def test_the_limit_follows_the_table(workers, every, adaptive, rounds, most):
    setting = Setting(workers=workers, every=every, is_adaptive=adaptive, rounds=rounds)
    assert limit(setting) == most
    tamed, warning = clamp(SlowMo(lr=1.0, momentum=0.95), setting)
    assert tamed.gain == pytest.approx(most)
    assert tamed.momentum == 0.95
    assert "gain lr/(1-momentum)" in warning
    assert 'gain="unsafe"' in warning


def test_what_is_applied_as_it_comes_may_carry_no_further_than_its_share():
    setting = Setting(workers=8, every=Steps(50), is_adaptive=True, rounds=100, is_immediate=True)
    assert limit(setting) == 1.0
    assert clamp(DelayedNesterov(), setting) == (DelayedNesterov(), "")
    assert clamp(Nesterov(), setting)[0] == Nesterov(lr=0.5, momentum=0.5)


@pytest.mark.parametrize("outer", [Sgd(), Nesterov(), Nesterov(0.2, 0.9), Adam(), Sgd(2.0)])
def test_what_is_within_the_limit_is_taken_as_asked(outer):
    setting = Setting(workers=8, every=Steps(50), is_adaptive=False, rounds=100)
    assert clamp(outer, setting) == (outer, "")


def test_an_outer_optimizer_without_momentum_is_clamped_too():
    setting = Setting(workers=8, every=Steps(50), is_adaptive=False, rounds=100)
    assert clamp(Sgd(lr=3.0), setting)[0] == Sgd(lr=2.0)
