"""Sharded tables whose workers push without waiting for each other's steps."""

import json
from dataclasses import replace

import numpy as np
import pytest

from photinus.checkpoint.store import Store
from photinus.core.clock import Steps
from photinus.core.errors import UsageError
from photinus.core.events import RoundClosed
from photinus.engine.base import ArrayData
from photinus.engine.simulation.cluster import SimulatedCluster
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.models.schedules import Schedule
from photinus.report.ledger import audit
from photinus.run.evaluate import LazyModel
from photinus.run.job import Job
from photinus.run.sharded import with_sharded_tables
from photinus.run.train import resume, train
from photinus.strategies import recipes
from photinus.testing import Faults
from tests.run.scores import CONFIG, SHORT, events, run, went_back
from tests.run.test_sharded_validation import VALIDATION, evaluations, measure_whole_tables

SPEEDS = (0.01, 0.013, 0.08)


def vector(outcome):
    return outcome.trained.model().parameters.trained


def run_at_speeds(folder, strategy, faults=None, speeds=SPEEDS, **fields):
    """Returns the outcome of workers that differ in speed, and its virtual seconds."""
    engine = SimulatedEngine(SimulatedCluster(faults=faults or Faults(), step_seconds=speeds))
    fields = {"model": CONFIG, "engine": "simulate", "strategy": strategy, **fields}
    job = Job(workers=len(speeds), **fields)
    test, data = events(500, 1), ArrayData(*events())
    outcome = train(job, data, test=test, folder=folder, engine=engine, verbose=False)
    return outcome, engine.seconds


def applied(outcome):
    """Returns how many examples are in the table: pushes are applied in order, without a gap."""
    report = audit(outcome.folder / "ledger.jsonl")
    assert report.is_exact, report.offences
    entries = map(json.loads, (outcome.folder / "ledger.jsonl").read_text().splitlines())
    positions = {entry["slot"]: entry["position"] for entry in entries if entry["op"] == "apply"}
    return sum(positions.values())


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_of_one_speed_learn_what_they_learn_by_averaging(workers, tmp_path):
    vectors = []
    for recipe in (recipes.averaging, recipes.downpour):
        strategy = recipe(every=Steps(8), codec="fp32")
        outcome = run(tmp_path / recipe.__name__, workers, model=SHORT, strategy=strategy)
        vectors.append(vector(outcome))
    np.testing.assert_allclose(*vectors, atol=1e-4)


@pytest.mark.parametrize(
    "strategy",
    [
        recipes.downpour(codec="int8", gradients_until=0.0),
        recipes.averaging(release="immediate", gradients_until=0.0),
    ],
    ids=["downpour", "averaging"],
)
def test_a_fast_worker_does_not_wait_for_the_steps_of_a_slow_one(strategy, tmp_path):
    outcome, seconds = run_at_speeds(tmp_path, strategy, share="fastest")
    assert seconds < 0.5 * 6 * 3000 / 32 * max(SPEEDS)  # what rounds of all workers would take
    assert outcome.metrics["error"] < 0.06
    assert applied(outcome) >= 6 * 3000


def test_an_owner_of_whose_rows_a_push_has_none_serves_it(tmp_path):
    model, speeds = replace(CONFIG, epochs=0.1, batch_size=7), (0.01, 0.013, 0.02, *[0.01] * 4)
    strategy = recipes.downpour(every=Steps(2), gradients_until=0.0)
    outcome, _ = run_at_speeds(tmp_path, strategy, speeds=speeds, model=model)
    assert applied(outcome) == pytest.approx(300, abs=7)


@pytest.mark.parametrize(
    ("faults", "is_undone"),
    [
        (Faults().kill(slot=0, step=40), False),
        (Faults().kill(slot=2, step=23), False),
        (Faults().kill(slot=1, step=25).kill(slot=2, step=45).kill(slot=0, step=80), False),
        (Faults().kill(slot=0, at_seconds=1.0).kill(slot=1, at_seconds=1.0), True),
        (Faults().lose(0.05).double(0.05), False),
    ],
    ids=["a fast one", "a slow one", "one after the other", "two at once", "messages"],
)
def test_each_row_counts_once_whoever_is_lost(faults, is_undone, tmp_path):
    strategy, fields = (
        recipes.downpour(gradients_until=0.0),
        {"model": SHORT, "checkpoint_seconds": 0.4},
    )
    outcome, _ = run_at_speeds(tmp_path, strategy, faults, **fields)
    assert bool(went_back(outcome)) == is_undone
    assert applied(outcome) == 3 * 3000
    assert outcome.metrics["loss"] < 0.68  # by chance it is 0.693


