"""A run of the version before is resumed: its folder, checkpoint and ledger are read as they are.

`before/` was written before rooms, files and messages got their present names, and was stopped.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from photinus.core.errors import UsageError
from photinus.models.logistic import LogisticConfig
from photinus.report.ledger import audit
from photinus.run.job import Job
from photinus.run.train import resume, train

BEFORE = Path(__file__).parent / "before"


def test_a_run_of_the_version_before_ends_as_it_would_have_ended(small, tmp_path, events):
    folder = tmp_path / "run"
    shutil.copytree(BEFORE, folder)
    outcome = resume(folder, small.data(), test=small.test)
    job = Job.from_dict(json.loads((BEFORE / "job.json").read_text())["job"])
    whole = train(job, small.data(), test=small.test, folder=tmp_path / "whole")
    np.testing.assert_allclose(outcome.vector, whole.vector, rtol=1e-9, atol=1e-12)
    assert outcome.metrics == pytest.approx(whole.metrics)
    report = audit(folder / "ledger.jsonl")
    assert report.is_exact, report.offences
    assert report.undone > 0, "what came after the checkpoint was done again"
    assert [e.state for e in events(folder, "RunEnded")] == ["stopped", "done"]
    assert outcome.report.is_file()


ADDED_SETTINGS = {
    "module": {"cuda_graph": False},
    "word2vec": {"buckets": 0, "grams": 0, "contexts_per_step": 0},
    "dbn": {"pretraining": {"device": ""}, "fine_tuning": {"device": ""}},
}
"""kind -> settings of a model that came since, and what they are for a job of before."""
RENAMED_SETTINGS = {"road": "transport"}
"""Settings of a job that have another name since, and are read by either."""


@pytest.mark.parametrize("kind", ["module", "dbn", "logistic", "word2vec"])
def test_every_setting_that_a_job_was_saved_with_is_still_known(kind):
    """A run or a saved model is read by the names that its settings had."""
    saved_jobs = json.loads((BEFORE.parent / "jobs_before.json").read_text())
    [saved] = [job for job in saved_jobs if job["model"]["kind"] == kind]
    saved = {**saved, "model": merged_settings(saved["model"], ADDED_SETTINGS.get(kind, {}))}
    settings = Job.from_dict(saved).to_dict()
    assert (
        settings.items()
        >= {RENAMED_SETTINGS.get(key, key): value for key, value in saved.items()}.items()
    )


def test_a_setting_by_its_earlier_name_is_told_the_present_one():
    with pytest.raises(UsageError, match="got 'road'; did you mean 'transport'"):
        Job(model=LogisticConfig(features=2, classes=2), road="sockets")


def merged_settings(saved, added):
    """Settings, and those that came since, also in tables of theirs."""
    tables = {
        key: merged_settings(saved[key], v) for key, v in added.items() if isinstance(v, dict)
    }
    return {**saved, **added, **tables}
