"""Iterative algorithms on a real Spark, against the same done on one machine."""

import importlib
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from photinus.core.errors import RunFailedError, UsageError
from photinus.estimators.iterate import iterate
from photinus.report.ledger import audit

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.spark


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module


@pytest.fixture
def by_value(spark):
    """Sends a module's functions by value: workers do not see the examples' folder."""
    from pyspark import cloudpickle

    kept = []

    def register(module):
        cloudpickle.register_pickle_by_value(module)
        kept.append(module)
        return module

    yield register
    for module in kept:
        cloudpickle.unregister_pickle_by_value(module)


@pytest.fixture
def numbers(spark):
    rows = [(float(n), float(n % 7)) for n in range(100)]
    return spark.createDataFrame(rows, "a double, b double").repartition(2)


def test_kmeans_finds_the_centres_of_scikit_learn(spark, example, by_value):
    from sklearn.cluster import KMeans

    points, found = by_value(example("kmeans")).main(spark, rows=600)
    theirs = KMeans(5, init=points[:5], n_init=1, tol=0).fit(points.astype(float))
    assert found.is_done
    assert np.allclose(found.state["centres"], theirs.cluster_centers_, atol=1e-5)
    assert found.state["inertia"] == pytest.approx(theirs.inertia_, rel=1e-5)


def test_logistic_regression_finds_the_weights_of_scikit_learn(spark, example, by_value):
    from sklearn.linear_model import LogisticRegression

    features, labels, found = by_value(example("logistic")).main(spark, rows=500)
    theirs = LogisticRegression(C=1.0, tol=1e-10, max_iter=1000).fit(features.astype(float), labels)
    assert found.is_done
    assert np.allclose(found.state, [*theirs.coef_[0], theirs.intercept_[0]], atol=1e-6)


def total(mean, rows):
    return [rows.features.astype(float).sum(axis=0), len(rows.features)]


def joined(parts):
    return [sum(part) for part in zip(*parts, strict=True)]


def moved(state, combined):
    return state + combined[0] / combined[1], False


@pytest.mark.slow
def test_a_worker_that_is_killed_changes_no_result(numbers, tmp_path):
    def dies(state, rows):
        from pyspark import TaskContext

        context = TaskContext.get()
        if context.partitionId() == 1 and context.attemptNumber() == 0 and state[0] > 100:
            os.kill(os.getpid(), signal.SIGKILL)
        return total(state, rows)

    found = iterate(
        numbers,
        dies,
        joined,
        moved,
        start=np.zeros(2),
        rounds=6,
        features=["a", "b"],
        folder=tmp_path,
    )
    table = np.array([(n, n % 7) for n in range(100)], float)
    assert (found.rounds, found.is_done) == (6, False)
    assert np.allclose(found.state, 6 * table.mean(axis=0), rtol=1e-12)
    counted = audit(tmp_path / "ledger.jsonl")
    assert counted.is_exact
    assert (counted.applied, counted.leases) == (12, 3)


def endless(state, rows):
    return 1 / 0


def unequal(state, combined):
    return state


def broken(parts):
    raise KeyError("counts")


@pytest.mark.parametrize(
    ("functions", "kind", "sentence"),
    [
        (
            (lambda s, r: object(), joined, moved),
            UsageError,
            "what compute returns must be an array or",
        ),
        (
            (endless, joined, moved),
            RunFailedError,
            r"^compute failed twice in the same way on worker",
        ),
        ((total, joined, unequal), UsageError, r"update must return \(state, is_done\); got ndarr"),
        (
            (total, broken, moved),
            RunFailedError,
            r"^update failed, update 1; got KeyError: 'co",
        ),
    ],
)
def test_what_is_wrong_is_one_sentence_and_nothing_is_left_running(
    nothing_left, numbers, functions, kind, sentence
):
    with pytest.raises(kind, match=sentence) as told:
        iterate(numbers, *functions, start=np.zeros(2), features=["a", "b"])
    _, *trace = str(told.value).splitlines()
    assert bool(trace) == (functions[0] is endless), "the user's own traceback"


def test_arguments_are_looked_at_first(numbers):
    with pytest.raises(UsageError, match="start must be an array or a plain value"):
        iterate(numbers, total, joined, moved, start=object())
    with pytest.raises(UsageError, match="rounds must be a whole number of at least 1; got 0"):
        iterate(numbers, total, joined, moved, start=0, rounds=0)
    with pytest.raises(UsageError, match="security must be tls or none"):
        iterate(numbers, total, joined, moved, start=0, security="off")
    with pytest.raises(UsageError, match="9 workers need 9 slots"):
        iterate(numbers, total, joined, moved, start=0, workers=9)
