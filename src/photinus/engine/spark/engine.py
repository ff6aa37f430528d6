"""Runs workers as long-lived Spark tasks, one per slot, around photinus's own coordinator.

No barrier stage: in one of these a lost executor ends the job. Spark starts only the task that
died again; it takes its slot with a higher lease, and continues; the others never stop.
"""

from __future__ import annotations

import logging
import re
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from photinus.coordinator.callbacks import log_warning
from photinus.coordinator.phases import RunResult
from photinus.core.errors import LinkLostError, NotReadyError, UsageError
from photinus.core.events import Event
from photinus.core.factories import functions_by_value, take_by_value
from photinus.core.settings import to_dict
from photinus.core.signals import interruptible
from photinus.core.threads import limit_threads
from photinus.data.arrow import ColumnSpec, arrays
from photinus.data.base import Array, Block
from photinus.data.checks import RowChecker, RowChecks
from photinus.data.columns import InputSpec
from photinus.data.inputs import Inputs, joined
from photinus.data.kept_rows import ONE_PROCESS, ReplicatedRows, run_plan_once
from photinus.data.rows import Rows, value_range
from photinus.data.spark import partitioned, selected, shape_of, shuffled
from photinus.data.spool import Budget, gather
from photinus.data.stream import StreamFeed
from photinus.deploy.executor_process import end_executor
from photinus.engine.base import ArrayData, Engine, RunSpec, part_of, training_dtype
from photinus.engine.driver_session import DriverSession
from photinus.engine.hooks import DriverHooks, Hooks, hooks_of
from photinus.engine.seat_sharing import SeatSharing, Urgency, waiting_warning
from photinus.engine.seat_table import SeatClaim, announced, claims_here
from photinus.engine.spark.connect.client import ConnectSession
from photinus.engine.spark.connect.coordinator_task import CoordinatorSpec
from photinus.engine.spark.decommission import DecommissionTracker, TaskMover
from photinus.engine.spark.executor_python import check_python
from photinus.engine.spark.job import (
    SparkJob,
    check_size,
    raise_task_error,
    run_query,
    wait_for_end,
)
from photinus.engine.spark.lent_executors import LentExecutors
from photinus.engine.spark.lost_tasks import LostTaskReporter
from photinus.engine.spark.resources import (
    amounts_of,
    executor_amounts,
    is_elastic,
    profile_of,
    resources_of_task,
)
from photinus.engine.spark.seat_jobs import SeatJobs
from photinus.engine.spark.sent_code import check_sent
from photinus.engine.spark.session import (
    array_cells,
    is_connect,
    session_warnings,
    spark_session,
    whole_setting,
)
from photinus.engine.spark.slots import (
    AbsenceReasons,
    StarvationWatch,
    count_held_slots,
    taken_slots,
    too_few,
    too_few_so_far,
)
from photinus.engine.worker_bootstrap import WorkerBootstrap
from photinus.models.module import ModuleConfig
from photinus.strategies.custom import CustomStrategy
from photinus.training.plan import TrainingPlan
from photinus.training.worker_loop import WorkerData

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.resource import ResourceProfile
    from pyspark.sql import DataFrame, SparkSession


_SCHEMA = "slot int, rows long, streams boolean"
_SLOT_SETTINGS = ("executor.cores", "task.cpus")
_log = logging.getLogger("photinus")
_REGISTER_SECONDS = 30.0
"""How long executors may take to register."""
_WARN_SECONDS = 3.0


