"""Workers of this machine are forked from a process that has imported what they need."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from photinus.core.clock import Steps
from photinus.core.errors import RunFailedError
from photinus.core.events import WorkerJoined
from photinus.engine.base import ArrayData, RunSpec
from photinus.engine.local import fork_server as module
from photinus.engine.local.engine import LocalEngine
from photinus.engine.local.fork_server import ForkedWorker, ForkServer
from photinus.engine.local.worker_main import LOST
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.models.module import ModuleConfig
from photinus.strategies.recipes import averaging
from photinus.training.plan import Phase, TrainingPlan

pytestmark = pytest.mark.processes


def above(pid):
    """Returns the parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def below(pid):
    """Returns the processes that a process has started."""
    children = []
    for stat in Path("/proc").glob("[0-9]*"):
        try:
            children += [int(stat.name)] if above(int(stat.name)) == pid else []
        except OSError:
            continue
    return children


@pytest.fixture(scope="module")
def server():
    fork_server = ForkServer(dict(os.environ))
    yield fork_server
    fork_server.close()


@pytest.fixture
def handles():
    """Descriptors for a worker: of rows, and of the end of the driver."""
    reading, writing = os.pipe()
    yield reading, reading
    os.close(reading)
    os.close(writing)


def test_a_worker_that_gets_no_order_ends_with_the_code_of_a_fresh_one(server, handles):
    worker = server.fork(b"", *handles)
    assert above(worker.pid) == server.process.pid
    assert os.getpgid(worker.pid) == worker.pid, "Ctrl-C reaches the driver alone"
    assert worker.wait(60) == LOST
    assert worker.poll() == LOST


def test_a_killed_worker_tells_the_signal_and_its_siblings_run_on(server, handles):
    first, second = (server.fork(half_an_order(), *handles) for _ in range(2))
    assert {first.pid, second.pid} <= set(below(server.process.pid))
    first.kill()
    assert first.wait(60) == -signal.SIGKILL
    assert second.wait(60) == LOST


def half_an_order():
    """What ends a worker at once when it has read it."""
    return b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00]"


def test_waiting_for_a_worker_ends_after_its_seconds(server, handles, monkeypatch):
    worker = server.fork(b"", *handles)
    monkeypatch.setattr(server, "ended", lambda pid, seconds: None)
    with pytest.raises(subprocess.TimeoutExpired):
        worker.wait(0.01)


def test_workers_of_a_server_that_is_killed_count_as_killed(handles):
    server = ForkServer(dict(os.environ))
    server.process.kill()
    server._alive.add(worker := os.getpid() + 10**7)
    assert ForkedWorker(server, worker).wait(60) == -signal.SIGKILL
    with pytest.raises(RunFailedError, match="the process that starts workers ended; got code -9"):
        server.fork(b"", *handles)
    server.close()


QUICK = """
import sys
from types import ModuleType

for name in ("torch", "photinus.engine.local.worker_main"):
    sys.modules[name] = ModuleType(name)
sys.modules["photinus.engine.local.worker_main"].main = lambda rows, parent: 0
"""


@pytest.fixture
def environment(tmp_path):
    """One in which a server imports nothing, and its workers end at once."""
    (tmp_path / "sitecustomize.py").write_text(QUICK)
    path = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def test_one_server_forks_workers_that_inherit_the_same(
    environment, handles, monkeypatch, tmp_path
):
    def ended(**more):
        worker = module.forked(environment | more, b"", *handles)
        worker.wait(60)
        return worker._server

    first = ended()
    assert ended() is first
    other = ended(OMP_NUM_THREADS="7")
    assert other is not first
    assert first.is_lost, "nobody needs it any more"
    monkeypatch.chdir(tmp_path)
    third = ended(OMP_NUM_THREADS="7")
    assert third is not other
    assert list(module._servers.values()) == [third]
    mask = os.umask(0o027)
    try:
        fourth = ended(OMP_NUM_THREADS="7")
    finally:
        os.umask(mask)
    assert fourth is not third
    fourth.process.kill()
    fourth.process.wait()
    assert ended(OMP_NUM_THREADS="7") is not fourth


