"""Each row is in the model as often as it was asked for, whatever happens, in virtual time."""

import numpy as np
import pytest
from cases import RECIPES, SIMULATED, Trial, chances, epochs_of, simulated, stopped

from photinus.core.clock import Seconds, Steps
from photinus.strategies.outer import Sgd
from photinus.strategies.recipes import averaging, downpour, elastic, gossip, publish
from photinus.testing import Faults

WHOLE = [name for name in RECIPES if name != "streaming"]
"""With fragments a lost worker's rows may be in some of them only."""
MEANS = ("averaging", "averaging, owners", "iterative_reduce", "post_local")


def assert_exact(verdict):
    assert (verdict.lost, verdict.doubled) == (0, 0)
    assert verdict.audited.is_exact, verdict.audited.offences


@pytest.mark.parametrize("recipe", RECIPES)
def test_one_to_seven_workers_use_every_row_as_often_as_the_epochs_ask_for(recipe, tmp_path):
    for workers in range(1, 8):
        trial = Trial(recipe, tmp_path / f"{workers}", workers, rows=60)
        verdict = trial.train(simulated())
        assert_exact(verdict)
        assert verdict.count.times.tolist() == [2] * 60


def test_a_worker_without_rows_keeps_its_shard_of_a_table_in_every_round(tmp_path):
    engine = simulated(Faults().kill(slot=0, step=2))
    verdict = Trial("averaging, a table", tmp_path, 5, rows=3).train(engine)
    assert_exact(verdict)
    assert verdict.model.size == 3


@pytest.mark.parametrize("recipe", MEANS)
@pytest.mark.parametrize("workers", [3, 5])
def test_the_model_times_its_workers_is_the_count_where_all_are_in_every_round(
    recipe, workers, tmp_path
):
    """Without a witness: the returned parameters alone."""
    verdict = Trial(recipe, tmp_path, workers, rows=12 * workers).train(simulated())
    assert set(verdict.count.members) == {workers}
    assert np.allclose(verdict.model * workers, 2, rtol=0, atol=1e-9)


@pytest.mark.parametrize("fault", SIMULATED)
@pytest.mark.parametrize("recipe", WHOLE)
def test_no_fault_loses_a_row_or_counts_it_twice(recipe, fault, tmp_path):
    engine = simulated(SIMULATED[fault])
    verdict = Trial(recipe, tmp_path, epochs=epochs_of(recipe)).train(engine)
    assert_exact(verdict)
    assert {f.kind for f in engine.happened} == {f.kind for f in SIMULATED[fault].planned}


@pytest.mark.parametrize("recipe", [n for n in WHOLE if not n.startswith("elastic")])
def test_workers_that_are_lost_all_at_once_lose_no_row(recipe, tmp_path):
    """Where only they held the parameters the run goes back, and does the rows again."""
    faults = Faults()
    for slot in range(3):
        faults = faults.kill(slot, at_seconds=0.055, back_seconds=2.0)
    verdict = Trial(recipe, tmp_path, epochs=epochs_of(recipe)).train(simulated(faults))
    assert_exact(verdict)
    assert len(verdict.of("WorkerLost")) == 3


@pytest.mark.parametrize("recipe", WHOLE)
def test_faults_by_chance_lose_no_row_and_double_none(recipe, tmp_path):
    for seed in range(3):
        workers = 2 + 2 * seed
        engine = simulated(chances(seed, workers))
        verdict = Trial(recipe, tmp_path / f"{seed}", workers, epochs=3).train(engine)
        assert_exact(verdict)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", WHOLE)
def test_a_hundred_schedules_of_faults_lose_no_row_and_double_none(recipe, tmp_path):
    for seed in range(3, 103):
        workers = 1 + seed % 7
        engine = simulated(chances(seed, workers))
        verdict = Trial(recipe, tmp_path / f"{seed}", workers, epochs=3).train(engine)
        assert_exact(verdict)


# -- resumed -------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", WHOLE)
def test_a_run_whose_driver_was_killed_and_resumed_uses_no_row_twice(recipe, tmp_path):
    """What was acknowledged behind the checkpoint is given up, and done again once."""
    trial = Trial(recipe, tmp_path, epochs=8)
    reached = stopped(trial, simulated())
    verdict = trial.resumed(simulated())
    assert 0 < trial.resumed_from < reached
    assert (verdict.lost, verdict.doubled) == (0, 0)


@pytest.mark.parametrize("recipe", ["averaging", "all_reduce", "downpour", "publish"])
def test_a_resumed_run_under_faults_uses_no_row_twice(recipe, tmp_path):
    trial = Trial(recipe, tmp_path, epochs=8)
    stopped(trial, simulated(Faults().kill(slot=1, step=3, back_seconds=0.0)), seconds=1.6)
    verdict = trial.resumed(simulated(Faults().kill(slot=0, step=2).freeze(2, 2, seconds=8.0)))
    assert (verdict.lost, verdict.doubled) == (0, 0)


@pytest.mark.parametrize("fault", ["none", *SIMULATED])
def test_a_table_that_is_saved_a_row_at_a_time_loses_no_row_and_doubles_none(
    fault, tmp_path, monkeypatch
):
    for room in ("photinus.training.shard_pages", "photinus.coordinator.sharded_table"):
        monkeypatch.setattr(f"{room}.PAGE_NUMBERS", 7)
    trial = Trial("averaging, a table", tmp_path, epochs=120)
    reached = stopped(trial, simulated(SIMULATED.get(fault)), seconds=11.0)
    verdict = trial.resumed(simulated(SIMULATED.get(fault)))
    assert 0 < trial.resumed_from < reached
    assert (verdict.lost, verdict.doubled) == (0, 0)