@dataclass(frozen=True, kw_only=True, eq=False)
class FrameData:
    """Rows of a DataFrame.

    Args:
        frame: where the rows are.
        features: a column of vectors, arrays, bytes or images, or several columns of numbers.
        label: a column of numbers, several of them, or None.
        scale: features are handed out as float32(features) · scale; None as they are.
        checks: what every row must be.
        budget: of memory and disk, for each worker.
        shape: of one row's features, where it is known: else the first row is read for it.
        inputs: what `forward` takes, where that is more than one array; features are then left out.
        weight: a column of numbers: how much each row counts.
        held: a column of truth values: these rows are measured on, and not trained on.
        spec: what the columns are, where `frame` is what `selected` returned.
    """

    frame: DataFrame
    features: str | list[str] = "features"
    label: str | list[str] | None = None
    scale: float | None = None
    checks: RowChecks = field(default_factory=RowChecks)
    budget: Budget = field(default_factory=Budget)
    shape: tuple[int, ...] = ()
    inputs: InputSpec | None = None
    weight: str | None = None
    held: str | None = None
    spec: ColumnSpec | None = None

    def selected(self) -> tuple[DataFrame, ColumnSpec]:
        """Returns the columns that the workers need, and their description."""
        if self.spec is not None:
            return self.frame, self.spec
        return selected(
            self.frame,
            self.features,
            self.label,
            inputs=self.inputs,
            weight=self.weight,
            held=self.held,
        )


class SparkEngine(Engine):
    """Tasks of Spark through `DataFrame.mapInArrow`.

    Args:
        spark: the session; left out, the active one, or a local one made for the job.
        faults: faults to inject, of `photinus.testing.Faults`.
    """

    name = "spark"

    def __init__(self, spark: SparkSession | None = None, faults: Hooks | None = None) -> None:
        self._spark, self._hooks = spark, hooks_of(faults)

    def run(self, run_spec: RunSpec) -> RunResult:
        workers = run_spec.plan.workers
        if run_spec.plan.is_shared:
            raise UsageError("a DataFrame's rows are not shared", do="leave is_shared out")
        with interruptible():
            spark = self._spark or spark_session(workers)
        with interruptible():  # Spark has put a handler of its own in the place of the first
            return self._train(spark, run_spec)

    def _train(self, spark: SparkSession, run_spec: RunSpec) -> RunResult:
        workers = run_spec.plan.workers
        driver = self._hooks.driver(run_spec)
        run_spec = driver.run_spec
        if not is_connect(spark):
            check_python(spark.sparkContext)
        profile = profile_of(spark, run_spec.plan.resources, run_spec.emit)
        sharing = sharing_of(spark, run_spec, profile)
        with sharing.joined():
            check_slots(spark, workers, profile, sharing, run_spec.emit)
            return self._train_in_seats(spark, run_spec, driver, profile, sharing)

    def _train_in_seats(
        self,
        spark: SparkSession,
        run_spec: RunSpec,
        driver: DriverHooks,
        profile: ResourceProfile | None,
        sharing: SeatSharing,
    ) -> RunResult:
        for text in session_warnings(spark, has_view=run_spec.has_view):
            run_spec.warn(text)
        data = _as_frame_data(spark, run_spec.data, run_spec.plan)
        frame, spec = data.selected()
        functions = _functions_to_send(run_spec.plan, spec)
        check_sent(spark, functions)
        is_array = isinstance(run_spec.data, ArrayData)  # then to run it again costs little
        with nullcontext(frame) if is_array else run_plan_once(frame) as rows:
            shape = data.shape or run_query(spark, lambda: shape_of(rows, spec))
            spec = replace(spec, scale=data.scale, shape=shape)
            tasks = _Tasks(spark, profile, run_spec, functions, sharing)
            result = self._train_over(tasks, run_spec, driver, replace(data, frame=rows), spec)
            return replace(result, row_shape=shape)

    def _train_over(
        self,
        tasks: _Tasks,
        run_spec: RunSpec,
        driver: DriverHooks,
        data: FrameData,
        spec: ColumnSpec,
    ) -> RunResult:
        """Trains over rows that are selected, `data.frame`, with columns as in `spec`."""
        workers, frame, spark = run_spec.plan.workers, data.frame, tasks.spark
        host = str(spark.conf.get("spark.driver.host", "127.0.0.1"))

        def job(
            rows: DataFrame,
            bootstrap: WorkerBootstrap | CoordinatorSpec,
            streamed_rows: Mapping[int, int] | None = None,
            only_slots: frozenset[int] | None = None,
        ) -> SparkJob:
            task_spec = _TaskSpec(
                bootstrap,
                spec,
                data.checks,
                data.budget,
                streamed_rows,
                tasks.amounts,
                tasks.functions,
                only_slots,
            )
            return tasks.job(rows, _task(task_spec))

        if is_connect(spark):
            if not isinstance(run_spec.data, ArrayData):  # arrays were distributed already
                frame = partitioned(frame, workers)  # by a shuffle: no skew is left
            with ConnectSession(run_spec) as client, driver:
                first_job = job(frame, client.coordinator_spec(self._hooks, host))
                emit, on_interrupt = run_spec.emit, client.stop_on_signal
                wait_for_end(
                    client, first_job, emit, follow=raise_task_error, on_interrupt=on_interrupt
                )
                return client.result()
        slots = partial(slots_of, spark, tasks.profile)
        absence = AbsenceReasons(spark.sparkContext, workers, slots)
        run_spec = replace(run_spec, advice=absence.advice)
        tasks.sharing.wait_for_seats()
        other_job = taken_slots(spark.sparkContext, *self._hooks.taken())
        run_spec = replace(run_spec, can_shuffle=isinstance(run_spec.data, FrameData))
        threads = limit_threads(run_spec.plan.limits.threads)
        with (
            threads,
            ReplicatedRows() as rows,
            DriverSession(run_spec, host) as session,
            other_job,
            driver,
        ):
            session.yields = "ends"
            rows.keep(partitioned(frame, workers))

            def make_job(
                streamed_rows: Mapping[int, int] | None, only_slots: frozenset[int] | None = None
            ) -> SparkJob:
                return job(rows.frame, session.bootstrap(self._hooks), streamed_rows, only_slots)

            passes = _Passes(
                session, make_job, run_spec, lambda: rows.keep(shuffled(frame, workers))
            )
            mover = TaskMover(DecommissionTracker(spark.sparkContext), session, run_spec.emit)
            starvation = StarvationWatch(session.starved, run_spec.emit)
            lost_tasks = LostTaskReporter(session)

            def on_poll(job: SparkJob) -> None:
                absence.look(job)
                lost_tasks.look(job)
                mover.look(job.stages)
                starvation.look(job)
                seat_jobs.look(job)

            def follow(job: SparkJob) -> SparkJob | None:
                return passes.next(job) or (job if seat_jobs.has_yielded(job) else None)

            executors = LentExecutors(spark.sparkContext)
            make_seat_job = partial(make_job, None)
            with SeatJobs(tasks.sharing, session, make_seat_job, executors) as seat_jobs:
                wait_for_end(
                    session,
                    make_job(None),
                    run_spec.emit,
                    follow=follow,
                    on_interrupt=session.stop_on_signal,
                    on_poll=on_poll,
                )
        return session.result()


