"""Runs that are kept at an address."""

import numpy as np
import pytest

from photinus.core.errors import CheckpointError, RunFailedError, UsageError
from photinus.report.ledger import audit
from photinus.run import remote_resume
from photinus.run.evaluate import load_trained
from photinus.run.train import resume, train

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def address(tmp_path):
    name = f"memory://runs/{tmp_path.name}"
    yield name
    fs, path = fsspec.core.url_to_fs(name)
    if fs.exists(path):
        fs.rm(path, recursive=True)


def test_a_run_at_an_address_leaves_all_of_it_there(small, address, tmp_path):
    outcome = train(small.job(), small.data(), test=small.test, folder=address)
    assert outcome.address == address
    with remote_resume.fetched(address, "model", "ledger.jsonl", "report.html") as copy:
        assert np.array_equal(load_trained(copy / "model")[0].vector, outcome.vector)
        assert audit(copy / "ledger.jsonl").is_exact
        assert (copy / "report.html").read_bytes() == (outcome.folder / "report.html").read_bytes()
    with pytest.raises(UsageError, match="holds a run already"):
        train(small.job(), small.data(), folder=address)
    with pytest.raises(UsageError, match="is done"):
        resume(address, small.data())


def test_a_run_is_resumed_on_another_machine_to_the_same_bits(
    small, breaking, address, tmp_path, events
):
    job = small.job(checkpoint_seconds=0.0)
    with pytest.raises(KeyboardInterrupt):
        train(job, small.data(), folder=address, engine=breaking(12))
    outcome = resume(address, small.data())
    whole = train(job, small.data(), folder=tmp_path / "whole")
    assert np.array_equal(outcome.vector, whole.vector)
    with remote_resume.fetched(address, "ledger.jsonl", "events.jsonl") as copy:
        assert audit(copy / "ledger.jsonl").is_exact
        first, second = events(copy, "RunStarted")
    assert (first.term, second.term) == (1, 2)
    assert second.resumed_from


@pytest.fixture
def end_process(monkeypatch):
    """Returns the folders of this machine, and what removes them as the process ends."""
    registered = []
    monkeypatch.setattr(remote_resume.atexit, "register", lambda *call: registered.append(call))

    def run_exit_functions():
        for function, mirror in registered:
            function(mirror)
        return [mirror.local.parent.exists() for _, mirror in registered]

    return run_exit_functions


def test_the_copy_of_this_machine_is_removed_at_exit_once_all_is_at_the_address(
    small, address, end_process
):
    train(small.job(), small.data(), folder=address)
    with pytest.raises(UsageError, match="is done"):
        resume(address, small.data())
    assert end_process() == [False, False]


def test_a_copy_of_what_did_not_reach_the_address_stays(small, address, end_process, monkeypatch):
    monkeypatch.setattr(remote_resume, "_AGAIN_SECONDS", ())
    monkeypatch.setattr(remote_resume.Mirror, "push", _push_refused)
    with pytest.raises(CheckpointError, match="it is full"):
        train(small.job(), small.data(), folder=address)
    assert end_process() == [True]


def _push_refused(mirror):
    raise CheckpointError("it is full")


def test_a_result_that_cannot_be_kept_is_a_failure(small, address, monkeypatch):
    monkeypatch.setattr(remote_resume, "_AGAIN_SECONDS", (0.0, 0.0))

    class Broken:
        def push(self):
            raise CheckpointError("it is full")

    with pytest.raises(RunFailedError, match="the result could not be kept; got it is full"):
        remote_resume.send_all(Broken(), is_failed=False)
    remote_resume.send_all(Broken(), is_failed=True)  # the first failure is the one to tell