def test_a_server_with_workers_stays_while_another_one_is_needed(environment, handles):
    first = module.forked(environment, b"", *handles)
    first._server._alive.add(-1)  # one that runs on
    module.forked(environment | {"OMP_NUM_THREADS": "7"}, b"", *handles).wait(60)
    assert not first._server.is_lost
    first._server._alive.discard(-1)


def test_a_process_name_that_is_cut_within_a_character_is_no_error():
    comm = Path("/proc/self/comm")
    name = comm.read_bytes()
    comm.write_bytes(("я" * 8).encode())  # of 16 bytes the system keeps 15
    try:
        with pytest.raises(UnicodeDecodeError):
            comm.read_bytes().strip().decode()
        assert module._inherited_state() == module._inherited_state()
    finally:
        comm.write_bytes(name.strip())


def test_tests_have_one_environment_and_so_share_a_server():
    assert "test" not in os.environ["PYTEST_CURRENT_TEST"]


def test_a_run_whose_server_is_killed_continues_with_another_one(tiny):
    servers = []

    def emit(event):
        if isinstance(event, WorkerJoined) and not servers:
            servers.extend(module._servers.values())
            for server in servers:
                server.process.kill()

    run = tiny.assignment(tiny.plan(recipes=tiny.recipes[:1]), emit=emit)
    result = LocalEngine().run(run)
    plain = SimulatedEngine().run(tiny.assignment(tiny.plan(recipes=tiny.recipes[:1])))
    assert np.allclose(result.vectors[-1], plain.vectors[-1], atol=0.5)
    assert servers


DRIVER = """
import os, sys
from photinus.engine.local.fork_server import forked

reading, writing = os.pipe()
worker = forked(dict(os.environ), b"", reading, reading)
worker.wait(60)
print(worker._server.process.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("ends", ["killed", "returns"])
def test_a_server_ends_with_its_driver(ends, environment):
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with driver:
        server = os.pidfd_open(int(driver.stdout.readline()))
        if ends == "killed":
            driver.kill()
        else:
            driver.stdin.close()
        assert select.select([server], [], [], 60)[0], "it has ended"
        os.close(server)


CHANCE = """
import random
import numpy as np
import torch

def net():
    print("chance", random.random(), np.random.random(), flush=True)
    return torch.nn.Linear(2, 2)
"""


def test_each_worker_has_chance_of_its_own(tmp_path, monkeypatch, capfd):
    (tmp_path / "with_chance.py").write_text(CHANCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    phase = Phase(
        config=ModuleConfig(module="with_chance:net", epochs=1.0),
        strategy=averaging(every=Steps(2)),
    )
    rows = ArrayData(np.eye(2, dtype=np.float32).repeat(16, 0), np.arange(2).repeat(16))
    plan = TrainingPlan(phases=(phase,), workers=2)
    LocalEngine().run(RunSpec(plan=plan, data=rows, run=os.urandom(16)))
    draws = [line.split()[1:] for line in capfd.readouterr().out.splitlines() if "chance" in line]
    for numbers in zip(*draws, strict=True):
        assert len(set(numbers)) == len(numbers) >= 2


ENDING = (
    QUICK
    + """
import atexit, os, threading

def note(word):
    with open(PATH, "a") as file:
        file.write(word)

def main(rows, parent):
    atexit.register(note, "exit ")
    threading.Thread(target=lambda: (os.system("true"), note("thread "))).start()
    return 7

sys.modules["photinus.engine.local.worker_main"].main = main
"""
)


def test_a_worker_that_ends_joins_its_threads_and_runs_what_was_registered(
    environment, handles, tmp_path
):
    notes = tmp_path / "notes"
    code = ENDING.replace("PATH", repr(str(notes)))
    (tmp_path / "sitecustomize.py").write_text(code)
    server = ForkServer(environment)
    assert server.fork(b"", *handles).wait(60) == 7
    server.close()
    assert notes.read_text() == "thread exit "
