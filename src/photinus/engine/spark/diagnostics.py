"""Checks a Spark session for `doctor`: slots, workers, network, settings."""

from __future__ import annotations

import platform
import secrets
import shutil
import string
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from photinus.core.errors import PhotinusError
from photinus.deploy.spark_submit import HEARTBEATS
from photinus.engine.spark.connect.run_directory import RunDirectory
from photinus.engine.spark.engine import slots_of
from photinus.engine.spark.job import SparkJob, cause_of
from photinus.engine.spark.session import is_connect, session_warnings
from photinus.transport.credentials import Credentials, WorkerKey
from photinus.transport.tcp_link import TcpLink, local_host
from photinus.transport.tcp_listener import TcpListener

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


_COLUMNS: Final = ("host", "python", "torch", "photinus", "way")
_SCHEMA: Final = ", ".join(f"{name} string" for name in _COLUMNS)
_CONNECT_SECONDS: Final = 5.0
_TASKS_SECONDS: Final = 120.0
_PYTHON_ADVICE: Final = (
    "the workers' Python must be this one's version and have photinus[spark]: set PYSPARK_PYTHON, "
    "or ship the environment with --archives"
)
_REACHABLE: Final = "they reach the driver, over TLS 1.3"
_PORTS_ADVICE: Final = "open the driver's ports to the workers, or set spark.driver.host"
_OVERHEAD_MIB: Final = 1024
"""Torch alone takes some hundred MiB outside of Java's memory."""
_SPARK_DEFAULTS: Final = dict(zip(HEARTBEATS, ("10s", "60"), strict=True))
_EXIT_SECONDS: Final = 10.0
"""An executor that ends waits so long for the thread that sends its heartbeats."""
_PROMISED_SECONDS: Final = 30.0
_UNITS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
"""Of Spark's times, in seconds; without one a number is of milliseconds."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing that was looked at."""

    name: str
    found: str
    fix: str = ""
    """What to do; empty when all is well."""
    is_needed: bool = False
    """Nothing can run before it is mended."""

    @property
    def state(self) -> str:
        """ok, advice or missing."""
        return "missing" if self.is_needed else "advice" if self.fix else "ok"


def port_finding(host: str = "127.0.0.1") -> Diagnosis:
    """Opens the port that the workers would connect to, and reports its address."""
    try:
        listener = _listener(host, secrets.token_bytes(16))[0]
    except PhotinusError as error:
        fix = "set spark.driver.host to an address of this machine"
        return Diagnosis("port", str(error), fix, is_needed=True)
    address = listener.address
    listener.close()
    return Diagnosis("port", f"can listen at {address}, over TLS 1.3")


def diagnose(spark: SparkSession, workers: int) -> Iterator[Diagnosis]:
    """Yields what a run of so many workers would find in a session.

    Args:
        spark: any session; of Spark Connect, the tasks are asked whether one can listen to the
            others, and whether they see the folder where runs are kept.
        workers: how many tasks to try at the same time.
    """
    master = f"master {spark.conf.get('spark.master', '?')}"
    via = ", through Spark Connect" if is_connect(spark) else ""
    yield Diagnosis("Spark", f"{spark.version}, {master}{via}")
    yield _slots(spark, workers)
    host = str(spark.conf.get("spark.driver.host", "127.0.0.1"))
    if is_connect(spark):
        yield from _connect_tasks(spark, host, workers)
    else:
        yield port_finding(host)
        yield from _tasks(spark, host, workers)
    yield from settings_findings(_settings(spark))
    warnings = session_warnings(spark)
    for warning in warnings:
        found, _, fix = warning.partition("; ")
        yield Diagnosis("settings", found, fix)
    if not warnings:
        yield Diagnosis("settings", "tasks are tried again often enough, none is copied")


def _slots(spark: SparkSession, workers: int) -> Diagnosis:
    slots = slots_of(spark)
    if slots is None and is_connect(spark):
        return Diagnosis("slots", "how many there are, a client of Spark Connect is not told")
    if slots is None:
        return Diagnosis("slots", "as many as the cluster gives: dynamic allocation has no bound")
    fix = f"use {slots} workers or fewer, or give the application more cores"
    is_short = slots < workers
    return Diagnosis("slots", f"{slots} tasks at once", fix if is_short else "", is_needed=is_short)


