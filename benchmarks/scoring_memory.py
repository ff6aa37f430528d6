"""Memory of eight tasks that score with one model, and the seconds to a model's first row.

Beside the first row stands the least that Spark takes: a `mapInArrow` that imports torch and
returns the row.

python benchmarks/scoring_memory.py [units of the model]
"""

import contextlib
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
from machine import begin, descendants, used
from pyspark.sql.functions import array_repeat, col, lit
from pyspark.sql.functions import sum as total

from photinus.core.settings import to_dict
from photinus.engine.spark.session import spark_session
from photinus.estimators.module import TorchModel
from photinus.estimators.network import NUMBERS, Network
from photinus.models.module import ModuleConfig

TASKS, WIDTH = 8, 4096


def model_of(units):
    """A layer from 4096 numbers to `units`."""
    config = ModuleConfig(
        module="torch.nn:Linear", arguments={"in_features": WIDTH, "out_features": units}
    )
    weights = {
        "weight": np.ones((units, WIDTH), np.float32),
        "bias": np.zeros(units, np.float32),
    }
    return TorchModel(
        Network(
            kind="module",
            settings=to_dict(config),
            tensors=weights,
            shape=(WIDTH,),
            classes=units,
            head=NUMBERS,
        )
    ).setPredictBatchSize(2)


def resident():
    """Memory of this program's workers in MB; a page that n processes share counts 1/n for each."""
    kilobytes = 0
    for process in descendants():
        with contextlib.suppress(OSError):
            is_worker = b"daemon" in Path(f"/proc/{process}/cmdline").read_bytes()
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
            pss = next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
            kilobytes += pss if is_worker else 0
    return kilobytes / 1024


def scored(model, spark):
    rows = spark.range(0, 4 * TASKS, 1, TASKS)
    rows = rows.withColumn("features", array_repeat(lit(1.0), WIDTH))
    first = model.transform(rows).selectExpr("prediction[0] AS one")
    return first.agg(total("one")).collect()


def imports_torch(batches):
    import torch  # noqa: F401

    yield from (batch.select(["id"]) for batch in batches)


def first_rows(spark):
    """Prints seconds, and processor time, to the first row of new models and to bare ones."""
    row = spark.range(1).withColumn("features", array_repeat(col("id").cast("float"), WIDTH))
    rows = {"bare mapInArrow's first row": [], "another model's first row": []}
    for turn in range(5):
        second = model_of(17 + turn).transform
        bare = partial(row.mapInArrow, imports_torch, "id long")
        for times, frame in zip(rows.values(), (bare, partial(second, row)), strict=True):
            began, before = time.perf_counter(), used()
            frame().collect()
            times.append((time.perf_counter() - began, used() - before))
    for name, times in rows.items():
        (least, most), (cpu, _) = ((min(each), max(each)) for each in zip(*times, strict=True))
        print(f"{name:29}{least:8.2f} to {most:.2f} s, {cpu:.2f} s of processor at least")


def main():
    units = int(sys.argv[1]) if len(sys.argv) > 1 else 12_288
    spark = spark_session(TASKS)
    small = model_of(16)
    for _ in range(3):
        scored(small, spark)
    before = resident()
    large = model_of(units)
    weights = sum(t.nbytes for t in large.network.tensors.values()) / 2**20
    began = time.perf_counter()
    scored(large, spark)
    print(f"{TASKS} tasks, weights of {weights:,.0f} MB")
    print(f"more memory after scoring    {resident() - before:8,.0f} MB")
    print(f"seconds to the first result  {time.perf_counter() - began:8.2f}")
    first_rows(spark)
    spark.stop()


if __name__ == "__main__":
    begin("512")
    main()
