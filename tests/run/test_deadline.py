"""A run with a deadline takes the fewest workers that are fast enough, or says when it can end."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from photinus.core.clock import Steps
from photinus.core.errors import UsageError
from photinus.core.events import PhaseEnded, PhaseStarted, RoundClosed, RunStarted
from photinus.engine.base import ArrayData, RunSpec
from photinus.engine.simulation.cluster import SimulatedCluster
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.models.dbn import DBN, FineTuning, Pretraining
from photinus.run.deadline import RESERVE, TRIAL_SECONDS, Trial
from photinus.run.job import Job
from photinus.run.train import resume, train
from photinus.strategies.recipes import RECIPES, averaging, from_plain, full_gradient
from photinus.testing import Faults

STEP_SECONDS = 0.05
"""The small job has 4 epochs of 240 rows in steps of 8: 120 steps, 6 virtual seconds."""


def train_with_deadline(small, seconds, engine=None, folder=None, **fields):
    engine = engine or SimulatedEngine(SimulatedCluster(step_seconds=STEP_SECONDS))
    job = small.job(deadline_seconds=seconds, workers=4, **fields)
    return train(job, small.data(), folder=folder, engine=engine)


@pytest.mark.parametrize(("seconds", "workers"), [(60.0, 1), (25.0, 2), (11.0, 4)])
def test_the_fewest_workers_train_that_end_in_time(small, tmp_path, events, seconds, workers):
    outcome = train_with_deadline(small, seconds, folder=tmp_path / "run")
    (started,) = events(outcome.folder, "RunStarted")
    assert started.workers == workers
    warnings = [w.text for w in events(outcome.folder, "Warned")]
    assert any(f"; {workers} of them train" in text for text in warnings)
    assert not any("after its deadline" in text for text in warnings)


def test_what_cannot_end_in_time_is_refused_with_the_time_that_suffices(small, tmp_path):
    with pytest.raises(UsageError, match=r"cannot end in time; got deadline_seconds=4;") as error:
        train_with_deadline(small, 4.0, folder=tmp_path / "runs" / "run")
    assert not list(tmp_path.iterdir()), "nothing is made"
    earliest = float(re.search(r"set it to (\d+)", str(error.value))[1])
    assert train_with_deadline(small, earliest, folder=tmp_path / "run").folder.exists()


def test_one_worker_is_tried_where_to_agree_takes_longer_than_to_train(small, tmp_path, events):
    engine = SimulatedEngine(SimulatedCluster(step_seconds=0.01, latency_seconds=0.1))
    slow = averaging(every=Steps(40))  # by gradients at first, at each of 120 steps
    outcome = train_with_deadline(
        small, 12.0, engine=engine, folder=tmp_path / "run", strategy=slow
    )
    (started,) = events(outcome.folder, "RunStarted")
    assert started.workers == 1
    assert any(" with 1 of 4 workers" in w.text for w in events(outcome.folder, "Warned"))


def test_the_trial_leaves_no_trace_in_the_run(small, tmp_path):
    chosen = train_with_deadline(small, 60.0, folder=tmp_path / "run")
    plain = train(small.job(workers=1), small.data(), folder=tmp_path / "plain")
    np.testing.assert_array_equal(chosen.vector, plain.vector)
    assert {p.name for p in tmp_path.iterdir()} == {"run", "plain"}


def test_a_run_that_is_slower_than_its_trial_says_that_it_was_late(small, tmp_path, events):
    engine = SimulatedEngine(SimulatedCluster(step_seconds=STEP_SECONDS))

    def slower(event):
        if isinstance(event, RunStarted):
            engine.cluster = SimulatedCluster(step_seconds=10 * STEP_SECONDS)

    job = small.job(deadline_seconds=15.0, workers=4)
    outcome = train(job, small.data(), folder=tmp_path / "run", engine=engine, callbacks=[slower])
    assert any("after its deadline" in w.text for w in events(outcome.folder, "Warned"))


def test_a_resumed_run_keeps_the_workers_that_were_chosen(small, tmp_path, events):
    def stop(event):
        if isinstance(event, RoundClosed) and event.version == 20:
            raise KeyboardInterrupt

    job = small.job(deadline_seconds=200.0, workers=4)
    with pytest.raises(KeyboardInterrupt):
        train(job, small.data(), folder=tmp_path / "run", callbacks=[stop])
    outcome = resume(tmp_path / "run", small.data(), engine=SimulatedEngine())
    assert {e.workers for e in events(outcome.folder, "RunStarted")} == {1}


def trial_and_run(job, data, cluster):
    """Returns what a trial says, and the events of it and of the whole run."""
    engine, trials, runs = SimulatedEngine(cluster), [], []
    trial = Trial(engine.clock)

    def record(event):
        trials.append(event)
        trial.record(event)

    plan = replace(job.plan(), trial_seconds=TRIAL_SECONDS)
    engine.run(RunSpec(plan=plan, data=data, run=bytes(16), emit=record))
    began = engine.clock()
    engine.run(RunSpec(plan=job.plan(), data=data, run=bytes(16), emit=runs.append))
    return trial, engine.clock() - began, trials, runs


def of_kind(kind, events):
    return [event for event in events if isinstance(event, kind)]


@pytest.mark.parametrize("name", RECIPES)
def test_a_trial_of_any_recipe_ends_early_and_tells_the_runs_time(small, name):
    recipe = from_plain(name)
    job = small.job(strategy=recipe, workers=3)
    job = replace(job, model=replace(job.model, epochs=20.0))
    trial, seconds, trials, runs = trial_and_run(
        job, small.data(), SimulatedCluster(step_seconds=0.05)
    )
    assert [p.name for p in of_kind(PhaseEnded, trials)] == [
        p.name for p in of_kind(PhaseEnded, runs)
    ]
    assert of_kind(PhaseStarted, trials) == of_kind(PhaseStarted, runs)
    assert sum(p.examples for p in of_kind(PhaseEnded, trials)) < 0.5 * sum(
        p.examples for p in of_kind(PhaseEnded, runs)
    )
    assert trial.run_seconds / RESERVE == pytest.approx(seconds, rel=0.15)


def test_every_layer_of_a_belief_network_is_tried(small):
    model = DBN(
        inputs=6,
        hidden=(8, 4),
        classes=3,
        precision="float32",
        pretraining=Pretraining(epochs=8.0, batch_size=8),
        fine_tuning=FineTuning(epochs=12.0, batch_size=8),
    )
    features = (small.features - small.features.min()) / np.ptp(small.features)
    data = ArrayData(features, small.labels)
    job = Job(model=model, workers=2, engine="simulate", strategy=averaging(every=Steps(10)))
    trial, seconds, trials, runs = trial_and_run(job, data, SimulatedCluster(step_seconds=0.05))
    assert of_kind(PhaseStarted, trials) == of_kind(PhaseStarted, runs)
    assert len(of_kind(PhaseStarted, trials)) >= 3
    assert trial.run_seconds / RESERVE == pytest.approx(seconds, rel=0.15)


def test_one_long_round_is_a_trial(small):
    job = small.job(strategy=full_gradient(), workers=2)
    job = replace(job, model=replace(job.model, epochs=40.0))
    trial, seconds, trials, _ = trial_and_run(job, small.data(), SimulatedCluster(step_seconds=0.5))
    assert len(of_kind(RoundClosed, trials)) < 3
    assert trial.run_seconds / RESERVE == pytest.approx(seconds, rel=0.15)


def test_a_worker_lost_in_the_trial_is_no_error(small, tmp_path):
    cluster = SimulatedCluster(step_seconds=STEP_SECONDS, faults=Faults().kill(slot=0, step=4))
    outcome = train_with_deadline(
        small, 300.0, engine=SimulatedEngine(cluster), folder=tmp_path / "run"
    )
    assert Path(outcome.folder).exists()
