"""A table of word vectors among the workers beside whole tables: memory, bytes and seconds.

    python benchmarks/sharded_table.py [--megabytes 800] [--dims 100] [--words 2000000]
        [--workers 4] [--every 60] [--round-steps 10] [--ways whole sharded killed]

Made-up text, by Zipf's law. Processes of this machine, fp32, the same rounds. Told of each way are
the anonymous memory (RssAnon of /proc, looked at 20 times a second) of the driver before the run,
its peak in the run, and the peak of the largest worker; the most that the run folder held; what
all workers sent, and the seconds. Some 300 MB of each process are Python's and torch's. In a third
run a worker is killed after three quarters of its steps. Linux only. Where one table has 2³¹
numbers or more, what MLlib's Word2Vec says to a table of that size is printed first.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from machine import begin

from photinus.core.clock import Steps
from photinus.embeddings.word2vec import Word2VecStage
from photinus.engine.base import ArrayData
from photinus.engine.local.engine import LocalEngine
from photinus.report.ledger import audit
from photinus.run.evaluate import Draft
from photinus.run.job import Job
from photinus.run.train import train_draft
from photinus.strategies.outer import Sgd
from photinus.strategies.recipes import averaging
from photinus.testing import Faults

LENGTH, STEP_ROWS = 500, 4


def text(vocabulary, words):
    chance = np.random.default_rng(0)
    numbers = (vocabulary ** chance.random(words)).astype(np.int32) - 1  # p ~ 1/rank
    numbers[19::20] = -1
    return numbers[: words // LENGTH * LENGTH].reshape(-1, LENGTH)


class Watch(threading.Thread):
    """Looks at the anonymous memory of this process and of its children, and at a folder's size."""

    def __init__(self, folder):
        super().__init__(daemon=True)
        self.folder, self.over = Path(folder), threading.Event()
        self.before = self.driver = anonymous(os.getpid())
        self.worker = self.disk = 0

    def run(self):
        looks = 0
        while not self.over.wait(0.05):
            self.driver = max(self.driver, anonymous(os.getpid()))
            self.worker = max([self.worker, *map(anonymous, children())])
            if looks % 20 == 0:
                self.disk = max(self.disk, size_of(self.folder))
            looks += 1


def anonymous(pid):
    """Returns the anonymous memory of a process in bytes; 0 when it has gone."""
    try:
        told = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"RssAnon:\s+(\d+)", told)
    return int(found[1]) << 10 if found else 0


def children():
    found = []
    for thread in os.listdir("/proc/self/task"):
        try:
            found += Path(f"/proc/self/task/{thread}/children").read_text().split()
        except OSError:  # the thread has ended
            continue
    return found


def size_of(folder):
    """Returns the bytes of all files on disk; one of several names counts once."""
    held = {}
    for path in folder.rglob("*"):
        try:
            told = path.stat()
        except OSError:
            continue
        held[told.st_ino] = told.st_blocks * 512
    return sum(held.values())


