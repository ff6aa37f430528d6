"""What a worker's process takes for its rows: its peak beside the bytes of the rows that it holds.

Run: python benchmarks/memory.py [--rows 2000000] [--engines local spark] [--small]

One worker reads all rows and trains one epoch. `peak` is the most memory that its process ever had
resident (`VmHWM`: shared libraries and mapped files count, too); `ratio` is that without 300 MB for
Python, torch and Spark, over the bytes of the rows. The goal is a ratio of 1.3 or less.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from machine import Sampler, begin

import photinus as ph
from photinus.engine.base import ArrayData

WIDTH, PIECE_ROWS, BASE_BYTES = 100, 100_000, 300 << 20
SMALL_ROWS = 20_000
WORKERS = {"local": "photinus.engine.local.worker_main", "spark": "pyspark"}
"""What the command of an engine's Python processes says."""


class Peaks(Sampler):
    """Looks at this process's descendants until it is stopped.

    Args:
        says: what the command of a process that counts says.
    """

    def __init__(self, text):
        super().__init__(self._looks, 0.02)
        self.bytes, self._text = 0, text

    def _looks(self):
        self.bytes = max([self.bytes, *(peak_of(p) for p in descendants(self._text))])


def descendants(text):
    """Returns the processes below this one whose command says so."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:  # it has ended
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    below, processes = {os.getpid()}, []
    while below:
        below = {child for child, parent in parents.items() if parent in below}
        processes += below
    return [p for p in processes if text in command(p)]


def command(process):
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def peak_of(process):
    """Returns the most bytes that a process ever had resident."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    lines = (line.split() for line in status.splitlines())
    return next((int(words[1]) << 10 for words in lines if words[:1] == ["VmHWM:"]), 0)


def pieces(rows):
    """Yields (features, labels) of random rows, some at a time."""
    random = np.random.default_rng(0)
    for start in range(0, rows, PIECE_ROWS):
        some = min(PIECE_ROWS, rows - start)
        features = random.random((some, WIDTH), np.float32)
        yield features, (features[:, 0] > 0.5).astype(np.int64)


def arrays(rows):
    features, labels = np.empty((rows, WIDTH), np.float32), np.empty(rows, np.int64)
    for number, (some, theirs) in enumerate(pieces(rows)):
        part = slice(number * PIECE_ROWS, number * PIECE_ROWS + len(some))
        features[part], labels[part] = some, theirs
    return ArrayData(features, labels)


def parquet(rows, folder):
    """Writes the rows to a file, so that no Python process but the worker reads them."""
    path = str(Path(folder) / "rows.parquet")
    schema = pa.schema([("features", pa.list_(pa.float32())), ("label", pa.int64())])
    with pq.ParquetWriter(path, schema, use_dictionary=False, compression="none") as writer:
        for features, labels in pieces(rows):
            offsets = pa.array(np.arange(len(features) + 1, dtype=np.int32) * WIDTH)
            lists = pa.ListArray.from_arrays(offsets, pa.array(features.ravel()))
            writer.write_table(pa.Table.from_arrays([lists, pa.array(labels)], schema=schema))
    return path


def job(engine):
    model = ph.ModuleConfig(
        module="torch.nn:Linear",
        arguments={"in_features": WIDTH, "out_features": 2},
        batch_size=1000,
        epochs=1.0,
    )
    source = ph.Source(name="given", features=("features",), label="label")
    return ph.Job(model=model, data=source, engine=engine, workers=1)


def peak(engine, rows, folder):
    """Returns the peak of the one worker's process, in bytes."""
    run = Path(folder) / f"run-{engine}"
    if engine == "local":
        data = arrays(rows)
        with Peaks(WORKERS[engine]) as peaks:
            ph.train(job(engine), data, folder=run)
        return peaks.bytes
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    from photinus.engine.spark.engine import FrameData, SparkEngine

    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    try:
        frame = spark.read.parquet(parquet(rows, folder)).coalesce(1)
        data = FrameData(frame=frame, features="features", label="label")
        with Peaks(WORKERS[engine]) as peaks:
            ph.train(job(engine), data, folder=run, engine=SparkEngine(spark))
        return peaks.bytes
    finally:
        spark.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--engines", nargs="+", default=list(WORKERS), choices=list(WORKERS))
    parser.add_argument("--small", action="store_true", help=f"{SMALL_ROWS} rows")
    options = parser.parse_args()
    rows = SMALL_ROWS if options.small else options.rows
    size = rows * (WIDTH * 4 + 8)
    print(f"{rows} rows of {WIDTH} float32 and a label: {size / 1e6:.0f} MB")
    print(f"{'engine':8}{'peak MB':>9}{'ratio':>7}")
    for engine in options.engines:
        with tempfile.TemporaryDirectory(prefix="photinus-") as folder:
            most = peak(engine, rows, folder)
        print(f"{engine:8}{most / 1e6:9.0f}{(most - BASE_BYTES) / size:7.2f}", flush=True)


if __name__ == "__main__":
    begin("--small")
    main()
