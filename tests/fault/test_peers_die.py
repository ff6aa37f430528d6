"""Without an owner, on real processes over TLS: killed workers and cut links stop nobody."""

import dataclasses
import os
import signal
import time

import numpy as np
import pytest

from photinus.core.clock import Steps
from photinus.core.events import PeersMet, PhaseEnded, RoundClosed, Warned, WorkerJoined
from photinus.engine.local.engine import LocalEngine
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.models.logistic import LogisticConfig
from photinus.protocol.worker_client import Worker
from photinus.report.ledger import audit
from photinus.run.ledger_writer import LedgerWriter
from photinus.strategies.recipes import all_reduce, averaging, gossip, publish
from photinus.testing import Faults

WAYS = (publish(every=Steps(4), exact_every=5), gossip(every=Steps(4), exact_every=5))


class Run:
    """Follows a run of both ways, a phase each."""

    def __init__(self, tiny, folder, *, workers=3, epochs=300.0, kills=None, **fields):
        self.path, run = folder / "ledger.jsonl", os.urandom(16)
        self.book, self.kills, self.events, self.pids = LedgerWriter(self.path, run), kills, [], {}
        plan = tiny.plan(workers=workers, recipes=WAYS, epochs=epochs)
        self.assignment = tiny.assignment(
            plan, run=run, emit=self.emit, enter=self.book.enter, **fields
        )

    def emit(self, event):
        self.events.append(event)
        if isinstance(event, WorkerJoined):
            self.pids[event.slot] = event.pid
        if isinstance(event, PeersMet) and (event.phase, event.version) == self.kills:
            os.kill(self.pids[1], signal.SIGKILL)

    def trained(self, engine):
        result = engine.run(self.assignment)
        self.book.close()
        assert audit(self.path).is_exact, audit(self.path).offences
        assert all(np.isfinite(v).all() for v in result.vectors)
        return self

    def of(self, kind):
        return [e for e in self.events if isinstance(e, kind)]


def promised(run):
    ends, met = run.of(PhaseEnded), run.of(PeersMet)
    assert [e.phase for e in ends] == [0, 1]
    assert all(e.metrics["loss"] < 0.6 for e in ends)
    assert {e.phase for e in met} == {0, 1}
    assert all(e.published == e.taken + e.missing for e in met)
    assert sum(e.taken for e in met) > 0
    assert all(e.bytes_up > 0 for e in run.of(RoundClosed) if len(e.slots) > 1)
    assert not [w.text for w in run.of(Warned) if "different parameters" in w.text]


@pytest.mark.processes
def test_workers_agree_among_themselves_over_tls(tiny, tmp_path):
    promised(Run(tiny, tmp_path, epochs=60.0).trained(LocalEngine()))


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.parametrize("phase", [0, 1])
def test_a_killed_worker_is_back_and_every_push_counts_once(tiny, tmp_path, phase):
    run = Run(tiny, tmp_path, kills=(phase, 3)).trained(LocalEngine())
    promised(run)
    assert [e.lease for e in run.of(WorkerJoined) if e.slot == 1] == [1, 2]


@pytest.mark.fault
@pytest.mark.slow
def test_a_worker_that_is_cut_off_is_back_and_every_push_counts_once(tiny, tmp_path):
    faults = Faults().cut(slot=1, step=400, seconds=3.0)
    run = Run(tiny, tmp_path, epochs=600.0).trained(LocalEngine(faults))
    promised(run)
    assert [e.lease for e in run.of(WorkerJoined) if e.slot == 1] == [1, 2]


@pytest.mark.processes
def test_workers_agree_among_themselves_through_a_folder(tiny, tmp_path):
    transport = tmp_path / "transport"
    promised(Run(tiny, tmp_path, epochs=60.0, transport=str(transport)).trained(LocalEngine()))
    assert list(transport.iterdir()) == []


@pytest.mark.spark
@pytest.mark.slow
def test_workers_on_spark_agree_among_themselves(spark, tiny, tmp_path):
    from photinus.engine.spark.engine import SparkEngine

    promised(Run(tiny, tmp_path, epochs=60.0).trained(SparkEngine(spark)))


SHARED_OUT = [all_reduce(), averaging(every=Steps(4), codec="fp32")]


def by_owners(tiny, strategy, owners):
    return tiny.plan(workers=3, recipes=(dataclasses.replace(strategy, owners=owners),))