def _tasks(spark: SparkSession, host: str, workers: int) -> Iterator[Diagnosis]:
    """Runs a tiny task for each worker: its Python, its torch, and its way to the driver."""
    try:
        listener, key = _listener(host, secrets.token_bytes(16))
    except PhotinusError:
        return  # the port's finding has reported it
    task = _task(listener.address, asdict(key))
    tasks = spark.range(0, workers, 1, workers).mapInArrow(task, _SCHEMA)
    job = SparkJob(spark.sparkContext, tasks.collect, key.run.hex())
    try:
        rows = _rows(job, workers)
    finally:
        listener.close()
    if isinstance(rows, str):
        yield Diagnosis("workers", rows, _PYTHON_ADVICE, is_needed=True)
    else:
        yield from _worker_findings(rows)


def _connect_tasks(spark: SparkSession, host: str, workers: int) -> Iterator[Diagnosis]:
    """Runs a tiny task for each worker: one of them will have to listen to the others."""
    folder = Path("runs").absolute() / f"doctor-{secrets.token_hex(4)}"
    run_directory, key = RunDirectory(str(folder), 1), Credentials.make(secrets.token_bytes(16))
    task = _connect_task(host, asdict(key.worker(is_peer=True)), str(folder))
    try:
        run_directory.make({}, key.worker(is_peer=True))
        tasks = spark.range(0, workers, 1, workers).mapInArrow(task, _SCHEMA)
        rows = _rows(SparkJob(spark, tasks.collect, key.run.hex()), workers)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if isinstance(rows, str):
        yield Diagnosis("workers", rows, _PYTHON_ADVICE, is_needed=True)
    else:
        fix = "open the executors' ports to each other, and run where all see the run folder"
        yield from _worker_findings(
            rows, f"they can listen, over TLS 1.3, and see {folder.parent}", fix
        )


def _settings(spark: SparkSession) -> dict[str, str]:
    """Returns Spark's settings; before Spark 4 only a context has them all."""
    if hasattr(spark.conf, "getAll"):
        return {name: str(value) for name, value in spark.conf.getAll.items()}
    return dict(spark.sparkContext.getConf().getAll())


def _rows(job: SparkJob, workers: int) -> set[tuple[str, ...]] | str:
    """Returns what the tasks saw, or why they saw nothing."""
    job.start()
    deadline = time.monotonic() + _TASKS_SECONDS
    while job.is_alive() and time.monotonic() < deadline and job.failure_count() <= workers:
        job.join(0.2)
    if job.is_alive():
        job.cancel()
        return job.reason() or f"no answer within {_TASKS_SECONDS:.0f} s"
    if job.error is not None:
        return cause_of(job.error)
    return {tuple(str(value) for value in row) for row in job.rows}


def _task(address: str, key: dict[str, bytes]) -> Any:  # noqa: ANN401 - what mapInArrow takes
    def probe() -> list[str]:
        from photinus.engine.spark.diagnostics import seen

        return seen(address, key)

    return _probing_task(probe)


def _connect_task(host: str, key: dict[str, bytes], folder: str) -> Any:  # noqa: ANN401
    def probe() -> list[str]:
        from photinus.engine.spark.diagnostics import checks_on_executor

        return checks_on_executor(host, key, folder)

    return _probing_task(probe)


def _probing_task(probe: Callable[[], list[str]]) -> Any:  # noqa: ANN401
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for _ in batches:
            pass
        values = probe()
        names = [f"{n}" for n in range(len(values))]
        yield pa.RecordBatch.from_arrays([pa.array([v]) for v in values], names=names)

    return run


def seen(address: str, key: dict[str, bytes]) -> list[str]:
    """Returns what a task sees: host, Python, torch, photinus, and what bars its way back."""
    return _probe(lambda: _link(address, WorkerKey(**key)))


def checks_on_executor(host: str, key: dict[str, bytes], folder: str) -> list[str]:
    """Returns likewise what bars a task from hosting a run: its port, or the run folder."""
    worker_key = WorkerKey(**key)

    def listen() -> None:
        RunDirectory(folder, 1).check()
        listener = TcpListener(local_host(host), worker_key, lambda *_: None, lambda *_: None)
        try:
            _link(listener.address, worker_key)
        finally:
            listener.close()

    return _probe(listen)


def _link(address: str, key: WorkerKey) -> None:
    TcpLink(address, key, connect_seconds=_CONNECT_SECONDS).close()


def _probe(connect: Callable[[], None]) -> list[str]:
    try:
        connect()
        obstacle = ""
    except PhotinusError as error:
        obstacle = str(error)
    host_and_python = platform.node(), platform.python_version()
    return [*host_and_python, version("torch"), version("photinus"), obstacle]


def version(package: str) -> str:
    """Returns a package's version in this process; nothing where it cannot be imported."""
    try:
        __import__(package)
        return metadata.version(package)
    except Exception:  # a library that does not load raises anything
        return ""