# -- what is lost is what was told ---------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["averaging", "iterative_reduce", "downpour", "publish"])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_numbers_that_are_no_numbers_cost_the_rows_of_their_push_and_no_others(recipe, tmp_path):
    verdict = Trial(recipe, tmp_path, epochs=4).train(simulated(Faults().nan(slot=1, step=4)))
    [warning] = [e.text for e in verdict.of("Warned") if "not finite" in e.text]
    assert warning
    dropped = dropped_of(tmp_path / "ledger.jsonl")
    assert verdict.doubled == 0
    assert verdict.lost == sum(dropped) > 0


def dropped_of(ledger):
    """Returns how many rows each push held that the ledger calls dropped."""
    import json

    entries = [json.loads(line) for line in ledger.read_text().splitlines()]
    return [e["examples"] for e in entries if e.get("dropped")]


def test_pushes_that_are_too_stale_cost_their_rows_and_no_others(tmp_path):
    strategy = downpour(every=Steps(2), outer=Sgd(), codec="fp32", staleness=2)
    speeds = (0.01, 0.01, 0.05)
    verdict = Trial(strategy, tmp_path, epochs=4).train(simulated(step_seconds=speeds))
    assert verdict.doubled == 0
    assert verdict.lost == sum(dropped_of(tmp_path / "ledger.jsonl")) > 0


def test_who_never_comes_back_costs_the_rest_of_its_own_rows(tmp_path):
    trial = Trial("averaging", tmp_path, fields={"rejoin_seconds": 20.0})
    faults = Faults().kill(slot=1, step=8, back_seconds=1e6)
    verdict = trial.train(simulated(faults))
    mine = trial.data_of(1)
    others = np.delete(verdict.count.times, mine)
    assert others.tolist() == [2] * len(others)
    assert verdict.lost == (2 - verdict.count.times[mine]).sum() == 2 * 40 - 6 * 4
    message = f"{verdict.lost} examples of worker 1 were not used"
    assert any(message in event.text for event in verdict.of("Warned"))


@pytest.mark.parametrize("fault", [*SIMULATED, "drawn"])
def test_with_fragments_the_rows_that_only_some_of_them_hold_are_told(fault, tmp_path):
    """Of what a lost worker did, fragments whose turn had not come hold nothing.

    Each row has a weight in each of the four fragments: a use that one of them lacks is a fourth.
    """
    faults = SIMULATED.get(fault) or chances(5, 3)
    trial = Trial("streaming", tmp_path, epochs=4, copies=4)
    verdict = trial.train(simulated(faults))
    times, leases = verdict.count.times.reshape(4, 120), len(verdict.of("WorkerLost"))
    missing = [(4 - times[:, trial.data_of(slot)]).sum() / 4 for slot in range(3)]
    [ended] = verdict.of("PhaseEnded")
    losses = [round(40 * (4 - ended.passes[str(slot)]), 6) for slot in range(3)]
    assert verdict.doubled == 0
    assert sum(missing) > 0 or not leases
    assert np.all(np.subtract(losses, missing) >= 0), "each loss is told in whole examples"
    assert np.all(np.subtract(losses, missing) <= leases)
    assert sum(losses) == pytest.approx(verdict.audited.partly)
    assert verdict.audited.is_exact


def test_a_resumed_run_knows_what_its_fragments_lacked_before(tmp_path):
    trial = Trial("streaming", tmp_path, epochs=8, copies=4)
    stopped(trial, simulated(Faults().kill(slot=1, step=6, back_seconds=0.0)), seconds=1.6)
    verdict = trial.resumed(simulated(Faults().kill(slot=0, step=5)))
    times = verdict.count.times.reshape(4, 120)
    missing = [(8 - times[:, trial.data_of(slot)]).sum() / 4 for slot in range(3)]
    passes = verdict.of("PhaseEnded")[-1].passes
    losses = [round(40 * (8 - passes[str(slot)]), 6) for slot in range(3)]
    assert verdict.doubled == 0
    assert missing[0] > 0
    assert missing[1] > 0
    assert np.all(np.subtract(losses, missing) >= 0)
    assert np.all(np.subtract(losses, missing) <= 1)


# -- as shipped ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "strategy",
    [
        averaging(every=Steps(3) | Seconds(0.05), outer=Sgd(), merge="uniform", codec="fp32"),
        averaging(every=Steps(3), outer=Sgd(), merge="uniform", codec="fp32", quorum=0.6),
        downpour(every=Steps(2), codec="fp32"),
        elastic(every=Steps(2), codec_down="fp32"),
        publish(every=Steps(2), exact_every=2),
        gossip(every=Steps(2), exact_every=2),
    ],
    ids=["averaging by the clock", "quorum", "downpour", "elastic", "publish", "gossip"],
)
@pytest.mark.parametrize("fault", ["none", "killed", "messages lost and doubled"])
def test_what_is_applied_is_what_was_agreed_on_where_shares_are_not_fixed(
    strategy, fault, tmp_path
):
    """Shares are the product's affair here; no worker's rows are passed by or done twice."""
    engine = simulated(SIMULATED.get(fault), step_seconds=(0.01, 0.012, 0.03))
    trial = Trial(strategy, tmp_path, epochs=3, fixed=False)
    verdict = trial.train(engine)
    assert verdict.count.times.sum() == verdict.of("PhaseEnded")[0].examples
    for slot in range(3):
        mine = verdict.count.times[trial.data_of(slot)]
        assert mine.max() - mine.min() <= 1, "a row was passed by, or used once too often"
