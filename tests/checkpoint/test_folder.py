from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from photinus.checkpoint.folder import RunFolder
from photinus.checkpoint.store import Store
from photinus.core.errors import CheckpointError, FencedError, UsageError


def test_a_new_folder_is_made_for_its_owner_only(tmp_path):
    folder = RunFolder(tmp_path / "a" / "run")
    for path in (folder.path, folder.logs, folder.checkpoints):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    paths = {folder.events, folder.ledger, folder.model, folder.report, folder.log(3)}
    assert {p.name for p in paths} == {
        "events.jsonl", "ledger.jsonl", "model", "report.html", "worker-003.log",
    }  # fmt: skip
    RunFolder(folder.path)


def test_a_folder_with_a_run_is_taken_only_to_resume_it(tmp_path):
    RunFolder(tmp_path / "run").claim_term()
    with pytest.raises(UsageError, match="holds a run already; resume it, or name another"):
        RunFolder(tmp_path / "run")
    assert RunFolder(tmp_path / "run", resume=True).claim_term() == 2


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").touch()
    for resume in (False, True):
        with pytest.raises(UsageError, match=r"holds other files; got thesis\.tex"):
            RunFolder(tmp_path, resume=resume)
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be written; got Not a directory; name another"):
        RunFolder(tmp_path / "file" / "run")
    with pytest.raises(UsageError, match="cannot be written"):
        RunFolder(tmp_path / "file")

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.raises(UsageError, match="cannot be written; got Permission denied"):
        RunFolder(tmp_path / "run")


def test_a_look_at_a_new_folder_leaves_nothing(tmp_path):
    RunFolder.check_new(tmp_path / "new" / "run")
    assert os.listdir(tmp_path) == []


def test_of_many_coordinators_each_gets_a_term_of_its_own(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with ThreadPoolExecutor(8) as pool:
        terms = list(pool.map(lambda n: folder.claim_term({"host": n}), range(24)))
    assert sorted(terms) == list(range(1, 25))
    assert folder.newest_term() == 24


def test_a_coordinator_of_an_older_term_cannot_save(tmp_path):
    folder = RunFolder(tmp_path / "run")
    term = folder.claim_term()
    store = Store(folder.checkpoints, step=lambda _: folder.check_term(term))
    store.save("1", {}, {"m": {"w": np.ones(1)}})
    folder.claim_term()
    with pytest.raises(FencedError, match="term is over; got term 1, the newest is 2"):
        store.save("2", {}, {"m": {"w": np.ones(1)}})
    assert store.names() == ("1",)


def test_a_folder_that_vanished_is_a_clear_error(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.path.rename(tmp_path / "gone")
    with pytest.raises(CheckpointError, match="cannot be used; got No such file"):
        folder.claim_term()


def test_what_a_term_was_claimed_with_can_be_read(tmp_path):
    folder = RunFolder(tmp_path / "run")
    term = folder.claim_term({"client": 7})
    assert folder.claimed(term) == {"term": term, "client": 7}
    assert folder.claimed(term + 1) == {}