def test_a_run_that_was_stopped_continues_from_the_last_push_of_each_worker(tmp_path):
    def stop(event):
        if isinstance(event, RoundClosed) and event.version == 60:
            raise InterruptedError

    job = Job(
        model=CONFIG, workers=3, engine="simulate", strategy=recipes.downpour(gradients_until=0.0),
        checkpoint_seconds=0.2,
    )  # fmt: skip
    engine = SimulatedEngine(SimulatedCluster(step_seconds=SPEEDS))
    data, test = ArrayData(*events()), events(500, 1)
    with pytest.raises(InterruptedError):
        train(job, data, folder=tmp_path, engine=engine, callbacks=[stop], verbose=False)
    outcome = resume(tmp_path, data, test=test, verbose=False)
    assert applied(outcome) == 6 * 3000
    assert outcome.metrics["error"] < 0.06


def test_a_checkpoint_has_the_inner_optimizer_as_at_the_last_push_of_each_worker(tmp_path):
    def stop(event):
        if isinstance(event, RoundClosed) and event.version == 20:
            raise InterruptedError

    job = Job(
        model=CONFIG, workers=3, engine="simulate", checkpoint_seconds=0.1,
        strategy=recipes.downpour(every=Steps(8), gradients_until=0.0),
    )  # fmt: skip
    engine = SimulatedEngine(SimulatedCluster(step_seconds=SPEEDS))
    with pytest.raises(InterruptedError):
        train(
            job,
            ArrayData(*events()),
            folder=tmp_path,
            engine=engine,
            callbacks=[stop],
            verbose=False,
        )
    files = Store(tmp_path / "checkpoints").latest().files
    steps = [int(files[f"slot-{slot:03d}"]["step"][0]) for slot in range(3)]
    assert max(steps) > 8
    assert [count % 8 for count in steps] == [0, 0, 0]


def test_the_point_that_is_measured_is_the_agreed_one_also_between_two_pushes(tmp_path):
    outcome, _ = run_at_speeds(
        tmp_path,
        recipes.downpour(codec="fp32", gradients_until=0.0),
        model=replace(CONFIG, epochs=60.0, lr=Schedule.constant(0.05)),
        validation=VALIDATION,
        patience=2,
    )
    measured = evaluations(outcome)
    best = [event for event in measured if event["extra"].get("best")][-1]
    assert 2 < len(measured) < 60
    assert best["metrics"] == pytest.approx(measure_whole_tables(outcome), rel=1e-5)


@pytest.mark.parametrize(
    ("strategy", "module", "wrong"),
    [
        (recipes.downpour(staleness="inverse"), "Scores", "staleness of downpour does not go"),
        (recipes.downpour(fetch=Steps(5)), "Scores", "fetch of downpour does not go"),
        (recipes.downpour(payload="gradient"), "Scores", "payload of downpour does not go"),
        (recipes.diloco(release="immediate"), "Scores", "outer of diloco does not go"),
        (recipes.downpour(), "Normed", "need rounds of all workers"),
    ],
    ids=str,
)
def test_what_only_one_owner_or_rounds_can_do_is_refused(strategy, module, wrong):
    job = Job(
        model=replace(CONFIG, module=f"tests.run.scores:{module}"), workers=3, strategy=strategy
    )
    with pytest.raises(UsageError, match=wrong):
        with_sharded_tables(LazyModel(job))


@pytest.mark.processes
def test_processes_push_to_the_owners_of_rows_though_one_is_killed(tmp_path):
    faults = Faults().kill(slot=1, step=40)
    outcome = run(
        tmp_path, real=faults, engine="local", strategy=recipes.downpour(gradients_until=0.0)
    )
    assert applied(outcome) == 6 * 3000
    assert went_back(outcome) == 0
    assert outcome.metrics["error"] < 0.1
