"""The faults of `faults.py` under other ways to train on Spark: what becomes of the run.

    python benchmarks/faults_elsewhere.py [--peer PEER] [--python PATH] [FAULT]...

PEER is PySpark's own TorchDistributor (`torch`, if nothing is said), or elephas with a parameter
server that takes an update after every step (`elephas`) or with a mean after every epoch
(`elephas-sync`). PATH is the Python of an environment with elephas, which wants other versions
than photinus: `pip install elephas==7.3.0`.

Softmax regression 784-10, 4 workers in the tasks of a local Spark that forgives 20 failures, 600
steps of 20 examples: DistributedDataParallel over gloo in barrier tasks, or Keras. Worker 1
suffers once, after its 200th step: killed (`kill`), frozen for 8 s (`freeze`) or for good (`hang`),
or its connections are closed and it can make none for 3 s (`cut`); or the driver is killed in that
moment (`driver`). Nothing is saved in between: none of them saves anything by itself. A run that
stands, as DistributedDataParallel lets its processes wait for each other for half an hour, is ended
two minutes after the fault, and that is what is told.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from machine import begin

WORKERS, EPOCHS, STEPS, BATCH, VICTIM, AT = 4, 6, 600, 20, 1, 200
FREEZE_SECONDS, CUT_SECONDS = 8, 3
START_SECONDS, STAND_SECONDS = 300.0, 120.0
"""So long a job may take to its fault, and from there to its end."""
ROWS, FEATURES, CLASSES, RATE = 2_000, 784, 10, 0.05


class Diary:
    """Notes the time of every step of a worker, in a file for each of its lives; brings the fault.

    Made when the first step is due, so that it can travel.
    """

    def __init__(self, fault: str, folder: str) -> None:
        self.fault, self.place = fault, Path(folder)
        self.steps, self.driver = -1, os.getpid()

    def step(self, rank: int) -> None:
        """Notes that a step was made; the victim may not come back from here."""
        if self.steps < 0:
            earlier = self.place.glob(f"{rank}-*")
            self.steps = sum(len(file.read_text().split()) for file in earlier)
            self.file = (self.place / f"{rank}-{time.time_ns()}").open("w", buffering=1)
        self.file.write(f"{time.time()}\n")
        self.steps += 1
        if (rank, self.steps) == (VICTIM, AT) and not (self.place / "fault").exists():
            (self.place / "fault").write_text(str(time.time()))
            self.suffer()

    def suffer(self) -> None:
        """Kills, stops or cuts off this very process, or kills the driver."""
        if self.fault == "driver":
            os.kill(self.driver, signal.SIGKILL)
        if self.fault == "cut":
            cut()
        if self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "freeze":
            wake = f"sleep {FREEZE_SECONDS}; kill -CONT {os.getpid()}"
            subprocess.Popen(["/bin/sh", "-c", wake], start_new_session=True)
        if self.fault in ("freeze", "hang"):
            os.kill(os.getpid(), signal.SIGSTOP)


def cut() -> None:
    """Closes this process's connections; for a while it can make none.

    A task of elephas's holds none between its calls but Spark's own, which stay.
    """
    from pyspark import TaskContext

    for name in os.listdir("/proc/self/fd") if TaskContext.get() is None else ():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as sock:
            if sock.family in (socket.AF_INET, socket.AF_INET6):
                sock.shutdown(socket.SHUT_RDWR)
    whole_at, connect = time.monotonic() + CUT_SECONDS, socket.socket.connect

    def refused(of: socket.socket, address: object) -> None:
        if time.monotonic() < whole_at:
            raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))
        connect(of, address)

    socket.socket.connect = refused


def train(diary: Diary) -> None:
    """One worker of TorchDistributor's."""
    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    torch.manual_seed(rank)
    features, labels = torch.rand(ROWS, FEATURES), torch.randint(0, CLASSES, (ROWS,))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(FEATURES, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for _ in range(STEPS):
        rows = torch.randint(0, ROWS, (BATCH,))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(features[rows]), labels[rows]).backward()
        optimizer.step()
        diary.step(rank)
    distributed.destroy_process_group()


