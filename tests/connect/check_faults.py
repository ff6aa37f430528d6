"""What goes wrong on Spark Connect ends in a sentence, or costs nothing."""

import os
import signal
from dataclasses import replace

import numpy as np
import pytest

from photinus.core.errors import NotReadyError, UsageError
from photinus.core.events import WorkerJoined
from photinus.engine.base import ArrayData
from photinus.engine.spark.connect.client import ConnectSession
from photinus.engine.spark.engine import SparkEngine
from photinus.report.ledger import audit
from photinus.run.ledger_writer import LedgerWriter

pytestmark = pytest.mark.spark


def test_a_wrong_row_is_named(connected, assignment, tiny):
    features = tiny.features.copy()
    features[41, 2] = np.nan
    with pytest.raises(Exception, match="partition") as failed:
        SparkEngine(connected).run(assignment(data=ArrayData(features, tiny.labels)))
    assert type(failed.value).__name__ == "DataError"


def test_more_workers_than_slots_are_refused_at_once(connected, assignment, tiny):
    with pytest.raises(UsageError, match="5 workers need 5 slots at the same time; got 4 slots"):
        SparkEngine(connected).run(assignment(tiny.plan(workers=5)))


def test_a_folder_that_tasks_do_not_see_ends_the_run_with_a_sentence(
    connected, assignment, monkeypatch, tmp_path
):
    coordinator_spec = ConnectSession.coordinator_spec

    def elsewhere(self, *args):
        sent = coordinator_spec(self, *args)
        folder = str(tmp_path / "elsewhere")
        return replace(sent, run_spec=replace(sent.run_spec, folder=folder))

    monkeypatch.setattr(ConnectSession, "coordinator_spec", elsewhere)
    with pytest.raises(NotReadyError, match=r"is not seen by a task.*share, and may all write to"):
        SparkEngine(connected).run(assignment())


def test_a_worker_is_killed_and_its_seat_is_taken_again(connected, assignment, tiny, tmp_path):
    events, killed = [], []
    book = LedgerWriter(tmp_path / "ledger.jsonl", bytes(16))

    def emit(event):
        events.append(event)
        if isinstance(event, WorkerJoined) and event.slot == 1 and not killed:
            killed.append(event.pid)
            os.kill(event.pid, signal.SIGKILL)

    plan = tiny.plan(recipes=tiny.recipes[:1], epochs=1000.0)
    SparkEngine(connected).run(assignment(plan, emit=emit, enter=book.enter))
    book.close()
    assert killed
    leases = [(e.slot, e.lease) for e in events if isinstance(e, WorkerJoined)]
    assert (1, 2) in leases
    assert audit(tmp_path / "ledger.jsonl").is_exact
