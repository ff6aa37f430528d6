"""A driver is killed at random instants, again and again: what each resume finds.

    python benchmarks/driver_kills.py [local | spark] [kills] [seed]

Chains of up to 20 lives of one run: each is killed (SIGKILL) up to two seconds after it began, or
after its workers did, with a checkpoint at every round; the next one resumes. The last life of a
chain ends by itself, and its parameters are compared with those of the same job in the simulator,
which was never killed: rounds must give the same bits. Drivers and local workers are forked from a
process that has PyTorch loaded; all else is as always.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from machine import begin

from photinus.checkpoint.export import load_model
from photinus.checkpoint.store import Store
from photinus.coordinator import leases, reachability
from photinus.coordinator.phases import RunResult
from photinus.core.clock import Steps
from photinus.core.errors import CheckpointError
from photinus.core.events import Event, RoundClosed, RunStarted, WorkerJoined
from photinus.engine.base import ArrayData, Engine, RunSpec
from photinus.engine.local import engine as local
from photinus.engine.local import worker_main
from photinus.engine.local.engine import LocalEngine
from photinus.models.module import ModuleConfig
from photinus.models.schedules import Schedule
from photinus.report.journal import read
from photinus.report.ledger import audit
from photinus.run import job as jobs
from photinus.run.job import Job, Source
from photinus.run.train import resume, train
from photinus.strategies.recipes import averaging

LIVES, MOST_SECONDS, EPOCHS, WORKERS = 20, 2.0, {"local": 400.0, "spark": 300.0}, 2
PATIENT_SECONDS = 120.0
"""On a busy machine nobody is late or lost: that would change the bits."""
LOST_SECONDS = 1.5
"""So long a worker looks for its driver."""


class Forked:
    """A worker process with PyTorch loaded, which waits for its order: what Popen would start."""

    def __init__(self, pipe: int) -> None:
        order, sender = os.pipe()
        self._files, files = socket.socketpair()
        self.pid, self.returncode = os.fork(), None
        if not self.pid:
            os.close(sender)
            os.close(pipe)
            self._files.close()
            os.setpgid(0, 0)
            os.dup2(order, 0)
            sys.stdin = open(0)  # noqa: SIM115 - for as long as the process lives
            try:
                _take_files(files)
                os._exit(worker_main.main())
            except BaseException:
                os._exit(1)
        os.close(order)
        files.close()
        self.stdin = open(sender, "wb")  # noqa: SIM115 - the engine closes it

    def begin(self, files: Sequence[int]) -> Forked:
        """Hands over files that were opened after the fork, as `pass_fds` does."""
        with self._files as line:
            socket.send_fds(line, [json.dumps(files).encode()], files)
        return self

    def poll(self) -> int | None:
        """Returns how it ended, if it has."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, seconds: float = 60.0) -> int:
        """Waits for its end."""
        deadline = time.monotonic() + seconds
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("worker", seconds)
            time.sleep(0.01)  # waitpid knows no limit of time
        return self.returncode

    def kill(self) -> None:
        """Ends it, if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def _take_files(line: socket.socket) -> None:
    """Takes files over, each under its sender's number."""
    with line:
        message, files, *_ = socket.recv_fds(line, 1024, 8)
    copies = [fcntl.fcntl(file, fcntl.F_DUPFD, 200) for file in files]  # out of the numbers' way
    for file, number in zip(copies, json.loads(message), strict=True):
        os.dup2(file, number)


class Hasty(Engine):
    """Workers that do not look for a lost driver for long."""

    def __init__(self, engine: Engine) -> None:
        self.name, self._engine = engine.name, engine

    def run(self, assignment: RunSpec) -> RunResult:
        """See `Engine.run`."""
        return self._engine.run(replace(assignment, reconnect_seconds=LOST_SECONDS))


def job(name: str) -> Job:
    """Adam inside, so that a worker's own state is part of the bits."""
    model = ModuleConfig(
        module="torch.nn:Linear",
        arguments={"in_features": 6, "out_features": 3},
        epochs=EPOCHS[name],
        batch_size=8 * WORKERS,
        optimizer="adam",
        lr=Schedule.constant(0.01),
    )
    return Job(
        model=model,
        data=Source(name="given"),
        strategy=averaging(every=Steps(4), codec="fp32", gradients_until=0),
        workers=WORKERS,
        engine=name,
        checkpoint_seconds=0.0,
    )


def data() -> ArrayData:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 90)
    features = rng.normal(size=(90, 6)) + 2 * np.tile(np.eye(3)[labels], 2)
    return ArrayData(features.astype("f4"), labels)


def live(folder: Path, name: str, pipe: int) -> None:
    """One life of a driver, in a process of its own; its events go into a pipe."""

    def tell(event: Event) -> None:
        if isinstance(event, (RunStarted, RoundClosed)):
            os.write(pipe, type(event).__name__[1].encode())

    engine: Engine | None = None
    if name == "local":
        waiting = [Forked(pipe) for _ in range(WORKERS)]
        plain = subprocess.Popen

        def start(*words: Any, **parts: Any) -> Any:
            return waiting.pop().begin(parts["pass_fds"]) if waiting else plain(*words, **parts)

        local.subprocess.Popen = start
        engine = Hasty(LocalEngine())
    if (folder / "job.json").exists():
        resume(folder, data(), callbacks=(tell,), engine=engine)
    else:
        train(job(name), data(), folder=folder, callbacks=(tell,), engine=engine)


