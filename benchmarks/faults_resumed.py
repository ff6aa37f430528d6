"""What faults of a run or of its folder cost: driver, checkpoint, memory, disk.

    python benchmarks/faults_resumed.py [local | spark] [repeats] [faults ...]

The job of `faults.py` with a checkpoint every second. Each life of a run is a process of its own;
where one ends before its time another is started at once and resumes. Times are from just before
the fault, and with the start of that process. The disk is a small one: `mount` must be allowed.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from faults import AT, HEAD, VICTIM, Cost, data, engines, plan, read, row
from machine import begin

from photinus.core.events import Event, RoundClosed
from photinus.report.ledger import audit
from photinus.run.job import Job, Source
from photinus.run.train import resume, train
from photinus.testing import Faults

ROUND, DISK_BYTES = 400, 16 << 20
DISK_FULL = "disk full for 3 s"
FAULTS = {
    "driver killed": Faults().kill_driver(ROUND),
    "driver killed, newest checkpoint damaged": Faults().flip_bit(ROUND).kill_driver(ROUND),
    "memory of a worker ran out": Faults().no_memory(slot=VICTIM, step=20 * AT),
    DISK_FULL: Faults().fill_disk(ROUND, seconds=3.0),
}


def live(folder: Path, engine: str, fault: str) -> None:
    """One life of a run; notes each round beside it."""
    [phase] = plan().phases
    job = Job(
        model=phase.config,
        data=Source(name="given"),
        strategy=phase.strategy,
        workers=plan().workers,
        engine=engine,
        checkpoint_seconds=1.0,
    )
    with (folder / "rounds").open("a", buffering=1) as rounds:

        def tell(event: Event) -> None:
            if isinstance(event, RoundClosed):
                record = {"at": time.time(), "slots": event.slots, "examples": event.examples}
                rounds.write(json.dumps(record) + "\n")

        place = folder / "disk" / "run"
        if place.exists():
            resume(place, data(), callbacks=(tell,), engine=engines(engine)(Faults()))
            return
        harmed = engines(engine)(FAULTS[fault].noted_in(str(folder / "diary")))
        train(job, data(), folder=place, callbacks=(tell,), engine=harmed)


@contextlib.contextmanager
def disk(place: Path) -> Iterator[None]:
    """A small disk of its own."""
    options = f"size={DISK_BYTES}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "photinus", place], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", place], check=True)


def suffered(engine: str, fault: str) -> Cost:
    """Runs once, in as many lives as it takes; returns what the fault cost."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "disk").mkdir()
        with disk(folder / "disk") if fault == DISK_FULL else contextlib.nullcontext():
            began = time.time()
            for _ in range(2):
                command = [sys.executable, __file__, "--life", name, engine, fault]
                with (folder / "said").open(
                    "w"
                ) as output:  # a pipe would wait for the workers, too
                    if not subprocess.run(command, stdout=output, stderr=output).returncode:
                        break
            else:
                sys.exit((folder / "said").read_text()[-4000:])
            total = time.time() - began
            audited = audit(folder / "disk" / "run" / "ledger.jsonl")
        notes, rounds = read(folder / "diary"), read(folder / "rounds")
    lost = sum("never applied" in text for text in audited.offences)
    doubled = sum("times" in text for text in audited.offences)
    gap, again, redone = price(notes[-1]["unix_seconds"], rounds)
    return Cost(gap, again, redone, lost, doubled, total)


def price(at: float, rounds: list[dict]) -> tuple[float, float, int]:
    """Returns the longest time without a round, until the share counts again, examples redone.

    Args:
        at: when the fault happened.
        rounds: all that closed, of all lives: at, slots, examples so far.
    """
    later = [r for r in rounds if r["at"] > at]
    times = [at, *(r["at"] for r in later)]
    gap = max(b - a for a, b in pairwise(times))
    again = next(r["at"] for r in later if VICTIM in r["slots"]) - at
    so_far = [0, *(r["examples"] for r in rounds)]
    steps = [b - a for a, b in pairwise(so_far)]
    # a life that resumes begins with a round of the usual size on what was there
    redone = sum(max(steps) - step for step in steps if step <= 0)
    return gap, again, redone


def main(engine: str, repeats: int, kinds: list[str]) -> None:
    print(f"{engine}: as faults.py, a checkpoint every second, {repeats} runs each")
    print(HEAD, flush=True)
    for fault in kinds or FAULTS:
        print(row(fault, [suffered(engine, fault) for _ in range(repeats)]), flush=True)


if __name__ == "__main__":
    begin("local", "1", "driver killed")
    words = sys.argv[1:]
    if words[:1] == ["--life"]:
        live(Path(words[1]), *words[2:])
    else:
        main(words[0] if words else "local", int(words[1]) if words[1:] else 3, words[2:])
