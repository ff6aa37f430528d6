"""Modules with sharded tables, measured on rows set aside while no worker holds a table."""

import json
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from photinus.checkpoint.store import Store
from photinus.core.errors import UsageError
from photinus.data.rows import Rows
from photinus.engine.base import ArrayData
from photinus.engine.simulation.cluster import SimulatedCluster
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.engine.simulation.simulator import Simulation
from photinus.models.schedules import Schedule
from photinus.report.ledger import audit
from photinus.run.evaluate import LazyModel
from photinus.run.job import Job
from photinus.run.sharded import with_sharded_tables
from photinus.run.train import train
from photinus.strategies import recipes
from photinus.strategies.outer import Adagrad
from photinus.testing import Faults
from photinus.training import shard_pages, worker_loop, worker_state
from tests.run.scores import CONFIG, ROUNDS, SHORT, events, run, went_back

VALIDATION = 0.2


def evaluations(outcome):
    """Returns what was measured on the rows set aside, in order."""
    lines = (outcome.folder / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event.get("name") == "validation"]


def measure_whole_tables(outcome):
    """The oracle: what one process measures on the same rows with the whole tables."""
    rows = Rows.of(*events()).parted(VALIDATION)[1]
    batch = rows.batch(rows.order)
    sums = outcome.trained.model().measure(batch)
    return {"loss": sums["loss"] / len(rows), "error": sums["errors"] / len(rows)}


@pytest.mark.parametrize("module", ["Scores", "Normed"])
@pytest.mark.parametrize("workers", [1, 3, 7])
def test_the_point_that_is_measured_is_the_one_that_was_agreed_on(workers, module, tmp_path):
    model = replace(SHORT, module=f"tests.run.scores:{module}")
    fields = {
        "validation": VALIDATION,
        "patience": 9,
        "strategy": recipes.averaging(codec="fp32", gradients_until=0.0),
    }
    outcome = run(tmp_path / "run", workers, model=model, **fields)
    measured = evaluations(outcome)
    assert len(measured) == 3, "once an epoch"
    assert {event["examples"] for event in measured} == {
        len(Rows.of(*events()).parted(VALIDATION)[1])
    }
    best = [event for event in measured if event["extra"].get("best")][-1]["metrics"]
    assert best == pytest.approx(measure_whole_tables(outcome), rel=1e-5)


def test_in_fewer_bits_rows_are_measured_as_they_travel(tmp_path):
    outcome = run(tmp_path / "run", model=SHORT, validation=VALIDATION, patience=9)
    best = [event for event in evaluations(outcome) if event["extra"].get("best")][-1]["metrics"]
    assert best["loss"] == pytest.approx(measure_whole_tables(outcome)["loss"], rel=0.01)


def test_patience_ends_a_run_over_tables_at_its_best_point(tmp_path):
    model = replace(CONFIG, epochs=60.0, lr=Schedule.constant(0.05))
    fields = {
        "validation": VALIDATION,
        "patience": 2,
        "strategy": recipes.averaging(codec="fp32", gradients_until=0.0),
    }
    outcome = run(tmp_path / "run", model=model, **fields)
    measured = evaluations(outcome)
    assert 2 < len(measured) < 60
    assert [bool(event["extra"].get("best")) for event in measured[-3:]] == [True, False, False]
    assert measured[-3]["metrics"] == pytest.approx(measure_whole_tables(outcome), rel=1e-5)
    last = Store(tmp_path / "run/checkpoints").latest()
    assert last.files["shard-00000"]


@pytest.fixture
def small_batches(monkeypatch):
    """The rows set aside are measured in five batches or so of each worker."""
    monkeypatch.setattr(worker_loop, "CHUNK_ROWS", 50)


def run_with_reads(folder, faults=None, cut_at=None):
    """Returns the outcome of a run that measures, and when rows were read, in virtual seconds.

    Args:
        folder: of the run.
        faults: of its workers.
        cut_at: when the link between two workers is cut, for 40 s.
    """
    engine = SimulatedEngine(SimulatedCluster(faults=faults or Faults(), latency_seconds=0.05))
    job = Job(
        model=replace(CONFIG, epochs=2.0), workers=3, engine="simulate", validation=VALIDATION,
        strategy=ROUNDS,
    )  # fmt: skip
    read_times, original = [], Simulation._reads
    with pytest.MonkeyPatch.context() as patch:

        def record_read(simulation, node, ask, tries=0):
            if cut_at is not None and not any(at >= cut_at for at in read_times):
                simulation.cut(0, 1, 40.0)
            read_times.append(simulation.now)
            original(simulation, node, ask, tries)

        patch.setattr(Simulation, "_reads", record_read)
        outcome = train(job, ArrayData(*events()), folder=folder, engine=engine, verbose=False)
    return outcome, read_times


