"""Runs one Spark job in a thread, and reports how its tasks ended."""

from __future__ import annotations

import contextlib
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from photinus.core.errors import (
    DataError,
    NotReadyError,
    PhotinusError,
    RunFailedError,
    UsageError,
    user_message,
)
from photinus.core.events import Event, Warned
from photinus.core.signals import deferred, stopped_by
from photinus.engine.base import MEMORY_RAN_OUT
from photinus.engine.spark.session import forget_at_exit, is_connect
from photinus.engine.worker_bootstrap import reported_error

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.status import SparkStageInfo

_T = TypeVar("_T")


MAX_CLOSURE_BYTES = 512 << 10
"""Above 1 MiB Spark makes a task's closure a broadcast: a file in clear on every machine."""
LEAVE_SECONDS = 15.0
"""How long the tasks may take to end once the run is over."""
_CANCEL_SECONDS = 5.0
"""How long a server of Spark Connect may take to hear that a job is cancelled."""
_MAX_RESUBMITS = 3
"""How often a job that Spark gave up is submitted again."""
_MAX_FAILURES = 3
"""How often every task may fail before the first worker has come."""
_FIRST_SLOTS = 32
"""How many slots are looked at where there are more: Spark begins with the first."""
_MAX_FAILED_TASKS, _MAX_TASKS = 100, 10_000
_LOST_CONTACT = re.compile("ExecutorLostFailure|TaskKilled")
_POOL = "spark.scheduler.pool"
_PHOTINUS_ERROR = re.compile(r"photinus\.core\.errors\.(\w+): (.*)")
_PYTHON_ERROR = re.compile(r"[\w.]+(Error|Exception)(:|$)")
_CAUSED_BY = "Caused by: "
_OF_PYTHON = re.compile(r"Traceback \(most recent call last\)|Fatal Python error|Python worker")
_CRASHED = re.compile(r"Lost task (\d+)\..*Python worker exited unexpectedly \(crashed\)(?!:)")
_LOST_PROCESS = re.compile(
    "Python worker exited|was killed, or crashed|ExecutorLostFailure"
    # as Spark meets it where it hands rows to the process that is gone
    "|Broken pipe|Connection reset"
)
_MAX_LOST = 12
"""How often one task may lose its process before any worker has come; Spark's own limits are lower
in a session that was not made for training, and a job that Spark gives up is submitted again."""


class Failures(NamedTuple):
    """Attempts at a job's tasks that have failed, by what failed."""

    own: int
    """What the task ran, in all."""
    most: int
    """Likewise, of the one task that failed most often."""
    lost: int
    """The process or its executor, of the one task that lost it most often."""
    reason: str
    """In one line, of the last that was the task's own, else of the last."""


class Awaited(Protocol):
    """What a run's end is waited for on: a `ListeningService`, or a `ConnectSession`."""

    @property
    def slots(self) -> int:
        """How many seats there are."""

    def lease(self, slot: int) -> int:
        """Returns how often a slot was taken."""

    def wait(self, seconds: float) -> bool:
        """Waits for the end; returns whether it has come."""

    def stop(self, reason: str) -> None:
        """Ends the run without a result."""


