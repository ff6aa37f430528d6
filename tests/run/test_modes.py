"""Who may read what a run leaves."""

import os
import stat

from photinus.run.train import train


def test_a_run_is_for_its_owner_only_but_for_the_model_that_is_handed_on(small, tmp_path):
    umask = os.umask(0)
    try:
        train(small.job(checkpoint_seconds=0.0), small.data(), folder=tmp_path / "run")
    finally:
        os.umask(umask)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "run").rglob("*")}
    modes[tmp_path / "run"] = stat.S_IMODE((tmp_path / "run").stat().st_mode)
    names = {path.name for path in modes}
    assert {"job.json", "report.html", "ledger.jsonl", "events.jsonl", "manifest.json"} <= names
    model = tmp_path / "run" / "model"
    too_open = {
        path.relative_to(tmp_path).as_posix()
        for path, mode in modes.items()
        if mode != (0o700 if path.is_dir() else 0o600) and path != model and path.parent != model
    }
    assert too_open == set()
