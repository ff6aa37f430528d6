"""Memory really runs out: the kernel kills a worker, or an allocation fails within one."""

import os
import resource
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from photinus.core.clock import Steps
from photinus.core.errors import RunFailedError
from photinus.core.events import RoundClosed, Warned, WorkerJoined, WorkerLost
from photinus.engine.base import RunSpec
from photinus.engine.local.engine import LocalEngine
from photinus.models.logistic import LogisticConfig
from photinus.report.ledger import audit
from photinus.run.ledger_writer import LedgerWriter
from photinus.strategies.recipes import averaging
from photinus.training.plan import Phase, TrainingPlan

pytestmark = [pytest.mark.fault, pytest.mark.processes]

GROUPS = Path("/sys/fs/cgroup/memory")
EPOCHS, AT, LIMIT_BYTES, EATEN_BYTES = 150.0, 100, 64 << 20, 512 << 20


@pytest.fixture
def group():
    """A group of processes that may take little memory more, or the reason why there is none."""
    place = GROUPS / f"photinus-{os.getpid()}"
    try:
        place.mkdir()
        (place / "memory.limit_in_bytes").write_text(str(LIMIT_BYTES))
    except OSError as error:
        pytest.skip(f"memory can be limited by root and cgroups of the first kind only: {error}")
    yield place
    place.rmdir()


@dataclass(frozen=True, kw_only=True)
class Hungry(LogisticConfig):
    """In the first process that has made so many steps, a step takes half a gigabyte."""

    folder: str = ""
    group: str = ""

    def build(self, history, seed):
        model = super().build(history, seed)
        learn, steps = model.learn, [0]

        def learning(batch, seed):
            steps[0] += 1
            return self._eat() if steps[0] == AT and self._is_first() else learn(batch, seed)

        model.learn = learning
        return model

    def _is_first(self):
        try:
            os.close(os.open(f"{self.folder}/eaten", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def _eat(self):
        if self.group:
            (Path(self.group) / "cgroup.procs").write_text(str(os.getpid()))
        else:
            has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (has + LIMIT_BYTES, resource.RLIM_INFINITY))
        return np.ones(EATEN_BYTES, np.uint8)


@dataclass
class Run:
    """A training with one hungry step."""

    events: list
    ledger: Path

    def of(self, kind):
        return [e for e in self.events if isinstance(e, kind)]


@pytest.fixture
def hungry(tiny, tmp_path):
    def train(**fields):
        run, key = Run([], tmp_path / "ledger.jsonl"), os.urandom(16)
        config = Hungry(
            features=6, classes=3, batch_size=8, epochs=EPOCHS, folder=str(tmp_path), **fields
        )
        plan = TrainingPlan(
            phases=(Phase(config=config, strategy=averaging(every=Steps(20))),), workers=2
        )
        book = LedgerWriter(run.ledger, key)
        job = RunSpec(plan=plan, data=tiny.data, run=key, emit=run.events.append, enter=book.enter)
        try:
            LocalEngine().run(job)
        finally:
            book.close()
        return run

    return train


def test_a_worker_that_the_kernel_kills_for_its_memory_takes_its_seat_again(hungry, group):
    run = hungry(group=str(group))
    [lost] = run.of(WorkerLost)
    expected = f"worker {lost.slot} ended; got signal SIGKILL; its slot is started again"
    assert [e.text for e in run.of(Warned)] == [expected]
    assert [e.lease for e in run.of(WorkerJoined) if e.slot == lost.slot] == [1, 2]
    assert run.of(RoundClosed)[-1].examples >= 90 * EPOCHS
    assert audit(run.ledger).is_exact


def test_an_allocation_that_fails_ends_the_run_with_batch_and_advice(hungry):
    with pytest.raises(RunFailedError) as failed:
        hungry()
    message = str(failed.value)
    assert message.count("MemoryError") == 1
    assert "memory ran out: use a smaller batch, or fewer workers" in message