class SparkJob(threading.Thread):
    """Runs a job, as `lambda: frame.mapInArrow(task, schema).collect()`.

    Args:
        owner: the context whose tasks they are; for Spark Connect the session: it does not report
            how its tasks fare before their end.
        collect: starts the job, and returns its rows.
        group: the name that the job is known and cancelled by.
    """

    def __init__(
        self, owner: SparkContext | SparkSession, collect: Callable[[], list[Any]], group: str
    ) -> None:
        super().__init__(name="photinus-job", daemon=True)
        self.rows: list[Any] = []
        self.error: Exception | None = None
        self._owner, self._collect, self._group = owner, collect, group
        self._context: Any = owner if hasattr(owner, "setJobGroup") else None
        self._session: Any = owner if self._context is None else None
        local_property = getattr(owner, "getLocalProperty", lambda _: None)
        self._pool = local_property(_POOL)  # of the thread that asks for the job
        self._failure_messages: dict[int, tuple[tuple[int, int], str]] = {}
        """Attempt that failed -> its stage and task, and Spark's message about it."""

    def fresh_copy(self) -> SparkJob:
        """Returns the same job, not yet started."""
        return SparkJob(self._owner, self._collect, self._group)

    def run(self) -> None:
        """Runs it to its end."""
        try:
            if self._context is None:
                self._session.addTag(self._group)
            else:
                self._context.setJobGroup(self._group, "photinus", interruptOnCancel=True)
            if self._pool is not None:
                self._context.setLocalProperty(_POOL, self._pool)
            self.rows = self._collect()
        except Exception as error:
            self.error = error

    def cancel(self) -> None:
        """Ends its tasks."""
        if self._context is not None:
            self._context.cancelJobGroup(self._group)
            return
        # the client of a server that does not answer waits, and asks again for many minutes
        asking = threading.Thread(target=self._interrupt, name="photinus-cancel", daemon=True)
        asking.start()
        asking.join(_CANCEL_SECONDS)
        if asking.is_alive():
            forget_at_exit(self._session)

    def _interrupt(self) -> None:
        with contextlib.suppress(Exception):  # the server is gone, and its tasks with it
            self._session.interruptTag(self._group)

    def is_stranded(self) -> bool:
        """Returns whether its application has ended under it; of Connect that is not known."""
        if self._context is None:
            return False
        try:
            return bool(self._context._jsc.sc().isStopped())
        except Exception:  # without Java, too
            return True

    def failure_count(self) -> int:
        """Returns how many attempts have failed so far; Spark retries them silently."""
        return sum(info.numFailedTasks for info in self._stages().values())

    def failures(self) -> Failures:
        """Returns by what its tasks have failed: of a lost process the task may be innocent."""
        stages = {stage: info.numFailedTasks for stage, info in self._stages().items()}
        if sum(stages.values()) > len(self._failure_messages):
            for stage in (stage for stage, count in stages.items() if count):
                self._read_failures(stage)
        own = [(task, text) for task, text in self._failure_messages.values() if not is_lost(text)]
        lost = [task for task, text in self._failure_messages.values() if is_lost(text)]
        messages = [text for _, text in own] or [
            text for _, text in self._failure_messages.values()
        ]
        return Failures(
            # where Spark does not report what failed, all counts
            len(own) if self._failure_messages else sum(stages.values()),
            max(Counter(task for task, _ in own).values(), default=0),
            max(Counter(lost).values(), default=0),
            cause_of(messages[-1]) if messages else "",
        )

    def _read_failures(self, stage: int) -> None:
        """Notes what Spark reports of a stage's attempts."""
        # the store is Spark's own and may change: without it nothing is reported of them
        with contextlib.suppress(Exception):
            tasks = self._context._jsc.sc().statusStore().taskList(stage, 0, _MAX_FAILED_TASKS)
            for task in (tasks.apply(i) for i in range(tasks.size())):
                if task.taskId() in self._failure_messages or str(task.status()) != "FAILED":
                    continue
                self._failure_messages[task.taskId()] = (
                    (stage, int(task.index())),
                    _error_message(task),
                )

    def running(self) -> int:
        """Returns how many tasks run now; of Connect that is not known."""
        return sum(info.numActiveTasks for info in self._stages().values())

    def reason(self) -> str:
        """Returns why a task failed, in one line; empty where Spark does not report it."""
        return self.failures().reason

    def last_failure(self) -> str:
        """Returns what Spark reports of the last attempt that failed; empty where it does not."""
        self.failures()
        return next((text for _, text in reversed(self._failure_messages.values())), "")

    def ended_tasks(self) -> list[tuple[int, str]]:
        """Returns the partition and the attempt of each task that failed in its Python process.

        Without those of executors that Spark has lost contact with: their processes may still run.
        """
        ended = []
        for stage in self._stages():
            # as of `reason`
            with contextlib.suppress(Exception):
                tasks = self._context._jsc.sc().statusStore().taskList(stage, 0, _MAX_TASKS)
                for task in (tasks.apply(i) for i in range(tasks.size())):
                    if task.status() == "FAILED" and not _LOST_CONTACT.search(_error_message(task)):
                        ended.append((int(task.partitionId()), str(task.taskId())))
        return ended

    def cure(self, reason: object) -> str:
        """Returns what to do about a failure of its processes; nothing where that is not known."""
        conf = self._session.conf if self._context is None else self._context.getConf()
        return cure_of(reason, str(conf.get("spark.master", "")))

    def stages(self) -> list[int]:
        """Returns the numbers of its stages."""
        return list(self._stages())

    def _stages(self) -> dict[int, SparkStageInfo]:
        if self._context is None:
            return {}
        tracker = self._context.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self._group)]
        stages = {stage for job in jobs if job is not None for stage in job.stageIds}
        infos = {stage: tracker.getStageInfo(stage) for stage in sorted(stages)}
        return {stage: info for stage, info in infos.items() if info is not None}


def _error_message(task: Any) -> str:  # noqa: ANN401 - Spark's TaskData
    """Returns what a task failed with; nothing where it did not."""
    error = task.errorMessage()
    return str(error.get()) if error.isDefined() else ""


