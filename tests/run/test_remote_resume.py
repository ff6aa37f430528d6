"""Runs that are kept at an address."""

import re
import socket
from pathlib import Path

import numpy as np
import pytest

from photinus.checkpoint.folder import RunFolder
from photinus.checkpoint.store import Store
from photinus.core.errors import CheckpointError, NotReadyError, RunFailedError, UsageError
from photinus.core.events import Warned
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
        address, stays = "memory://runs", False

        def push(self):
            raise CheckpointError("it is full")

        def remove_halves(self):
            pass

    with pytest.raises(RunFailedError, match="the result could not be kept; got it is full"):
        remote_resume.send_all(Broken(), is_failed=False)
    remote_resume.send_all(Broken(), is_failed=True)  # the first failure is the one to tell


@pytest.fixture
def address_full(monkeypatch, tmp_path):
    """Once a run has begun nothing can be sent any more, and nobody asked for the newest term."""
    monkeypatch.setattr(remote_resume, "_AGAIN_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(remote_resume.tempfile, "tempdir", str(tmp_path))
    push, calls = remote_resume.Mirror.push, []

    def push_once(mirror):
        calls.append(mirror)
        if len(calls) > 1:
            raise CheckpointError("it is full")
        push(mirror)
        monkeypatch.setattr(remote_resume.Mirror, "check", _push_refused)

    monkeypatch.setattr(remote_resume.Mirror, "push", push_once)


def test_a_result_that_is_not_at_the_address_is_told_where_it_is(small, address, address_full):
    with pytest.raises(RunFailedError, match=r"got it is full; all of it is in (.+)$") as caught:
        train(small.job(), small.data(), folder=address)
    folder = Path(str(caught.value).rpartition(" in ")[2])
    whole = train(small.job(), small.data(), folder=folder.parent / "whole")
    assert np.array_equal(load_trained(folder / "model")[0].vector, whole.vector)


def test_a_stopped_run_whose_end_is_not_at_the_address_continues_from_this_machines_folder(
    small, breaking, address, address_full
):
    job = small.job(checkpoint_seconds=0.0)
    stop = f"{address} lacks the end of the run; continue with: photinus.resume\\('(.+)', data\\)"
    with pytest.raises(KeyboardInterrupt, match=stop) as caught:
        train(job, small.data(), folder=address, engine=breaking(12))
    folder = Path(re.search(stop, str(caught.value))[1])
    assert list((folder / "checkpoints").iterdir()), "which are not at the address"
    outcome = resume(folder, small.data())
    whole = train(job, small.data(), folder=folder.parent / "whole")
    assert np.array_equal(outcome.vector, whole.vector)


def test_a_quota_that_stays_full_is_warned_of_once_until_something_is_sent(tmp_path, monkeypatch):
    mirror, warnings = remote_resume.Mirror("memory://", tmp_path), []
    sender = remote_resume.Sender(mirror, warnings.append)
    full = [f"the quota is full: 50 MB, and {n} MB to keep .{n}.tmp-{n}a" for n in range(4)]
    gone = "Permission denied"
    reasons = iter([full[0], full[1], None, full[2], gone, gone, full[3]])

    def push():
        if reason := next(reasons):
            raise CheckpointError("it cannot be written to", got=reason)

    monkeypatch.setattr(mirror, "push", push)
    counts = []
    for _ in range(7):
        sender.send()
        counts.append(len(warnings))
    assert counts == [1, 1, 1, 2, 3, 3, 4]
    first = f"it cannot be written to; got {full[0]}; training continues"
    assert warnings == [first, *(first.replace(full[0], r) for r in (full[2], gone, full[3]))]


def test_a_run_warns_of_an_address_that_takes_nothing(small, breaking, address, address_full):
    job, heard = small.job(checkpoint_seconds=0.0), []
    with pytest.raises(KeyboardInterrupt):
        train(job, small.data(), folder=address, engine=breaking(12), callbacks=[heard.append])
    texts = [event.text for event in heard if isinstance(event, Warned)]
    assert texts.count("it is full; training continues") == 1


def test_where_nothing_answers_the_client_is_not_asked(tmp_path, monkeypatch):
    mirror = remote_resume.Mirror("memory://", tmp_path)
    monkeypatch.setattr(mirror, "push", lambda: pytest.fail("its client tries for minutes"))
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        mirror.address = f"hdfs://127.0.0.1:{silent.getsockname()[1]}/runs"
        with pytest.raises(NotReadyError, match="nothing answers at hdfs:"):
            remote_resume.send(mirror)


def test_what_does_not_fit_at_the_address_leaves_no_half_there(address, tmp_path, monkeypatch):
    mirror = remote_resume.Mirror(address, tmp_path)
    mirror.term = RunFolder(tmp_path).claim_term()
    monkeypatch.setattr(remote_resume.Mirror, "_can_rename", True)  # as on HDFS
    put = mirror._fs.put_file

    def fill(path, target):
        put(path, target)
        if target.endswith(full):
            raise OSError("the quota is exceeded")

    monkeypatch.setattr(mirror._fs, "put_file", fill)
    Store(tmp_path / "checkpoints").save("00001", {}, {"model": {"w": np.ones(3)}})
    for full in ("manifest.json", ""):
        (tmp_path / "events.jsonl").write_text(f"a line, {full}\n")
        with pytest.raises(CheckpointError, match="the quota is exceeded"):
            remote_resume.send(mirror)
    found = mirror._fs.find(fsspec.core.url_to_fs(address)[1])
    assert [path.rpartition("/")[2] for path in found] == ["coordinator-1.json", "events.jsonl"]
