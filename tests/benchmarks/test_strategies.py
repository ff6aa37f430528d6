"""The orderings that the benchmark of strategies asserts, on short trainings."""

import importlib
import math
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NAMES = [f"E{number}" for number in range(1, 12)]

pytestmark = [pytest.mark.mnist, pytest.mark.slow]


@pytest.fixture
def module(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return lambda name: importlib.import_module(f"strategies.{name}")


@pytest.mark.parametrize("name", NAMES)
def test_the_orderings_hold_with_their_margins(module, name):
    experiment = module("experiments").EXPERIMENTS[name]
    outcomes = experiment.outcomes(experiment.short_names(), module("trial").SHORT)
    claims = [claim for claim in experiment.claims if claim.is_short]
    assert claims
    violated = [c.says for c in claims if not c.holds(*(outcomes[trial] for trial in c.of))]
    assert not violated, {
        trial: outcomes[trial] for c in claims if c.says in violated for trial in c.of
    }


def test_a_claim_names_trials_that_there_are(module):
    for experiment in module("experiments").EXPERIMENTS.values():
        assert {name for claim in experiment.claims for name in claim.of} <= set(experiment.trials)


def test_a_trial_that_diverges_has_no_error_and_counts_as_untrained(module):
    claims, trial = module("claims"), module("trial")
    wild = trial.Trial(strategy=claims.at_once(1), workers=2, lr=1e30, falls=False)
    outcome = trial.measured(wild, trial.Scale(rows=640, epochs=1.0))
    assert math.isnan(outcome.error)
    assert claims.untrained(outcome)


def test_the_guard_takes_the_gain_back_that_does_not_train(module):
    from photinus.strategies.phase_defaults import PhaseFacts

    experiments = module("experiments")
    strategy = experiments.rounds(2, experiments.PUBLISHED, gain="safe")
    settled, (warning,) = strategy.settled(PhaseFacts(workers=8, steps=100))
    assert math.isclose(settled.outer.gain, 1.5, rel_tol=1e-5)
    assert "gain" in warning


def test_sparknets_table_is_the_simulators_time_and_dear_rounds_want_more_steps(module):
    sparknet = module("sparknet")
    goal = sparknet.Goal(rows=6_000, error=12.0)
    table = sparknet.speed_ups(goal, taus=(1, 10, 50))
    assert sparknet.best(table, 10.0) > 1
    assert table[10.0, 1] < 0.5 < 1 < table[0.0, 1]
    assert table[10.0, sparknet.best(table, 10.0)] > 3 * table[10.0, 1]
    measured, formula = sparknet.tried(goal, tau=10)
    assert measured == pytest.approx(formula, rel=0.1)
    assert "**" in "\n".join(sparknet.lines(table))
    assert sparknet.picture(table, 8).count("<rect") == 1 + len(table)