def distributor(diary: Diary) -> str:
    """Runs a job of TorchDistributor's; returns how it ended."""
    from pyspark.ml.torch.distributor import TorchDistributor

    from photinus.engine.spark.job import cause_of
    from photinus.engine.spark.session import spark_session

    extra = {"spark.master": f"local[{WORKERS},20]"}
    spark = spark_session(WORKERS, name="faults elsewhere", extra=extra)
    (diary.place / "began").write_text(str(time.time()))
    try:
        TorchDistributor(num_processes=WORKERS, local_mode=False, use_gpu=False).run(train, diary)
    except Exception as error:
        return cause_of(error)
    finally:
        spark.stop()
    return "done"


def elephas(diary: Diary, *, is_synchronous: bool) -> str:
    """Runs a job of elephas's; returns how it ended. Needs nothing of photinus."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    import numpy as np
    from pyspark.sql import SparkSession
    from tensorflow import keras

    master = f"local[{WORKERS},20]"
    spark = SparkSession.builder.master(master).config("spark.ui.enabled", "false").getOrCreate()
    (diary.place / "began").write_text(str(time.time()))

    def rows(slot: int) -> object:
        rng = np.random.default_rng(slot)
        features = rng.random((ROWS, FEATURES), dtype=np.float32)
        return zip(features, rng.integers(0, CLASSES, ROWS), strict=True)

    keras.utils.set_random_seed(0)
    layers = [keras.Input((FEATURES,)), keras.layers.Dense(CLASSES, activation="softmax")]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.SGD(RATE), "sparse_categorical_crossentropy")
    how = {"epochs": EPOCHS, "batch_size": BATCH, "verbose": 0}
    if is_synchronous:
        spark_model, how["callbacks"] = averaging(model, diary)
    else:
        spark_model = served(model, diary)
    try:
        spark_model.fit(spark.sparkContext.range(WORKERS, numSlices=WORKERS).flatMap(rows), **how)
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        return next((line for line in lines if "Error" in line), lines[0])
    finally:
        spark.stop()
    return "done"


def averaging(model: object, diary: Diary) -> tuple[object, list[object]]:
    """The synchronous mode of elephas, a job of Spark's for each epoch, and its notes."""
    from elephas.spark_model import SparkModel
    from tensorflow import keras

    class Noted(keras.callbacks.Callback):
        def on_train_batch_end(self, *_: object, **__: object) -> None:
            from pyspark import TaskContext

            diary.step(TaskContext.get().partitionId())

    return SparkModel(model), [Noted()]


def served(model: object, diary: Diary) -> object:
    """The asynchronous mode of elephas; its server notes the updates that it applies."""
    from elephas.parameter import server
    from elephas.parameter.client import HttpClient
    from elephas.spark_model import AsynchronousSparkModel

    class Noted(HttpClient):
        def update_parameters(self, delta: list) -> bytes:
            from pyspark import TaskContext

            answer = super().update_parameters(delta)
            diary.step(TaskContext.get().partitionId())
            return answer

    apply, updates = server.subtract_params, (diary.place / "updates").open("ab", buffering=0)

    def noted(weights: list, delta: list) -> list:
        updates.write(b".")
        return apply(weights, delta)

    server.subtract_params = noted
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    asynchronous = AsynchronousSparkModel(model, frequency="batch", port=port)
    asynchronous.client = Noted(port)
    return asynchronous


PEERS: dict[str, Callable[[Diary], str]] = {
    "torch": distributor,
    "elephas": lambda diary: elephas(diary, is_synchronous=False),
    "elephas-sync": lambda diary: elephas(diary, is_synchronous=True),
}


