"""A fit with a deadline takes the fewest tasks that are fast enough, and runs the plan once."""

import pytest

from photinus import DBNClassifier, TorchClassifier
from photinus.core.errors import UsageError
from photinus.core.events import PhaseEnded, RunStarted, Warned

pytestmark = pytest.mark.spark


def fit_and_record(frame, estimator):
    events = []
    estimator.callbacks = (events.append,)
    estimator.fit(frame)
    (started,) = (e for e in events if isinstance(e, RunStarted))
    warnings = [e.text for e in events if isinstance(e, Warned)]
    return started.workers, [e for e in events if isinstance(e, PhaseEnded)], warnings


def linear(**params):
    shape = {"in_features": 2, "out_features": 2}
    return TorchClassifier(module="torch.nn:Linear", moduleArgs=shape, batchSize=10, **params)


def test_a_short_training_takes_one_task_and_reads_the_plan_once(counted, nothing_left):
    frame, read_counts = counted
    workers, (phase,), warnings = fit_and_record(frame, linear(epochs=2.0, deadlineSeconds=600.0))
    assert workers == 1
    assert phase.examples == 2 * 90
    assert not any("after its deadline" in text for text in warnings)
    once = dict.fromkeys(range(3), 1)
    assert read_counts() in (once, once | {0: 2}), "partition 0 may hold the first row"


def test_a_belief_network_is_tried_layer_by_layer(counted):
    frame, _ = counted
    estimator = DBNClassifier(
        hiddenSizes=[4, 3], precision="float32", numWorkers=2, numClasses=2, deadlineSeconds=600.0
    )
    workers, phases, _ = fit_and_record(frame, estimator)
    assert workers == 1
    assert len(phases) >= 3


def test_a_training_that_takes_too_long_is_refused_before_it_begins(counted, nothing_left):
    estimator = linear(epochs=100_000.0, numWorkers=2, deadlineSeconds=20.0)
    with pytest.raises(UsageError, match=r"it cannot end in time; got deadline_seconds=20; set it"):
        estimator.fit(counted[0])
