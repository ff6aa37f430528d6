"""What reaches the driver while `fit` reads many rows: bytes of results, and its own memory.

python benchmarks/driver_bytes.py [rows]

Rows of 8 float32 and a label are made by Spark's tasks. Bytes of results are what Spark's event log
says of all tasks: all that its tasks returned to the driver. Memory is the most that the driver's
Python process had resident, less what it had before `fit`.
"""

import json
import sys
import tempfile
from pathlib import Path

from machine import begin

from photinus import TorchClassifier, spark_session

WIDTH, BATCH = 8, 65_536


def resident(name):
    """MB that this process has resident: VmRSS, or VmHWM, the most since the last reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def returned(log):
    """Bytes that all tasks returned to the driver, and how many tasks there were."""
    files = [path for path in log.rglob("*") if path.is_file() and path.suffix != ".crc"]
    events = [json.loads(line) for path in files for line in path.open()]
    sizes = [
        event["Task Metrics"]["Result Size"]
        for event in events
        if event["Event"] == "SparkListenerTaskEnd" and event.get("Task Metrics")
    ]
    return sum(sizes), len(sizes)


def main():
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
    with tempfile.TemporaryDirectory() as folder:
        log = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": Path(folder).as_uri()}
        spark = spark_session(2, extra={**log, "spark.eventLog.compress": "false"})
        numbers = ", ".join(f"float(rand({n}))" for n in range(WIDTH))
        columns = f"array({numbers}) AS features", "int(id % 2) AS label"
        table = spark.range(0, rows, 1, 2).selectExpr(*columns)
        arguments = {"in_features": WIDTH, "out_features": 2}
        classifier = TorchClassifier(
            module="torch.nn:Linear", moduleArgs=arguments, batchSize=BATCH, epochs=1.0,
            numWorkers=2, numClasses=2, verbose=False,
        )  # fmt: skip
        Path("/proc/self/clear_refs").write_text("5")  # the most begins here
        before = resident("VmRSS")
        classifier.fit(table)
        most = resident("VmHWM") - before
        spark.stop()
        size, tasks = returned(Path(folder))
    print(f"{rows:,} rows, {rows * (4 * WIDTH + 4) / 1e6:,.1f} MB")
    print(f"returned by {tasks} tasks: {size:,} bytes")
    print(f"memory of the driver's Python: {most:,.1f} MB more")


if __name__ == "__main__":
    begin("100000")
    main()
