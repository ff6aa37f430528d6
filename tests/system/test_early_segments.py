"""all_reduce whose segments leave while the backward pass continues: sockets, the same bits."""

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

from photinus.data.rows import Rows
from photinus.engine.base import part_of
from photinus.engine.driver_session import DriverSession
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.models.module import ModuleConfig
from photinus.protocol.early_trial import EarlyTrial
from photinus.protocol.peer_session import PeerSession
from photinus.protocol.reduce_scatter import ReduceScatter
from photinus.report.ledger import audit
from photinus.run.ledger_writer import LedgerWriter
from photinus.strategies.recipes import all_reduce
from photinus.training import segments
from photinus.training.plan import Phase, TrainingPlan

pytestmark = [pytest.mark.processes, pytest.mark.numerics]

WORKERS = 3


def net(hidden=24):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, hidden),
        nn.BatchNorm1d(hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, 3),
    )


@pytest.fixture
def sent(monkeypatch):
    """Has segments of 100 numbers; counts what left early, and the calls that found it here."""
    counts, announces, opens = Counter(), PeerSession.announce, ReduceScatter.open

    def announcing(self, run, size, merge):
        counts[run.fragment] += 1
        return announces(self, run, size, merge)

    def opening(self, called, brought):
        counts["meetings"] += 1
        counts["taken"] += (is_taken := opens(self, called, brought))
        return is_taken

    monkeypatch.setattr(segments, "SEGMENT", 100)
    monkeypatch.setattr(EarlyTrial, "pays", lambda self: True)
    monkeypatch.setattr(PeerSession, "announce", announcing)
    monkeypatch.setattr(ReduceScatter, "open", opening)
    return counts


def trained(spec, plan, tiny):
    """Trains by sockets, with a thread for each worker."""

    def work(slot):
        part = part_of(Rows.of(*tiny.data.part(plan, slot)), plan)
        bootstrap.run(slot, f"only-{slot}", lambda: part)

    with DriverSession(spec) as session:
        bootstrap = session.bootstrap(None)
        with ThreadPoolExecutor(WORKERS) as pool:
            for future in [pool.submit(work, slot) for slot in range(WORKERS)]:
                future.result(timeout=120)
        return session.result().vectors[0]


def test_a_devices_gradient_leaves_when_it_has_reached_the_host(tiny, sent):
    config = ModuleConfig(module=f"{__name__}:net", epochs=3.0, batch_size=8 * WORKERS)
    phase = Phase(config=config, strategy=all_reduce(owners=WORKERS))
    plan = TrainingPlan(phases=(phase,), workers=WORKERS, devices=("stand-in",))
    expected = SimulatedEngine().run(tiny.assignment(plan)).vectors[0]
    spec = tiny.assignment(plan, run=os.urandom(16))
    np.testing.assert_array_equal(trained(spec, plan, tiny), expected)


@pytest.mark.parametrize("security", ["tls", "none"])
@pytest.mark.parametrize("codec", ["fp32", "bf16"])
def test_segments_of_a_network_leave_early_and_change_no_bit(tiny, tmp_path, sent, codec, security):
    config = ModuleConfig(module=f"{__name__}:net", epochs=6.0, batch_size=8 * WORKERS)
    phase = Phase(config=config, strategy=all_reduce(owners=WORKERS, codec=codec))
    plan = TrainingPlan(phases=(phase,), workers=WORKERS)
    expected = SimulatedEngine().run(tiny.assignment(plan)).vectors[0]
    assert not sent["taken"], "virtual time sends nothing early"
    plain = sent["meetings"]
    book = LedgerWriter(tmp_path / "ledger.jsonl", run := os.urandom(16))
    spec = tiny.assignment(plan, run=run, enter=book.enter, security=security)
    vector = trained(spec, plan, tiny)
    book.close()
    assert audit(tmp_path / "ledger.jsonl").is_exact
    np.testing.assert_array_equal(vector, expected)
    # each 50th step brings buffers, and while workers arrive the members are not known
    assert sent["taken"] > 0.8 * (sent["meetings"] - plain)
    runs = [fragment for fragment in sent if isinstance(fragment, tuple)]
    assert min(runs)[0] == 0 < max(runs)[0], "the last layers' segments leave first"
