"""The faults of `faults.py` under TorchDistributor: what PySpark's own way does with them.

    python benchmarks/faults_elsewhere.py [none] [kill] [freeze]

Softmax regression 784-10 in DistributedDataParallel over gloo, 4 processes in Spark's barrier
tasks, 1,200 steps of 20 examples. Worker 1 suffers once, at its 200th step, as there.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
from pathlib import Path

WORKERS, STEPS, BATCH, AT, FREEZE_SECONDS = 4, 1_200, 20, 200, 8


def train(fault: str, folder: str) -> int:
    """One worker of a job; returns the steps it made."""
    import os
    import signal
    import subprocess
    import time
    from pathlib import Path

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank, started = dist.get_rank(), Path(folder) / "starts"
    torch.manual_seed(rank)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(784, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    if rank == 0:
        with started.open("a") as file:
            file.write(f"{time.time()}\n")
    steps = (Path(folder) / "steps").open("a", buffering=1)
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        x, y = torch.rand(BATCH, 784), torch.randint(0, 10, (BATCH,))
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if rank == 0:
            steps.write(f"{time.time()}\n")
        if rank == 1 and step == AT and len(started.read_text().splitlines()) == 1:
            (Path(folder) / "at").write_text(str(time.time()))
            if fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if fault == "freeze":
                wake = f"sleep {FREEZE_SECONDS}; kill -CONT {os.getpid()}"
                subprocess.Popen(["/bin/sh", "-c", wake], process_group=0)
                os.kill(os.getpid(), signal.SIGSTOP)
    return STEPS


def suffered(fault: str) -> dict[str, object]:
    """Runs a job with one fault; returns how it ended."""
    from pyspark.ml.torch.distributor import TorchDistributor

    with tempfile.TemporaryDirectory() as folder:
        began, told = time.time(), ""
        distributor = TorchDistributor(num_processes=WORKERS, local_mode=False, use_gpu=False)
        try:
            distributor.run(train, fault, folder)
        except Exception as error:
            told = str(error).strip().splitlines()[0][:200]
        ended = time.time()
        place = Path(folder)
        steps = [float(t) for t in (place / "steps").read_text().split()]
        at = float((place / "at").read_text())
        after = [at, *(t for t in steps if t > at)]
        gaps = [later - earlier for earlier, later in itertools.pairwise(after)]
        return {
            "fault": fault,
            "ended": "failed" if told else "done",
            "told": told,
            "steps": len(steps),
            "starts": len((place / "starts").read_text().split()),
            "longest gap s": round(max(gaps, default=0.0), 2),
            "seconds until the end, from the fault": round(ended - at, 1),
            "seconds": round(ended - began, 1),
        }


def main(faults: list[str]) -> None:
    from photinus.engine.session import spark_session

    spark = spark_session(WORKERS, name="faults elsewhere")
    for fault in faults:
        print(json.dumps(suffered(fault)), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:] or ["none", "kill", "freeze"])
