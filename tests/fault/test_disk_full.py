"""The disk of a run is full for a while: training continues, and so do checkpoints later."""

import contextlib
import os
import threading
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from photinus.checkpoint.store import Store
from photinus.coordinator import leases
from photinus.coordinator.checkpoints import Checkpoints
from photinus.core.clock import Steps
from photinus.core.events import CheckpointFailed, CheckpointSaved, RoundClosed, RunEnded
from photinus.engine.base import ArrayData
from photinus.models.logistic import LogisticConfig
from photinus.report.journal import read
from photinus.report.ledger import audit
from photinus.report.terminal import Terminal
from photinus.run import job as jobs
from photinus.run.job import Job, Source
from photinus.run.train import train
from photinus.strategies.recipes import averaging

pytestmark = [pytest.mark.fault, pytest.mark.processes]

FEATURES, ROWS = 20_000, 64
LINES_FIT = 512 << 10
"""Less than a checkpoint, which takes 0.8 MB, and more than all lines of the run."""


@pytest.fixture
def patience(monkeypatch):
    """On a busy machine nobody is lost: that would change the bits."""
    monkeypatch.setattr(jobs, "LEASE_SECONDS", 120.0)
    monkeypatch.setattr(leases, "RETURN_SECONDS", 120.0)


def room(disk):
    status = os.statvfs(disk)
    return status.f_bavail * status.f_frsize


def fill(disk, left):
    """Takes all room but so many bytes, whoever else writes; returns the file that takes it."""
    path = disk / "filler"
    with path.open("wb") as file:
        taken = 0
        while (free := room(disk) - left) > 0:
            with contextlib.suppress(OSError):  # somebody took of it meanwhile
                os.posix_fallocate(file.fileno(), taken, free)
                taken += free
    return path


class Filled:
    """Fills a disk after the third checkpoint; makes room after some failures and rounds.

    Rounds wait for the checkpoint under way, so that no machine is too quick for the disk: each
    checkpoint that is made is written, or fails, before the next one.
    """

    FAILURES, ROUNDS = 3, 20
    """In so many rounds more lines are written than fit where files have begun a block."""

    def __init__(self, disk, left, monkeypatch):
        self.disk, self.left, self.filler = disk, left, None
        self.events, self.changed, self.under_way, self.rounds = [], threading.Condition(), 0, 0
        save = Checkpoints.save

        def counted(vault, *arguments, **settings):
            self.wait()  # a second one that waits takes the first one's place, without a word
            with self.changed:
                self.under_way += 1
            save(vault, *arguments, **settings)

        monkeypatch.setattr(Checkpoints, "save", counted)

    def __call__(self, event):
        self.events.append(event)
        if isinstance(event, RoundClosed):
            self.wait()
            self.rounds += self.filler is not None
        if isinstance(event, CheckpointSaved | CheckpointFailed):
            self.fill_or_empty()
            with self.changed:
                self.under_way -= 1
                self.changed.notify()

    def wait(self):
        with self.changed:
            assert self.changed.wait_for(lambda: not self.under_way, 60.0)

    def fill_or_empty(self):
        if self.filler is None:
            if len(self.of(CheckpointSaved)) == 3:
                self.filler = fill(self.disk, self.left)
        elif len(self.of(CheckpointFailed)) >= self.FAILURES and self.rounds >= self.ROUNDS:
            self.filler.unlink(missing_ok=True)

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize(
    "left",
    [
        pytest.param(LINES_FIT, id="for lines there is room", marks=pytest.mark.slow),
        pytest.param(0, id="for nothing"),
    ],
)
def test_a_full_disk_costs_checkpoints_for_a_while_and_no_bit(disk, left, tmp_path, monkeypatch):
    """Both ways the run ends whole, with every line of its journal and its ledger."""
    rng = np.random.default_rng(0)
    features = rng.random((ROWS, FEATURES), dtype=np.float32)
    data = ArrayData(features, rng.integers(0, 10, ROWS))
    job = Job(
        model=LogisticConfig(features=FEATURES, classes=10, epochs=15.0, batch_size=8),
        data=Source(name="given"),
        strategy=averaging(every=Steps(4), codec="fp32"),
        workers=2,
        engine="local",
        checkpoint_seconds=0.0,
    )
    shown = StringIO()
    terminal = Terminal(Console(file=shown, width=200))
    with monkeypatch.context() as patched:
        filled = Filled(disk, left, patched)
        outcome = train(job, data, folder=disk / "run", callbacks=(filled, terminal.write))
    terminal.close()

    failed, saved = filled.of(CheckpointFailed), filled.of(CheckpointSaved)
    assert len(failed) >= filled.FAILURES
    name = failed[0].name
    assert (
        f"checkpoint {name} failed: checkpoint {name} could not be written; got No space left on "
        "device; older checkpoints are kept; free some space or mend the permissions; "
        "training continues"
    ) in shown.getvalue()
    at = [filled.events.index(event) for event in (saved[2], failed[0], failed[-1], saved[3])]
    assert at == sorted(at), "saved, then full, then saved again"
    assert any(isinstance(e, RoundClosed) for e in filled.events[at[1] : at[2]]), "it trains on"

    store = Store(outcome.folder / "checkpoints")
    assert store.latest().name == saved[-1].name
    assert store.refusals == ()
    assert [e.state for e in filled.of(RunEnded)] == ["done"]
    whole = train(
        Job.from_dict(job.to_dict() | {"engine": "simulate"}), data, folder=tmp_path / "whole"
    )
    assert np.array_equal(outcome.vector, whole.vector)
    assert "the disk was full" not in shown.getvalue(), "lines wait until there is room"
    assert audit(outcome.folder / "ledger.jsonl").is_exact
    events = [s.event for s in read(outcome.folder / "events.jsonl")]
    assert len([e for e in events if isinstance(e, CheckpointFailed)]) == len(failed)
