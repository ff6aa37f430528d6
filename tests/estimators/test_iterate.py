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

    registered = []

    def register(module):
        cloudpickle.register_pickle_by_value(module)
        registered.append(module)
        return module

    yield register
    for module in registered:
        cloudpickle.unregister_pickle_by_value(module)


@pytest.fixture
def numbers(spark):
    rows = [(float(n), float(n % 7)) for n in range(100)]
    return spark.createDataFrame(rows, "a double, b double").repartition(2)


def test_kmeans_finds_the_centres_of_scikit_learn(spark, example, by_value):
    from sklearn.cluster import KMeans

    points, result = by_value(example("kmeans")).main(spark, rows=600)
    reference = KMeans(5, init=points[:5], n_init=1, tol=0).fit(points.astype(float))
    assert result.is_done
    assert np.allclose(result.state["centres"], reference.cluster_centers_, atol=1e-5)
    assert result.state["inertia"] == pytest.approx(reference.inertia_, rel=1e-5)


def test_logistic_regression_finds_the_weights_of_scikit_learn(spark, example, by_value):
    from sklearn.linear_model import LogisticRegression

    features, labels, result = by_value(example("logistic")).main(spark, rows=500)
    reference = LogisticRegression(C=1.0, tol=1e-10, max_iter=1000).fit(
        features.astype(float), labels
    )
    assert result.is_done
    assert np.allclose(result.state, [*reference.coef_[0], reference.intercept_[0]], atol=1e-6)


def compute(mean, rows):
    return [rows.features.astype(float).sum(axis=0), len(rows.features)]


def combine(parts):
    return [sum(part) for part in zip(*parts, strict=True)]


def update(state, combined):
    return state + combined[0] / combined[1], False


@pytest.mark.slow
def test_a_worker_that_is_killed_changes_no_result(numbers, tmp_path):
    def compute_or_die(state, rows):
        from pyspark import TaskContext

        context = TaskContext.get()
        if context.partitionId() == 1 and context.attemptNumber() == 0 and state[0] > 100:
            os.kill(os.getpid(), signal.SIGKILL)
        return compute(state, rows)

    result = iterate(
        numbers,
        compute_or_die,
        combine,
        update,
        start=np.zeros(2),
        rounds=6,
        features=["a", "b"],
        folder=tmp_path,
    )
    table = np.array([(n, n % 7) for n in range(100)], float)
    assert (result.rounds, result.is_done) == (6, False)
    assert np.allclose(result.state, 6 * table.mean(axis=0), rtol=1e-12)
    report = audit(tmp_path / "ledger.jsonl")
    assert report.is_exact
    assert (report.applied, report.leases) == (12, 3)


def endless(state, rows):
    return 1 / 0


def unequal(state, combined):
    return state


def fail_to_combine(parts):
    raise KeyError("counts")


@pytest.mark.parametrize(
    ("functions", "kind", "sentence"),
    [
        (
            (lambda s, r: object(), combine, update),
            UsageError,
            "what compute returns must be an array or",
        ),
        (
            (endless, combine, update),
            RunFailedError,
            r"^compute failed twice in the same way on worker",
        ),
        (
            (compute, combine, unequal),
            UsageError,
            r"update must return \(state, is_done\); got ndarr",
        ),
        (
            (compute, fail_to_combine, update),
            RunFailedError,
            r"^update failed, update 1; got KeyError: 'co",
        ),
    ],
)
def test_what_is_wrong_is_one_sentence_and_nothing_is_left_running(
    nothing_left, numbers, functions, kind, sentence
):
    with pytest.raises(kind, match=sentence) as failure:
        iterate(numbers, *functions, start=np.zeros(2), features=["a", "b"])
    _, *trace = str(failure.value).splitlines()
    assert bool(trace) == (functions[0] is endless), "the user's own traceback"


def test_arguments_are_looked_at_first(numbers):
    with pytest.raises(UsageError, match="start must be an array or a plain value"):
        iterate(numbers, compute, combine, update, start=object())
    with pytest.raises(UsageError, match="rounds must be a whole number of at least 1; got 0"):
        iterate(numbers, compute, combine, update, start=0, rounds=0)
    with pytest.raises(UsageError, match="security must be tls or none"):
        iterate(numbers, compute, combine, update, start=0, security="off")
    with pytest.raises(UsageError, match="9 workers need 9 slots"):
        iterate(numbers, compute, combine, update, start=0, workers=9)
