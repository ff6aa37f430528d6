"""DeepDist's door on a real Spark: each partition counts once, whatever becomes of its tasks."""

import importlib
import os
import signal
import sys
import threading

import numpy as np
import pytest

from photinus.core.errors import NotReadyError, RunFailedError, UsageError
from photinus.estimators.deepdist import DeepDist, Stepper, _ModelServer
from photinus.protocol.serialization import unpacked
from photinus.report.ledger import audit
from photinus.strategies.outer import Adagrad

PARTITIONS, ROWS = 6, 60
DATA = np.random.default_rng(0).normal(size=(ROWS, 3))


class Line:
    """Least squares with the state of AdaGrad in it, as DeepDist's second example has it."""

    def __init__(self):
        self.w, self.sums, self.version, self.notes = np.zeros(2), 0, 0, ["a"]

    def gradient(self, rows):
        x, y = np.array(rows)[:, :2], np.array(rows)[:, 2]
        return x.T @ (y - x @ self.w) / len(x)

    def descend(self, gradient):
        self.sums += gradient * gradient
        self.w += 0.1 * gradient / (1e-6 + np.sqrt(self.sums))
        self.version += 1


def inject_fault(partition):
    """Faults of first attempts: killed, killed some time after its work, failed in two ways."""
    from pyspark import TaskContext

    attempt = TaskContext.get().attemptNumber()
    if partition == 1 and attempt == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if partition == 2 and attempt == 0:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGKILL)).start()
    if partition == 3 and attempt < 2:
        raise ValueError(f"a fault of attempt {attempt}")


@pytest.fixture
def rdd(spark):
    numbered = list(enumerate(DATA.tolist()))
    return spark.sparkContext.parallelize(numbered, PARTITIONS)


@pytest.mark.slow
@pytest.mark.spark
def test_every_update_counts_once_and_gives_the_numbers_of_the_original(
    spark, nothing_left, rdd, tmp_path
):
    def gradient(model, rows):
        rows = list(rows)
        partition = rows[0][0] * PARTITIONS // ROWS
        inject_fault(partition)
        return {
            "g": model.gradient([row for _, row in rows]),
            "from": model.version,
            "partition": partition,
        }

    model, points, order = Line(), [np.zeros(2)], []

    def descent(model, update):
        model.descend(update["g"])
        points.append(model.w.copy())
        order.append((update["partition"], update["from"]))

    with DeepDist(model, folder=tmp_path) as dd:
        summary = dd.train(rdd, gradient, descent, epochs=3)
        assert dd.model is model
    assert summary.updates == model.version == 3 * PARTITIONS
    assert sorted(partition for partition, _ in order) == sorted(3 * [*range(PARTITIONS)])
    assert audit(tmp_path / "ledger.jsonl").is_exact
    # the original's own arithmetic, in the order in which the updates came
    twin, stale = Line(), Line()
    for partition, version in order:
        stale.w = points[version]
        twin.descend(stale.gradient(np.array_split(DATA, PARTITIONS)[partition]))
    assert np.array_equal(twin.w, model.w)


class Embeddings:
    """A table of which a partition moves few rows, and its history."""

    def __init__(self):
        self.table, self.steps = np.zeros((5000, 8)), 0


@pytest.mark.spark
def test_a_worker_that_holds_the_model_gets_the_rows_that_moved_and_computes_with_all(spark):
    rdd = spark.sparkContext.parallelize(range(PARTITIONS), PARTITIONS)

    def gradient(model, rows):
        from photinus.estimators import deepdist

        [row] = rows
        [state] = deepdist._newest_by_call.values()
        whole = model.table.tobytes() == state["attributes"]["table"].tobytes()
        report = {"steps": model.steps, "sum": float(model.table.sum()), "whole": whole}
        model.table += 1  # of this copy: no later partition sees it
        change = np.zeros_like(model.table)
        change[[row, 4000 + row]] = row + 1
        return {**report, "moved": change}

    sums, reports = [0.0], []

    def descent(model, update):
        model.table += update.pop("moved")
        model.steps += 1
        sums.append(float(model.table.sum()))
        reports.append(update)

    model = Embeddings()
    with DeepDist(model) as dd:
        summary = dd.train(rdd, gradient, descent, epochs=2)
    # two processes, of which each gets the whole table once; a row of 0 or that stayed never moves
    assert summary.bytes_received < summary.updates * 1000
    assert summary.bytes_sent < model.table.nbytes + summary.updates * 2000
    assert model.steps == 2 * PARTITIONS
    assert all(update["whole"] and update["sum"] == sums[update["steps"]] for update in reports)
    assert model.table.sum() == 2 * 2 * 8 * sum(range(1, PARTITIONS + 1))


def test_what_is_sent_shrinks_to_the_rows_that_moved_since():
    model = Embeddings()
    server = _ModelServer(model, lambda model, update: model.table.__setitem__(update, 1.5))
    first_state = server.state(0)
    model.table += 1.0
    server.take([[3]])
    assert server.state(0).nbytes > model.table.nbytes
    server.take([[4]])
    server.take([[9]])
    state = unpacked(first_state)
    assert state["version"] == 1
    state = unpacked(server.state(2), unpacked(server.state(0)))
    assert state["attributes"]["table"].tobytes() == model.table.tobytes()
    assert server.state(2).nbytes < 1000
    assert server.state(4).nbytes < server.state(2).nbytes


