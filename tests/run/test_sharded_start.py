"""Jobs whose module has sharded tables, with a start by gradients before the rounds."""

from dataclasses import replace

import numpy as np
import pytest

from photinus.checkpoint.store import Store
from photinus.core.clock import Steps
from photinus.core.errors import UsageError
from photinus.core.events import Evaluated, PhaseStarted, RoundClosed, Warned
from photinus.engine.base import ArrayData
from photinus.report.ledger import audit
from photinus.run.evaluate import LazyModel
from photinus.run.job import Job
from photinus.run.sharded import with_sharded_tables
from photinus.run.train import resume, train
from photinus.run.usual_settings import with_usual_rate
from photinus.strategies import recipes
from photinus.strategies.outer import Adagrad, Nesterov
from photinus.testing import Faults
from tests.run.scores import CONFIG, events, run, went_back

HALF = recipes.averaging(every=Steps(4), gradients_until=0.5)
BRIEF = replace(CONFIG, epochs=1.0)
BORDER = 47
"""Steps of each of three workers in `BRIEF`, by gradients; 47 follow in rounds."""


def vector(outcome):
    return outcome.trained.model().parameters.trained


def events_of(kind, folder, **fields):
    """Returns a run's outcome, and its events of a kind."""
    found = []
    job = Job(**{"model": CONFIG, "workers": 3, "engine": "simulate", **fields})
    outcome = train(
        job, ArrayData(*events()), folder=folder, verbose=False,
        callbacks=[lambda event: found.append(event) if isinstance(event, kind) else None],
    )  # fmt: skip
    return outcome, found


@pytest.mark.parametrize(
    "strategy", [recipes.averaging(), recipes.downpour(), recipes.diloco()], ids=str
)
def test_a_short_run_takes_every_step_by_gradients(strategy, tmp_path):
    stepwise = run(tmp_path / "stepwise", model=BRIEF, strategy=recipes.all_reduce())
    outcome, phases = events_of(PhaseStarted, tmp_path / "run", model=BRIEF, strategy=strategy)
    np.testing.assert_array_equal(vector(outcome), vector(stepwise))
    assert [phase.name for phase in phases] == ["train, by gradients"]
    assert phases[0].strategy == (
        "all_reduce every step, merge examples, rows of 5 among 3 workers, fp32"
    )


def test_a_start_shortens_gradients_as_one_process_does(tmp_path):
    model = replace(BRIEF, clip=0.01)
    stepwise = run(tmp_path / "stepwise", model=model, strategy=recipes.all_reduce())
    outcome = run(tmp_path / "run", model=model, strategy=recipes.averaging())
    np.testing.assert_array_equal(vector(outcome), vector(stepwise))
    assert (vector(outcome) != vector(run(tmp_path / "any", model=BRIEF, strategy=HALF))).any()
    half = run(tmp_path / "half", model=model, strategy=HALF)
    apart = np.linalg.norm(vector(half) - vector(outcome))
    first = replace(model, sharded=5).build((), 0).parameters.trained
    assert 0 < apart < 0.2 * np.linalg.norm(vector(outcome) - first)


