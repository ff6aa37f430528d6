"""Starts a local Spark session for training when the user has none."""

from __future__ import annotations

import atexit
import logging
import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from photinus.core.errors import NotReadyError, UsageError
from photinus.core.parameters import Vector
from photinus.deploy.class_archive import reading_options
from photinus.deploy.java import ensure_java
from photinus.engine.spark.remote_address import check_remote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_RETRIES: Final = 20  # far more, and one bad row in a query of the user's is tried for minutes
_SPARK_VARIABLES: Final = ("PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "SPARK_REMOTE")
"""In the environment: another program has chosen the Spark to use."""
_CLUSTER_ADVICE: Final = (
    "look at what Spark says, here or in logs/spark.log of the run; a cluster that authenticates "
    "asks for its own spark.authenticate.secret, "
    "in spark-defaults.conf of the folder SPARK_CONF_DIR"
)
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")


def spark_session(
    workers: int, *, name: str = "photinus", extra: Mapping[str, str] | None = None
) -> SparkSession:
    """Returns the user's Spark session as it is, or starts a local one that fits the job.

    An active session is never changed; neither is one that spark-submit or SPARK_REMOTE asks for.
    One that is started here runs the tasks under this very Python, on the loopback interface, with
    enough retries for every fault: the coordinator limits them, not Spark.

    Args:
        workers: How many tasks run at the same time.
        name: The application's name.
        extra: Settings of Spark's that override photinus's.

    Raises:
        UsageError: `workers` is less than 1.
        NotReadyError: pyspark or Java is missing, or Spark does not start.
    """
    if workers < 1:
        raise UsageError("workers must be at least 1", got=workers)
    try:
        import pyspark  # noqa: F401 - `is_started_here` looks into it
        from pyspark.sql import SparkSession
    except ImportError:
        raise NotReadyError(
            "pyspark is not installed", do="pip install 'photinus[spark]'"
        ) from None
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    if remote := os.environ.get("SPARK_REMOTE"):
        check_remote(remote)
    if not is_started_here():
        started = _start(SparkSession.builder, _CLUSTER_ADVICE)
        forget_at_exit(started)
        return started
    os.environ["JAVA_HOME"] = ensure_java()
    for key in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        os.environ.setdefault(key, sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(name)
    settings = _settings(workers)
    settings["spark.driver.defaultJavaOptions"] += f" {reading_options(os.environ['JAVA_HOME'])}"
    for key, value in {**settings, **(extra or {})}.items():
        builder = builder.config(key, value)
    _silence_query_loggers()
    return _start(builder, "photinus doctor")


def is_started_here() -> bool:
    """Returns whether `spark_session` starts a Spark on this machine: it is given no other."""
    if any(os.environ.get(key) for key in _SPARK_VARIABLES):
        return False
    pyspark: Any = sys.modules.get("pyspark")  # without it there is no Spark yet
    return pyspark is None or pyspark.SparkContext._active_spark_context is None


def _start(builder: SparkSession.Builder, do: str) -> SparkSession:
    try:
        return builder.getOrCreate()
    except Exception as error:
        text = str(error).strip()
        java = re.search(r"^: (.+)", text, re.MULTILINE)
        got = java[1] if java else text.partition("\n")[0]
        raise NotReadyError("Spark did not start", got=got, do=do) from error


def forget_at_exit(spark: SparkSession) -> None:
    """Keeps Spark's client from asking a server, which may be gone, as the process ends.

    It would ask again for many minutes, whatever signal ends the process. What it asks for, to
    forget models of Spark ML, the server does by itself some time after the session.
    """
    client = getattr(spark, "client", None) if is_connect(spark) else None
    clean_up = getattr(client, "_cleanup_ml_cache", None)
    if clean_up is not None:  # of Spark 4
        atexit.unregister(clean_up)


def is_connect(spark: SparkSession) -> bool:
    """Returns whether a session is of Spark Connect: without context, and unreachable for tasks."""
    return not hasattr(spark, "_jsparkSession")


def application_of(spark: SparkSession) -> str:
    """Returns the application's id, on Connect the session's: the owner of files that were sent."""
    session: Any = spark  # pyspark's types do not know Connect's session_id
    return str(session.session_id if is_connect(spark) else session.sparkContext.applicationId)


def array_cells(spark: Any, rows: Iterable[Vector]) -> list[Any]:  # noqa: ANN401 - of two classes
    """Returns arrays [n] as cells of a pandas table that `createDataFrame` takes.

    Args:
        spark: the session.
        rows: an array for each row.
    """
    has_arrow = spark.conf.get("spark.sql.execution.arrow.pyspark.enabled", "false") == "true"
    return list(rows) if has_arrow else [row.tolist() for row in rows]  # which are slower


def whole_setting(conf: Any, key: str, default: int) -> int:  # noqa: ANN401 - of two classes
    """Returns a setting of Spark's that counts something.

    Args:
        conf: A session's settings, or a context's.
        key: The setting's name.
        default: What Spark takes where it is not set.

    Raises:
        UsageError: The setting is no whole number, or less than 1. A session that joins a running
            application may hold what Spark never looks at.
    """
    text = str(conf.get(key, str(default))).strip()
    if not re.fullmatch(r"0*[1-9]\d*", text, re.ASCII):
        wrong, do = f"{key} must be a whole number, at least 1", "start the session without it"
        raise UsageError(wrong, got=repr(text), do=do)
    return int(text)


def session_warnings(spark: SparkSession, *, has_view: bool = False) -> list[str]:
    """Returns what in a session of the user's own may hurt a long run, a sentence each.

    Args:
        spark: Any session, classic or Connect.
        has_view: A live view of the run is drawn, which Spark's progress bar would write over.
    """

    def setting(key: str, default: str) -> str:
        return str(spark.conf.get(key, default))

    warnings = []
    master = setting("spark.master", "")
    failures = _failures(master, spark.conf)
    if failures < _RETRIES:
        is_local = master.startswith("local")  # which ignores the setting
        advice = f"master local[N,{_RETRIES}]" if is_local else f"spark.task.maxFailures={_RETRIES}"
        warnings.append(
            f"Spark gives a task up after {failures} failure{'s' * (failures > 1)}, and its job. "
            f"photinus submits that again a few times at most; start the application with {advice}"
        )
    if setting("spark.speculation", "false") == "true":
        warnings.append(
            "spark.speculation starts copies of slow workers, which are only turned away; "
            "start the application with spark.speculation=false"
        )
    if has_view and setting("spark.ui.showConsoleProgress", "false") == "true":
        warnings.append(
            "Spark's progress bar writes over the live view; "
            "start the application with spark.ui.showConsoleProgress=false"
        )
    return warnings


def _silence_query_loggers() -> None:
    """Stops pyspark 4 from logging, as a page of JSON, every error that it also raises."""
    try:
        from pyspark.logger import PySparkLogger
    except ImportError:
        return
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


def _failures(master: str, conf: Any) -> int:  # noqa: ANN401 - as of `whole_setting`
    """Returns the failures per task: local mode takes them from the master's brackets alone."""
    if master == "local" or master.startswith("local["):
        match = re.fullmatch(r"local\[[^,]+,\s*(\d+)\s*\]", master)
        return int(match[1]) if match else 1
    return whole_setting(conf, "spark.task.maxFailures", 4)


def _is_screen() -> bool:
    """Returns whether what Java writes to standard error is seen on a screen."""
    return os.isatty(2)


def _settings(workers: int) -> dict[str, str]:
    return {
        "spark.master": f"local[{workers},{_RETRIES}]",
        "spark.task.maxFailures": str(_RETRIES),
        "spark.speculation": "false",
        "spark.ui.enabled": "false",
        # the command line, which draws a view of its own, sends standard error to a file
        "spark.ui.showConsoleProgress": str(_is_screen()).lower(),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.driver.defaultJavaOptions": (
            f"-XX:+UseSerialGC -Dlog4j2.configurationFile={_LOGGING.as_uri()}"
        ),
        "spark.python.worker.reuse": "true",
        "spark.python.daemon.module": "photinus.engine.spark.daemon",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # batches that stay in the processor's cache on their way; 64 MB are Spark's default
        "spark.sql.execution.arrow.maxBytesPerBatch": "4m",
    }
