"""The Spark engine on Spark Connect: the coordinator lives in slot 0's task."""

import os
import signal

import numpy as np
import pytest

from photinus.core.clock import Steps
from photinus.core.errors import RunFailedError
from photinus.core.events import CheckpointSaved, Warned, WorkerJoined
from photinus.engine.base import ArrayData
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.engine.spark.engine import SparkEngine
from photinus.models.module import ModuleConfig
from photinus.report.ledger import audit
from photinus.run.ledger_writer import LedgerWriter
from photinus.strategies.recipes import averaging
from photinus.training.plan import Phase, TrainingPlan, WorkerLimits

pytestmark = pytest.mark.spark


def test_every_recipe_gives_the_bits_of_the_simulator(connected, assignment, tiny, tmp_path):
    events, book = [], LedgerWriter(tmp_path / "ledger.jsonl", bytes(16))
    result = SparkEngine(connected).run(assignment(emit=events.append, enter=book.enter))
    book.close()
    assert audit(tmp_path / "ledger.jsonl").is_exact, audit(tmp_path / "ledger.jsonl").offences[:3]
    expected = SimulatedEngine().run(tiny.assignment())
    for ours, theirs in zip(result.vectors, expected.vectors, strict=True):
        assert np.array_equal(ours, theirs)
    ended = [e for e in events if type(e).__name__ == "PhaseEnded"]
    assert len(ended) == len(tiny.recipes)
    assert list(tmp_path.glob("run/connect-*")) == []


@pytest.mark.parametrize("said", ["", ";token=another"])
def test_a_client_without_the_servers_token_is_turned_away(server, said):
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    address = server.partition(";")[0] + said
    with pytest.raises((PySparkException, OSError), match=r"(?i)token|unauthenticated"):
        SparkSession.builder.remote(address).create().range(1).count()


def test_slot_0_is_killed_and_the_coordinator_comes_back_from_its_checkpoint(
    connected, assignment, tiny, tmp_path
):
    events, killed = [], []
    book = LedgerWriter(tmp_path / "ledger.jsonl", bytes(16))

    def emit(event):
        events.append(event)
        joined = [e for e in events if isinstance(e, WorkerJoined) and e.slot == 0]
        if isinstance(event, CheckpointSaved) and not killed:
            killed.append(joined[-1].pid)
            os.kill(joined[-1].pid, signal.SIGKILL)

    plan = tiny.plan(recipes=tiny.recipes[:1], epochs=2000.0)
    fields = {"checkpoint_seconds": 0.2, "emit": emit, "enter": book.enter}
    result = SparkEngine(connected).run(assignment(plan, **fields))
    book.close()
    assert killed
    assert np.isfinite(result.vectors[0]).all()
    warnings = [event.text for event in events if isinstance(event, Warned)]
    assert any(
        "the coordinator was lost; it is back as term 2, from phase000" in s for s in warnings
    )
    report = audit(tmp_path / "ledger.jsonl")
    assert report.is_exact, report.offences[:3]
    assert report.applied > 0


def test_slot_0_takes_more_memory_than_it_may_and_the_client_is_told(connected, assignment):
    """The coordinator lives in that process, too: its last word comes out first."""
    arguments = {"in_features": 8_000, "out_features": 8_000}
    config = ModuleConfig(module="torch.nn:Linear", arguments=arguments, batch_size=8, epochs=1e4)
    phase = Phase(config=config, strategy=averaging(every=Steps(4)))
    plan = TrainingPlan(phases=(phase,), workers=1, limits=WorkerLimits(memory=800 << 20))
    rows = ArrayData(np.ones((16, 8_000), np.float32), np.arange(16))
    pattern = r"^worker 0 takes more memory than it may; got \d+ MiB of 800 MiB"
    with pytest.raises(RunFailedError, match=pattern):
        SparkEngine(connected).run(assignment(plan, data=rows))
