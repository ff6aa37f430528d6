"""Runs units of work as Spark tasks: partitions of an RDD or a DataFrame."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from photinus.coordinator.task_server import TaskServer, UnitWork, unit_requests
from photinus.core.errors import NotReadyError, UsageError
from photinus.core.signals import interruptible
from photinus.core.threads import limit_threads
from photinus.engine.driver_session import ListeningService
from photinus.engine.spark.executor_python import check_python
from photinus.engine.spark.job import SparkJob, check_size, wait_for_end
from photinus.engine.spark.session import is_connect, whole_setting
from photinus.engine.worker_bootstrap import reported_error
from photinus.training.plan import WorkerLimits

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import RDD, SparkContext
    from pyspark.sql import DataFrame, SparkSession


Work = Callable[[int, Iterator[Any]], UnitWork]
"""Made in a task, of its unit and its rows."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Data in parts, and how a job over them is made."""

    context: SparkContext
    count: int
    make_job: Callable[[Callable[[int, Iterator[Any]], Iterator[Any]]], Callable[[], list[Any]]]
    """Takes what a task does, and returns what starts the job."""


def parts_of_rdd(rdd: RDD[Any]) -> Parts:
    """Returns the partitions of an RDD; a task reads its elements."""

    def make_job(task: Callable[[int, Iterator[Any]], Iterator[Any]]) -> Callable[[], list[Any]]:
        return rdd.mapPartitionsWithIndex(lambda n, rows: task(n, iter(rows))).collect

    return Parts(rdd.context, rdd.getNumPartitions(), make_job)


def parts_of_frame(df: DataFrame, read: Callable[[Any], Iterator[Any]] = iter) -> Parts:
    """Returns the partitions of a DataFrame.

    Args:
        df: the rows, of a classic session.
        read: makes what a task reads out of its Arrow record batches.

    Raises:
        NotReadyError: it is a DataFrame of Spark Connect.
    """
    check_classic(df.sparkSession)

    def make_job(task: Callable[[int, Iterator[Any]], Iterator[Any]]) -> Callable[[], list[Any]]:
        def run_partition(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from pyspark import TaskContext

            context = TaskContext.get()
            assert context is not None
            yield from task(context.partitionId(), read(batches))

        return df.mapInArrow(run_partition, "unit int").collect

    return Parts(df.sparkSession.sparkContext, df.rdd.getNumPartitions(), make_job)


def check_classic(spark: SparkSession) -> None:
    """Refuses a session of Spark Connect.

    Raises:
        NotReadyError: it is one.
    """
    if is_connect(spark):
        raise NotReadyError(
            "Spark Connect has no RDDs, and its tasks cannot reach a server in the client",
            do="use a classic session; photinus.train and the estimators run on Spark Connect, too",
        )


def run_units(parts: Parts, owner: TaskServer, work: Work, *, security: str, again: bool) -> None:
    """Does all units as tasks of Spark; a task that is started again counts once.

    Args:
        parts: the data, a part a unit.
        owner: the coordinator of the work.
        work: what a task does with its rows; it travels in the task's closure.
        security: tls, or none.
        again: whether a task can repeat its work without reading its rows again.

    Raises:
        PhotinusError: as the owner or a worker reported it.
    """
    if not parts.count:
        raise UsageError("there are no partitions", do="look at where the data is read")
    check_python(parts.context)
    conf = parts.context.getConf()
    host = conf.get("spark.driver.host", "127.0.0.1")
    threads = whole_setting(conf, "spark.task.cpus", 1)
    thread_limit = limit_threads(threads)
    with interruptible(), thread_limit, ListeningService(owner, str(host), security) as service:
        rendezvous = service.call(WorkerLimits(threads=threads))

        def task(unit: int, rows: Iterator[Any]) -> Iterator[Any]:
            from pyspark import TaskContext

            context = TaskContext.get()
            attempt = "" if context is None else str(context.taskAttemptId())
            rendezvous.run_worker(
                unit, attempt, lambda: unit_requests(work(unit, rows), can_repeat=again)
            )
            return iter(())

        check_size(task)
        job = SparkJob(parts.context, parts.make_job(task), owner.callbacks.run.hex())
        wait_for_end(service, job, owner.callbacks.emit)
    if owner.failure:
        raise reported_error(owner.failure, owner.failure_kind) from owner.cause


def pickle_function(function: object) -> bytes:
    """Returns a function as Spark sends its closures: for a broadcast."""
    from pyspark import cloudpickle

    code: bytes = cloudpickle.dumps(function)  # type: ignore[no-untyped-call]
    return code


def loaded(code: bytes, what: str) -> Any:  # noqa: ANN401 - any function
    """The inverse of `pickle_function`, for what the driver sent by a broadcast.

    Raises:
        NotReadyError: a module that it needs is missing here.
    """
    from pyspark import cloudpickle

    try:
        return cloudpickle.loads(code)
    except Exception as error:
        raise NotReadyError(
            f"{what} cannot be loaded on a worker",
            got=f"{type(error).__name__}: {error}",
            do="install the module on every worker, or send it with SparkContext.addPyFile",
        ) from error
