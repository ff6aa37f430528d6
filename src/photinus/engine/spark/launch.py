"""Runs a function of the user's own as long-lived Spark tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from photinus.coordinator.loop_coordinator import LoopCoordinator
from photinus.core.errors import DataError, LinkLostError, UsageError
from photinus.core.signals import interruptible
from photinus.core.threads import limit_threads
from photinus.data.spark import partitioned
from photinus.data.table import TableRows
from photinus.deploy.executor_process import end_executor
from photinus.engine.agree import Loop
from photinus.engine.driver_session import ListeningService
from photinus.engine.spark.engine import check_slots, slots_of
from photinus.engine.spark.job import SparkJob, check_size, wait_for_end
from photinus.engine.spark.lost_tasks import LostTaskReporter
from photinus.engine.spark.resources import resources_of_task
from photinus.engine.spark.slots import held_slots
from photinus.engine.spark.task_runner import check_classic, loaded, pickle_function

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def launch_on_spark(
    function: Callable[..., object],
    data: DataFrame | None,
    spark: SparkSession,
    coordinator: LoopCoordinator,
    security: str,
    make_loop: Callable[[ListeningService], Loop],
) -> None:
    """Runs the function in one task for each slot, until all have returned.

    Args:
        function: it travels in the tasks' closure.
        data: its rows; None where it takes none.
        spark: the session.
        coordinator: of the run.
        security: tls, or none.
        make_loop: returns what every worker is sent.

    Raises:
        UsageError: there are not enough slots, the function is too large to send, or several
            columns have one name.
        NotReadyError: it is a session of Spark Connect.
    """
    check_classic(spark)
    if data is not None:
        _check_names(data.columns)
    workers, context = coordinator.leases.workers, spark.sparkContext
    emit = coordinator.callbacks.emit
    host, code = str(spark.conf.get("spark.driver.host", "127.0.0.1")), pickle_function(function)
    with interruptible():
        check_slots(spark, workers, emit=emit)
        slots = partial(slots_of, spark)
        with (
            held_slots(context.applicationId, workers, slots, emit),
            ListeningService(coordinator, host, security) as service,
        ):
            loop = make_loop(service)
            with limit_threads(loop.rendezvous.limits.threads):
                names = None if data is None else data.columns
                task = _task(loop, code, names)
                check_size(task)
                rows = spark.range(0, workers, 1, workers) if data is None else data
                # by numbers: mapInArrow takes the dot of a name for a path
                frame = partitioned(rows, workers).toDF(*map(str, range(len(rows.columns))))
                job = SparkJob(
                    context,
                    lambda: frame.mapInArrow(task, "slot int").collect(),
                    coordinator.callbacks.run.hex(),
                )
                lost_tasks = LostTaskReporter(service)
                wait_for_end(service, job, emit, on_poll=lost_tasks.look)


def _check_names(names: list[str]) -> None:
    """Refuses rows that are no dicts by column."""
    for name in names:
        if names.count(name) > 1:
            raise UsageError("several columns have one name", got=repr(name), do="rename them")


def _task(
    loop: Loop, code: bytes, names: list[str] | None
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None
        slot = task.partitionId()

        def call(*arguments: Any) -> None:  # noqa: ANN401 - what the user's function takes
            resources_of_task(task).bind()
            loaded(code, "the function")(*arguments)

        def read() -> list[TableRows]:
            rows = TableRows(
                batches if names is None else (batch.rename_columns(names) for batch in batches)
            )
            if not len(rows):
                do = "repartition the DataFrame, or use fewer workers"
                raise DataError(f"worker {slot} has no rows", do=do)
            return [] if names is None else [rows]

        try:
            loop.run(slot, str(task.taskAttemptId()), call, read)
        except LinkLostError:
            end_executor()
            raise
        yield pa.RecordBatch.from_arrays([pa.array([slot], pa.int32())], names=["slot"])

    return run
