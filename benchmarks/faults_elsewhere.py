"""The faults of `faults.py` under PySpark's own TorchDistributor: what becomes of the run.

    python benchmarks/faults_elsewhere.py [none | kill | freeze]...

Softmax regression 784-10 in DistributedDataParallel over gloo, 4 processes in the barrier tasks of
a local Spark that forgives 20 failures, 600 steps of 20 examples. Worker 1 suffers once, at its
200th step. Nothing is saved in between: neither of the two saves anything by itself.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

WORKERS, STEPS, BATCH, VICTIM, AT, FREEZE_SECONDS = 4, 600, 20, 1, 200, 8
ROWS, FEATURES, CLASSES = 2_000, 784, 10


def train(fault: str, folder: str) -> None:
    """One worker; notes the time of every step, in a file for each of its lives."""
    import os
    import signal
    import subprocess

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
                    os.kill(os.getpid(), signal.SIGSTOP)
    distributed.destroy_process_group()


def suffered(fault: str) -> dict[str, object]:
    """Runs a job with one fault; returns how it went on and how it ended."""
    from pyspark.ml.torch.distributor import TorchDistributor

    with tempfile.TemporaryDirectory() as folder:
        place, began, told = Path(folder), time.time(), "done"
        try:
            job = TorchDistributor(num_processes=WORKERS, local_mode=False, use_gpu=False)
            job.run(train, fault, folder)
        except Exception as error:
            told = str(error).strip().splitlines()[-1][:200]
        seconds = time.time() - began
        at = float((place / "fault").read_text())
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
        "longest time without a step, s": round(
            max((b - a for a, b in pairwise(after)), default=0.0), 2
        ),
        "until its share counts again, s": round(counts[-1] - at, 2) if counts else None,
        "examples redone": redone * BATCH * WORKERS,
        "whole run, s": round(seconds, 1),
    }


def main(faults: list[str]) -> None:
    """Prints a line for each fault."""
    from photinus.engine.session import spark_session

    extra = {"spark.master": f"local[{WORKERS},20]"}
    spark = spark_session(WORKERS, name="faults elsewhere", extra=extra)
    for fault in faults:
        print(json.dumps(suffered(fault)), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:] or ["none", "kill", "freeze"])