@pytest.mark.processes
@pytest.mark.parametrize("strategy", SHARED_OUT, ids=lambda a: a.recipe)
def test_shards_over_tls_give_the_bits_of_one_owner_in_the_simulator(tiny, strategy):
    shards, one = (by_owners(tiny, strategy, n) for n in (3, 1))
    vector = LocalEngine().run(tiny.assignment(shards)).vectors[0]
    np.testing.assert_array_equal(vector, SimulatedEngine().run(tiny.assignment(one)).vectors[0])


@pytest.mark.spark
def test_shards_of_deltas_on_spark_give_the_bits_of_one_owner_in_the_simulator(spark, tiny):
    from photinus.engine.spark.engine import SparkEngine

    shards, one = (by_owners(tiny, SHARED_OUT[1], n) for n in (3, 1))
    vector = SparkEngine(spark).run(tiny.assignment(shards)).vectors[0]
    np.testing.assert_array_equal(vector, SimulatedEngine().run(tiny.assignment(one)).vectors[0])


@dataclasses.dataclass(frozen=True, kw_only=True)
class CutOff(LogisticConfig):
    """In each worker's process: from version 4 on nothing passes between two workers for a time."""

    between: frozenset = frozenset({0, 2})
    seconds: float = float("inf")

    def build(self, history, seed):
        post, since = Worker._post, []

        def is_cut(addressed):
            if (
                addressed.frame.header["version"] < 4
                or {addressed.frame.slot, addressed.to} != self.between
            ):
                return False
            since.append(time.monotonic())
            return since[-1] - since[0] < self.seconds

        def posting(self, out):
            post(self, [a for a in out if not is_cut(a)])

        if post.__name__ != "posting":
            Worker._post = posting
        return super().build(history, seed)


def trained_with_a_cut(tiny, folder, strategy, workers, epochs=3.0, **cut):
    """What a run told in which two workers stop to reach each other."""
    plan = tiny.plan(workers=workers, recipes=(strategy,), epochs=epochs)
    (phase,) = plan.phases
    fields = {f.name: getattr(phase.config, f.name) for f in dataclasses.fields(phase.config)}
    config = CutOff(**fields, **cut)
    plan = dataclasses.replace(plan, phases=(dataclasses.replace(phase, config=config),))
    book, events = LedgerWriter(folder / "ledger.jsonl", run := os.urandom(16)), []
    assignment = tiny.assignment(plan, run=run, emit=events.append, enter=book.enter)
    LocalEngine().run(assignment)
    book.close()
    assert audit(folder / "ledger.jsonl").is_exact
    return events


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    [publish(every=Steps(4), exact_every=5), averaging(every=Steps(4), owners=2)],
    ids=lambda a: a.recipe,
)
def test_of_two_that_are_cut_off_one_continues_and_both_meet_again(tiny, tmp_path, strategy):
    cut = {"between": frozenset({0, 1}), "seconds": 7.0}
    events = trained_with_a_cut(tiny, tmp_path, strategy, 2, 1500.0, **cut)
    warnings = [e.text for e in events if isinstance(e, Warned)]
    assert [t[:44] for t in warnings] == ["workers 0 and 1 could not reach each other f"]
    joined = [(e.slot, e.lease) for e in events if isinstance(e, WorkerJoined)]
    assert sorted(joined) == [(0, 1), (1, 1), (1, 2)]
    met = [e.slots for e in events if isinstance(e, RoundClosed)]
    back = {slots for slots in met[met.index((0,)) :] if 1 in slots}
    assert back, "alone, where 0 was done with its own rows"
    (end,) = [e for e in events if isinstance(e, PhaseEnded)]
    assert end.examples >= 1500 * len(tiny.labels)


@pytest.mark.fault
@pytest.mark.slow
def test_two_that_never_reach_each_other_again_are_named_and_every_row_counts_once(tiny, tmp_path):
    events = trained_with_a_cut(tiny, tmp_path, all_reduce(owners=3), 3)
    warnings = [e.text for e in events if isinstance(e, Warned)]
    assert len(warnings) == 1, warnings
    assert warnings[0].startswith("workers 0 and 2 could not reach each other for 5 s")
    joined = [(e.slot, e.lease) for e in events if isinstance(e, WorkerJoined)]
    assert sorted(joined) == [(0, 1), (1, 1), (2, 1), (2, 2)]
    (end,) = [e for e in events if isinstance(e, PhaseEnded)]
    assert end.examples == 3 * len(tiny.labels)