def cause_of(error: object) -> str:
    """Returns the line of Spark's long error that names the cause.

    Example:
        >>> cause_of("Job aborted" + chr(10) + "ModuleNotFoundError: No module named 'torch'")
        "ModuleNotFoundError: No module named 'torch'"
    """
    if error is None:
        return "all its tasks ended early"
    crashed = _CRASHED.search(str(error))
    if crashed:
        return f"the Python process of task {crashed[1]} was killed, or crashed"
    stripped = (line.strip().removeprefix(": ") for line in str(error).splitlines())
    lines = [line for line in stripped if line]
    python_lines = [line for line in lines if _PYTHON_ERROR.match(line)]
    error_lines = [line for line in lines if "Error" in line or "Exception" in line]
    named = (python_lines or error_lines or lines or [type(error).__name__])[-1]
    causes = [line.removeprefix(_CAUSED_BY) for line in lines if line.startswith(_CAUSED_BY)]
    if causes and "/" not in named and not _OF_PYTHON.search(str(error)):
        named = causes[-1]  # Java's first cause, unless a file is named already
    return named[:300]


def is_lost(error: object) -> bool:
    """Returns whether a task's process or executor was lost, so that its rows are not to blame.

    Example:
        >>> is_lost("org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)")
        True
    """
    text = str(error)
    # a daemon that was killed closes the connection over which it was asked for a process
    is_daemon = "EOFException" in text and "PythonWorkerFactory" in text
    return bool(_LOST_PROCESS.search(text)) or (
        is_daemon and "Error from python worker" not in text
    )


def cure_of(reason: object, master: str) -> str:
    """Returns what to do where a process may have been killed, or lacks a package.

    Args:
        reason: of a failure, in Spark's words or in photinus's.
        master: Spark's: where all is one process, it has no overhead to raise.

    Example:
        >>> cure_of("Python worker exited unexpectedly (crashed)", "local[4]")
        'if nobody killed it, memory ran out: use a smaller batch, or fewer workers'
    """
    if "ModuleNotFoundError" in str(reason):
        return "set PYSPARK_PYTHON to a Python that has it, or send it by --py-files"
    if not _LOST_PROCESS.search(str(reason)):
        return ""
    overhead_advice = "" if master.startswith("local") else "raise spark.executor.memoryOverhead, "
    return f"{MEMORY_RAN_OUT}: {overhead_advice}use a smaller batch, or fewer workers"


def raise_task_error(job: SparkJob) -> None:
    """Passes on the error of a task, where Spark is the only way to report it.

    Raises:
        PhotinusError: as the task raised it; a lost link is no such error.
    """
    _raise_as_in_task(job.error)


def _raise_as_in_task(error: object) -> None:
    match = _PHOTINUS_ERROR.search(str(error or ""))
    if match and not match[1].startswith("Link"):
        raise reported_error(match[2], match[1])


def run_query(spark: SparkSession, query: Callable[[], _T]) -> _T:
    """Returns what a query of the user's rows gives; ends one whose tasks fail again and again.

    In a session that is made for training Spark would try each a thousand times. A query that Spark
    gave up since processes were lost is run again: the rows may not be the reason.

    Args:
        spark: the session; with Spark Connect the query just runs.
        query: runs it.

    Raises:
        DataError: the rows are refused where they are read, or cannot be read.
        UsageError: a task cannot import what the query names, as every error that a task raises.
        NotReadyError: the processes that read them are lost again and again.
    """
    if is_connect(spark):
        try:
            return query()
        except PhotinusError:
            raise
        except Exception as error:  # of Connect's, without a common class
            _raise_as_in_task(error)
            raise
    for _ in range(1 + _MAX_RESUBMITS):
        job = SparkJob(spark.sparkContext, lambda: [query()], f"photinus-{secrets.token_hex(8)}")
        _wait_for_query(job)
        if job.error is None:
            answer: _T = job.rows[0]
            return answer
        if not is_lost(job.error):
            raise job.error
        if job.failures().lost > _MAX_LOST:
            break
    wrong = "the processes that read the rows were lost again and again"
    raise NotReadyError(wrong, got=cause_of(job.error), do=job.cure(job.error)) from job.error


def _wait_for_query(job: SparkJob) -> None:
    """Waits for the end of a query; ends it where a task fails again and again by itself."""
    job.start()
    try:
        while job.is_alive():
            job.join(0.2)
            with deferred():
                failed = _checked_failures(job)
            if failed.most > _MAX_FAILURES and _PYTHON_ERROR.match(failed.reason):
                do = "look at how the DataFrame is made"
                raise DataError("the rows cannot be read", got=failed.reason, do=do)
    finally:
        if job.is_alive():
            job.cancel()
            job.join(LEAVE_SECONDS)
        _wait_for_tasks(job)
    raise_task_error(job)


def _wait_for_tasks(job: SparkJob) -> None:
    """Waits for the tasks of a job that has failed: Spark does not, and they may still write."""
    deadline = time.monotonic() + LEAVE_SECONDS
    with contextlib.suppress(Exception):  # the application has ended, and its tasks with it
        while job.running() and time.monotonic() < deadline:
            time.sleep(0.05)  # Spark's counts of tasks wake nobody


