"""Asks a task of Spark, before training, whether its Python has photinus."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Final

from photinus.core.errors import NotReadyError
from photinus.engine.spark.job import SparkJob, cause_of

if TYPE_CHECKING:
    from pyspark import SparkContext


_CLUSTER: Final = (
    "set PYSPARK_PYTHON to a Python that has it on every node, or send it by --archives"
)
_asked: set[str] = set()
"""Applications whose Python has photinus."""


def check_python(context: SparkContext) -> None:
    """Refuses an application whose tasks have a Python without photinus, before they fail.

    One task is asked, once in an application, where its Python is not the driver's own.

    Raises:
        NotReadyError: it has no photinus, or does not start.
    """
    application = str(context.applicationId)
    if application in _asked or shutil.which(context.pythonExec) == shutil.which(sys.executable):
        return

    def look(_: int) -> str:  # sent by value: a Python without photinus can load it
        import importlib.util
        import sys

        is_there = importlib.util.find_spec("photinus") is not None
        return "" if is_there else f"{sys.executable}, Python {sys.version.split()[0]}"

    asked = context.parallelize([0], 1).map(look)
    job = SparkJob(context, asked.collect, f"photinus-python-{application}")
    job.start()
    while job.is_alive() and not job.failures():
        job.join(0.1)
    if job.is_alive():
        job.cancel()
        job.join()
    found = cause_of(job.error) if job.error is not None else job.rows[0]
    if found:
        is_local = str(context.master).startswith("local")
        named = f"set PYSPARK_PYTHON={sys.executable} before Spark starts"
        do = f"start Spark with photinus.spark_session(workers), or {named}"
        wrong = "the Python of Spark's tasks has no photinus"
        raise NotReadyError(wrong, got=found, do=do if is_local else _CLUSTER)
    _asked.add(application)