def _worker_findings(
    rows: set[tuple[str, ...]], reachable: str = _REACHABLE, fix: str = _PORTS_ADVICE
) -> Iterator[Diagnosis]:
    own_python = ".".join(map(str, sys.version_info[:3]))
    hosts = sorted({row[0] for row in rows})
    yield Diagnosis("workers", f"on {', '.join(hosts[:8])}" + (" ..." if len(hosts) > 8 else ""))
    driver_versions = {
        "Python": own_python,
        "torch": version("torch"),
        "photinus": version("photinus"),
    }
    for column, (name, expected) in enumerate(driver_versions.items(), start=1):
        found = sorted({row[column] or "none" for row in rows})
        is_same = found == [expected]
        do = "" if is_same else f"install {name} {expected} on every worker, as the driver has it"
        text = ", ".join(found)
        yield Diagnosis(f"workers' {name}", text, do, is_needed="none" in found)
    obstacles = sorted({row[4] for row in rows} - {""})
    yield Diagnosis(
        "way",
        obstacles[0] if obstacles else reachable,
        fix if obstacles else "",
        is_needed=bool(obstacles),
    )


def settings_findings(settings: dict[str, str]) -> Iterator[Diagnosis]:
    """Yields findings from Spark's settings on memory, security, and executors without a driver.

    Args:
        settings: of the application, `spark.*` -> value.

    Example:
        >>> [f.state for f in settings_findings({"spark.master": "local[4]"})]
        ['ok', 'ok', 'ok', 'ok']
    """
    is_local = settings.get("spark.master", "local").startswith("local")
    overhead = settings.get("spark.executor.memoryOverhead", "")
    fix = f"set spark.executor.memoryOverhead to {_OVERHEAD_MIB}m or more: torch lives there"
    found = overhead or ("one process: no overhead to set" if is_local else "Spark's default")
    yield Diagnosis("memory overhead", found, "" if overhead or is_local else fix)
    yield _security(settings, is_local=is_local)
    has_ui = settings.get("spark.ui.enabled", "true") == "true" and not is_local
    is_guarded = settings.get("spark.acls.enable", "false") == "true"
    fix = "spark.acls.enable=true with spark.ui.filters, or spark.ui.enabled=false"
    found = "off" if not has_ui and not is_local else "guarded" if is_guarded else "open to all"
    found = "of this machine" if is_local else found
    yield Diagnosis("Spark's page", found, fix if has_ui and not is_guarded else "")
    yield _without_driver(settings, is_local=is_local)


def _security(settings: dict[str, str], *, is_local: bool) -> Diagnosis:
    enabled = [
        name
        for name in ("spark.authenticate", "spark.network.crypto.enabled")
        if settings.get(name, "false") == "true"
    ]
    if settings.get("spark.ssl.rpc.enabled", "false") == "true":
        enabled.append("spark.ssl.rpc.enabled")
    if is_local:
        return Diagnosis("Spark's own network", "none: one process")
    is_encrypted = "spark.authenticate" in enabled and len(enabled) > 1
    fix = (
        "spark.authenticate=true and spark.network.crypto.enabled=true: the keys of a run travel "
        "in its tasks, over Spark's network"
    )
    return Diagnosis(
        "Spark's own network", ", ".join(enabled) or "in clear", "" if is_encrypted else fix
    )


def _without_driver(settings: dict[str, str], *, is_local: bool) -> Diagnosis:
    """Reports how long executors may outlive a driver that closes no connection."""
    if is_local:
        return Diagnosis("without a driver", "none: one process")
    interval, failures = (
        {**_SPARK_DEFAULTS, **settings}[name].strip().lower() for name in HEARTBEATS
    )
    number = interval.rstrip(string.ascii_lowercase)
    unit = _UNITS[interval.removeprefix(number) or "ms"]
    seconds = _EXIT_SECONDS + (int(failures) + 1) * int(number) * unit
    is_long = seconds >= _PROMISED_SECONDS
    found = f"executors stay up to {seconds:.0f} s where it stands still or is cut off"
    do = " and ".join("=".join(pair) for pair in HEARTBEATS.items())
    fix = f"{do} end them within {_PROMISED_SECONDS:.0f} s" if is_long else ""
    return Diagnosis("without a driver", found, fix)


def _listener(host: str, run: bytes) -> tuple[TcpListener, WorkerKey]:
    credentials = Credentials.make(run)
    listener = TcpListener(host, credentials, lambda *_: None, lambda *_: None)
    return listener, credentials.worker()
