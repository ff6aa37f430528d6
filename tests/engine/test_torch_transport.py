"""all_reduce through torch.distributed, on real processes; members and counts are ours."""

import os
import pickle  # noqa: TID251 - as the local engine hands its children their errand
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from photinus.core.errors import UsageError
from photinus.core.events import PhaseEnded, Warned, WorkerJoined
from photinus.data.rows import Rows
from photinus.engine.base import part_of
from photinus.engine.driver_session import DriverSession
from photinus.engine.local.shared_rows import RowsFile
from photinus.engine.local.worker_main import ChildSpec
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.report.ledger import audit
from photinus.run.job import Job
from photinus.run.ledger_writer import LedgerWriter
from photinus.strategies.recipes import all_reduce, averaging
from photinus.testing import Faults

pytestmark = pytest.mark.processes


def assigned(tiny, folder, epochs, transport="torch"):
    plan = tiny.plan(workers=3, recipes=(all_reduce(owners=3),), epochs=epochs)
    book, events = LedgerWriter(folder / "ledger.jsonl", run := os.urandom(16)), []
    fields = {
        "emit": events.append,
        "enter": book.enter,
        "security": "none",
        "transport": transport,
    }
    return tiny.assignment(plan, run=run, **fields), book, events


def proved(tiny, folder, book, events, epochs):
    """Every push counts once, and every row as often as it should."""
    book.close()
    report = audit(folder / "ledger.jsonl")
    assert report.is_exact, report.offences
    (end,) = [e for e in events if isinstance(e, PhaseEnded)]
    assert end.examples == epochs * len(tiny.labels)
    warnings = [e.text for e in events if isinstance(e, Warned)]
    assert not [text for text in warnings if "different parameters" in text or "reach" in text]
    return sorted((e.slot, e.lease) for e in events if isinstance(e, WorkerJoined))


def in_threads(tiny, folder, epochs, faults=None):
    """Real sockets and real sums, without processes."""
    assignment, book, events = assigned(tiny, folder, epochs)
    plan = assignment.plan

    def work(slot):
        part = part_of(Rows.of(*tiny.data.part(plan, slot)), plan)
        bootstrap.run(slot, f"only-{slot}", lambda: part)

    with DriverSession(assignment) as session:
        bootstrap = session.bootstrap(faults)
        with ThreadPoolExecutor(3) as pool:
            for future in [pool.submit(work, slot) for slot in range(3)]:
                future.result(timeout=60)
        vector = session.result().vectors[0]
    return vector, proved(tiny, folder, book, events, epochs)


def test_sums_by_torch_train_as_one_owner_does(tiny, tmp_path):
    vector, joined = in_threads(tiny, tmp_path, 3.0)
    assert joined == [(0, 1), (1, 1), (2, 1)]
    one = tiny.assignment(tiny.plan(workers=3, recipes=(all_reduce(),)))
    np.testing.assert_allclose(vector, SimulatedEngine().run(one).vectors[0], rtol=0, atol=1e-12)


@pytest.mark.fault
@pytest.mark.slow
def test_a_worker_that_is_cut_off_is_left_out_of_the_sums_and_comes_back(tiny, tmp_path):
    faults = Faults().cut(slot=1, step=40, seconds=3.0)
    _, joined = in_threads(tiny, tmp_path, 60.0, faults)
    assert joined == [(0, 1), (1, 1), (1, 2), (2, 1)]


@pytest.mark.fault
@pytest.mark.slow
def test_a_killed_process_is_left_out_of_the_sums_and_comes_back(tiny, tmp_path):
    """Slot 1 is a process of its own, and the next one takes its seat."""
    assignment, book, events = assigned(tiny, tmp_path, 60.0)
    plan = assignment.plan
    parent, ours = os.pipe()
    rows = RowsFile()
    stored = rows.add_rows(tiny.data.part(plan, 1))

    def work(slot):
        part = part_of(Rows.of(*tiny.data.part(plan, slot)), plan)
        bootstrap.run(slot, f"only-{slot}", lambda: part)

    def child(attempt):
        order = ChildSpec(bootstrap, 1, attempt, stored, None, rows.descriptor, parent)
        return subprocess.run(
            [sys.executable, "-m", "photinus.engine.local.worker_main"],
            input=pickle.dumps(order),
            pass_fds=(rows.descriptor, parent),
        )

    with rows, open(parent), open(ours, "w"), DriverSession(assignment) as session:
        bootstrap = session.bootstrap(Faults().kill(slot=1, step=40))
        with ThreadPoolExecutor(2) as pool:
            others = [pool.submit(work, slot) for slot in (0, 2)]
            codes = [child(attempt).returncode for attempt in ("first", "second")]
            for future in others:
                future.result(timeout=60)
    assert codes == [-signal.SIGKILL, 0]
    joined = proved(tiny, tmp_path, book, events, 60.0)
    assert joined == [(0, 1), (1, 1), (1, 2), (2, 1)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without GPUs")
def test_nccl_without_a_gpu_ends_the_run_in_a_sentence_before_any_step(tiny, tmp_path):
    assignment, _, events = assigned(tiny, tmp_path, 1.0, transport="nccl")
    with DriverSession(assignment) as session:
        part = part_of(Rows.of(*tiny.data.part(assignment.plan, 0)), assignment.plan)
        session.bootstrap().run(0, "first", lambda: part)
        with pytest.raises(
            UsageError, match=r'one for each worker; got 0 GPUs on .*transport="torch"'
        ):
            session.result()
    assert not [e for e in events if isinstance(e, WorkerJoined)]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"security": "tls"}, "neither encrypts nor authenticates; got security 'tls'"),
        (
            {"strategy": averaging(owners=4)},
            r"transport torch is for all_reduce\(owners=4\) in fp32",
        ),
        ({"strategy": all_reduce()}, r"transport torch is for all_reduce\(owners=4\) in fp32"),
        ({"strategy": all_reduce(owners=4, codec="bf16")}, "transport torch is for all_reduce"),
        (
            {"transport": "nccl", "strategy": all_reduce()},
            r"transport nccl is for all_reduce\(owners=4\)",
        ),
    ],
)
def test_what_the_transport_cannot_carry_is_refused(fields, words):
    usual = {
        "transport": "torch",
        "security": "none",
        "strategy": all_reduce(owners=4),
        "workers": 4,
    }
    assert Job(**usual).transport == "torch"
    with pytest.raises(UsageError, match=words):
        Job(**usual | fields)
