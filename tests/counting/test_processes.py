"""Each row is in the model as often as it was asked for: processes of this machine."""

import json
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from cases import BOTH_PARTS, RECIPES, Trial, epochs_of, killed_driver, lost_of, real

from photinus.engine.local.engine import LocalEngine
from photinus.testing import Faults

pytestmark = [pytest.mark.processes, pytest.mark.fault]
QUICK = ("averaging", "downpour")
WAITS = "downpour, a table"  # for the frozen owner: no other worker takes its sixth step
SLOW = [name for name in (*RECIPES, *BOTH_PARTS) if name not in (*QUICK, "streaming", WAITS)]
RESUMED = ["all_reduce", "iterative_reduce", "downpour", "elastic", "publish", "gossip"]
RESUMED += ["averaging, a table", "averaging, both parts", "downpour, both parts", WAITS]
SIZES = ["averaging", "iterative_reduce", "all_reduce", "downpour", "publish"]
SIZES += ["averaging, a table", "averaging, both parts"]


def assert_exact(verdict):
    assert (verdict.lost, verdict.doubled) == (0, 0)
    assert verdict.audited.is_exact, verdict.audited.offences


def harmed(recipe, folder):
    """Trains while one process is killed twice, one frozen and one cut off; all of it happens."""
    diary = folder / "diary"
    trial = Trial(recipe, folder / "run", epochs=epochs_of(recipe))
    faults = real(recipe).cut(0, 6, seconds=2.0)
    verdict = trial.train(LocalEngine(faults.noted_in(str(diary))))
    noted = [json.loads(line)["kind"] for line in diary.read_text().splitlines()]
    assert sorted(noted) == ["cut", "freeze", "kill", "kill"]
    assert {event.slot for event in verdict.of("WorkerLost")} >= lost_of(recipe)
    return trial, verdict


@pytest.mark.parametrize(
    "recipe", [*QUICK, *(pytest.param(r, marks=pytest.mark.slow) for r in SLOW)]
)
def test_killed_frozen_and_cut_off_processes_lose_no_row_and_double_none(recipe, tmp_path):
    assert_exact(harmed(recipe, tmp_path)[1])


@pytest.mark.slow
def test_with_fragments_processes_lose_no_row_but_of_those_that_died_and_double_none(tmp_path):
    trial, verdict = harmed("streaming", tmp_path)
    lost = np.maximum(trial.epochs - verdict.count.times, 0)
    slots = {event.slot for event in verdict.of("WorkerLost")}
    faulty = np.concatenate([trial.data_of(slot) for slot in slots])
    assert verdict.doubled == 0
    assert lost.sum() == lost[faulty].sum() <= 16 * len(verdict.of("WorkerLost"))
    assert verdict.audited.is_exact, verdict.audited.offences


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 7])
@pytest.mark.parametrize("recipe", SIZES)
def test_one_to_seven_processes_count_alike(recipe, workers, tmp_path):
    for name, faults in {"none": Faults(), "killed": Faults().kill(workers - 1, 3)}.items():
        assert_exact(Trial(recipe, tmp_path / name, workers).train(LocalEngine(faults)))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["averaging", "iterative_reduce", "downpour", "elastic"])
def test_on_a_folder_transport_no_row_is_lost_or_doubled(recipe, tmp_path):
    with TemporaryDirectory(dir="/dev/shm") as transport:
        faults = Faults().kill(slot=1, step=5).freeze(slot=2, step=4, seconds=6.0)
        fields = {"transport": transport}
        trial = Trial(recipe, tmp_path, lease_seconds=4.0, epochs=3, fields=fields)
        verdict = trial.train(LocalEngine(faults))
        assert_exact(verdict)
        assert {event.slot for event in verdict.of("WorkerLost")} >= {1, 2}


@pytest.mark.parametrize("recipe", ["averaging"])
def test_a_driver_that_is_killed_and_resumed_loses_no_row_and_doubles_none(recipe, tmp_path):
    assert_resumed(recipe, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RESUMED)
def test_so_it_is_with_other_recipes_whose_driver_was_killed(recipe, tmp_path):
    assert_resumed(recipe, tmp_path)


def assert_resumed(recipe, folder):
    trial = killed_driver(recipe, folder)
    verdict = trial.resumed(LocalEngine())
    assert (trial.resumed_in, trial.resumed_from) > (0, 0)
    assert_exact(verdict)
