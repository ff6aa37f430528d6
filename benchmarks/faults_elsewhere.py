"""The faults of `faults.py` under PySpark's own TorchDistributor: what becomes of the run.

    python benchmarks/faults_elsewhere.py [none | kill | freeze | hang]...

Softmax regression 784-10 in DistributedDataParallel over gloo, 4 processes in the barrier tasks of
a local Spark that forgives 20 failures, 600 steps of 20 examples. Worker 1 suffers once, at its
200th step: killed, frozen for 8 s, or frozen for good. Nothing is saved in between: neither of the
two saves anything by itself. A run that stands, as DistributedDataParallel lets its processes wait
for each other for half an hour, is ended two minutes after the fault, and that is what is told.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from scaling import family

WORKERS, STEPS, BATCH, VICTIM, AT, FREEZE_SECONDS = 4, 600, 20, 1, 200, 8
START_SECONDS, STAND_SECONDS = 300.0, 120.0
"""So long a job may take to its fault, and from there to its end."""
ROWS, FEATURES, CLASSES = 2_000, 784, 10


def train(fault: str, folder: str) -> None:
    """One worker; notes the time of every step, in a file for each of its lives."""
    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    rank, place = distributed.get_rank(), Path(folder)
    torch.manual_seed(rank)
    features, labels = torch.rand(ROWS, FEATURES), torch.randint(0, CLASSES, (ROWS,))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(FEATURES, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with (place / f"{rank}-{time.time_ns()}").open("w", buffering=1) as steps:
        for step in range(1, STEPS + 1):
            rows = torch.randint(0, ROWS, (BATCH,))
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(features[rows]), labels[rows]).backward()
            optimizer.step()
            steps.write(f"{time.time()}\n")
            if (rank, step) == (VICTIM, AT) and not (place / "fault").exists():
                (place / "fault").write_text(str(time.time()))
                if fault == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                if fault == "freeze":
                    wake = f"sleep {FREEZE_SECONDS}; kill -CONT {os.getpid()}"
                    subprocess.Popen(["/bin/sh", "-c", wake], start_new_session=True)
                if fault in ("freeze", "hang"):
                    os.kill(os.getpid(), signal.SIGSTOP)
    distributed.destroy_process_group()


def job(fault: str, folder: str) -> None:
    """Runs a job with one fault, in a process of its own; notes how it ended."""
    from pyspark.ml.torch.distributor import TorchDistributor

    from photinus.engine.session import spark_session
    from photinus.engine.spark_job import cause_of

    extra = {"spark.master": f"local[{WORKERS},20]"}
    spark, told = spark_session(WORKERS, name="faults elsewhere", extra=extra), "done"
    (Path(folder) / "began").write_text(str(time.time()))
    try:
        distributor = TorchDistributor(num_processes=WORKERS, local_mode=False, use_gpu=False)
        distributor.run(train, fault, folder)
    except Exception as error:
        told = cause_of(error)
    (Path(folder) / "ended").write_text(f"{time.time()} {told}")
    spark.stop()


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and all below it: torchrun's are in sessions of their own."""
    for pid in family(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def until(holds: Callable[[], bool], seconds: float) -> None:
    """Waits until it holds, or for so long."""
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.1)  # a file of another process wakes nobody


def suffered(fault: str) -> dict[str, object]:
    """Runs a job with one fault; returns how it went on and how it ended."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        process = subprocess.Popen([sys.executable, __file__, "--job", fault, folder])
        until(lambda: (place / "fault").exists() or process.poll() is not None, START_SECONDS)
        until(lambda: process.poll() is not None, STAND_SECONDS)
        over, stood = time.time(), "not ended: it still stood"
        end(process)
        ended = place / "ended"
        moment, _, told = ended.read_text().partition(" ") if ended.exists() else (over, "", stood)
        began, at = (float((place / name).read_text()) for name in ("began", "fault"))
        lives = [
            [float(line) for line in file.read_text().split()]
            for file in sorted(place.glob(f"{VICTIM}-*"))
        ]
    after = [at, *(t for life in lives for t in life if t > at)]
    redone = sum(map(len, lives)) - STEPS if told == "done" else 0
    # who was ahead of the fault has its work counted again only once that step is made anew
    counts = [life[AT] for life in lives if len(life) > AT]
    return {
        "fault": fault,
        "ended": told,
        "starts": len(lives),
        "longest time without a step, s": round(max(b - a for a, b in pairwise(after)), 2)
        if len(after) > 1
        else None,
        "until its share counts again, s": round(counts[-1] - at, 2) if counts else None,
        "from the fault to the end, s": round(float(moment) - at, 1),
        "examples redone": redone * BATCH * WORKERS,
        "whole run, s": round(float(moment) - began, 1),
        "load": round(os.getloadavg()[0], 1),
    }


def main(words: list[str]) -> None:
    """Prints a line for each fault."""
    if words[:1] == ["--job"]:
        job(*words[1:])
        return
    for fault in words or ["none", "kill", "freeze", "hang"]:
        print(json.dumps(suffered(fault)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
