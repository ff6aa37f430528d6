import numpy as np
import pytest

from photinus.coordinator.early_stopping import EarlyStopping
from photinus.strategies.base import Message
from photinus.training.snapshots import RunSnapshot

BOTH = frozenset({0, 1})


def snapshot(version):
    point = Message("heal", np.full(1, version))
    return RunSnapshot(
        phase=0, version=version, applied=0, budget=1, point=point, positions={}, rows={}
    )


def run_trial(early_stopping, version, errors, slots=BOTH, name="errors"):
    """One trial from its beginning to its end, of 10 examples a slot."""
    assert early_stopping.begin(version / 10, version, slots)
    early_stopping.offer_candidate(snapshot(version))
    for slot in slots:
        early_stopping.add_sums(slot, {"examples": 10.0, name: errors / len(slots)})
    return early_stopping.finish_trial()


def test_a_trial_is_due_once_an_epoch_and_just_before_the_end():
    early_stopping = EarlyStopping(2.5, 0)
    due = [p for p in range(0, 101, 2) if early_stopping.begin(p / 100, p, BOTH)]
    assert due == [40, 80, 98]


def test_without_epochs_there_are_no_trials():
    assert not EarlyStopping(0.0, 0).begin(1.0, 1, BOTH)


def test_each_slot_is_asked_once_and_counts_once():
    early_stopping = EarlyStopping(10.0, 0)
    assert early_stopping.begin(0.1, 1, BOTH)
    assert [early_stopping.should_measure(slot) for slot in (0, 0, 1, 2)] == [
        True,
        False,
        True,
        False,
    ]
    early_stopping.add_sums(0, {"examples": 4.0, "errors": 1.0})
    early_stopping.add_sums(0, {"examples": 4.0, "errors": 4.0})
    assert early_stopping.finish_trial() is None
    early_stopping.add_sums(1, {"examples": 6.0, "errors": 2.0})
    trial = early_stopping.finish_trial()
    assert (trial.examples, trial.metrics) == (10, {"error": pytest.approx(0.3)})
    assert early_stopping.finish_trial() is None, "told once"


def test_a_lost_worker_is_not_waited_for():
    early_stopping = EarlyStopping(10.0, 0)
    early_stopping.begin(0.1, 1, BOTH)
    early_stopping.add_sums(0, {"examples": 4.0, "errors": 1.0})
    early_stopping.drop_slot(1)
    assert early_stopping.finish_trial().examples == 4


def test_the_best_is_the_lowest_error_and_patience_counts_from_it():
    early_stopping = EarlyStopping(10.0, 2)
    errors = [6, 4, 5, 3, 3, 7]
    trials = [run_trial(early_stopping, n + 1, e) for n, e in enumerate(errors)]
    assert [f.is_best for f in trials] == [True, True, False, True, False, False]
    assert (early_stopping.best.version, early_stopping.is_stopped) == (4, True)
    assert not early_stopping.begin(0.9, 9, BOTH), "it is over"


def test_of_points_of_one_error_the_lower_loss_is_better():
    early_stopping = EarlyStopping(10.0, 1)
    losses, is_best = [6.0, 5.0, 4.0, 4.0], []
    for n, loss in enumerate(losses):
        assert early_stopping.begin((n + 1) / 10, n + 1, BOTH)
        early_stopping.offer_candidate(snapshot(n + 1))
        for slot in BOTH:
            early_stopping.add_sums(slot, {"examples": 10.0, "errors": 2.0, "loss": loss})
        is_best.append(early_stopping.finish_trial().is_best)
    assert is_best == [True, True, True, False]
    assert early_stopping.is_stopped


def test_no_point_is_better_than_one_without_an_error():
    early_stopping = EarlyStopping(10.0, 2)
    is_best = []
    for n, (errors, loss) in enumerate([(1, 3.0), (0, 2.0), (0, 1.0), (0, 0.5)]):
        assert early_stopping.begin((n + 1) / 10, n + 1, BOTH)
        early_stopping.offer_candidate(snapshot(n + 1))
        for slot in BOTH:
            early_stopping.add_sums(slot, {"examples": 10.0, "errors": errors, "loss": loss})
        is_best.append(early_stopping.finish_trial().is_best)
    assert is_best == [True, True, False, False]
    assert early_stopping.is_stopped


def test_the_loss_decides_where_there_is_no_error_and_nothing_else_does():
    early_stopping = EarlyStopping(10.0, 1)
    assert run_trial(early_stopping, 1, 5.0, name="loss").is_best
    without_loss = EarlyStopping(10.0, 1)
    assert not run_trial(without_loss, 1, 5.0, name="energy").is_best
    assert not without_loss.is_stopped
    assert without_loss.best is None


def test_a_point_that_is_not_held_is_not_the_best():
    early_stopping = EarlyStopping(10.0, 0)
    early_stopping.begin(0.1, 1, BOTH)
    early_stopping.offer_candidate(snapshot(2))
    for slot in BOTH:
        early_stopping.add_sums(slot, {"examples": 1.0, "errors": 0.0})
    assert not early_stopping.finish_trial().is_best
