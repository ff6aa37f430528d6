"""Rows of unequal length: how much of the batches is padding, and how fast they reach a worker.

Run: python benchmarks/texts.py [--rows 40000]
"""

import argparse
import time

import numpy as np
import pyarrow as pa
from machine import begin

from photinus.data.arrays import FeedOrder, PartitionFeed
from photinus.data.arrow import ColumnSpec
from photinus.data.checks import RowChecker, RowChecks
from photinus.data.columns import InputSpec
from photinus.data.spool import Budget, gather

LENGTHS = {
    "sentences": lambda rng, rows: rng.lognormal(2.9, 0.55, rows),
    "documents": lambda rng, rows: rng.lognormal(5.0, 1.0, rows),
    "1 to 256": lambda rng, rows: rng.integers(1, 257, rows),
}
"""How many tokens the rows have, cut to 1..512."""
SPEC = ColumnSpec(features=("tokens",), inputs=InputSpec(columns={"tokens": "ids"}), label="y")


def column(lengths, rng):
    """Returns record batches of 10,000 rows."""
    tokens = pa.array(rng.integers(1, 30_000, int(lengths.sum())).astype(np.int32))
    ends = np.cumsum(lengths, dtype=np.int64)
    offsets = pa.array(np.concatenate([[0], ends]).astype(np.int32))
    rows = pa.ListArray.from_arrays(offsets, tokens)
    labels = pa.array(np.arange(len(lengths)) % 2)
    table = pa.Table.from_arrays([rows, labels], ["tokens", "y"])
    return table.to_batches(max_chunksize=10_000)


def padding(rows, order, *, is_shared_out=True):
    """Returns the part of the tokens that is padding, and tokens a second, in one epoch."""
    feed = PartitionFeed(rows, order)
    if not is_shared_out:
        feed._lengths = None
    padded = whole = 0
    begun = time.perf_counter()
    for batch in feed:
        mask = batch.features["tokens_mask"]
        padded, whole = padded + int((~mask).sum()), whole + mask.size
    return padded / whole, (whole - padded) / (time.perf_counter() - begun)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=40_000)
    options = parser.parse_args()
    print(f"{options.rows} rows, batches of 32 of one worker, and of 8 of each of 4 workers")
    head = ("padding", "at random", "of 4", "Mtokens/s", "first pass")
    print(f"{'lengths':12}" + "".join(f"{name:>12}" for name in head))
    for name, draw in LENGTHS.items():
        rng = np.random.default_rng(0)
        lengths = np.clip(draw(rng, options.rows), 1, 512).astype(np.int64)
        batches = column(lengths, rng)
        begun = time.perf_counter()
        rows = gather(batches, SPEC, RowChecker(RowChecks()), Budget())
        first = lengths.sum() / (time.perf_counter() - begun) / 1e6
        order = FeedOrder(batch_size=32, epochs=1.0)
        share, speed = padding(rows, order)
        at_random, _ = padding(rows, order, is_shared_out=False)
        eighth = FeedOrder(batch_size=8, epochs=1.0)
        of_four, _ = padding(rows, eighth)
        shares = "".join(f"{part:12.1%}" for part in (share, at_random, of_four))
        print(f"{name:12}{shares}{speed / 1e6:12.1f}{first:12.1f}")


if __name__ == "__main__":
    begin("--rows", "2000")
    main()
