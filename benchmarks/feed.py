"""How fast rows reach a worker: MB/s of the first pass (Arrow to indexed rows) and of the later.

Run: python benchmarks/feed.py [--rows 40000] [--spool]
"""

import argparse
import time

import numpy as np
import pyarrow as pa
from machine import begin

from photinus.data.arrays import FeedOrder, PartitionFeed
from photinus.data.arrow import ColumnSpec
from photinus.data.checks import RowChecker, RowChecks
from photinus.data.spool import Budget, gather

WIDTH, BATCH_ROWS, BATCH_SIZE = 784, 10_000, 100


def cases(rows):
    """Yields (name, record batches, spec) of the same random rows in three columns."""
    random = np.random.default_rng(0)
    floats = random.random((rows, WIDTH), np.float32)
    pixels = random.integers(0, 256, (rows, WIDTH), np.uint8)
    flat = pa.array(floats.ravel())
    offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * WIDTH)
    lists = pa.ListArray.from_arrays(offsets, flat)
    yield "list<float>", lists, ColumnSpec(features=("x",), label="y", shape=(WIDTH,))
    for name, values, scale in (("float32", floats, None), ("uint8", pixels, 1 / 255)):
        offsets = np.arange(rows + 1, dtype=np.int32) * values[0].nbytes
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values)]
        column = pa.Array.from_buffers(pa.binary(), rows, buffers)
        spec = ColumnSpec(
            features=("x",), label="y", kind="binary", dtype=name, shape=(WIDTH,), scale=scale
        )
        yield f"binary {name}", column, spec


def batches(column):
    labels = pa.array(np.arange(len(column)) % 10)
    table = pa.Table.from_arrays([column, labels], ["x", "y"])
    return table.to_batches(max_chunksize=BATCH_ROWS)


def measured(column, spec, budget):
    """Returns bytes as stored and seconds of a first pass; bytes as handed out and seconds."""
    passes = []
    for _ in range(3):
        begun = time.perf_counter()
        rows = gather(batches(column), spec, RowChecker(RowChecks(classes=10)), budget)
        passes.append(time.perf_counter() - begun)
    feed = PartitionFeed(rows, FeedOrder(batch_size=BATCH_SIZE, epochs=4.0))
    seconds, handed_out, begun = [], 0, time.perf_counter()
    for batch in feed:
        handed_out += batch.features.nbytes
        if feed.position % feed.rows == 0:
            seconds.append(time.perf_counter() - begun)
            begun = time.perf_counter()
    return rows.features.nbytes, min(passes), handed_out / 4, min(seconds[1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--spool", action="store_true", help="keep the rows on disk")
    options = parser.parse_args()
    budget = Budget(memory_bytes=0 if options.spool else 8 << 30)
    print(f"{options.rows} rows of {WIDTH}, batches of {BATCH_SIZE}, MB/s")
    print(f"{'column':16}{'first pass':>12}{'later epochs':>14}{'rows/s':>12}")
    for name, column, spec in cases(options.rows):
        stored, reading_seconds, read, seconds = measured(column, spec, budget)
        first, later = stored / reading_seconds / 1e6, read / seconds / 1e6
        print(f"{name:16}{first:12.0f}{later:14.0f}{options.rows / seconds:12.0f}")


if __name__ == "__main__":
    begin("--rows", "1000")
    main()
