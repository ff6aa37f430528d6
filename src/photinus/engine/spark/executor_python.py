"""Asks a task of Spark, before training, whether its Python has photinus."""

from __future__ import annotations

import re
import shutil
import sys
from typing import TYPE_CHECKING, Final

from photinus.core.errors import NotReadyError
from photinus.engine.spark.job import SparkJob, cause_of

if TYPE_CHECKING:
    from pyspark import SparkContext


_CLUSTER_ADVICE: Final = (
    "set PYSPARK_PYTHON (photinus submit: --python) to one that has photinus on every node, "
    "or send one by --archives"
)
_NOT_STARTED: Final = re.compile(r'Cannot run program "(.+?)".*error=\d+, (.+)')
_OTHER_VERSION: Final = re.compile(r"different version: ([\d.]+) than that in driver: ([\d.]+)")
_LAUNCHER_ERROR: Final = re.compile(r"photinus: (no Python .+)")
"""Of the script that an environment of `photinus submit` has for its Python."""
_DAEMON: Final = "photinus.engine.spark.daemon"
_NO_PHOTINUS: Final = "the Python of Spark's tasks has no photinus"
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
    while job.is_alive() and not job.failure_count():
        job.join(0.1)
    failure = job.last_failure()
    if job.is_alive():
        job.cancel()
        job.join()
    if failure or job.error is not None:
        wrong, problem = _problem_of(failure or str(job.error), str(context.pythonExec))
    else:
        wrong, problem = _NO_PHOTINUS, job.rows[0]
    if problem:
        is_local = str(context.master).startswith("local")
        alternative = f"set PYSPARK_PYTHON={sys.executable} before Spark starts"
        do = f"start Spark with photinus.spark_session(workers), or {alternative}"
        raise NotReadyError(wrong, got=problem, do=do if is_local else _CLUSTER_ADVICE)
    _checked.add(application)


def _problem_of(failure: str, program: str) -> tuple[str, str]:
    """Returns what is wrong with the tasks' Python, and what was got.

    Raises:
        NotReadyError: the Python of an environment that travelled says by itself what is wrong.
    """
    if said := _LAUNCHER_ERROR.search(failure):
        raise NotReadyError(said[1])
    if match := _NOT_STARTED.search(failure):
        return "the Python of Spark's tasks cannot be started", f"{match[1]}: {match[2]}"
    if match := _OTHER_VERSION.search(failure):
        wrong = "the Python of Spark's tasks has another version than the driver's"
        return wrong, f"{match[1]} and {match[2]}"
    # Spark itself says only that the daemon, which is photinus's, wrote no number of a port
    return _NO_PHOTINUS, program if _DAEMON in failure else cause_of(failure)
