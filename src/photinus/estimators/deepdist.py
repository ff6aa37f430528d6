"""DeepDist: trains any Python object from gradients of partitions."""

from __future__ import annotations

import copy
import functools
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from photinus.coordinator.callbacks import Callbacks, emit_to
from photinus.coordinator.task_server import TaskServer, UnitWork, WorkUnits
from photinus.core.addresses import local_folder
from photinus.core.errors import UsageError
from photinus.core.events import Event
from photinus.core.parameters import Vector
from photinus.core.settings import one_of, whole
from photinus.engine.spark.task_runner import (
    Parts,
    Work,
    loaded,
    parts_of_frame,
    parts_of_rdd,
    pickle_function,
    run_units,
)
from photinus.estimators.serialization import changed_attribute, rebuild_object, split_object
from photinus.protocol.row_versions import RowVersions
from photinus.protocol.serialization import packed, unpacked
from photinus.run.ledger_writer import LedgerWriter
from photinus.strategies.outer import OuterOptimizer

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import RDD
    from pyspark.sql import DataFrame, Row


_ADDRESS_ADVICE = "leave it out: workers find the driver by themselves"
_UPDATES_ADVICE = "leave it out: updates are applied one after the other, as they arrive"
_newest_by_call: dict[bytes, Any] = {}
"""In a worker's process: the newest arrays and values, by the id of the call of `train`."""
_OLD_ARGUMENTS = {
    "master": _ADDRESS_ADVICE,
    "host": _ADDRESS_ADVICE,
    "batch": "leave it out: a partition is one batch; rdd.repartition(n) changes its size",
    "min_updates": _UPDATES_ADVICE,
    "max_updates": _UPDATES_ADVICE,
}
"""Arguments of the original DeepDist -> what to do instead."""


