"""A stage in two parts: where the one ends, what each agrees on, and what follows from length."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from photinus.core.clock import Steps
from photinus.models.logistic import LogisticConfig
from photinus.strategies.custom import CustomStrategy
from photinus.strategies.recipes import (
    RECIPES,
    all_reduce,
    averaging,
    diloco,
    downpour,
    elastic,
    post_local,
)
from photinus.training.plan import FASTEST, REST, START, WHOLE, Phase, TrainingPlan, phases_of


def config(**fields):
    return LogisticConfig(features=2, classes=2, **{"epochs": 2.0, "batch_size": 10, **fields})


def parted(until, **fields):
    return phases_of(config(**fields), averaging(gradients_until=until), 4)


@pytest.mark.parametrize("name", RECIPES)
def test_who_trains_alone_between_rounds_starts_by_gradients(name):
    parts = [phase.part for phase in phases_of(config(), RECIPES[name].build(), 4)]
    by_gradients = ("all_reduce", "full_gradient", "iterative_reduce")
    assert parts == ([WHOLE] if name in by_gradients else [START, REST])


@pytest.mark.parametrize("asked", [{}, {"alpha": 0.5}, {"gradients_until": 0.0}])
def test_a_single_worker_is_on_a_spring_only_where_it_was_asked_for(asked):
    """Its centre would trail behind it; without one it trains plainly."""
    [phase] = phases_of(config(), elastic(**asked), 1)
    assert phase.part == WHOLE
    assert (phase.strategy.payload == "elastic") == bool(asked)
    assert asked or phase.strategy.owner() == all_reduce().owner()


def test_the_parts_are_of_one_stage_and_the_start_is_named_for_what_it_does():
    start, rest = parted(0.5)
    assert start.config is rest.config
    assert start.strategy.worker() == all_reduce().worker()
    assert start.strategy.owner() == all_reduce().owner()
    assert rest.strategy == averaging(gradients_until=0.5)
    assert [start.name, rest.name] == ["logistic, by gradients", "logistic"]


@pytest.mark.parametrize(
    ("strategy", "workers"),
    [
        (averaging(), 1),
        (averaging(gradients_until=0.0), 4),
        (all_reduce(), 4),
        (CustomStrategy("photinus.strategies.recipes:averaging"), 4),
    ],
    ids=str,
)
def test_a_stage_is_whole_where_no_start_is_asked_for(strategy, workers):
    (phase,) = phases_of(config(), strategy, workers)
    assert (phase.part, phase.strategy) == (WHOLE, strategy)
    assert phase.span(1000) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("rows", "border"),
    [(1000, 1.0), (2000, 1.0), (37_500, 1.0), (50_000, 0.75), (100_000, 0.375)],
)
def test_a_stage_of_at_most_7500_steps_has_no_rest(rows, border):
    start, rest = parted("auto")
    assert start.span(rows) == (0.0, border)
    assert rest.span(rows) == (border, 1.0)


@given(
    st.floats(0.01, 0.99), st.integers(1, 5000), st.sampled_from([0.5, 1.0, 2.0, 3.7]), st.data()
)
def test_a_start_ends_with_a_step_of_all_workers(until, rows, epochs, data):
    batch = data.draw(st.integers(1, max(1, rows)))
    start, rest = parted(until, epochs=epochs, batch_size=batch)
    (first, border), (again, last) = start.span(rows), rest.span(rows)
    assert (first, again, last) == (0.0, border, 1.0)
    assert abs(border - until) * epochs * rows <= batch * 0.5001
    examples = border * epochs % 1.0 * rows
    off = min(examples % batch, batch - examples % batch, rows - examples)
    assert off == pytest.approx(0, abs=1e-4) or border == 1.0


@pytest.mark.parametrize(("until", "border"), [(0.1, 0.0), (0.3, 0.25), (0.5, 0.5), (0.9, 1.0)])
def test_where_rows_stream_a_start_ends_with_a_pass(until, border):
    start, rest = parted(until, epochs=4.0)
    assert start.span(1000, is_stream=True) == (0.0, border)
    assert rest.span(1000, is_stream=True) == (border, 1.0)


def test_a_recipe_follows_the_length_of_its_own_part():
    _, rest = phases_of(config(epochs=10.0), diloco(gradients_until=0.5), 4)
    settled, (warning, *_) = rest.settled(1000, 4, rest.span(1000))
    assert settled.every == Steps(50)
    assert warning.startswith("diloco: 500 steps leave no room for 10 rounds of 500 steps")


def test_a_phase_made_by_hand_is_taken_as_it_is():
    by_hand = Phase(config=config(), strategy=diloco())
    assert by_hand.part == WHOLE
    assert by_hand.settled(1000, 4, (0.0, 1.0)) == (diloco(), [])


def test_shares_are_fixed_unless_the_fastest_may_do_more_and_bits_need_not_repeat():
    phases = tuple(Phase(config=config(), strategy=a) for a in (averaging(), downpour()))
    rows, fastest = (TrainingPlan(phases=phases, workers=4, share=s) for s in ("rows", FASTEST))
    assert [rows.is_fixed(n) for n in (0, 1)] == [True, True]
    assert [fastest.is_fixed(n) for n in (0, 1)] == [True, False]
    assert TrainingPlan(phases=phases, workers=1, share=FASTEST).is_fixed(1)


def test_post_local_begins_to_train_alone_where_the_usual_rate_of_one_worker_falls():
    start, rest = phases_of(config(), post_local(), 4)
    assert start.span(1000) == (0.0, 0.8)
    assert rest.span(1000) == (0.8, 1.0)


class Told(LogisticConfig):
    """A config that keeps how long its workers agree on every step."""

    def agreed_until(self, share):
        return share


@pytest.mark.parametrize(
    ("strategy", "workers", "shares"),
    [
        (averaging(), 1, [1.0]),
        (all_reduce(), 4, [1.0]),
        (averaging(gradients_until=0.0), 4, [0.0]),
        (RECIPES["iterative_reduce"].build(), 4, [0.0]),
        (averaging(gradients_until=0.5), 4, [0.5, 0.5]),
        (downpour(gradients_until=0.25), 4, [0.25, 0.25]),
    ],
    ids=str,
)
def test_a_config_knows_until_when_its_workers_agree_on_every_step(strategy, workers, shares):
    phases = phases_of(Told(features=2, classes=2, epochs=2.0, batch_size=10), strategy, workers)
    until = [phase.config_for(workers, phase.span(1000)) for phase in phases]
    assert until == shares
