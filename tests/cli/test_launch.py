"""What runs first on a node: a first attempt trains, a later one continues."""

import os
import select
import subprocess
import sys

import numpy as np
import pytest

from photinus.cli.launch import launch
from photinus.core.errors import RunFailedError, UsageError
from photinus.core.events import RoundClosed
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.report.journal import read
from photinus.report.ledger import audit
from photinus.run.remote_resume import fetched

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def address(tmp_path, monkeypatch):
    monkeypatch.delenv("CONTAINER_ID", raising=False)
    name = f"memory://runs/{tmp_path.name}"
    yield name
    fs, path = fsspec.core.url_to_fs(name)
    if fs.exists(path):
        fs.rm(path, recursive=True)


@pytest.fixture
def attempt(call, job, tmp_path, monkeypatch, address):
    """Starts an attempt in a container of its own."""

    def start(number):
        place = tmp_path / f"container{number}"
        place.mkdir()
        for name in ("job.toml", "train.parquet", "test.parquet"):
            (place / name).write_bytes((tmp_path / name).read_bytes())
        monkeypatch.chdir(place)
        monkeypatch.setenv("CONTAINER_ID", f"container_17_0001_{number:02d}_000001")
        launch(address, "job.toml")

    return start


class LostError(BaseException):
    """Ends a driver in the middle of things, as SIGKILL does: nothing more is written."""


@pytest.fixture
def lost(monkeypatch):
    """The first attempt's driver is lost at its n-th round."""
    run = SimulatedEngine.run

    def at(version):
        def ending(self, assignment):
            emit = assignment.emit

            def emit_or_lose(event):
                emit(event)
                if isinstance(event, RoundClosed) and event.version == version:
                    raise LostError

            object.__setattr__(assignment, "emit", emit_or_lose)
            return run(self, assignment)

        monkeypatch.setattr(SimulatedEngine, "run", ending)
        ends = lambda self, *_: self.checkpoints.close()  # noqa: E731 - as a method
        monkeypatch.setattr("photinus.run.train._Run.__exit__", ends)

    return at


def test_an_attempt_continues_from_the_lost_ones_checkpoint_and_says_so(
    attempt, lost, address, tmp_path, monkeypatch, capsys
):
    text = (tmp_path / "job.toml").read_text()
    (tmp_path / "job.toml").write_text("checkpoint_seconds = 0.0\n" + text)
    with monkeypatch.context():
        lost(20)
        with pytest.raises(LostError):
            attempt(1)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    attempt(2)
    assert "attempt 2 of application_17_0001" in capsys.readouterr().out
    with fetched(address, "events.jsonl", "ledger.jsonl", "model") as folder:
        events = [stamped.event for stamped in read(folder / "events.jsonl")]
        assert audit(folder / "ledger.jsonl").is_exact
        assert (folder / "model" / "model.safetensors").is_file()
    first, second = [e for e in events if type(e).__name__ == "RunStarted"]
    assert (first.term, second.term) == (1, 2)
    assert second.resumed_from
    assert any("attempt 2 of application_17_0001" in getattr(e, "text", "") for e in events)
    assert np.array_equal(*(e.workers for e in (first, second)))


WAY = """
import photinus


class Way:
    worker = staticmethod(lambda: photinus.averaging(every=photinus.Steps(2)).worker())
    owner = staticmethod(lambda: photinus.averaging(every=photinus.Steps(2)).owner())
"""


def test_a_later_attempt_calls_only_the_code_that_its_job_names(
    attempt, lost, address, tmp_path, monkeypatch
):
    """Another node has another key: what the submitted job names is the user's word."""
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "node_way.py").write_text(WAY)
    text = (tmp_path / "job.toml").read_text()
    text = text.replace('"all_reduce"', '"node_way:Way"')
    (tmp_path / "job.toml").write_text("checkpoint_seconds = 0.0\n" + text)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    lost(2)
    with pytest.raises(LostError):
        attempt(1)
    monkeypatch.undo()
    monkeypatch.syspath_prepend(tmp_path / "packages")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another node"))
    with pytest.raises(UsageError, match=r"names code, and no run of yours .*node_way:Way"):
        launch(address)
    with pytest.raises(UsageError, match=r"names code, and no run of yours .*node_way:Way"):
        launch(address, "other_way:Way")
    launch(address, "node_way:Way")
    with fetched(address, "ledger.jsonl", "model") as folder:
        assert audit(folder / "ledger.jsonl").is_exact
        assert (folder / "model" / "model.safetensors").is_file()


def test_a_run_that_fails_on_a_node_says_how_to_go_on_there(attempt, address, monkeypatch):
    def fail(*_, **__):
        raise RunFailedError("nobody came")

    monkeypatch.setattr(SimulatedEngine, "run", fail)
    way = rf"continue with: photinus submit --deploy-mode cluster --resume {address}"
    with pytest.raises(RunFailedError, match=way):
        attempt(1)


ORPHAN = """
import os, subprocess, sys, threading
child = "import os, sys, threading; from photinus.cli.launch import end_with; "
child += "end_with(os.getppid()); print(os.getpid(), flush=True); threading.Event().wait()"
started = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE)
print(int(started.stdout.readline()), flush=True)
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waits for a process as Linux does")
def test_a_driver_ends_with_the_java_that_started_it():
    command = [sys.executable, "-c", ORPHAN]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    try:
        end = os.pidfd_open(int(process.stdout))
    except ProcessLookupError:
        return
    try:
        assert select.select([end], [], [], 10)[0]
    finally:
        os.close(end)


def test_an_attempt_after_a_run_that_was_done_leaves_it(attempt, address, capsys):
    attempt(1)
    attempt(2)
    assert f"the run was done already, {address}" in capsys.readouterr().out


def test_a_run_that_ended_by_itself_is_not_tried_again(attempt, monkeypatch):
    def fail(*_):
        raise RunFailedError("nobody came")

    monkeypatch.setattr(SimulatedEngine, "run", fail)
    with pytest.raises(RunFailedError, match="nobody came"):
        attempt(1)
    with pytest.raises(RunFailedError, match=r"ended by itself; .* got nobody came"):
        attempt(2)
