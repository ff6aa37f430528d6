"""Each row is in the model as often as it was asked for: tasks of a server of Spark Connect."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "counting"))  # the server's tasks see it, too

from cases import Trial, epochs_of, lost_of, real

from photinus.checkpoint.folder import RunFolder
from photinus.engine.spark.engine import SparkEngine

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("recipe", ["averaging", "downpour"])
def test_killed_and_frozen_tasks_lose_no_row_and_double_none(connected, recipe, tmp_path):
    place = RunFolder(tmp_path / "run")
    fields = {"folder": str(place.path), "term": place.claim_term()}
    trial = Trial(recipe, tmp_path / "trial", epochs=epochs_of(recipe), fields=fields)
    verdict = trial.train(SparkEngine(connected, real(recipe)))
    assert (verdict.lost, verdict.doubled) == (0, 0)
    assert verdict.audited.is_exact, verdict.audited.offences
    assert {event.slot for event in verdict.of("WorkerLost")} >= lost_of(recipe)
