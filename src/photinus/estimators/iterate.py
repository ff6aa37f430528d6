"""Runs any iterative algorithm: compute on rows, combine, update."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from photinus.coordinator.callbacks import Callbacks, emit_to
from photinus.coordinator.task_server import TaskServer, UnitWork, WorkUnits
from photinus.core.addresses import local_folder
from photinus.core.errors import NotReadyError, UsageError
from photinus.core.events import Event
from photinus.core.parameters import Vector
from photinus.core.settings import one_of, whole
from photinus.data.base import Batch
from photinus.data.checks import RowChecker, RowChecks
from photinus.data.rows import Rows, scaled
from photinus.data.spark import columns, partitioned
from photinus.data.spool import Budget, gather
from photinus.engine.spark.engine import check_slots, slots_of
from photinus.engine.spark.job import run_query
from photinus.engine.spark.task_runner import (
    Work,
    check_classic,
    loaded,
    parts_of_frame,
    pickle_function,
    run_units,
)
from photinus.protocol.serialization import packed, unpacked
from photinus.run.ledger_writer import LedgerWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from photinus.data.arrow import ColumnSpec


class Iterated(NamedTuple):
    """What an iterative algorithm ended with."""

    state: Any
    """What `update` returned last."""
    rounds: int
    """How many there were."""
    is_done: bool
    """False when the rounds were used up before `update` ended the algorithm."""


def iterate(
    df: DataFrame,
    compute: Callable[[Any, Batch], Any],
    combine: Callable[[list[Any]], Any],
    update: Callable[[Any, Any], tuple[Any, bool]],
    *,
    start: Any,  # noqa: ANN401 - arrays and plain values
    rounds: int = 100,
    features: str | list[str] = "features",
    label: str | None = None,
    scale: float | None = None,
    workers: int | None = None,
    folder: Path | str | None = None,
    security: str = "tls",
    callbacks: Sequence[Callable[[Event], None]] = (),
) -> Iterated:
    """Runs rounds on long-lived tasks that read their rows once, in the form of IterativeReduce.

    In every round:  pᵢ ← compute(state, rows of worker i);  total ← combine([p₁, …, p_K]);
    (state, is_done) ← update(state, total).

    A round waits for every worker: when one is lost, another task reads its rows and computes its
    part of the round. So a fault changes no result. States and parts are arrays, numbers, texts,
    None, and lists, tuples and dicts of them.

    Args:
        df: the rows, of a classic session.
        compute: of a state and a `Batch` of all rows of a worker: `features` [n, ...], read-only,
            and `labels` [n] or None. n may be 0.
        combine: of the workers' parts, in the order of their slots; in the driver.
        update: of the state and what was combined; in the driver.
        start: the first state.
        rounds: the most rounds.
        features: a column of vectors, arrays, bytes, images or numbers, or several of numbers.
        label: a column of numbers.
        scale: features are handed out as float32(features) · scale; None as they are.
        workers: tasks at the same time; left out, one a partition, as far as there are slots.
        folder: where `ledger.jsonl` is written, for `photinus audit`; None writes none.
        security: tls, or none: frames in clear, for a network that is trusted as a whole.
        callbacks: called with every event; without any, warnings go to the log `photinus`.

    Raises:
        UsageError: a function returned something else, or an argument is out of its limits.
        DataError: a column or a row is wrong.
        NotReadyError: the cluster lacks slots or a module.
        RunFailedError: `combine` or `update` failed, or `compute` did on a worker, twice in the
            same way or four times.

    Example:
        >>> iterate(  # doctest: +SKIP
        ...     df,
        ...     compute=lambda mean, rows: rows.features.sum(axis=0),
        ...     combine=sum,
        ...     update=lambda mean, total: (total / 1000, True),
        ...     start=np.zeros(3),
        ... ).state

    Source: IterativeReduce (Patterson, KnittingBoar, 2013).
    """
    _check_arguments(start, rounds, security)
    spark = df.sparkSession
    check_classic(spark)
    count = workers if workers is not None else 1
    check_slots(spark, count)
    frame, spec = run_query(df.sparkSession, lambda: columns(df, features, label))
    if workers is None:
        slots = slots_of(spark)
        count = df.rdd.getNumPartitions()
        count = max(1, count if slots is None else min(count, slots))
    partitions = parts_of_frame(partitioned(frame, count))
    iteration, run_id = _Iteration(start, combine, update, rounds), secrets.token_bytes(16)
    with ExitStack() as stack:
        broadcast = spark.sparkContext.broadcast(pickle_function(compute))
        stack.callback(broadcast.destroy)
        server_callbacks = Callbacks(run=run_id, emit=emit_to(callbacks))
        if folder is not None:
            kept_in = local_folder(folder, "a ledger is kept")
            kept_in.mkdir(parents=True, exist_ok=True)
            ledger = LedgerWriter(kept_in / "ledger.jsonl", run_id)
            stack.callback(ledger.close)
            server_callbacks = replace(server_callbacks, enter=ledger.enter)
        units = WorkUnits(
            count=count, together=True, unit="worker", work="compute", taking="update"
        )
        task_server = TaskServer(units, iteration, server_callbacks)
        work = _work(broadcast, replace(spec, scale=scale), Budget())
        run_units(partitions, task_server, work, security=security, again=True)
    return Iterated(iteration.value, iteration.rounds, iteration.is_done)


class _Iteration:
    """Holds the state; combines and updates."""

    def __init__(
        self,
        start: object,
        combine: Callable[[list[Any]], Any],
        update: Callable[[Any, Any], tuple[Any, bool]],
        max_rounds: int,
    ) -> None:
        self.value, self.rounds, self.is_done = start, 0, False
        self._combine, self._update, self._max_rounds = combine, update, max_rounds
        self._packed_state = packed(start, "start")

    def state(self, has: int) -> Vector:  # noqa: ARG002 - as all rules
        """Returns the state as it was after the last round."""
        return self._packed_state

    def take(self, results: Sequence[Any]) -> bool:
        """Takes in one round."""
        updated = self._update(self.value, self._combine(list(results)))
        if not isinstance(updated, tuple) or len(updated) != 2:
            got = type(updated).__name__
            raise UsageError("update must return (state, is_done)", got=got)
        self._packed_state = packed(updated[0], "the state that update returns")
        self.value, self.is_done = updated[0], bool(updated[1])
        self.rounds += 1
        return self.is_done or self.rounds >= self._max_rounds


def _work(broadcast: Any, spec: ColumnSpec, budget: Budget) -> Work:  # noqa: ANN401 - a broadcast
    """Returns what a task does: it reads its rows once, and computes on them every round."""

    def work(slot: int, batches: Iterator[Any]) -> UnitWork:
        compute = loaded(broadcast.value, "compute")
        rows = gather(batches, spec, RowChecker(RowChecks(), slot), budget)
        if not isinstance(rows, Rows):
            raise NotReadyError(
                f"the rows of partition {slot} fit neither in memory nor on disk",
                got=f"{budget.memory_bytes >> 20} MiB and {budget.disk_bytes >> 20} MiB",
                do="use more workers",
            )
        is_scaled = rows.scale is not None
        features = scaled(rows.features.copy() if is_scaled else rows.features, rows.scale)
        batch = Batch(features.view(), rows.labels)
        batch.features.setflags(write=False)

        def compute_round(packed_state: Vector) -> Vector:
            return packed(compute(unpacked(packed_state), batch), "what compute returns")

        return UnitWork(compute_round)

    return work


def _check_arguments(start: object, rounds: object, security: object) -> None:
    packed(start, "start")
    if not whole(1).holds(rounds):
        raise UsageError("rounds must be a whole number of at least 1", got=rounds)
    if not one_of("tls", "none").holds(security):
        raise UsageError("security must be tls or none", got=security)
