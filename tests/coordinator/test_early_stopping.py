import numpy as np
import pytest

from photinus.coordinator.early_stopping import EarlyStopping
from photinus.strategies.base import Message
from photinus.training.snapshots import Cut

BOTH = frozenset({0, 1})


def cut(version):
    point = Message("heal", np.full(1, version))
    return Cut(phase=0, version=version, applied=0, budget=1, point=point, positions={}, rows={})


def tried(trials, version, errors, slots=BOTH, name="errors"):
    """One trial from its beginning to its end, of 10 examples a slot."""
    assert trials.begin(version / 10, version, slots)
    trials.hold(cut(version))
    for slot in slots:
        trials.take(slot, {"examples": 10.0, name: errors / len(slots)})
    return trials.whole()


def test_a_trial_is_due_once_an_epoch_and_just_before_the_end():
    trials = EarlyStopping(2.5, 0)
    due = [p for p in range(0, 101, 2) if trials.begin(p / 100, p, BOTH)]
    assert due == [40, 80, 98]


def test_without_epochs_there_are_no_trials():
    assert not EarlyStopping(0.0, 0).begin(1.0, 1, BOTH)


def test_each_slot_is_asked_once_and_counts_once():
    trials = EarlyStopping(10.0, 0)
    assert trials.begin(0.1, 1, BOTH)
    assert [trials.asks(slot) for slot in (0, 0, 1, 2)] == [True, False, True, False]
    trials.take(0, {"examples": 4.0, "errors": 1.0})
    trials.take(0, {"examples": 4.0, "errors": 4.0})
    assert trials.whole() is None
    trials.take(1, {"examples": 6.0, "errors": 2.0})
    found = trials.whole()
    assert (found.examples, found.metrics) == (10, {"error": pytest.approx(0.3)})
    assert trials.whole() is None, "told once"


def test_a_lost_worker_is_not_waited_for():
    trials = EarlyStopping(10.0, 0)
    trials.begin(0.1, 1, BOTH)
    trials.take(0, {"examples": 4.0, "errors": 1.0})
    trials.without(1)
    assert trials.whole().examples == 4


def test_the_best_is_the_lowest_error_and_patience_counts_from_it():
    trials = EarlyStopping(10.0, 2)
    errors = [6, 4, 5, 3, 3, 7]
    found = [tried(trials, n + 1, e) for n, e in enumerate(errors)]
    assert [f.is_best for f in found] == [True, True, False, True, False, False]
    assert (trials.best.version, trials.is_stopped) == (4, True)
    assert not trials.begin(0.9, 9, BOTH), "it is over"


def test_the_loss_decides_where_there_is_no_error_and_nothing_else_does():
    trials = EarlyStopping(10.0, 1)
    assert tried(trials, 1, 5.0, name="loss").is_best
    other = EarlyStopping(10.0, 1)
    assert not tried(other, 1, 5.0, name="energy").is_best
    assert not other.is_stopped
    assert other.best is None


def test_a_point_that_is_not_held_is_not_the_best():
    trials = EarlyStopping(10.0, 0)
    trials.begin(0.1, 1, BOTH)
    trials.hold(cut(2))
    for slot in BOTH:
        trials.take(slot, {"examples": 1.0, "errors": 0.0})
    assert not trials.whole().is_best
