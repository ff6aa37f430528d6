"""The command `devices`."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING

import click

from photinus.cli.watch import redirect_stderr

if TYPE_CHECKING:
    from photinus.devices.discovery import VisibleDevice


@click.command()
@click.option(
    "--tasks", type=click.IntRange(1), metavar="N", help="Also ask this many tasks of Spark."
)
def devices(tasks: int | None) -> None:
    """List what this machine can compute on, and, with --tasks, what Spark's executors can.

    Speed is that of a product of float32 matrices of 1024 x 1024, measured now.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for name in ("where", "device", "is", "memory", "GFLOP/s", "driver", "of Spark"):
        table.add_column(name, justify="right" if name in ("memory", "GFLOP/s") else "left")
    for entry in (*_local_devices(), *(_executor_devices(tasks) if tasks else ())):
        memory = f"{entry.device.memory_bytes / 2**30:.1f} GiB" if entry.device.memory_bytes else ""
        speed = f"{entry.gflops:.0f}" if entry.gflops else "fails"
        cells = (entry.host, entry.device.name, entry.device.title, memory, speed)
        table.add_row(*cells, entry.device.driver, entry.resource)
    Console().print(table)


def _local_devices() -> tuple[VisibleDevice, ...]:
    from photinus.devices.discovery import VisibleDevice, found, measured

    return tuple(
        VisibleDevice(host=platform.node(), resource="", device=device, gflops=gflops)
        for device, gflops in map(measured, found())
    )


def _executor_devices(tasks: int) -> tuple[VisibleDevice, ...]:
    from photinus.engine.spark.executor_devices import visible_devices
    from photinus.engine.spark.session import spark_session

    with redirect_stderr(Path(os.devnull)):
        return visible_devices(spark_session(tasks, name="photinus devices"), tasks)