@dataclass(frozen=True, slots=True)
class _Tasks:
    """How the training's tasks are started."""

    spark: SparkSession
    profile: ResourceProfile | None
    run_spec: RunSpec
    functions: Mapping[str, Callable[..., Any]]
    """What the user sends by value."""
    sharing: SeatSharing

    @property
    def amounts(self) -> Mapping[str, float]:
        """What each asks for of Spark's resources."""
        return amounts_of(self.spark, self.run_spec.plan.resources)

    def job(self, rows: DataFrame, task: Any) -> SparkJob:  # noqa: ANN401 - as of `mapInArrow`
        """Returns the job that runs a task over each partition of `rows`."""
        check_size(task)
        options: dict[str, Any] = {} if self.profile is None else {"profile": self.profile}

        def collect() -> list[Any]:  # a plan that failed gives the same error again, and no job
            return rows.mapInArrow(task, _SCHEMA, **options).collect()

        owner = self.spark if is_connect(self.spark) else self.spark.sparkContext
        return SparkJob(owner, collect, self.run_spec.run.hex())


def _as_frame_data(spark: SparkSession, data: Any, plan: TrainingPlan) -> FrameData:  # noqa: ANN401
    if isinstance(data, FrameData):
        return data
    if isinstance(data, ArrayData):
        if isinstance(data.features, Inputs) or data.weights is not None:
            what = "several inputs" if isinstance(data.features, Inputs) else "weights of rows"
            wrong, do = f"the Spark engine cannot read {what} from arrays", "hand over a DataFrame"
            raise UsageError(wrong, got="an ArrayData", do=f'{do}, or engine="local"')
        return FrameData(
            frame=frame_of(spark, [data.part(plan, slot) for slot in range(plan.workers)]),
            features="features",
            label=None if data.labels is None else "label",
            scale=data.scale,
            checks=data.checks,
            shape=data.features.shape[1:],
        )
    raise UsageError("the Spark engine reads DataFrames and arrays", got=type(data).__name__)