def _refuse_old_arguments(init: Callable[..., None]) -> Callable[..., None]:
    """Refuses an argument of the original DeepDist with a message of its own."""

    @functools.wraps(init)
    def wrapper(self: DeepDist, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - as given
        arguments = (
            dict(zip(("master", "min_updates", "max_updates"), args[1:], strict=False)) | kwargs
        )
        for name in _OLD_ARGUMENTS.keys() & arguments:
            wrong = f"DeepDist has no argument {name}"
            raise UsageError(wrong, got=arguments[name], do=_OLD_ARGUMENTS[name])
        init(self, *args, **kwargs)

    return wrapper


class TrainingCounts(NamedTuple):
    """What one `train` counted."""

    partitions: int
    epochs: int
    updates: int
    """Applied by `descent`, each once."""
    empty: int
    """Partitions whose gradient was None or empty."""
    refused: tuple[int, ...]
    """Partitions whose numbers were not finite: `descent` never saw them."""
    duplicates: int
    """Updates that arrived again after they were applied."""
    fenced: int
    """Updates of a task that had lost its partition to another."""
    seconds: float
    bytes_sent: int
    """To workers: the model's arrays and values, or what moved of them."""
    bytes_received: int
    """From workers: what `gradient` returned."""


class DeepDist:
    """Trains any Python object on the partitions of an RDD or a DataFrame, as they come.

    For each partition p:  g ← gradient(model, rows of p), on a worker;  descent(model, g), here.

    A task fetches the newest model, computes on its whole partition, and pushes; updates are
    applied at once, one after the other. When a worker is lost its partition is done again by
    another task: each partition counts once an epoch.

    The object travels once, as a broadcast, without its arrays; those, and the numbers and texts
    that are its attributes, travel as frames. A broadcast lies in clear on the executors' disks;
    the key of the run is not in it.

    Args:
        model: any object that Python can copy by pickling; it is changed in place.
        folder: where `ledger.jsonl` is written, for `photinus audit`; None writes none.
        security: tls, or none: frames in clear, for a network that is trusted as a whole.
        callbacks: called with every event; without any, warnings go to the log `photinus`.

    Raises:
        UsageError: an argument is out of its limits.

    Example:
        >>> def gradient(model, rows):
        ...     return sum(row - model["mean"] for row in rows)
        >>> def descent(model, update):
        ...     model["mean"] += 0.01 * update
        >>> with DeepDist({"mean": np.zeros(3)}) as dd:  # doctest: +SKIP
        ...     dd.train(rdd, gradient, descent)

    Source: DeepDist (Neumann, 2014), after Downpour SGD (Dean et al., 2012).
    """

    @_refuse_old_arguments
    def __init__(
        self,
        model: Any,  # noqa: ANN401 - any object
        *,
        folder: Path | str | None = None,
        security: str = "tls",
        callbacks: Sequence[Callable[[Event], None]] = (),
    ) -> None:
        if not one_of("tls", "none").holds(security):
            raise UsageError("security must be tls or none", got=security)
        self.model = model
        self._security, self._emit = security, emit_to(callbacks)
        self._folder = None if folder is None else local_folder(folder, "a ledger is kept")
        self._run_id, self._term = secrets.token_bytes(16), 0
        self._ledger: LedgerWriter | None = None
        self._is_open = False

    def __enter__(self) -> Self:
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._ledger = LedgerWriter(self._folder / "ledger.jsonl", self._run_id)
        self._is_open = True
        return self

    def __exit__(self, *_: object) -> None:
        self._is_open = False
        if self._ledger is not None:
            self._ledger.close()

    def train(
        self,
        data: RDD[Any] | DataFrame,
        gradient: Callable[[Any, Iterator[Any]], Any],
        descent: Callable[[Any, Any], object],
        *,
        epochs: int = 1,
    ) -> TrainingCounts:
        """Computes on all partitions, and applies the result of each.

        Args:
            data: an RDD, or a DataFrame of a classic session.
            gradient: of the model, a fresh copy each time, and an iterator over the partition's
                elements (of a DataFrame, its `Row`s); returns arrays, numbers, texts, and lists,
                tuples and dicts of them. None or an empty one is not applied.
            descent: changes the model by what `gradient` returned.
            epochs: how often all partitions are done.

        Raises:
            UsageError: `gradient` returned anything else, or `descent` changed what cannot travel.
            NotReadyError: a module is missing on a worker, or the session is one of Connect.
            RunFailedError: `gradient` failed on a partition twice in the same way, or four times,
                `descent` failed once, or Spark gave the job up. The model holds what was applied
                so far.
        """
        if not self._is_open:
            wrong = "train works only within the with block"
            raise UsageError(wrong, do="with DeepDist(model) as dd: dd.train(...)")
        if not whole(1).holds(epochs):
            raise UsageError("epochs must be a whole number of at least 1", got=epochs)
        partitions, start_seconds = _partitions_of(data), time.monotonic()
        model_server = _ModelServer(self.model, descent)
        broadcast = partitions.context.broadcast(
            (secrets.token_bytes(16), pickle_function(gradient), model_server.outline)
        )
        counts, refused, bytes_received, bytes_sent = dict[str, int](), list[int](), 0, 0
        try:
            for _ in range(epochs):
                task_server = self._epoch_server(partitions.count, model_server)
                run_units(
                    partitions,
                    task_server,
                    _task_work(broadcast),
                    security=self._security,
                    again=False,
                )
                refused += task_server.refused
                bytes_received += task_server.bytes_received
                bytes_sent += task_server.bytes_sent
                for name, count in task_server.leases.counts.items():
                    counts[name] = counts.get(name, 0) + count
        finally:
            broadcast.destroy()
        return TrainingCounts(
            partitions=partitions.count,
            epochs=epochs,
            updates=counts["applied"] - model_server.empty,
            empty=model_server.empty,
            refused=tuple(refused),
            duplicates=counts["duplicate"],
            fenced=counts["fenced"],
            seconds=time.monotonic() - start_seconds,
            bytes_sent=bytes_sent,
            bytes_received=bytes_received,
        )

    def _epoch_server(self, partitions: int, model_server: _ModelServer) -> TaskServer:
        """Returns the coordinator of one epoch, under its own term."""
        self._term += 1
        callbacks = Callbacks(run=self._run_id, term=self._term, emit=self._emit)
        if self._ledger is not None:
            callbacks = replace(callbacks, enter=self._ledger.enter)
        return TaskServer(WorkUnits(count=partitions), model_server, callbacks)


class _ModelServer:
    """Holds the model, and applies updates to it, one at a time."""

    def __init__(self, model: object, descent: Callable[[Any, Any], object]) -> None:
        self._model, self._descent, self.empty = model, descent, 0
        self.outline, self._tree = split_object(model)
        self._first_tree = self._tree
        self._versions = RowVersions()
        self._versions.take(self._tree)
        self._packed_state: Vector | None = None

    def state(self, has: int) -> Vector:
        """Returns the arrays and plain values as they are now, without what the worker holds."""
        changed_rows = self._versions.since(has)
        if not changed_rows and self._packed_state is not None:
            return self._packed_state
        versioned_tree = {**self._tree, "version": self._versions.version}
        packed_state = packed(versioned_tree, "the model", changed_rows)
        if not changed_rows:
            self._packed_state = packed_state
        return packed_state

    def take(self, results: Sequence[Any]) -> bool:
        """Applies one update."""
        [update] = results
        if update is None or (isinstance(update, (dict, list, tuple)) and not update):
            self.empty += 1
            return True
        self._descent(self._model, update)
        outline, self._tree = split_object(self._model)
        if outline != self.outline:
            raise UsageError(
                "descent changed what cannot be sent to workers",
                got=changed_attribute(rebuild_object(self.outline, self._first_tree), self._model),
                do="keep it in an attribute that is an array or a plain value, or outside of "
                "the model",
            )
        self._versions.take(self._tree)
        self._packed_state = None
        return True


class Stepper:
    """Steps of an outer optimizer for a `descent`: its state stays in the driver, one a name.

    Args:
        outer: such as `Adagrad(lr=0.01)`, under which every number has a rate of its own.

    Example:
        >>> import numpy as np
        >>> from photinus import Adagrad
        >>> adagrad, weights = Stepper(Adagrad(lr=0.5)), np.zeros(2)
        >>> for _ in range(2):
        ...     weights += adagrad.step("weights", np.array([1.0, -3.0]))
        >>> weights.round(3).tolist()
        [0.854, -0.854]
    """

    def __init__(self, outer: OuterOptimizer) -> None:
        self._outer = outer
        self._states: dict[str, tuple[Vector, ...]] = {}

    def step(self, name: str, update: Vector) -> Vector:
        """Returns what to add to the parameters `name` for an update of the same shape."""
        state = self._states.get(name) or self._outer.init(update)
        step, self._states[name] = self._outer.update(update * 0, -update, state)
        return step


def _task_work(broadcast: Any) -> Work:  # noqa: ANN401 - any broadcast
    """Returns what a task does with its partition."""

    def work(partition: int, rows: Iterator[Any]) -> UnitWork:  # noqa: ARG001
        call_id, code, outline = broadcast.value
        gradient = loaded(code, "gradient")

        def compute(packed_state: Vector) -> Vector:
            update = gradient(rebuild_object(outline, _receive_newest(call_id, packed_state)), rows)
            return packed(update, "what gradient returns")

        return UnitWork(compute, _held_version(call_id))

    return work


def _held_version(call_id: bytes) -> int:
    """Returns which version of the model this process holds; 0: none."""
    version: int = _newest_by_call[call_id]["version"] if call_id in _newest_by_call else 0
    return version


def _receive_newest(call_id: bytes, packed_state: Vector) -> Any:  # noqa: ANN401 - any tree
    """Returns a copy of the newest version, which this process then holds."""
    newest = unpacked(packed_state, _newest_by_call.pop(call_id, None))
    _newest_by_call.clear()
    _newest_by_call[call_id] = newest
    return copy.deepcopy(newest)


def _partitions_of(data: Any) -> Parts:  # noqa: ANN401 - whatever a user gives
    """Returns the partitions of an RDD or a DataFrame.

    Raises:
        UsageError: it is neither.
    """
    if hasattr(data, "mapPartitionsWithIndex"):
        return parts_of_rdd(data)
    if hasattr(data, "mapInArrow"):
        return parts_of_frame(data, _spark_rows)
    wrong = "train needs an RDD or a DataFrame"
    raise UsageError(wrong, got=type(data).__name__, do="sc.parallelize(data, partitions)")


def _spark_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[Row]:
    """Yields Arrow's rows as Spark's."""
    from pyspark.sql import Row

    for batch in batches:
        row_class = Row(*batch.schema.names)
        for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            yield row_class(*values)
