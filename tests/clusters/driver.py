"""A Spark driver in a process of its own: starts the jobs that it reads, and tells what happens.

A line of its input names a folder with an order; a line of its output is an event of a job.
"""

import dataclasses
import json
import sys
import threading
import time
from pathlib import Path

import numpy as np
from pyspark import InheritableThread, cloudpickle
from pyspark.sql import SparkSession

from photinus.engine.base import RunSpec
from photinus.engine.spark.engine import SparkEngine
from photinus.run.ledger_writer import LedgerWriter

_LOCK = threading.Lock()


def tell(job, event, **fields):
    """One line, whole, whichever thread says it."""
    line = json.dumps({"job": job, "event": event, "at": time.time(), **fields}, default=str)
    with _LOCK:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def emitter(job):
    return lambda event: tell(job, type(event).__name__, **dataclasses.asdict(event))


def work(spark, folder):
    """Runs the order that lies in a folder; its result is beside it."""
    order = cloudpickle.loads((folder / "order").read_bytes())
    name, assignment = folder.name, order["assignment"]
    if order["pool"]:
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", order["pool"])
    book = LedgerWriter(folder / "ledger.jsonl", assignment["run"])
    assignment = RunSpec(**assignment, emit=emitter(name), enter=book.enter)
    try:
        result = SparkEngine(spark, order["faults"]).run(assignment)
    except Exception as error:
        tell(name, "Failed", text=str(error), kind=type(error).__name__)
    else:
        np.savez(folder / "result.npz", *result.vectors)
        tell(name, "Done")
    finally:
        book.close()


def homes(batches):
    """Where a task's photinus comes from; an executor's one."""
    import os

    import pyarrow as pa

    import photinus

    for _ in batches:
        pass
    yield pa.RecordBatch.from_pydict({"home": [photinus.__file__], "executor": [os.getcwd()]})


def main(archive):
    spark = SparkSession.builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.sparkContext.addPyFile(archive)
    tell("", "Ready", id=spark.sparkContext.applicationId)
    for line in sys.stdin:
        if line == "homes\n":
            rows = spark.range(0, 4, 1, 4).mapInArrow(homes, "home string, executor string")
            tell("", "Homes", rows=sorted({(r["home"], r["executor"]) for r in rows.collect()}))
            continue
        if line == "pools\n":
            pools = spark.sparkContext._jsc.sc().getAllPools()
            tell("", "Pools", names=[pools.apply(n).name() for n in range(pools.size())])
            continue
        InheritableThread(target=work, args=(spark, Path(line.strip())), daemon=True).start()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