def job(peer: str, fault: str, folder: str) -> None:
    """Runs a job with one fault, in a process of its own; notes how it ended."""
    outcome = PEERS[peer](Diary(fault, folder))
    (Path(folder) / "ended").write_text(f"{time.time()} {outcome}")


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and all below it: torchrun's are in sessions of their own."""
    from scaling import family

    for pid in family(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def until(holds: Callable[[], object], seconds: float) -> None:
    """Waits until it holds, or for so long."""
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.1)  # a file of another process wakes nobody


def suffered(peer: str, python: str, fault: str) -> dict[str, object]:
    """Runs a job with one fault; returns how it continued and how it ended."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        with (place / "said").open("w") as output:
            command = [python, __file__, "--job", peer, fault, folder]
            process = subprocess.Popen(command, stdout=output, stderr=output)
        ended, noted = place / "ended", place / "fault"
        until(lambda: noted.exists() or ended.exists() or process.poll(), START_SECONDS)
        if not noted.exists():
            end(process)
            sys.exit((place / "said").read_text()[-4000:])
        until(lambda: process.poll() is not None, STAND_SECONDS)
        over, is_standing = time.time(), process.poll() is None
        stood = "not ended: it still stood" if is_standing else "its driver is gone"
        end(process)
        moment, _, outcome = (
            ended.read_text().partition(" ") if ended.exists() else (over, "", stood)
        )
        began, at = (float((place / name).read_text()) for name in ("began", "fault"))
        lives, other_lives = (
            [
                [float(line) for line in file.read_text().split()]
                for file in sorted(place.glob("[0-9]*-*"))
                if file.name.startswith(f"{VICTIM}-") == is_victim
            ]
            for is_victim in (True, False)
        )
        updates = place / "updates"
        applied = updates.stat().st_size if updates.exists() else None
    return {
        "peer": peer,
        "fault": fault,
        "ended": outcome,
        "its program stood, too": is_standing,
        "lives": len(lives),
        "longest time without a step of its own, s": standstill(at, lives, float(moment)),
        "... of one of the others, s": standstill(at, other_lives, float(moment), WORKERS - 1),
        "until its share counts again, s": counted(peer, lives, at) if outcome == "done" else None,
        "from the fault to the end, s": round(float(moment) - at, 1),
        "examples redone": (sum(map(len, lives)) - STEPS) * BATCH if outcome == "done" else None,
        "updates applied, of": None if applied is None else (applied, WORKERS * STEPS),
        "whole run, s": round(float(moment) - began, 1),
        "load": round(os.getloadavg()[0], 1),
    }


def standstill(at: float, lives: list[list[float]], ended: float, workers: int = 1) -> float:
    """Returns the longest time between two steps from the fault on, or from one to the end."""
    steps = sorted(step for life in lives for step in life if step > at)
    is_cut = sum(map(len, lives)) < workers * STEPS
    return round(max(b - a for a, b in pairwise([at, *steps, *[ended] * is_cut])), 2)


def counted(peer: str, lives: list[list[float]], at: float) -> float:
    """Returns when a step of the victim's that it had not made before counted, after the fault."""
    if peer == "elephas-sync":  # a life for each epoch; its share is in the mean that the next has
        return round(lives[AT * EPOCHS // STEPS - EPOCHS][0] - at, 2)
    # who was ahead of the fault has its work counted again only once that step is made anew
    return round(next(life[AT] for life in reversed(lives) if len(life) > AT) - at, 2)


def main() -> None:
    """Prints a line for each fault."""
    if sys.argv[1:2] == ["--job"]:
        job(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", choices=PEERS, default="torch")
    parser.add_argument("--python", default=sys.executable)
    faults = ["none", "kill", "freeze", "hang", "cut", "driver"]
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=", ".join(faults))
    options = parser.parse_args()
    for fault in options.faults or faults:
        print(json.dumps(suffered(options.peer, options.python, fault)), flush=True)


if __name__ == "__main__":
    begin("none")
    main()
