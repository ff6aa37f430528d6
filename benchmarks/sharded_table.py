"""A table of word vectors among the workers beside whole tables: memory, bytes and seconds.

    python benchmarks/sharded_table.py [--vocabulary 1000000] [--dims 100] [--words 2000000]
        [--workers 4]

Made-up text, by Zipf's law. Processes of this machine, fp32, the same rounds. Told of each way are
the peak memory of the largest worker, of which some 300 MB are Python's and torch's, what all
workers sent in the run, and its seconds. A third run has a worker killed.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time

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

LENGTH, STEP_ROWS, ROUND_STEPS = 500, 4, 10


def text(vocabulary, words):
    chance = np.random.default_rng(0)
    numbers = (vocabulary ** chance.random(words)).astype(np.int32) - 1  # p ~ 1/rank
    numbers[19::20] = -1
    return numbers[: words // LENGTH * LENGTH].reshape(-1, LENGTH)


def run(asked):
    """Trains in one of the ways, and prints what it took."""
    rows, workers = text(asked.vocabulary, asked.words), asked.workers
    stage = Word2VecStage(
        words=asked.vocabulary,
        dims=asked.dims,
        epochs=1.0,
        batch_size=STEP_ROWS * workers,
        workers=workers,
        round_words=float(ROUND_STEPS * STEP_ROWS * LENGTH),
    )
    strategy = averaging(
        every=Steps(ROUND_STEPS),
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
    counts = np.bincount(rows[rows >= 0], minlength=asked.vocabulary)
    draft.model().parameters.view("counts")[:] = np.maximum(1, counts)
    faults = Faults().kill(slot=1, step=ROUND_STEPS + 2) if asked.way == "killed" else Faults()
    events = []
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        train_draft(
            draft,
            ArrayData(rows),
            folder=f"{folder}/run",
            engine=LocalEngine(faults),
            callbacks=[events.append],
            verbose=False,
        )
        seconds = time.monotonic() - began
        held = audit(f"{folder}/run/ledger.jsonl")
    closed = [event for event in events if type(event).__name__ == "RoundClosed"]
    told = {
        "worker_mb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10,
        "sent_mb": sum(event.bytes_up for event in closed) / 1e6,
        "seconds": seconds,
        "rounds": len(closed),
        "undone": held.undone,
        "offences": held.offences,
    }
    print(json.dumps(told))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--vocabulary", type=int, default=1_000_000)
    parser.add_argument("--dims", type=int, default=100)
    parser.add_argument("--words", type=int, default=2_000_000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--every", type=float, default=60.0, help="seconds between checkpoints")
    parser.add_argument("--way", choices=["whole", "sharded", "killed"])
    asked = parser.parse_args()
    if asked.way:
        run(asked)
        return
    table = 8 * asked.vocabulary * asked.dims / 1e6
    print(
        f"both tables {table:,.0f} MB; {asked.workers} workers; {asked.words:,} words", flush=True
    )
    for way in ("whole", "sharded", "killed"):
        words = [sys.executable, __file__, *sys.argv[1:], "--way", way]
        ended = subprocess.run(words, capture_output=True, text=True, check=False)
        if ended.returncode:
            sys.exit(ended.stderr)
        told = json.loads(ended.stdout.splitlines()[-1])
        shown = f"largest worker {told['worker_mb']:,} MB, sent {told['sent_mb']:,.0f} MB, "
        shown += f"{told['seconds']:.1f} s, {told['rounds']} rounds, "
        shown += f"{told['undone']} pushes undone, audit {told['offences'] or 'exact'}"
        print(f"{way}: {shown}", flush=True)


if __name__ == "__main__":
    begin(
        "--vocabulary",
        "3000",
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
