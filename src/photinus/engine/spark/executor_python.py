"""Asks a task of Spark, before training, whether its Python has photinus."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Final

from photinus.core.errors import NotReadyError
from photinus.engine.spark.job import SparkJob, cause_of

if TYPE_CHECKING:
    from pyspark import SparkContext


_CLUSTER_ADVICE: Final = (
    "set PYSPARK_PYTHON to a Python that has it on every node, or send it by --archives"
)
_checked: set[str] = set()
"""Applications whose Python has photinus."""


def check_python(context: SparkContext) -> None:
    """Refuses an application whose tasks have a Python without photinus, before they fail.

    One task is asked, once in an application, where its Python is not the driver's own.

    Raises:
        NotReadyError: it has no photinus, or does not start.
    """
    application = str(context.applicationId)
    if application in _checked or shutil.which(context.pythonExec) == shutil.which(sys.executable):
        return

    def find_photinus(_: int) -> str:  # sent by value: a Python without photinus can load it
        import importlib.util
        import sys

        is_installed = importlib.util.find_spec("photinus") is not None
        return "" if is_installed else f"{sys.executable}, Python {sys.version.split()[0]}"

    answers = context.parallelize([0], 1).map(find_photinus)
    job = SparkJob(context, answers.collect, f"photinus-python-{application}")
    job.start()
    while job.is_alive() and not job.failures():
        job.join(0.1)
    if job.is_alive():
        job.cancel()
        job.join()
    problem = cause_of(job.error) if job.error is not None else job.rows[0]
    if problem:
        is_local = str(context.master).startswith("local")
        alternative = f"set PYSPARK_PYTHON={sys.executable} before Spark starts"
        do = f"start Spark with photinus.spark_session(workers), or {alternative}"
        wrong = "the Python of Spark's tasks has no photinus"
        raise NotReadyError(wrong, got=problem, do=do if is_local else _CLUSTER_ADVICE)
    _checked.add(application)
