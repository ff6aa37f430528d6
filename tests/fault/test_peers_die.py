"""Without an owner, on real processes over TLS: killed workers and cut links stop nobody."""

import dataclasses
import os
import signal

import numpy as np
import pytest

from photinus.core.clock import Steps
from photinus.core.events import PeersMet, PhaseEnded, Warned, WorkerJoined
from photinus.engine.faults import Faults
from photinus.engine.local import LocalEngine
from photinus.engine.simulated import SimulatedEngine
from photinus.models.logistic import LogisticStage
from photinus.nodes.worker import Worker
from photinus.report.ledger import audit
from photinus.run.book import Book
from photinus.strategies.recipes import all_reduce, gossip, publish

WAYS = (publish(every=Steps(4), exact_every=5), gossip(every=Steps(4), exact_every=5))


class Run:
    """Follows a run of both ways, a phase each."""

    def __init__(self, tiny, folder, *, workers=3, epochs=300.0, kills=None, **fields):
        self.path, run = folder / "ledger.jsonl", os.urandom(16)
        self.book, self.kills, self.events, self.pids = Book(self.path, run), kills, [], {}
        program = tiny.program(workers=workers, recipes=WAYS, epochs=epochs)
        self.assignment = tiny.assignment(
            program, run=run, emit=self.emit, enter=self.book.enter, **fields
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
    assert not [w.text for w in run.of(Warned) if "different bits" in w.text]


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
    road = tmp_path / "road"
    promised(Run(tiny, tmp_path, epochs=60.0, road=str(road)).trained(LocalEngine()))
    assert list(road.iterdir()) == []


@pytest.mark.spark
@pytest.mark.slow
def test_workers_on_spark_agree_among_themselves(spark, tiny, tmp_path):
    from photinus.engine.spark import SparkEngine

    promised(Run(tiny, tmp_path, epochs=60.0).trained(SparkEngine(spark)))


@pytest.mark.processes
def test_shards_over_tls_give_the_bits_of_one_owner_in_the_simulator(tiny):
    shards, one = (tiny.program(workers=3, recipes=(all_reduce(owners=n),)) for n in (3, 1))
    found = LocalEngine().run(tiny.assignment(shards)).vectors[0]
    np.testing.assert_array_equal(found, SimulatedEngine().run(tiny.assignment(one)).vectors[0])


@dataclasses.dataclass(frozen=True, kw_only=True)
class CutOff(LogisticStage):
    """In each worker's process: from version 4 on nothing passes between workers 0 and 2."""

    def build(self, history, seed):
        post = Worker._post

        def posting(self, out):
            post(self, [a for a in out if a.frame.version < 4 or {a.frame.slot, a.to} != {0, 2}])

        if post.__name__ != "posting":
            Worker._post = posting
        return super().build(history, seed)


@pytest.mark.fault
@pytest.mark.slow
def test_two_that_never_reach_each_other_again_are_named_and_every_row_counts_once(tiny, tmp_path):
    program = tiny.program(workers=3, recipes=(all_reduce(owners=3),))
    (phase,) = program.phases
    fields = {f.name: getattr(phase.stage, f.name) for f in dataclasses.fields(phase.stage)}
    stage = CutOff(**fields)
    program = dataclasses.replace(program, phases=(dataclasses.replace(phase, stage=stage),))
    book, events = Book(tmp_path / "ledger.jsonl", run := os.urandom(16)), []
    assignment = tiny.assignment(program, run=run, emit=events.append, enter=book.enter)
    LocalEngine().run(assignment)
    book.close()
    assert audit(tmp_path / "ledger.jsonl").is_exact
    told = [e.text for e in events if isinstance(e, Warned)]
    assert len(told) == 1, told
    assert told[0].startswith("workers 0 and 2 could not reach each other for 5 s")
    joined = [(e.slot, e.lease) for e in events if isinstance(e, WorkerJoined)]
    assert sorted(joined) == [(0, 1), (1, 1), (2, 1), (2, 2)]
    (end,) = [e for e in events if isinstance(e, PhaseEnded)]
    assert end.examples == 3 * len(tiny.labels)