def born(folder: Path, name: str) -> tuple[int, int]:
    """Forks a driver: PyTorch is loaded already. Returns its process, and where it tells."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    code = 1
    try:
        os.close(reader)
        os.dup2(os.open(folder.parent / "driver.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        live(folder, name, writer)
        code = 0
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    os._exit(code)


def until(reader: int, word: bytes, seconds: float) -> bool:
    """Waits for a word of a driver; False when it ended before, or said nothing."""
    deadline = time.monotonic() + seconds
    while select.select([reader], [], [], max(0.0, deadline - time.monotonic()))[0]:
        received = os.read(reader, 4096)
        if word in received:
            return True
        if not received:
            break
    return False


def killed(folder: Path, name: str, rng: np.random.Generator) -> str:
    """Lets a driver live for a while; returns where the kill fell, or nothing: it was done."""
    pid, reader = born(folder, name)
    word = b"u" if rng.random() < 0.15 else b"o"
    if not until(reader, word, 120.0):
        os.kill(pid, signal.SIGKILL)
    time.sleep(rng.uniform(0.0, MOST_SECONDS))  # the kill falls where chance will
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    os.close(reader)
    if os.WIFEXITED(status):
        if os.WEXITSTATUS(status):
            raise RuntimeError((folder.parent / "driver.log").read_text())
        return ""
    aside = [e.name for e in (folder / "checkpoints").iterdir() if ".tmp-" in e.name]
    return "inside a save" if aside else "before any round" if word == b"u" else "between saves"


def gone_after(folder: Path, seconds: float) -> float:
    """Returns how long the workers of the last life continued without their driver."""
    began = time.monotonic()
    events = [s.event for s in read(folder / "events.jsonl")]
    start = max(n for n, event in enumerate(events) if isinstance(event, RunStarted))
    for event in events[start:]:
        if not isinstance(event, WorkerJoined):
            continue
        try:
            end = os.pidfd_open(event.pid)
        except ProcessLookupError:
            continue
        left = began + seconds - time.monotonic()
        if not select.select([end], [], [], max(0.0, left))[0]:
            raise RuntimeError(f"process {event.pid} continues after {seconds:.0f} s")
        os.close(end)
    return time.monotonic() - began


def newest(folder: Path) -> tuple[str, int]:
    """Returns the newest whole checkpoint, and how many were refused."""
    store = Store(folder / "checkpoints")
    checkpoint = store.latest()
    return ("" if checkpoint is None else checkpoint.name), len(store.refusals)


def chain(name: str, kills: int, rng: np.random.Generator, counts: Counter[str]) -> int:
    """One run in so many lives, or as many as it needs, and one more; returns the kills."""
    with tempfile.TemporaryDirectory(prefix="kills-") as place:
        folder, names = Path(place) / "run", list[str]()
        while len(names) < kills and (where := killed(folder, name, rng)):
            counts[where] += 1
            whole, refused = newest(folder)
            names.append(whole)
            counts["refused checkpoints"] += refused
            slowest = gone_after(folder, 30.0)
            counts["slowest ms"] = max(counts["slowest ms"], int(1000 * slowest))
        if len(names) == kills:
            pid, reader = born(folder, name)
            _, status = os.waitpid(pid, 0)
            os.close(reader)
            if status:
                raise RuntimeError((folder.parent / "driver.log").read_text())
        judge(folder, name, names, counts)
    return len(names)


def judge(folder: Path, name: str, names: list[str], counts: Counter[str]) -> None:
    """Compares a chain's end with a run that nobody killed, and its resumes with what there was."""
    events = [s.event for s in read(folder / "events.jsonl")]
    starts = [e for e in events if isinstance(e, RunStarted)]
    counts["resumes"] += len(starts) - 1
    counts["from a whole checkpoint"] += sum(bool(whole) for whole in names)
    counts["from the beginning: none was written yet"] += names.count("")
    if [e.resumed_from for e in starts[1:]] != names:
        raise RuntimeError(f"resumed from {[e.resumed_from for e in starts]}, newest {names}")
    if sorted(names) != names:
        raise CheckpointError("a resume went back behind the one before", got=str(names))
    plain = replace(job(name), engine="simulate", checkpoint_seconds=60.0)
    with tempfile.TemporaryDirectory() as apart:
        vector = train(plain, data(), folder=Path(apart) / "run").vector
    saved = load_model(folder / "model").tensors
    ended = np.concatenate([saved[key].ravel() for key in ("weight", "bias")])
    counts["chains"] += 1
    counts["chains to the same bits"] += bool(np.array_equal(ended, vector))
    counts["ledgers without an offence"] += audit(folder / "ledger.jsonl").is_exact


def main(name: str, kills: int, seed: int) -> None:
    jobs.LEASE_SECONDS = leases.RETURN_SECONDS = reachability.LATE_SECONDS = PATIENT_SECONDS
    rng, counts, killed_so_far = np.random.default_rng(seed), Counter[str](), 0
    while killed_so_far < kills:
        lives = min(LIVES if name == "local" else 5, kills - killed_so_far)
        killed_so_far += chain(name, lives, rng, counts)
        print(json.dumps({"kills": killed_so_far, **counts}), flush=True)


if __name__ == "__main__":
    begin("local", "1", "1")
    kind, count, seed = (*sys.argv[1:4], *("local", "20", "0")[len(sys.argv[1:4]) :])
    main(kind, int(count), int(seed))
