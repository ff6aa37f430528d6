"""Recipes of two parts: where the start by gradients ends and the rest begins, no row is lost.

Ten steps of each worker are the start's, and ten the rest's, unless a test says otherwise.
"""

import shutil

import counted
import pytest
from cases import BOTH_PARTS, Trial, chances, simulated, stopped

from photinus.coordinator.phases import Phases
from photinus.testing import Faults

STEPS = [(10, 11), pytest.param(range(6, 16), marks=pytest.mark.slow)]
"""Of a worker, around the border: its tenth step is the start's last one."""
AROUND = {
    "killed": lambda step: Faults().kill(1, step),
    "two killed": lambda step: Faults().kill(2, step).kill(0, step),
    "killed again and again": lambda n: Faults().kill(1, n).kill(1, 1, lease=2).kill(1, 1, lease=3),
    "frozen": lambda step: Faults().freeze(1, step, seconds=8.0),
    "cut off": lambda step: Faults().cut(1, step, seconds=3.0),
    "copied, and the first one dies": lambda step: Faults().copy(1, step - 1).kill(1, step),
    "messages lost and doubled": lambda step: Faults().lose(0.1).double(0.2).kill(1, step),
}


def assert_exact(verdict):
    assert (verdict.lost, verdict.doubled) == (0, 0)
    assert verdict.audited.is_exact, verdict.audited.offences


@pytest.mark.parametrize("recipe", BOTH_PARTS)
def test_one_to_seven_workers_use_every_row_as_often_in_both_parts(recipe, tmp_path):
    for workers in range(1, 8):
        verdict = Trial(recipe, tmp_path / f"{workers}", workers).train(simulated())
        assert_exact(verdict)
        names = [event.name for event in verdict.of("PhaseStarted")]
        assert len(names) == (1 if workers == 1 else 2)


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("fault", AROUND)
@pytest.mark.parametrize("recipe", BOTH_PARTS)
def test_no_fault_around_the_border_loses_a_row_or_counts_it_twice(recipe, fault, steps, tmp_path):
    for step in steps:
        engine = simulated(AROUND[fault](step))
        assert_exact(Trial(recipe, tmp_path / f"{step}").train(engine))
        assert {f.kind for f in engine.happened} == {f.kind for f in AROUND[fault](step).planned}


@pytest.mark.parametrize("recipe", [name for name in BOTH_PARTS if not name.startswith("elastic")])
def test_workers_that_are_lost_all_at_once_around_the_border_lose_no_row(recipe, tmp_path):
    """Those of the start by gradients alone hold the parameters: the run goes back."""
    for seconds in (0.095, 0.115, 0.125, 0.135):
        faults = Faults()
        for slot in range(3):
            faults = faults.kill(slot, at_seconds=seconds, back_seconds=2.0)
        verdict = Trial(recipe, tmp_path / f"{seconds}").train(simulated(faults))
        assert_exact(verdict)
        assert len(verdict.of("WorkerLost")) == 3


@pytest.mark.parametrize("recipe", BOTH_PARTS)
def test_faults_by_chance_in_either_part_lose_no_row_and_double_none(recipe, tmp_path):
    for seed in range(3):
        workers = 2 + 2 * seed
        engine = simulated(chances(seed, workers))
        assert_exact(Trial(recipe, tmp_path / f"{seed}", workers, epochs=3).train(engine))


@pytest.mark.parametrize("recipe", BOTH_PARTS)
@pytest.mark.parametrize(("seconds", "part"), [(0.4, 0), (0.8, 1)])
def test_a_driver_that_is_lost_in_either_part_and_resumed_uses_no_row_twice(
    recipe, seconds, part, tmp_path
):
    trial = Trial(recipe, tmp_path, epochs=8)
    stopped(trial, simulated(), seconds=seconds)
    assert_exact(trial.resumed(simulated()))
    assert trial.resumed_in == part


@pytest.mark.parametrize("recipe", ["averaging, both parts", "downpour, both parts"])
def test_a_rest_that_is_given_up_for_a_checkpoint_of_its_start_is_done_again_once(recipe, tmp_path):
    trial = Trial(recipe, tmp_path, epochs=8)
    stopped(trial, simulated(), seconds=0.8)
    for checkpoint in (tmp_path / "checkpoints").glob("phase001*"):
        shutil.rmtree(checkpoint)
    verdict = trial.resumed(simulated())
    assert_exact(verdict)
    assert trial.resumed_in == 0
    assert verdict.audited.undone > 0


# -- a border that errs is found -----------------------------------------------------------------


@pytest.fixture
def errs(monkeypatch):
    """Something is wrong with the course where a rest begins."""

    def make(err):
        enter = Phases.enter

        def entered(self, phase, point=None):
            enter(self, phase, point)
            if point is not None:
                err(self)

        monkeypatch.setattr(Phases, "enter", entered)

    return make


@pytest.mark.parametrize("recipe", ["averaging, both parts", "downpour, both parts"])
@pytest.mark.parametrize("rows", [counted.BATCH, -counted.BATCH])
def test_rows_that_a_rest_passes_by_or_does_again_fail_the_count_and_the_audit(
    recipe, rows, errs, tmp_path
):
    def err(phases):
        phases._leases[1].position += rows

    errs(err)
    verdict = Trial(recipe, tmp_path).train(simulated())
    assert verdict.lost - verdict.doubled == rows
    what = "rows skipped" if rows > 0 else "rows twice"
    assert verdict.audited.offences[0].endswith(f"{what}: slot 1, from 40 to {40 + rows}")


def test_a_rest_that_starts_elsewhere_than_its_start_ended_fails_the_count(errs, tmp_path):
    errs(lambda phases: phases.owner.point.vector.__iadd__(1.0))
    trial = Trial("averaging, both parts", tmp_path)
    with pytest.raises(AssertionError, match="the model is not what was agreed on"):
        trial.train(simulated())
