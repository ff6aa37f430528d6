"""What a phase's length decides: its start by gradients, its rounds, and which gain is taken."""

import pytest

from photinus.core.clock import Epochs, Seconds, Steps
from photinus.strategies.outer import Adam, DelayedNesterov, Nesterov, Sgd, SlowMo
from photinus.strategies.phase_defaults import (
    PhaseFacts,
    clamp,
    gain_limit,
    gradient_share,
    shorten,
)
from photinus.strategies.recipes import all_reduce, averaging, full_gradient, iterative_reduce

TABLE = [
    # workers, every, adaptive, steps, limit
    (8, Steps(10), False, 1000, 2.0),
    (8, Steps(4), False, 400, 1.5),
    (8, Steps(4), True, 400, 1.5),
    (8, Steps(5), True, 500, 7.0),
    (4, Steps(50), True, 1500, 7.0),
    (3, Steps(50), True, 5000, 2.0),
    (8, Steps(50), True, 1499, 2.0),
    (8, Seconds(2), False, 5000, 2.0),
    (8, Epochs(1), True, 5000, 7.0),
    (8, Steps(2) | Seconds(9), False, 200, 1.5),
]


@pytest.mark.parametrize(("workers", "every", "adaptive", "steps", "most"), TABLE)
def test_the_limit_follows_the_table(workers, every, adaptive, steps, most):
    setting = PhaseFacts(workers=workers, steps=steps, epochs=50.0, is_adaptive=adaptive)
    assert gain_limit(every, setting, is_immediate=False) == most
    tamed, warning = clamp(SlowMo(lr=1.0, momentum=0.95), every, setting)
    assert tamed.gain == pytest.approx(most, abs=1e-5)
    assert tamed.lr == 1.0
    assert "gain lr/(1-momentum)" in warning
    assert 'gain="unsafe"' in warning


def test_what_is_applied_as_it_comes_may_carry_no_further_than_its_share():
    setting = PhaseFacts(workers=8, steps=5000, is_adaptive=True)
    assert gain_limit(Steps(50), setting, is_immediate=True) == 1.0
    one = DelayedNesterov()
    assert clamp(one, Steps(50), setting, is_immediate=True) == (one, "")
    tamed, _ = clamp(Nesterov(), Steps(50), setting, is_immediate=True)
    assert tamed == Nesterov(lr=0.7, momentum=0.3)


@pytest.mark.parametrize("outer", [Sgd(), Nesterov(), Nesterov(0.2, 0.9), Adam(), Sgd(2.0)])
def test_what_is_within_the_limit_is_taken_as_asked(outer):
    assert clamp(outer, Steps(50), PhaseFacts(workers=8, steps=5000)) == (outer, "")


def test_a_rate_above_the_limit_is_lowered_once_no_momentum_is_left():
    setting = PhaseFacts(workers=8, steps=5000)
    assert clamp(Sgd(lr=3.0), Steps(50), setting)[0] == Sgd(lr=2.0)
    tamed, warning = clamp(Nesterov(lr=3.0, momentum=0.5), Steps(50), setting)
    assert tamed == Nesterov(lr=2.0, momentum=0.0)
    assert "got 6; nesterov lowered to lr 2, momentum 0" in warning


def test_a_short_phase_is_by_gradients_and_a_long_one_at_its_start():
    shares = [gradient_share("auto", steps) for steps in (1, 400, 7500, 10_000, 100_000)]
    assert shares == [1.0, 1.0, 1.0, 0.75, 0.075]
    assert [gradient_share(share, 100) for share in (0.0, 0.5, 1)] == [0.0, 0.5, 1.0]


@pytest.mark.parametrize(
    ("every", "workers", "steps", "shorter"),
    [
        (Steps(50), 4, 500, Steps(50)),
        (Steps(50), 4, 499, Steps(49)),
        (Steps(50), 4, 3, Steps(1)),
        (Steps(50), 1, 3, Steps(50)),
        (Steps(50) | Seconds(2), 4, 100, Steps(10) | Seconds(2)),
        (Seconds(2), 4, 3, Seconds(2)),
        (Epochs(1), 4, 3, Epochs(1)),
    ],
)
def test_rounds_follow_the_length_of_the_phase(every, workers, steps, shorter):
    assert shorten(every, PhaseFacts(workers=workers, steps=steps))[0] == shorter


@pytest.mark.parametrize(
    ("recipe", "facts", "got"),
    [
        (iterative_reduce(), {"steps": 125, "epochs": 20.0}, "125 steps in 20 rounds"),
        (iterative_reduce(), {"steps": 750, "epochs": 2.0}, "750 steps in 2 rounds"),
        (iterative_reduce(), {"steps": 750, "epochs": 0.5}, "750 steps in 1 round"),
        (iterative_reduce(), {"steps": 200, "epochs": 10.0}, None),
        (iterative_reduce(), {"steps": 125, "epochs": 20.0, "workers": 1}, None),
        (iterative_reduce(gradients_until=0.5), {"steps": 60, "epochs": 2.0}, None),
        (averaging(gradients_until=0, every=Epochs(1)), {"steps": 60, "epochs": 2.0},
         "60 steps in 2 rounds"),
        (averaging(gradients_until=0), {"steps": 60, "epochs": 2.0}, None),
        (full_gradient(), {"steps": 125, "epochs": 20.0}, "20 steps in all"),
        (full_gradient(), {"steps": 9, "epochs": 1.0, "workers": 1}, "1 step in all"),
        (full_gradient(), {"steps": 125, "epochs": 100.0}, None),
        (all_reduce(), {"steps": 9, "epochs": 1.0}, None),
    ],
)  # fmt: skip
def test_a_recipe_that_agrees_by_the_epoch_says_where_a_training_is_too_short_for_it(
    recipe, facts, got
):
    """Of 200 rows, 20 epochs and 7 workers, iterative_reduce ended 5 points above a plain loop, and
    full_gradient 17."""
    _, warnings = recipe.settled(PhaseFacts(**{"workers": 7} | facts))
    assert [f"got {got};" in text for text in warnings] == ([] if got is None else [True])
    assert all(text.startswith(f"{recipe.recipe}: ") for text in warnings)
