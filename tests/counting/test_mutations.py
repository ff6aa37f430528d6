"""A push that is weighted twice, or not at all, passes the audit and fails the count.

The ledger holds that a push was applied, and not by how much. Each owner is harmed here where it
weighs or applies; ledger and answers stay as they are.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from cases import Trial

from photinus.engine.simulation.cluster import SimulatedCluster
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.strategies import immediate, peers, rounds
from photinus.strategies.immediate import Immediate
from photinus.strategies.outer import Sgd

AT = 2
"""At which agreement the owner errs, once."""


@dataclass
class Erring:
    """A function of the product that errs at its n-th call, and then never again."""

    inside: Callable
    err: Callable
    calls: int = 0

    def __call__(self, *given, **named):
        result = self.inside(*given, **named)
        self.calls += 1
        return self.err(result) if self.calls == AT else result


def weighted(factor):
    """The first push of a merge weighs so many times what it should."""
    return lambda weights: [weights[0] * factor, *weights[1:]]


def scaled(factor):
    return lambda delta: delta * factor


def trained(recipe, folder, **fields):
    trial = Trial(recipe, folder, **fields)
    try:
        return trial.train(SimulatedEngine(SimulatedCluster())), ""
    except AssertionError as error:
        return None, str(error)


@pytest.fixture
def errs(monkeypatch):
    def make(module, name, err):
        erring = Erring(getattr(module, name), err)
        monkeypatch.setattr(module, name, erring)
        return erring

    return make


@pytest.mark.parametrize("recipe", ["averaging", "iterative_reduce", "all_reduce", "post_local"])
@pytest.mark.parametrize("factor", [0, 2])
def test_a_push_weighted_twice_or_not_at_all_passes_the_audit_and_fails_the_count(
    recipe, factor, errs, tmp_path
):
    whole, _ = trained(recipe, tmp_path / "whole")
    erring = errs(rounds, "coefficients", weighted(factor))
    verdict, _ = trained(recipe, tmp_path / "harmed")
    assert erring.calls >= AT
    assert verdict.audited.is_exact
    assert verdict.audited.applied == whole.audited.applied
    assert (whole.lost, whole.doubled) == (0, 0)
    counted_errors = verdict.lost if factor == 0 else verdict.doubled
    other_errors = verdict.doubled if factor == 0 else verdict.lost
    assert (counted_errors > 0, other_errors) == (True, 0)


@pytest.mark.parametrize("recipe", ["publish", "gossip", "averaging, owners"])
@pytest.mark.parametrize("factor", [0, 2])
def test_a_weight_that_is_wrong_in_a_meeting_passes_the_audit_and_fails_the_count(
    recipe, factor, errs, tmp_path
):
    # its first call: a meeting asks for the weights of the deltas, then for those of the buffers
    errs(peers, "coefficients", weighted(factor)).calls = AT - 1
    verdict, _ = trained(recipe, tmp_path)
    assert verdict.audited.is_exact
    assert (verdict.lost > 0, verdict.doubled > 0) == (factor == 0, factor == 2)


@pytest.mark.parametrize("factor", [0, 2])
def test_a_push_that_downpour_takes_twice_or_not_at_all_passes_the_audit_and_fails_the_count(
    factor, errs, tmp_path
):
    errs(immediate, "decoded", scaled(factor))
    verdict, _ = trained("downpour", tmp_path)
    assert verdict.audited.is_exact
    assert (verdict.lost > 0, verdict.doubled > 0) == (factor == 0, factor == 2)


@pytest.mark.parametrize("factor", [0.5, 1.5])
def test_a_push_of_a_part_is_no_whole_number_of_times(factor, errs, tmp_path):
    errs(rounds, "coefficients", weighted(factor))
    verdict, error = trained("averaging", tmp_path)
    assert verdict is None
    assert "no whole number of times" in error


def test_an_elastic_pull_that_is_taken_twice_is_found(monkeypatch, tmp_path):
    acked, calls = immediate._acked, []

    def twice(slot, state, vector, outer):
        calls.append(slot)
        pulled = 2 * vector - state.vector if len(calls) == AT else vector
        return acked(slot, state, pulled, outer)

    monkeypatch.setattr(immediate, "_acked", twice)
    verdict, error = trained("elastic", tmp_path)
    assert verdict is None
    assert "pulls otherwise" in error


def test_an_owner_that_applies_a_push_twice_and_enters_it_once_is_found(monkeypatch, tmp_path):
    receive, calls = Immediate.receive, []

    def twice(self, slot, message, members, state):
        replies, state = receive(self, slot, message, members, state)
        calls.append(message.kind)
        if calls.count("push") == AT and message.kind == "push":
            _, state = receive(self, slot, message, members, state)
        return replies, state

    monkeypatch.setattr(Immediate, "receive", twice)
    verdict, error = trained("downpour", tmp_path)
    assert verdict is None or verdict.doubled > 0, error


def test_a_push_whose_weight_the_others_take_over_is_found(errs, tmp_path):
    """The weights add up to 1, and the rows of one member are in no model."""

    def err(weights):
        return [0.0, *(w / sum(weights[1:]) for w in weights[1:])]

    errs(rounds, "coefficients", err)
    verdict, error = trained("averaging", tmp_path)
    assert verdict is None
    assert "no whole number of times" in error


@pytest.mark.parametrize("outer", [Sgd(0.5), Sgd(2.0)])
def test_an_outer_step_that_is_not_the_recipes_is_found(outer, monkeypatch, tmp_path):
    original = rounds.Rounds._moved

    def moved(self, fragment, mean, state):
        wrong = state.version == AT and self.holds_parameters
        return original(self, fragment, mean * outer.lr if wrong else mean, state)

    monkeypatch.setattr(rounds.Rounds, "_moved", moved)
    verdict, error = trained("averaging", tmp_path)
    assert verdict is None
    assert "the model is not what was agreed on" in error
