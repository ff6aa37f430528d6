"""A table of word vectors among the workers beside whole tables: memory, bytes and seconds.

    python benchmarks/sharded_table.py [--megabytes 800] [--dims 100] [--words 2000000]
        [--workers 4] [--every 60] [--round-steps 10] [--ways whole sharded killed]
        [--engine local|spark] [--kill-every 30 [--kills 3]]

Made-up text, by Zipf's law. Processes of this machine, fp32, the same rounds. The engine is
`local`, or `spark`: tasks of a local session. Told of each way are the anonymous memory (RssAnon of
/proc, looked at 20 times a second) of the driver before the run, its peak in the run, and the peaks
of the largest worker and of Java; the most that the run folder and files without a name held
together (the latter are told to root only); what all workers sent, the seconds, and the fingerprint
of the trained table. In a third run a worker is killed after three quarters of its steps; with
--kill-every one is killed each so many seconds, in turn, from the first round until the workers
have sent their shards. Linux only. Where one table has 2³¹ numbers or more, what MLlib's Word2Vec
says to a table of that size is printed first.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from machine import begin, descendants

from photinus.core.clock import Steps
from photinus.embeddings.word2vec import Word2VecConfig
from photinus.engine.base import ArrayData
from photinus.engine.local.engine import LocalEngine
from photinus.report.ledger import audit
from photinus.run.evaluate import LazyModel
from photinus.run.job import Job
from photinus.run.train import train_lazy
from photinus.strategies.outer import Sgd
from photinus.strategies.recipes import averaging
from photinus.testing import Faults

LENGTH, STEP_ROWS = 500, 4


def text(vocabulary, words):
    rng = np.random.default_rng(0)
    numbers = (vocabulary ** rng.random(words)).astype(np.int32) - 1  # p ~ 1/rank
    numbers[19::20] = -1
    return numbers[: words // LENGTH * LENGTH].reshape(-1, LENGTH)


class Watch(threading.Thread):
    """Looks at the anonymous memory of this process and of all that it started, and at the disk."""

    def __init__(self, folder):
        super().__init__(daemon=True)
        self.folder, self.over = Path(folder), threading.Event()
        self.before = self.driver = anonymous(os.getpid())
        self.worker = self.java = self.disk = 0

    def run(self):
        looks, processes = 0, []
        while not self.over.wait(0.05):
            if looks % 20 == 0:
                processes = descendants()
                self.disk = max(self.disk, size_of(self.folder, [os.getpid(), *processes]))
            self.driver = max(self.driver, anonymous(os.getpid()))
            for process in processes:
                if name_of(process) == "java":
                    self.java = max(self.java, anonymous(process))
                else:
                    self.worker = max(self.worker, anonymous(process))
            looks += 1


class Killer(threading.Thread):
    """Kills a worker each so many seconds, one after the other, while a phase is trained."""

    def __init__(self, every_seconds, most):
        super().__init__(daemon=True)
        self.every_seconds, self.most, self.pids, self.kills = every_seconds, most, {}, 0
        self.begun, self.over = threading.Event(), threading.Event()

    def __call__(self, event):
        """Takes an event of the run in."""
        kind = type(event).__name__
        if kind == "WorkerJoined":
            self.pids[event.slot] = event.pid
        elif kind == "RoundClosed":
            self.begun.set()
        elif kind == "PhaseEnded":
            self.over.set()

    def run(self):
        self.begun.wait()
        while not self.over.wait(self.every_seconds) and not 0 < self.most == self.kills:
            slot = sorted(self.pids)[self.kills % len(self.pids)]
            with contextlib.suppress(ProcessLookupError):  # it has gone by itself
                os.kill(self.pids[slot], signal.SIGKILL)
                self.kills += 1


def anonymous(pid):
    """Returns the anonymous memory of a process in bytes; 0 when it has gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    match = re.search(r"RssAnon:\s+(\d+)", status)
    return int(match[1]) << 10 if match else 0