def test_a_worker_that_is_lost_while_rows_are_read_changes_no_bit(small_batches, tmp_path):
    first, read_times = run_with_reads(tmp_path / "first")
    metrics = [event["metrics"] for event in evaluations(first)]
    assert len(metrics) == 2
    first_read = min(read_times)
    last_read = max(at for at in read_times if at < first_read + 1.5)
    assert last_read > first_read + 0.4, "a round trip for each batch"
    for part in range(9):
        faults = Faults().kill(
            part % 3, at_seconds=first_read + (last_read - first_read) * (part - 1) / 6
        )
        outcome, _ = run_with_reads(tmp_path / f"{part}", faults)
        assert went_back(outcome) == 0
        vectors = [
            run_outcome.trained.model().parameters.trained for run_outcome in (first, outcome)
        ]
        np.testing.assert_array_equal(*vectors)
        assert evaluations(outcome)[-1]["metrics"] == metrics[-1]
        report = audit(outcome.folder / "ledger.jsonl")
        assert report.is_exact, report.offences


def test_rows_that_are_lost_on_their_way_are_asked_for_again(small_batches, tmp_path):
    first, read_times = run_with_reads(tmp_path / "first")
    lossy, lossy_reads = run_with_reads(tmp_path / "lossy", Faults().lose(0.05).double(0.05))
    assert len(lossy_reads) > len(read_times)
    vectors = [run_outcome.trained.model().parameters.trained for run_outcome in (first, lossy)]
    np.testing.assert_array_equal(*vectors)
    metrics = [
        [event["metrics"] for event in evaluations(run_outcome)] for run_outcome in (first, lossy)
    ]
    assert metrics[0] == metrics[1]


def test_no_measurement_waits_for_a_worker_that_has_left(monkeypatch, tmp_path):
    monkeypatch.setattr(worker_loop, "CHUNK_ROWS", 10)
    monkeypatch.setattr(shard_pages, "PAGE_NUMBERS", 5)  # a checkpoint takes many rounds
    for name in ("_PAGES_AT_ONCE", "_MOST_PAGES"):
        monkeypatch.setattr(worker_state, name, 1)
    batches, parts = worker_loop.WorkerData.held_batches, []

    def limited(part, *arguments):  # the first worker has one batch to measure on, and leaves early
        parts.append(part.held)
        limit = 1 if part.held is parts[0] else None
        return islice(batches(part, *arguments), limit)

    monkeypatch.setattr(worker_loop.WorkerData, "held_batches", limited)
    outcome = run(tmp_path / "run", model=SHORT, validation=VALIDATION, checkpoint_seconds=0.5)
    assert len(evaluations(outcome)) == 3, "a checkpoint in the making gives way"


def test_a_link_that_is_cut_while_rows_are_read_ends_the_measurement_alone(tmp_path):
    first, read_times = run_with_reads(tmp_path / "first")
    cut, _ = run_with_reads(tmp_path / "cut", cut_at=min(read_times) + 0.01)
    vectors = [run_outcome.trained.model().parameters.trained for run_outcome in (first, cut)]
    np.testing.assert_array_equal(*vectors)
    assert len(evaluations(cut)) == 1 < len(evaluations(first))


@pytest.mark.parametrize(
    ("strategy", "wrong"),
    [
        (recipes.averaging(codec="int8"), "need rows in fp32 or bf16; got codec int8"),
        (recipes.averaging(outer=Adagrad()), "move by the workers' mean; got outer Adagrad"),
        (recipes.diloco(), r"move by the workers' mean; got outer Nest.*; use averaging\(\)$"),
    ],
    ids=str,
)
def test_what_would_spoil_running_statistics_is_refused(strategy, wrong):
    job = Job(model=replace(CONFIG, module="tests.run.scores:Normed"), workers=3, strategy=strategy)
    with pytest.raises(UsageError, match=wrong):
        with_sharded_tables(LazyModel(job))


@pytest.mark.processes
def test_processes_measure_as_the_simulator_does(tmp_path):
    fields = {"model": SHORT, "validation": VALIDATION, "patience": 9}
    outcomes = [run(tmp_path / name, engine=name, **fields) for name in ("simulate", "local")]
    simulated, local = (outcome.trained.model().parameters.trained for outcome in outcomes)
    np.testing.assert_array_equal(simulated, local)
    simulated, local = (
        [event["metrics"] for event in evaluations(outcome)] for outcome in outcomes
    )
    assert simulated == local
    assert len(simulated) == 3
