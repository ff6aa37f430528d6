"""Jobs side by side on one machine, with shares 1 : 2 : 1: what each uses of what it was given.

    python benchmarks/shares.py [--seconds 20] [--tries 3] [--given 0.8] [--small]

Two jobs, then three, each a program of its own with one worker process. `cpu_share`: together they
are given a part of the processors; each would use as much as its threads can. `bandwidth`: together
4 MB a second; each would send far more. Processor seconds are the kernel's for the process of the
worker, with all its threads; bytes are those of its pushes. A share is a limit: where other work
leaves less, a job uses less, so the part that is given must be free. Linux.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from machine import begin, cannot

from photinus.core.clock import Steps
from photinus.core.events import Event, RoundClosed, WorkerJoined
from photinus.engine.base import ArrayData, RunSpec
from photinus.engine.cpu_share import processors
from photinus.engine.local.engine import LocalEngine
from photinus.models.logistic import LogisticConfig
from photinus.models.module import ModuleConfig
from photinus.strategies.recipes import averaging
from photinus.training.plan import Phase, TrainingPlan, WorkerLimits

PARTS, WARM_SECONDS = {2: (1, 2), 3: (1, 2, 1)}, 3.0
BYTES_PER_SECOND = 4e6
TICK = os.sysconf("SC_CLK_TCK")


def job(kind: str, share: float) -> None:
    """One job, in a program of its own: prints its worker's process, then seconds and bytes."""
    rng = np.random.default_rng(0)
    if kind == "bandwidth":
        width, every, threads = 5_000, 4, 1
        config = LogisticConfig(features=width, classes=10, epochs=1e6, batch_size=8)
    else:
        width, every, threads = 500, 50, math.ceil(share)
        arguments = {"in_features": width, "out_features": width}
        config = ModuleConfig(
            module="torch.nn:Linear", arguments=arguments, epochs=1e6, batch_size=128
        )
    rows = ArrayData(rng.random((256, width), dtype=np.float32), rng.integers(0, 10, 256))
    phase = Phase(config=config, strategy=averaging(every=Steps(every), codec="fp32"))
    plan = TrainingPlan(
        phases=(phase,), workers=1, limits=WorkerLimits(threads=threads, **{kind: share})
    )

    def note(event: Event) -> None:
        if isinstance(event, WorkerJoined):
            print(event.pid, flush=True)
        if isinstance(event, RoundClosed):
            print(time.monotonic(), event.bytes_up, flush=True)

    LocalEngine().run(RunSpec(plan=plan, data=rows, run=os.urandom(16), emit=note))


@dataclass
class Running:
    """A job that runs, and what it has said in a file."""

    process: subprocess.Popen[bytes]
    output: Path

    def pid(self) -> int:
        """Waits for its worker's process."""
        while not (text := self.output.read_text()).endswith("\n"):
            if self.process.poll() is not None:
                sys.exit("a job has failed")
            time.sleep(0.1)  # a file of another process wakes nobody
        return int(text.split()[0])

    def used(self) -> float:
        """Returns the processor seconds of its worker so far."""
        fields = Path(f"/proc/{self.pid()}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICK

    def sent(self, began: float, ended: float) -> float:
        """Returns bytes a second between the first and the last round of a stretch of time."""
        entries = [line.split() for line in self.output.read_text().splitlines()[1:]]
        rounds = [(float(at), int(size)) for at, size in entries if began <= float(at) <= ended]
        if len(rounds) < 2:
            sys.exit("too few rounds: give --seconds more")
        return sum(size for _, size in rounds[1:]) / (rounds[-1][0] - rounds[0][0])


def measured(kind: str, shares: list[float], seconds: float, folder: Path) -> list[float]:
    """Runs jobs side by side; returns what each used a second."""
    running = []
    try:
        for number, share in enumerate(shares):
            output = folder / f"{kind}-{number}"
            words = [sys.executable, __file__, "--job", kind, str(share)]
            with output.open("wb") as out:
                running.append(Running(subprocess.Popen(words, stdout=out), output))
        for one in running:
            one.pid()
        time.sleep(WARM_SECONDS)  # what a cap lets pass at once is used up
        began, before = time.monotonic(), [one.used() for one in running]
        time.sleep(seconds)  # so long is measured
        ended, after = time.monotonic(), [one.used() for one in running]
        if kind == "bandwidth":
            return [one.sent(began, ended) for one in running]
        return [(a - b) / (ended - began) for a, b in zip(after, before, strict=True)]
    finally:
        for one in running:
            one.process.terminate()
        for one in running:
            one.process.wait()


def table(kind: str, count: int, options: argparse.Namespace, folder: Path) -> float:
    """Prints a line for each of so many jobs side by side; returns by how much one is off at most.

    Args:
        kind: cpu_share or bandwidth.
        count: of jobs.
        options: the seconds of the window, and the part of the processors.
        folder: for what the jobs say.
    """
    whole = BYTES_PER_SECOND if kind == "bandwidth" else options.given * processors()
    shares = [whole * part / sum(PARTS[count]) for part in PARTS[count]]
    rates = measured(kind, shares, options.seconds, folder)
    off = [used / share - 1 for used, share in zip(rates, shares, strict=True)]
    for number, (share, used) in enumerate(zip(shares, rates, strict=True)):
        scale, unit = (1e-3, "kB/s") if kind == "bandwidth" else (1.0, "processors")
        expected, actual = f"{scale * share:.4g}", f"{scale * used:.4g}"
        name = f"{kind} | job {number + 1} of {count}"
        print(f"{name} | {expected} {unit} | {actual} {unit} | {off[number]:+.1%}", flush=True)
    return max(map(abs, off))


def main() -> None:
    """Prints a table for each try, and the largest difference."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--given", type=float, default=0.8, help="of all processors")
    parser.add_argument("--job", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        job(options.job[0], float(options.job[1]))
        return
    if not Path("/proc/self/stat").exists():
        cannot("processor seconds of a process are read as Linux shows them")
    print("cap | job | asked | used | off\n--- | --- | --- | --- | ---", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        off = [
            table(kind, count, options, Path(folder))
            for _ in range(options.tries)
            for kind in ("cpu_share", "bandwidth")
            for count in PARTS
        ]
    print(f"the largest difference: {max(off):.1%}")


if __name__ == "__main__":
    begin("--seconds", "3", "--tries", "1")
    main()
