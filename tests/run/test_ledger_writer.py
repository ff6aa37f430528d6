"""The ledger tells what a coordinator did, not what it should have done: its breaches are found."""

from itertools import count

import pytest

from photinus.coordinator.leases import Leases
from photinus.core.clock import Steps
from photinus.engine.simulation.cluster import SimulatedCluster
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.report.ledger import audit
from photinus.run.ledger_writer import LedgerWriter
from photinus.strategies.recipes import averaging, downpour
from photinus.testing import Faults

WAYS = {"averaging": averaging(every=Steps(4)), "downpour": downpour(every=Steps(4))}
KILLED = SimulatedCluster(faults=Faults().kill(slot=1, step=30))


@pytest.fixture
def audit_of_run(tiny, tmp_path):
    """Trains with a worker that dies, and reads the ledger."""

    def train_and_audit(strategy, unapplied=0):
        pushes = count(1)

        def enter(op, frame, extra):
            if op != "apply" or next(pushes) != unapplied:
                ledger.enter(op, frame, extra)

        ledger = LedgerWriter(tmp_path / "ledger.jsonl", bytes(16))
        plan = tiny.plan(recipes=(averaging(every=Steps(4)), strategy), epochs=8.0)
        SimulatedEngine(KILLED).run(tiny.assignment(plan, enter=enter))
        ledger.close()
        return audit(tmp_path / "ledger.jsonl")

    return train_and_audit


@pytest.mark.parametrize("way", WAYS)
def test_a_run_whose_worker_died_is_exact(audit_of_run, way):
    report = audit_of_run(WAYS[way])
    assert report.offences == []
    assert report.acknowledged == report.applied > 0
    assert report.leases == 3


@pytest.mark.parametrize("way", WAYS)
def test_an_answer_to_a_push_that_was_not_applied_is_found(audit_of_run, way):
    """An answer is entered where it is given, so that it can tell more than what was applied."""
    report = audit_of_run(WAYS[way], unapplied=30)
    assert report.acknowledged == report.applied + 1
    assert "acknowledged but never applied: term 1, phase 1" in report.offences[-1]


@pytest.mark.parametrize("way", WAYS)
def test_a_seat_that_is_granted_behind_rows_that_nobody_did_is_found(
    audit_of_run, monkeypatch, way
):
    grant = Leases.grant

    def skipping(self, seat, hello, now):
        grant(self, seat, hello, now)
        seat.position += 8 * (seat.lease > 1)

    monkeypatch.setattr(Leases, "grant", skipping)
    assert "rows skipped" in " ".join(audit_of_run(WAYS[way]).offences)
