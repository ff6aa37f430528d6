"""Asks tasks of Spark which devices they see, and what Spark gave to them."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from photinus.devices.discovery import Device, VisibleDevice, found, measured
from photinus.engine.spark.resources import given_to

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


_SCHEMA = (
    "host string, resource string, name string, title string, memory_bytes long, driver string, "
    "gflops double"
)


def seen_by_tasks(spark: SparkSession, tasks: int) -> tuple[VisibleDevice, ...]:
    """Returns what so many tasks see, each device of a host and an address once.

    Args:
        spark: any session.
        tasks: how many to ask.
    """
    asked = spark.range(0, tasks, 1, tasks).mapInArrow(_look, _SCHEMA)
    seen = {}
    for row in asked.collect():
        plain = row.asDict()
        host, resource, gflops = (plain.pop(name) for name in ("host", "resource", "gflops"))
        device = Device(**plain)
        one = VisibleDevice(host=host, resource=resource, device=device, gflops=gflops)
        seen[host, resource, device.name] = one
    return tuple(seen[key] for key in sorted(seen))


def _look(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    from pyspark import TaskContext

    for _ in batches:
        pass
    task = TaskContext.get()
    assert task is not None
    bound = given_to(task).bind()
    rows = [
        {
            "host": platform.node(),
            "resource": f"{bound.resource} {bound.address}".strip(),
            "name": device.name,
            "title": device.title,
            "memory_bytes": device.memory_bytes,
            "driver": device.driver,
            "gflops": gflops,
        }
        for device, gflops in map(measured, found())
    ]
    yield pa.RecordBatch.from_pylist(rows)