def frame_of(spark: SparkSession, parts: Sequence[Block | tuple[Array, Array | None]]) -> DataFrame:
    """Returns arrays as a DataFrame with one partition for each part, in their order.

    Rows of uint8 become bytes, all others arrays of floats: what reads them must know their shape.

    Args:
        spark: the session.
        parts: features [n, ...] and labels [n] or None, of each.
    """
    import pandas as pd
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    features: list[Any] = [row for x, *_ in parts for row in x.reshape(len(x), -1)]
    is_bytes = parts[0][0].dtype == np.uint8
    features = [row.tobytes() for row in features] if is_bytes else array_cells(spark, features)
    table: dict[str, Any] = {"features": features}
    schema = "features " + ("binary" if is_bytes else "array<float>")
    labels = [part[1] for part in parts if part[1] is not None]
    if labels:
        is_whole = all(np.issubdtype(part.dtype, np.integer) for part in labels)
        table["label"] = np.concatenate(labels).astype(np.int64 if is_whole else np.float64)
        schema += ", label " + ("long" if is_whole else "double")
    table["key"] = np.repeat(_partition_keys(spark, len(parts)), [len(part[0]) for part in parts])
    frame = spark.createDataFrame(pd.DataFrame(table), schema + ", key long")
    return frame.repartition(len(parts), F.col("key")).drop("key")