def run(asked):
    """Trains in one of the ways, and prints what it took."""
    vocabulary = words_of(asked)
    rows, workers = text(vocabulary, asked.words), asked.workers
    stage = Word2VecStage(
        words=vocabulary,
        dims=asked.dims,
        epochs=1.0,
        batch_size=STEP_ROWS * workers,
        workers=workers,
        round_words=float(asked.round_steps * STEP_ROWS * LENGTH),
    )
    strategy = averaging(
        every=Steps(asked.round_steps),
        outer=Sgd(),
        merge="uniform",
        codec="fp32",
        gradients_until=0.0,
        owners=workers,
        rows=0 if asked.way == "whole" else asked.dims,
    )
    job = Job(
        model=stage,
        workers=workers,
        engine="local",
        strategy=strategy,
        checkpoint_seconds=asked.every,
    )
    draft = Draft(job)
    counts = np.bincount(rows[rows >= 0], minlength=vocabulary)
    draft.model().parameters.view("counts")[:] = np.maximum(1, counts)
    del counts
    steps = asked.words // (LENGTH * STEP_ROWS * workers)
    late = max(asked.round_steps + 2, 3 * steps // 4)
    faults = Faults().kill(slot=1, step=late) if asked.way == "killed" else Faults()
    events = []
    with tempfile.TemporaryDirectory(dir=asked.folder or None) as folder:
        watch = Watch(folder)
        watch.start()
        began = time.monotonic()
        outcome = train_draft(
            draft,
            ArrayData(rows),
            folder=f"{folder}/run",
            engine=LocalEngine(faults),
            callbacks=[events.append],
            verbose=False,
        )
        seconds = time.monotonic() - began
        watch.over.set()
        watch.join()
        held = audit(f"{folder}/run/ledger.jsonl")
        learnt = int((outcome.vector[stage.words * stage.dims :: stage.dims] != 0).sum())
    closed = [event for event in events if type(event).__name__ == "RoundClosed"]
    told = {
        "numbers": int(outcome.vector.size),
        "learnt": learnt,
        "before_mb": watch.before / 1e6,
        "driver_mb": watch.driver / 1e6,
        "worker_mb": watch.worker / 1e6,
        "disk_mb": watch.disk / 1e6,
        "saved": sum(type(event).__name__ == "CheckpointSaved" for event in events),
        "sent_mb": sum(event.bytes_up for event in closed) / 1e6,
        "seconds": seconds,
        "rounds": len(closed),
        "undone": held.undone,
        "offences": held.offences,
    }
    print(json.dumps(told))


def words_of(asked):
    """Returns how many words have a vector: two tables of them have the size asked for."""
    return int(asked.megabytes * 1e6 / (8 * asked.dims))


def refusal(numbers):
    """Returns what MLlib's Word2Vec says to a table of so many numbers, those of 100 words."""
    from py4j.protocol import Py4JJavaError
    from pyspark.ml.feature import Word2Vec

    from photinus.engine.spark.session import spark_session

    spark = spark_session(1)
    sentence = spark.createDataFrame([([f"w{n}" for n in range(100)],)], "words array<string>")
    words = Word2Vec(vectorSize=-(-numbers // 100), minCount=0, inputCol="words", outputCol="v")
    try:
        words.fit(sentence)
    except Py4JJavaError as error:
        return error.java_exception.getMessage()
    finally:
        spark.stop()
    return "trained"


def each_way(script, ways):
    """Runs a script in a process of its own for each way; yields the way, and what it told."""
    for way in ways:
        words = [sys.executable, script, *sys.argv[1:], "--way", way]
        ended = subprocess.run(words, capture_output=True, text=True, check=False)
        if ended.returncode:
            sys.exit(ended.stderr or f"{way} ended with {ended.returncode}")
        yield way, json.loads(ended.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=float, default=800.0, help="of both tables")
    parser.add_argument("--dims", type=int, default=100)
    parser.add_argument("--words", type=int, default=2_000_000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--every", type=float, default=60.0, help="seconds between checkpoints")
    parser.add_argument("--round-steps", type=int, default=10, help="of a worker in a round")
    parser.add_argument("--folder", default="", help="where the runs are kept")
    ways = ["whole", "sharded", "killed"]
    parser.add_argument("--ways", nargs="+", choices=ways, default=ways)
    parser.add_argument("--way", choices=ways)
    asked = parser.parse_args()
    if asked.way:
        run(asked)
        return
    numbers = 2 * words_of(asked) * asked.dims
    shown = f"both tables {numbers / 1e6:,.0f} M numbers, {4 * numbers / 1e6:,.0f} MB; "
    print(f"{shown}{asked.workers} workers; {asked.words:,} words", flush=True)
    if numbers // 2 >= 2**31:
        print(f"MLlib: {refusal(numbers // 2)}", flush=True)
    for way, told in each_way(__file__, asked.ways):
        shown = f"driver {told['driver_mb']:,.0f} MB ({told['before_mb']:,.0f} before), "
        shown += f"largest worker {told['worker_mb']:,.0f} MB, disk {told['disk_mb']:,.0f} MB with "
        shown += f"{told['saved']} checkpoints, {told['learnt']:,} outputs learnt, "
        shown += f"sent {told['sent_mb']:,.0f} MB, "
        shown += f"{told['seconds']:.1f} s, {told['rounds']} rounds, "
        shown += f"{told['undone']} pushes undone, audit {told['offences'] or 'exact'}"
        print(f"{way}: {shown}", flush=True)


if __name__ == "__main__":
    begin(
        "--megabytes",
        "0.4",
        "--dims",
        "16",
        "--words",
        "60000",
        "--workers",
        "2",
        "--every",
        "0.5",
    )
    main()