def name_of(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def size_of(folder, processes=()):
    """Returns the bytes on disk of a folder's files, and of files without a name that are mapped.

    One of several names, or that several processes map, counts once.
    """
    blocks = {}
    for path in [*folder.rglob("*"), *(path for pid in processes for path in nameless(pid))]:
        try:
            stat = path.stat()
        except OSError:
            continue
        blocks[stat.st_dev, stat.st_ino] = stat.st_blocks * 512
    return sum(blocks.values())


def nameless(pid):
    """Returns where root can look at the files without a name that a process has mapped."""
    paths = []
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            if line.endswith(" (deleted)") and "/dev/" not in line:
                begin, end = line.split(maxsplit=1)[0].split("-")
                # the kernel names the links without leading zeros
                paths.append(Path(f"/proc/{pid}/map_files/{int(begin, 16):x}-{int(end, 16):x}"))
    return paths


def draft_of(options, counts):
    """Returns the job, with the words' counts in its model."""
    workers = options.workers
    config = Word2VecConfig(
        words=len(counts),
        dims=options.dims,
        epochs=1.0,
        batch_size=STEP_ROWS * workers,
        workers=workers,
        round_words=float(options.round_steps * STEP_ROWS * LENGTH),
    )
    strategy = averaging(
        every=Steps(options.round_steps),
        outer=Sgd(),
        merge="uniform",
        codec="fp32",
        gradients_until=0.0,
        owners=workers,
        rows=0 if options.way == "whole" else options.dims,
    )
    job = Job(
        model=config,
        workers=workers,
        engine=options.engine,
        strategy=strategy,
        checkpoint_seconds=options.every,
    )
    draft = LazyModel(job)
    draft.model().parameters.view("counts")[:] = np.maximum(1, counts)
    return draft


@contextlib.contextmanager
def engine_of(options, faults):
    """Yields the engine; a session of Spark ends with it."""
    if options.engine == "local":
        yield LocalEngine(faults)
        return
    from photinus.engine.spark.engine import SparkEngine
    from photinus.engine.spark.session import spark_session

    spark = spark_session(options.workers, name="sharded_table")
    try:
        yield SparkEngine(spark, faults)
    finally:
        spark.stop()


def run(options):
    """Trains in one of the ways, and prints what it took."""
    rows = text(words_of(options), options.words)
    draft = draft_of(options, np.bincount(rows[rows >= 0], minlength=words_of(options)))
    steps = options.words // (LENGTH * STEP_ROWS * options.workers)
    faults, events, killer = Faults(), [], Killer(options.kill_every, options.kills)
    if options.way == "killed" and options.kill_every:
        killer.start()
    elif options.way == "killed":
        faults = faults.kill(slot=1, step=max(options.round_steps + 2, 3 * steps // 4))
    with (
        tempfile.TemporaryDirectory(dir=options.folder or None) as folder,
        engine_of(options, faults) as engine,
    ):
        watch = Watch(folder)
        watch.start()
        began = time.monotonic()
        outcome = train_lazy(
            draft,
            ArrayData(rows.view(np.uint8)),  # bytes: as a DataFrame has them
            folder=f"{folder}/run",
            engine=engine,
            callbacks=[events.append, killer],
            verbose=False,
        )
        seconds = time.monotonic() - began
        watch.over.set()
        watch.join()
        audited = audit(f"{folder}/run/ledger.jsonl")
        learnt = int((outcome.vector[outcome.vector.size // 2 :: options.dims] != 0).sum())
    named = {}
    for event in events:
        named.setdefault(type(event).__name__, []).append(event)
    result = {
        "numbers": int(outcome.vector.size),
        "learnt": learnt,
        "before_mb": watch.before / 1e6,
        "driver_mb": watch.driver / 1e6,
        "worker_mb": watch.worker / 1e6,
        "java_mb": watch.java / 1e6,
        "disk_mb": watch.disk / 1e6,
        "saved": len(named.get("CheckpointSaved", [])),
        "sent_mb": sum(event.bytes_up for event in named["RoundClosed"]) / 1e6,
        "seconds": seconds,
        "rounds": len(named["RoundClosed"]),
        "kills": killer.kills,
        "lost": len(named.get("WorkerLost", [])),
        "fingerprint": named["PhaseEnded"][-1].fingerprint,
        "audit": str(audited),
        "offences": audited.offences,
    }
    print(json.dumps(result))


def words_of(options):
    """Returns how many words have a vector: two tables of them have the size asked for."""
    return int(options.megabytes * 1e6 / (8 * options.dims))


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
    parser.add_argument("--engine", choices=["local", "spark"], default="local")
    parser.add_argument("--kill-every", type=float, default=0.0, help="seconds; 0: one kill")
    parser.add_argument("--kills", type=int, default=0, help="so many at most; 0: to the end")
    parser.add_argument("--folder", default="", help="where the runs are kept")
    ways = ["whole", "sharded", "killed"]
    parser.add_argument("--ways", nargs="+", choices=ways, default=ways)
    parser.add_argument("--way", choices=ways)
    options = parser.parse_args()
    if options.way:
        run(options)
        return
    numbers = 2 * words_of(options) * options.dims
    shown = f"both tables {numbers / 1e6:,.0f} M numbers, {4 * numbers / 1e6:,.0f} MB; "
    print(f"{shown}{options.workers} workers; {options.words:,} words", flush=True)
    if numbers // 2 >= 2**31:
        print(f"MLlib: {refusal(numbers // 2)}", flush=True)
    for way, result in each_way(__file__, options.ways):
        shown = f"driver {result['driver_mb']:,.0f} MB ({result['before_mb']:,.0f} before), "
        shown += f"largest worker {result['worker_mb']:,.0f} MB, Java {result['java_mb']:,.0f} MB, "
        shown += f"disk {result['disk_mb']:,.0f} MB with "
        shown += f"{result['saved']} checkpoints, {result['learnt']:,} outputs learnt, "
        shown += f"sent {result['sent_mb']:,.0f} MB, "
        shown += f"{result['seconds']:.1f} s, {result['rounds']} rounds, "
        shown += f"{result['kills']} kills, {result['lost']} workers lost, {result['audit']}, "
        shown += f"table {result['fingerprint']}, audit {result['offences'] or 'exact'}"
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