def _partition_keys(spark: SparkSession, partitions: int) -> list[int]:
    """Returns for each partition a number that Spark's hash sends there."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    # among 32 tries for each, one is missed once in 10^12 / partitions
    numbers = spark.range(32 * partitions + 32)
    partition_rows = numbers.select(
        "id", F.pmod(F.hash("id"), F.lit(partitions)).alias("home")
    ).collect()
    key_by_partition = {int(row["home"]): int(row["id"]) for row in partition_rows}
    return [key_by_partition[partition] for partition in range(partitions)]


@dataclass(frozen=True, slots=True)
class _TaskSpec:
    """What a task is sent: how its worker starts, and how it reads its partition."""

    bootstrap: WorkerBootstrap | CoordinatorSpec
    spec: ColumnSpec
    checks: RowChecks
    budget: Budget
    streamed_rows: Mapping[int, int] | None
    """The partitions that stream, and how many rows each holds; None in a run's first job."""
    amounts: Mapping[str, float]
    """What the task asked for of Spark's resources, by name."""
    functions: Mapping[str, Callable[..., Any]]
    """What the user sends by value."""
    only_slots: frozenset[int] | None = None
    """The slots whose tasks train; the others' end at once."""

    def _training_rows(
        self, batches: Iterable[pa.RecordBatch], checker: RowChecker, set_aside: list[Block]
    ) -> Iterator[pa.RecordBatch]:
        """Yields the rows to train on; those that a column sets aside become blocks."""
        if self.spec.held is None:
            yield from batches
            return
        import pyarrow.compute as pc

        held_checker = RowChecker(checker.checks, checker.partition)
        for batch in batches:
            is_set_aside = batch.column(self.spec.held)
            held_batch = batch.filter(is_set_aside)
            if held_batch.num_rows:
                set_aside.append(arrays(held_batch, self.spec, held_checker))
            yield batch.filter(pc.invert(is_set_aside))

    def part(self, batches: Iterable[pa.RecordBatch], slot: int) -> tuple[WorkerData, bool]:
        """Opens a partition, and returns whether it streams.

        One that fits neither in memory nor on disk is only counted, and its rows are checked, in
        the first job; in each job after that it is one pass.
        """
        streamed_rows = self.streamed_rows or {}
        plan = self.bootstrap.plan
        no_budget = replace(self.budget, memory_bytes=0, disk_bytes=0)
        budget = no_budget if slot in streamed_rows else self.budget.within(plan.limits.memory)
        batches = self.bootstrap.hooks.batches(batches, slot)
        checker = RowChecker(self.checks, slot, lambda: training_dtype(plan))
        set_aside: list[Block] = []
        rows = gather(self._training_rows(batches, checker, set_aside), self.spec, checker, budget)
        if isinstance(rows, Rows):
            worker_data = part_of(rows, plan)
            if set_aside:
                held_rows = Rows.of(*_concatenated(set_aside), scale=self.spec.scale)
                worker_data = replace(worker_data, held=held_rows)
            return (
                worker_data if self.streamed_rows is None else replace(worker_data, passes=1)
            ), False
        if plan.measures:
            do = "use more workers or a larger budget, or validation=0"
            raise NotReadyError("rows that stream cannot be set aside to measure on", do=do)
        if isinstance(self.bootstrap, CoordinatorSpec):
            wrong = f"the rows of partition {slot} fit neither in memory nor on disk"
            do = "use more workers, or a classic session, where they stream"
            raise NotReadyError(wrong, got="Spark Connect", do=do)
        stream, total = rows, streamed_rows.get(slot)
        if total is None:
            count, span = 0, None
            for block in stream.blocks:
                count += len(block.features)
                span = span or value_range(block.features, stream.scale)
            return WorkerData(count, lambda order: StreamFeed(stream, order), 0, span=span), True
        return WorkerData(total, lambda order: StreamFeed(stream, order, rows=total), 1), True


def _functions_to_send(plan: TrainingPlan, spec: ColumnSpec) -> dict[str, Callable[..., Any]]:
    """Returns the user's functions that travel in the tasks' closure."""
    configs = [p.config for p in plan.phases if isinstance(p.config, ModuleConfig)]
    strategies = [p.strategy for p in plan.phases if isinstance(p.strategy, CustomStrategy)]
    inputs = [] if spec.inputs is None else [spec.inputs]
    return functions_by_value([to_dict(settings) for settings in (*configs, *strategies, *inputs)])


def _concatenated(blocks: Sequence[Block]) -> Block:
    """Returns all blocks' rows as one."""
    parts = zip(*blocks, strict=True)
    return Block(*(None if part[0] is None else joined(part) for part in parts))


