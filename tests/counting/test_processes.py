"""Each row is in the model as often as it was asked for: processes of this machine."""

import json
from tempfile import TemporaryDirectory

import pytest
from cases import REAL, RECIPES, Trial, killed_driver

from photinus.engine.faults.plan import Faults
from photinus.engine.local.engine import LocalEngine

pytestmark = [pytest.mark.processes, pytest.mark.fault]
SLOW = [r for r in RECIPES if r not in ("averaging", "downpour", "full_gradient", "streaming")]


def assert_exact(verdict):
    assert (verdict.lost, verdict.doubled) == (0, 0)
    assert verdict.audited.is_exact, verdict.audited.offences


@pytest.mark.parametrize(
    "recipe",
    ["averaging", "downpour", *(pytest.param(r, marks=pytest.mark.slow) for r in SLOW)],
)
def test_killed_frozen_and_cut_off_processes_lose_no_row_and_double_none(recipe, tmp_path):
    diary = tmp_path / "diary"
    trial = Trial(recipe, tmp_path / "run", epochs=3)
    verdict = trial.train(LocalEngine(REAL.cut(0, 6, seconds=2.0).noted_in(str(diary))))
    assert_exact(verdict)
    noted = [json.loads(line) for line in diary.read_text().splitlines()]
    assert {n["kind"] for n in noted} == {"cut", "freeze", "kill"}
    assert {event.slot for event in verdict.of("WorkerLost")} >= {1, 2}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 7])
@pytest.mark.parametrize("recipe", ["averaging", "all_reduce", "downpour", "publish"])
def test_one_to_seven_processes_count_alike(recipe, workers, tmp_path):
    faults = Faults().kill(slot=workers - 1, step=3)
    trial = Trial(recipe, tmp_path, workers)
    assert_exact(trial.train(LocalEngine(faults)))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["averaging", "iterative_reduce", "downpour"])
def test_on_a_folders_road_no_row_is_lost_or_doubled(recipe, tmp_path):
    with TemporaryDirectory(dir="/dev/shm") as road:
        faults = Faults().kill(slot=1, step=5).freeze(slot=2, step=4, seconds=6.0)
        fields = {"road": road}
        trial = Trial(recipe, tmp_path, lease_seconds=4.0, epochs=3, fields=fields)
        verdict = trial.train(LocalEngine(faults))
        assert_exact(verdict)
        assert {event.slot for event in verdict.of("WorkerLost")} >= {1, 2}


@pytest.mark.parametrize("recipe", ["averaging"])
def test_a_driver_that_is_killed_and_resumed_loses_no_row_and_doubles_none(recipe, tmp_path):
    assert_resumed(recipe, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe", ["all_reduce", "iterative_reduce", "downpour", "publish", "gossip"]
)
def test_so_it_is_with_other_recipes_whose_driver_was_killed(recipe, tmp_path):
    assert_resumed(recipe, tmp_path)


def assert_resumed(recipe, folder):
    trial = killed_driver(recipe, folder)
    verdict = trial.resumed(LocalEngine())
    assert trial.resumed_from > 0
    assert (verdict.lost, verdict.doubled) == (0, 0)