def test_only_a_recipe_that_was_named_is_said_to_do_nothing(tmp_path):
    for strategy, count in ((recipes.averaging(), 0), (recipes.downpour(), 1)):
        folder = tmp_path / strategy.recipe
        _, warned = events_of(Warned, folder, model=BRIEF, strategy=strategy)
        assert sum("set gradients_until=0" in warning.text for warning in warned) == count


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The numbers after a start by gradients, and rounds."""
    return vector(run(tmp_path_factory.mktemp("undisturbed"), model=BRIEF, strategy=HALF))


def test_the_rate_falls_over_both_parts_and_not_over_each(tmp_path):
    # a start that had the whole course of the rate would stand still before the border
    errors = {
        until: run(tmp_path / str(until), strategy=recipes.averaging(gradients_until=until))
        for until in (0.5, 1.0)
    }
    assert errors[0.5].metrics["loss"] < 1.5 * errors[1.0].metrics["loss"]


def test_the_rounds_continue_from_the_shards_of_the_start(undisturbed, tmp_path):
    outcome, phases = events_of(PhaseStarted, tmp_path / "run", model=BRIEF, strategy=HALF)
    assert [phase.name for phase in phases] == ["train, by gradients", "train"]
    assert [phase.epochs for phase in phases] == pytest.approx([0.5, 0.5], abs=0.01)
    np.testing.assert_array_equal(vector(outcome), undisturbed)
    report = audit(outcome.folder / "ledger.jsonl")
    assert report.is_exact, report.offences


def test_rows_that_only_the_start_reads_keep_what_they_learned(tmp_path):
    # most of the 100 rows are in no batch of the rest, and few in none of the start
    model = replace(BRIEF, optimizer="sgd", arguments={"optimizer": "sgd"})
    results = {}
    for rate, until in ((0.0, 1.0), (0.01, 1.0), (0.01, 0.9)):
        strategy = recipes.averaging(every=Steps(1), gradients_until=until)
        fields = {"model": replace(model, lr=rate), "strategy": strategy}
        data, folder = ArrayData(*events(200)), tmp_path / f"{rate:g} {until:g}"
        job = Job(workers=3, engine="simulate", **fields)
        results[rate, until] = vector(train(job, data, folder=folder, verbose=False))
    drawn, stepwise, of_both = (result.reshape(-1, 4) for result in results.values())
    learned = (stepwise != drawn).any(axis=1)
    assert learned.sum() > 90
    assert (of_both != drawn).any(axis=1)[learned].all()


@pytest.mark.parametrize(
    ("workers", "outer"), [(7, None), (2, Adagrad()), (2, Nesterov())], ids=str
)
def test_any_number_of_workers_learns_over_the_border(workers, outer, tmp_path):
    strategy = HALF if outer is None else HALF.with_settings({"outer": outer})
    outcome = run(tmp_path / "run", workers, strategy=strategy)
    assert outcome.metrics["error"] < 0.05
    assert went_back(outcome) == 0


@pytest.mark.parametrize("step", [20, BORDER - 1, BORDER, BORDER + 1, 70])
@pytest.mark.parametrize("seconds", [1e6, 0.4])
def test_with_a_lost_owner_the_numbers_are_the_same(step, seconds, undisturbed, tmp_path):
    outcome = run(
        tmp_path / "run",
        model=BRIEF,
        strategy=HALF,
        faults=Faults().kill(slot=1, step=step),
        checkpoint_seconds=seconds,
    )
    np.testing.assert_array_equal(vector(outcome), undisturbed)
    report = audit(outcome.folder / "ledger.jsonl")
    assert report.is_exact, report.offences


def test_with_two_owners_lost_after_the_border_it_goes_back_to_it(undisturbed, tmp_path):
    faults = Faults().kill(slot=1, step=BORDER + 9).kill(slot=2, step=BORDER + 9)
    outcome = run(
        tmp_path / "run", model=BRIEF, strategy=HALF, faults=faults, checkpoint_seconds=1e6
    )
    assert went_back(outcome) == 1
    np.testing.assert_array_equal(vector(outcome), undisturbed)


@pytest.mark.parametrize(
    ("phase", "version"), [(0, 40), (1, 1), (1, 8)], ids=["start", "border", "rounds"]
)
def test_a_run_that_was_stopped_continues_with_the_same_bits(phase, version, undisturbed, tmp_path):
    def stop(event):
        if isinstance(event, RoundClosed) and (event.phase, event.version) == (phase, version):
            raise InterruptedError

    job = Job(model=BRIEF, workers=3, engine="simulate", strategy=HALF, checkpoint_seconds=0.2)
    data = ArrayData(*events())
    with pytest.raises(InterruptedError):
        train(job, data, folder=tmp_path / "run", callbacks=[stop], verbose=False)
    assert Store(tmp_path / "run/checkpoints").names()[-1].startswith(f"phase{phase:03d}")
    resumed = resume(tmp_path / "run", data, verbose=False)
    np.testing.assert_array_equal(vector(resumed), undisturbed)


def test_a_trained_model_starts_another_run_with_a_start(tmp_path):
    start = str(run(tmp_path / "first", model=BRIEF, strategy=HALF).folder / "model")
    more = {"model": BRIEF, "strategy": HALF, "start": start, "checkpoint_seconds": 0.4}
    outcome = run(tmp_path / "run", **more)
    again = run(tmp_path / "lost", faults=Faults().kill(slot=0, step=BORDER + 20), **more)
    np.testing.assert_array_equal(vector(again), vector(outcome))
    assert outcome.metrics["loss"] < 0.65


def test_pushes_follow_a_start_by_gradients(tmp_path):
    strategy = recipes.downpour(every=Steps(4), gradients_until=0.5)
    outcome = run(tmp_path / "run", strategy=strategy, faults=Faults().kill(slot=1, step=200))
    assert outcome.metrics["error"] < 0.05
    report = audit(outcome.folder / "ledger.jsonl")
    assert report.is_exact, report.offences


def test_rows_that_are_set_aside_choose_the_best_point_of_both_parts(tmp_path):
    fields = {"validation": 0.2, "patience": 3}
    outcome = run(tmp_path / "run", strategy=HALF, **fields)
    assert outcome.metrics["error"] < 0.05


def test_the_border_is_measured_as_it_was_agreed_on(tmp_path):
    # there no worker has a next step, for which it would have the layers beside the tables
    model = replace(BRIEF, epochs=2.0, lr=1.0)
    measured = []
    for until in (0.5, 1.0):
        strategy = recipes.averaging(every=Steps(4), gradients_until=until)
        fields = {"model": model, "strategy": strategy, "validation": 0.2}
        _, found = events_of(Evaluated, tmp_path / str(until), **fields)
        measured.append(found[0])
    assert measured[0] == measured[1]


@pytest.mark.parametrize(
    ("changes", "is_as_of_one"),
    [
        ({"lr": None}, True),
        ({"lr": None, "optimizer": "sgd"}, False),
        ({"lr": None, "arguments": {"optimizer": "sgd"}}, False),
        ({"lr": 0.01}, True),
        ({"lr": None, "settings": {"lr": 0.01}}, True),
    ],
)
def test_the_usual_rate_falls_as_that_of_one_process_does(changes, is_as_of_one):
    model = replace(CONFIG, **changes)
    draft = with_sharded_tables(LazyModel(Job(model=model, workers=3)))
    trained = with_usual_rate(draft, is_unset=True)[0].job.model
    for workers_agree_until in (0.0, 0.5):
        rate = trained.agreed_until(workers_agree_until).rate()
        assert (rate == model.agreed_until(1.0).rate()) == is_as_of_one


def test_a_start_whose_steps_no_owner_can_take(tmp_path):
    model = replace(CONFIG, epochs=1.0, per_tensor=True)
    got = "no owner has a whole tensor; got per_tensor; use an optimizer.*or set gradients_until=0"
    with pytest.raises(UsageError, match=got):
        run(tmp_path / "refused", model=model, strategy=HALF)
    _, warned = events_of(Warned, tmp_path / "run", model=model)
    assert [w.text for w in warned if "learn less than one process" in w.text]