def _task(task_spec: _TaskSpec) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns what a task runs: it reads its partition, trains, and yields one row."""

    def train(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import SparkFiles, TaskContext

        task = TaskContext.get()
        assert task is not None
        take_by_value(task_spec.functions)
        slot, report = task.partitionId(), {"rows": 0, "streams": False}

        def open_part() -> WorkerData:
            worker_data, streams = task_spec.part(batches, slot)
            report.update(rows=worker_data.rows, streams=streams)
            return worker_data

        if task_spec.only_slots is not None and slot not in task_spec.only_slots:
            return
        try:
            resources = resources_of_task(task, task_spec.amounts)
            shared_folder = SparkFiles.getRootDirectory()
            task_spec.bootstrap.run(
                slot, str(task.taskAttemptId()), open_part, resources, shared_folder
            )
        except LinkLostError:
            end_executor()
            raise
        # not `pa.array`, which loads pandas: .4 seconds of a processor in each worker
        numbers: dict[str, tuple[pa.DataType, np.generic]] = {
            "slot": (pa.int32(), np.int32(slot)),
            "rows": (pa.int64(), np.int64(report["rows"])),
            "streams": (pa.bool_(), np.bool_(report["streams"])),
        }
        columns = [
            pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(number.tobytes())])
            for kind, number in numbers.values()
        ]
        yield pa.RecordBatch.from_arrays(columns, names=list(numbers))

    return train


class _Passes:
    """Where rows stream, every pass over them is a job of its own; so is training after a shuffle.

    All are jobs of one term: the coordinator runs here and keeps its state, and leases fence what
    an older job left behind.
    """

    def __init__(
        self,
        session: DriverSession,
        make_job: Callable[[Mapping[int, int] | None], SparkJob],
        run_spec: RunSpec,
        shuffle: Callable[[], None],
    ) -> None:
        self._session, self._make_job = session, make_job
        self._run_spec, self._shuffle = run_spec, shuffle
        self._streamed_rows: Mapping[int, int] = {}

    def next(self, job: SparkJob) -> SparkJob | None:
        """Returns the job of the next pass; None where the last one is not over."""
        if not self._session.is_between_passes or job.error is not None:
            return None
        if self._session.wants_shuffle:
            self._shuffle()
            self._session.next_pass()
            return self._make_job(None)
        streams = {row["slot"]: row["rows"] for row in job.rows if row["streams"]}
        if streams != self._streamed_rows:
            _check_passes(streams, self._run_spec)
        self._session.next_pass()
        self._streamed_rows = streams
        return self._make_job(streams)


def _check_passes(streams: Mapping[int, int], run_spec: RunSpec) -> None:
    """Warns what streaming costs; refuses a step that would be a whole partition."""
    slots = ", ".join(map(str, sorted(streams)))
    wrong = f"the rows of partition {slots} fit neither in memory nor on disk"
    do = "use more workers, or a larger budget"
    for phase in run_spec.plan.phases:
        if getattr(phase.strategy.worker(), "whole_part", False):
            raise NotReadyError(f"{wrong}, and {phase.name} takes them in one step", do=do)
    then = "each pass over them is a Spark job of its own, in their order of arrival"
    run_spec.warn(wrong, then=then, do=do)


def sharing_of(
    spark: SparkSession, run_spec: RunSpec, profile: ResourceProfile | None
) -> SeatSharing:
    """Returns how a run shares the slots of its application, and those of others' where asked."""
    is_on_connect = is_connect(spark)
    if is_on_connect and not run_spec.urgency.is_plain:
        wrong = "a run on Spark Connect shares no seats"
        run_spec.warn(wrong, then="priority, weight and jobs_folder are ignored")
    claim = SeatClaim(
        run=run_spec.run.hex(),
        place=run_spec.run.hex() if is_on_connect else spark.sparkContext.applicationId,
        workers=run_spec.plan.workers,
    )
    urgency = Urgency() if is_on_connect else run_spec.urgency
    return SeatSharing(urgency, claim, lambda: slots_of(spark, profile), run_spec.emit)


@contextmanager
def claim_seats(
    spark: SparkSession, workers: int, priority: int, weight: float | None
) -> Iterator[None]:
    """Has less urgent runs give seats up for a fit: its first queries need slots, too."""
    if is_connect(spark):
        yield
        return
    claim = SeatClaim(
        run=f"fit-{secrets.token_hex(8)}",
        place=spark.sparkContext.applicationId,
        slots=slots_of(spark, None),
        workers=workers,
        priority=priority,
        weight=weight,
    )
    taken_seats = sum(run.held for run in claims_here(claim.place).values())
    if claim.slots is not None and taken_seats + workers > claim.slots:
        _log.warning(waiting_warning(claim, taken_seats, "fit"))
    with announced(claim):
        yield