@pytest.mark.spark
def test_a_dataframe_is_read_row_by_row(spark):
    df = spark.createDataFrame([(float(n), [1, 2]) for n in range(20)], "x double, y array<int>")

    def gradient(model, rows):
        return sum(row.x + row["y"][1] for row in rows)

    def descent(model, update):
        model["sum"] += update

    with DeepDist({"sum": 0.0}) as dd:
        assert dd.train(df.repartition(3), gradient, descent).partitions == 3
    assert dd.model["sum"] == 190 + 40


def plain(model, rows):
    return sum(1 for _ in rows)


def grows(model, update):
    model.notes.append("b")


def breaks(model, update):
    raise KeyError("syn0")


class Thing:
    pass


CASES = {
    "a gradient that returns an object": (
        lambda model, rows: {"a": Thing()},
        breaks,
        UsageError,
        r"what gradient returns\['a'\] must be an array or a plain value; got .*Thing; use numpy",
    ),
    "a gradient that fails": (
        lambda model, rows: 1 / 0,
        breaks,
        RunFailedError,
        r"^gradient failed twice in the same way on partition \d; got ZeroDivisionError: div",
    ),
    "a descent that raises": (
        plain,
        breaks,
        RunFailedError,
        r"^descent failed on partition \d, update 1; got KeyError: 'syn0'$",
    ),
    "a descent that changes what cannot travel": (
        plain,
        grows,
        UsageError,
        r"^descent changed what cannot be sent to workers; got model.notes; keep it in",
    ),
}


@pytest.mark.spark
@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_one_sentence_and_nothing_is_left_running(spark, nothing_left, rdd, case):
    gradient, descent, kind, sentence = CASES[case]
    with pytest.raises(kind, match=sentence) as failure, DeepDist(Line()) as dd:
        dd.train(rdd, gradient, descent)
    _, *trace = str(failure.value).splitlines()
    assert bool(trace) == (case == "a gradient that fails"), "the user's own traceback"


@pytest.mark.spark
def test_a_module_that_workers_lack_is_named(spark, nothing_left, rdd, tmp_path, monkeypatch):
    (tmp_path / "only_in_the_driver.py").write_text("def gradient(model, rows):\n    return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("only_in_the_driver")
    monkeypatch.setattr(sys, "path", sys.path[1:])
    with DeepDist(Line()) as dd, pytest.raises(NotReadyError) as caught:
        dd.train(rdd, module.gradient, breaks)
    sentence = str(caught.value)
    assert sentence.startswith("gradient cannot be loaded on a worker; got ModuleNotFoundError")
    assert "addPyFile" in sentence


@pytest.mark.spark
def test_empty_and_endless_updates_are_counted_and_not_applied(rdd):
    def gradient(model, rows):
        first = next(rows)[0]
        return None if first == 0 else {"g": np.array([np.nan if first == 10 else 1.0])}

    updates = []
    with DeepDist(Line()) as dd:
        summary = dd.train(rdd, gradient, lambda model, update: updates.append(update["g"][0]))
    assert (summary.updates, summary.empty, summary.refused) == (4, 1, (1,))
    assert updates == [1.0] * 4


def test_the_server_lives_within_the_with():
    with pytest.raises(UsageError, match="within the with"):
        DeepDist(Line()).train(None, plain, breaks)
    with DeepDist(Line()) as dd:
        pass
    with pytest.raises(UsageError, match="within the with"):
        dd.train(None, plain, breaks)


@pytest.mark.parametrize(
    ("given", "named", "mend"),
    [
        ((), {"master": "127.0.0.1:5000"}, "find the driver by themselves"),
        ((), {"host": "127.0.0.1:5000"}, "find the driver by themselves"),
        ((), {"batch": 100}, "a partition is one batch"),
        ((), {"min_updates": 0}, "one after the other"),
        ((), {"max_updates": 4096}, "one after the other"),
        (("127.0.0.1:5000",), {}, "no argument master; got 127.0.0.1:5000"),
    ],
)
def test_an_argument_of_the_original_gets_a_sentence_of_its_own(given, named, mend):
    with pytest.raises(UsageError, match=mend):
        DeepDist(Line(), *given, **named)


def test_data_must_be_an_rdd_or_a_dataframe_of_a_classic_session():
    class OfConnect:
        sparkSession, mapInArrow = object(), None  # noqa: N815

    with DeepDist(Line()) as dd:
        with pytest.raises(UsageError, match=r"needs an RDD or a DataFrame; got list; sc.para"):
            dd.train([1, 2], plain, breaks)
        with pytest.raises(NotReadyError, match=r"Spark Connect.* use a classic session"):
            dd.train(OfConnect(), plain, breaks)
        with pytest.raises(UsageError, match="epochs must be a whole number"):
            dd.train([1, 2], plain, breaks, epochs=0)
    with pytest.raises(UsageError, match="security must be tls or none; got off"):
        DeepDist(Line(), security="off")


def test_adagrad_is_the_formula():
    adagrad, sums = Stepper(Adagrad(lr=0.3, eps=1e-6)), np.zeros((2, 3))
    for seed in range(4):
        g = np.random.default_rng(seed).normal(size=(2, 3))
        sums += g * g
        expected = 0.3 * g / (1e-6 + np.sqrt(sums))
        assert np.allclose(adagrad.step("w", g), expected, rtol=1e-12)
    assert np.allclose(adagrad.step("b", np.ones(1)), 0.3, rtol=1e-5)