def _checked_failures(job: SparkJob) -> Failures:
    """Returns by what tasks have failed.

    Raises:
        DataError: a row was refused where it is read, as it will be at every retry.
    """
    failed = job.failures()
    match = _PHOTINUS_ERROR.search(failed.reason)
    if match and match[1] == DataError.__name__:
        raise DataError(match[2])
    return failed


def pickled(task: object) -> bytes:
    """Returns a function as Spark sends it; no broadcast is noted for this thread's next job."""
    from pyspark import cloudpickle

    with ThreadPoolExecutor(1) as pool:
        code: bytes = pool.submit(cloudpickle.dumps, task).result()
    return code


def check_size(task: object) -> None:
    """Refuses a task that Spark would write to a file in clear: the run's key is in it.

    Raises:
        UsageError: it is too large.
    """
    size = len(pickled(task))
    if size > MAX_CLOSURE_BYTES:
        raise UsageError(
            f"what travels to each task must be below {MAX_CLOSURE_BYTES >> 10} KiB",
            got=f"{size >> 10} KiB",
            do="keep arrays out of the plan's settings, and out of code that is sent by value",
        )


def wait_for_end(
    service: Awaited,
    job: SparkJob,
    emit: Callable[[Event], None],
    *,
    follow: Callable[[SparkJob], SparkJob | None] = lambda job: None,  # noqa: ARG005
    on_interrupt: Callable[[str], None] = lambda wrong: None,  # noqa: ARG005
    on_poll: Callable[[SparkJob], None] = lambda job: None,  # noqa: ARG005
) -> None:
    """Waits for the end of the run; a job that Spark gave up is submitted again.

    Args:
        service: of the run.
        job: not yet started.
        emit: is called with a warning of what is submitted again.
        follow: returns the job that comes after one that ended, if that is no failure; the same
            one where its tasks may have ended, and nothing follows yet.
        on_interrupt: is called after Ctrl-C or SIGTERM with what it was, while workers are still
            there.
        on_poll: is called some times a second with the job that runs.

    Raises:
        RunFailedError: Spark gave it up too often, or its application has ended.
        NotReadyError: its tasks fail before any worker came.
    """
    job.start()
    tries, have_joined = 0, False
    try:
        while not service.wait(0.2):
            if job.is_alive():
                with deferred():  # Spark's client prints a traceback where a call is cut short
                    have_joined = have_joined or _have_workers_joined(service, job)
                    on_poll(job)
                continue
            if service.wait(0.0):  # the end came between the two looks
                break
            next_job = follow(job)
            if next_job is job:  # all its tasks have given their seats up to another run
                on_poll(job)
                continue
            if next_job is None:
                tries += 1
                next_job = resubmitted(job, tries, emit)
            job = next_job
            job.start()
        job.join(LEAVE_SECONDS)
    except KeyboardInterrupt as error:
        on_interrupt(stopped_by(error))
        raise
    finally:
        if job.is_alive():
            service.stop("the driver ended the run")
            job.join(1.0)
            job.cancel()


def resubmitted(job: SparkJob, tries: int, emit: Callable[[Event], None]) -> SparkJob:
    """Returns the job that is submitted in the place of one that Spark gave up."""
    reason = cause_of(job.error)
    if job.is_stranded():
        wrong = "Spark's application has ended under the run"
        do = "the cluster's logs, and logs/spark.log of the run, say why"
        raise RunFailedError(wrong, got=reason, do=do)
    if tries > _MAX_RESUBMITS:
        raise RunFailedError("Spark gave the job up", got=reason, do=job.cure(job.error))
    warning = user_message("Spark gave the job up", got=reason, then="it is submitted again")
    emit(Warned(text=warning))
    return job.fresh_copy()


def _have_workers_joined(service: Awaited, job: SparkJob) -> bool:
    """Returns whether all workers have come; refuses to wait for those that cannot.

    Rows that a task of the user's frame refuses, before photinus's task can read them, are
    refused again at every retry.
    """
    slots = min(service.slots, _FIRST_SLOTS)
    leases = [service.lease(slot) for slot in range(slots)]
    if all(leases):
        return True
    failed = _checked_failures(job)
    if any(leases):
        return False
    cure = job.cure(failed.reason)
    if failed.own > _MAX_FAILURES * slots:
        wrong = "the tasks of Spark fail before their workers say hello"
        raise NotReadyError(wrong, got=failed.reason or None, do=cure or "photinus doctor")
    if failed.lost > _MAX_LOST:
        wrong = "the processes of Spark's tasks are lost before their workers say hello"
        raise NotReadyError(wrong, got=failed.reason, do=cure)
    return False