def check_slots(
    spark: SparkSession,
    workers: int,
    profile: ResourceProfile | None = None,
    sharing: SeatSharing | None = None,
    emit: Callable[[Event], None] = log_warning,
) -> None:
    """Refuses at once when there can never be as many slots as workers.

    Where executors may still come they are waited for, and a warning says how many slots there are.

    Raises:
        UsageError: the application has fewer; the message says how many.
    """
    pause, waited = threading.Event(), 0.0
    slots = slots_of(spark, profile)
    can_grow = _may_have(spark, workers, profile)
    while slots is not None and slots < workers and can_grow and waited < _REGISTER_SECONDS:
        if waited == _WARN_SECONDS:
            emit(too_few_so_far(workers, slots, _REGISTER_SECONDS - waited))
        pause.wait(0.5)
        # another application may have to give its executors up first
        waited = 0.0 if sharing is not None and sharing.is_owed_seats() else waited + 0.5
        slots = slots_of(spark, profile)
    if slots is not None and slots < workers:
        raise too_few(workers, slots, "cores" if profile is None else "cores or resources")


def _may_have(spark: SparkSession, workers: int, profile: ResourceProfile | None) -> bool:
    """Returns whether executors that are still to register may have so many slots."""
    conf = spark.conf
    if re.match(ONE_PROCESS, str(conf.get("spark.master", "local"))):
        return False
    is_standalone = str(conf.get("spark.master", "")).startswith("spark://")
    # a task of a profile may take other cores
    most_cores = str(conf.get("spark.cores.max", "")) if is_standalone and profile is None else ""
    if not most_cores:
        return True
    cpus = whole_setting(conf, "spark.task.cpus", 1)
    return whole_setting(conf, "spark.cores.max", 1) // cpus >= workers


def free_slots(spark: SparkSession) -> int:
    """Returns how many tasks can start now, at least 1.

    Raises:
        UsageError: there is no bound, or a client of Spark Connect cannot see it.
    """
    slots = slots_of(spark)
    if slots is None:
        wrong = "Spark does not say how many tasks can run at the same time"
        raise UsageError(wrong, got="numWorkers 0, which takes all of them", do="set numWorkers")
    taken = 0 if is_connect(spark) else count_held_slots(spark.sparkContext.applicationId)
    return max(1, slots - taken)


def max_slots(spark: SparkSession, profile: ResourceProfile | None) -> int | None:
    """Returns how many tasks can run at most where Spark starts executors by need."""
    conf = spark.conf
    max_executors = whole_setting(conf, "spark.dynamicAllocation.maxExecutors", 2147483647)
    cores, cpus = (whole_setting(conf, f"spark.{key}", 1) for key in _SLOT_SETTINGS)
    slots_each = cores // cpus
    if profile is not None:  # of a resource, an executor may have less than its cores would take
        amounts = {name: requested.amount for name, requested in profile.taskResources.items()}
        amounts.pop("cpus", None)
        executor_has = executor_amounts(spark, amounts)
        slots_each = min(
            [slots_each, *(int(executor_has[name] / amount) for name, amount in amounts.items())]
        )
    return None if max_executors > 1_000_000 else max_executors * slots_each


def slots_of(spark: SparkSession, profile: ResourceProfile | None = None) -> int | None:
    """Returns how many tasks can run at the same time, of a stage with this profile.

    None where there is no bound, or where a client of Spark Connect cannot see it.
    """
    conf = spark.conf
    if is_connect(spark):
        match = re.fullmatch(r"local\[(\d+)(,.*)?\]", str(conf.get("spark.master", "")))
        return int(match[1]) if match else None
    scala = spark.sparkContext._jsc.sc()
    if is_elastic(spark):
        return max_slots(spark, profile)
    if str(conf.get("spark.master", "")) == "yarn":  # which starts containers when it has room
        cores, cpus = (whole_setting(conf, f"spark.{key}", 1) for key in _SLOT_SETTINGS)
        return whole_setting(conf, "spark.executor.instances", 2) * (cores // cpus)
    manager = scala.resourceProfileManager()
    if profile is None or (requested := profile._java_resource_profile) is None:
        return int(scala.maxNumConcurrentTasks(manager.defaultResourceProfile()))
    manager.addResourceProfile(requested)
    return int(scala.maxNumConcurrentTasks(requested))
