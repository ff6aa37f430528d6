"""Asks tasks of Spark which devices they see, and what Spark gave to them."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from photinus.devices.discovery import Device, VisibleDevice, found, measured
from photinus.engine.spark.resources import resources_of_task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


_SCHEMA = (
    "host string, resource string, name string, title string, memory_bytes long, driver string, "
    "gflops double"
)


def visible_devices(spark: SparkSession, tasks: int) -> tuple[VisibleDevice, ...]:
    """Returns what so many tasks see, each device of a host and an address once.

    Args:
        spark: any session.
        tasks: how many to ask.
    """
    answers = spark.range(0, tasks, 1, tasks).mapInArrow(_list_devices, _SCHEMA)
    devices = {}
    for row in answers.collect():
        fields = row.asDict()
        host, resource, gflops = (fields.pop(name) for name in ("host", "resource", "gflops"))
        device = Device(**fields)
        visible_device = VisibleDevice(host=host, resource=resource, device=device, gflops=gflops)
        devices[host, resource, device.name] = visible_device
    return tuple(devices[key] for key in sorted(devices))


def _list_devices(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    from pyspark import TaskContext

    for _ in batches:
        pass
    task = TaskContext.get()
    assert task is not None
    bound = resources_of_task(task).bind()
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
