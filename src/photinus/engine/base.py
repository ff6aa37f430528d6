"""The interface of an engine: runs a plan's workers and returns what they agreed on."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from photinus.coordinator.callbacks import Callbacks
from photinus.coordinator.phases import RunResult
from photinus.core.errors import UsageError
from photinus.core.seeds import generator
from photinus.core.settings import Limit, above, at_least, one_of, validate, whole
from photinus.data.arrays import PartitionFeed
from photinus.data.base import Array, Block, Features
from photinus.data.checks import ColumnNames, RowChecker, RowChecks
from photinus.data.inputs import Inputs
from photinus.data.label_skew import label_counts
from photinus.data.rows import Rows, value_range
from photinus.data.shared import SharedFeed
from photinus.engine.seat_sharing import Urgency
from photinus.training.plan import TrainingPlan
from photinus.training.snapshots import RunSnapshot
from photinus.training.worker_loop import WorkerData

SOCKETS = "sockets"
BACKENDS = {"torch": "gloo", "nccl": "nccl"}
"""Transport -> what of torch.distributed makes the sums there."""
MEMORY_RAN_OUT = "if nobody killed it, memory ran out"
"""A SIGKILL of the system looks like one of any other sender."""


@dataclass(frozen=True, slots=True, eq=False)
class ArrayData:
    """Rows in the driver's memory: `features` [n, ...], `labels` [n] or None.

    Args:
        features: what the model reads: an array whose first axis counts the rows, or `Inputs`.
        labels: a number for each row; None where the model needs none.
        scale: features are handed out as float32(features) · scale; None as they are.
        checks: what every row must be.
        weights: how much each row counts, float32 [n]; None for all alike.
        columns: the names of features and labels, for messages.
    """

    features: Features
    labels: Array | None = None
    scale: float | None = None
    checks: RowChecks = field(default_factory=RowChecks)
    weights: Array | None = None
    columns: ColumnNames = ("features", "label")
    LIMITS = {"scale": Limit.optional(at_least(0))}  # noqa: RUF012

    def __post_init__(self) -> None:
        check_arrays(self.features, self.labels)
        if not isinstance(self.features, Inputs):
            object.__setattr__(self, "features", native(self.features))
        if self.labels is not None:
            object.__setattr__(self, "labels", native(self.labels))
        validate(self)

    def part(self, plan: TrainingPlan, slot: int) -> Block:
        """Returns one slot's rows: a share of a permutation that the seed gives, or all rows."""
        labels = None if self.labels is None else _widened(self.labels)
        rows = Block(self.features, labels, self.weights)
        return rows if plan.is_shared else rows.part(self.numbers(plan, slot))

    def numbers(self, plan: TrainingPlan, slot: int) -> NDArray[np.int64]:
        """Returns the numbers of one slot's rows [m] in `features`."""
        if plan.is_shared:
            return np.arange(len(self.features))
        order = generator(plan.seed, "deal").permutation(len(self.features))
        return np.sort(np.array_split(order, plan.workers)[slot])

    def checked(self, plan: TrainingPlan) -> ArrayData:
        """Returns the rows that pass their checks.

        Raises:
            DataError: a row is wrong, by its number in `features`.
        """
        checker = RowChecker(self.checks, training_dtype=lambda: training_dtype(plan))
        checker.open(len(self.features))
        block = Block(self.features, self.labels, self.weights)
        rows = checker.checked(block, self.columns, self.scale)
        return replace(self, features=rows.features, labels=rows.labels, weights=rows.weights)


_DENSE_MAKERS = ("to_dense", "toarray")
"""What a sparse tensor, or a sparse matrix of SciPy, is made an array by."""


def check_arrays(features: Any, labels: Any) -> None:  # noqa: ANN401 - what a user may give
    """Checks rows in memory: features [n, ...] and labels [n, ...] or None.

    Raises:
        UsageError: they are no arrays of numbers, there are none, or not equally many.
    """
    if not isinstance(features, Inputs):
        _check_kind("features", features, "make them numbers")
    if labels is not None:
        _check_kind("labels", labels, "number the classes 0, 1, 2, ...")
    if len(features) == 0:
        raise UsageError("there are no rows", do="look at where the data is read")
    if labels is not None and len(labels) != len(features):
        got = f"{len(features)} and {len(labels)}"
        raise UsageError("features and labels must be equally many", got=got)


def _check_kind(name: str, rows: Any, do: str) -> None:  # noqa: ANN401 - what a user may give
    if not isinstance(rows, np.ndarray):
        makers = (maker for maker in _DENSE_MAKERS if hasattr(rows, maker))
        maker = next(makers, "")  # np.asarray of a sparse matrix is one object
        do = f"{maker}() makes one" if maker else "np.asarray(...) makes one"
        raise UsageError(f"{name} must be a NumPy array", got=type(rows).__name__, do=do)
    if isinstance(rows, np.ma.MaskedArray) and np.ma.is_masked(rows):
        do = "leave these rows out, or fill them in: filled(...)"
        raise UsageError(f"{name} must be known numbers", got="a masked array", do=do)
    if rows.dtype == object and _is_ragged(rows):
        advice = "hand them over as an input: ({'tokens': rows}, labels); each batch is then padded"
        raise UsageError(f"{name} must be rows of one length", got="a ragged array", do=advice)
    if rows.dtype.kind not in "fiub":
        raise UsageError(f"{name} must hold numbers", got=rows.dtype, do=do)
    if rows.ndim == 0:
        raise UsageError(f"{name} must have a row for each example", got="a single number")


def _is_ragged(rows: Array) -> bool:
    return len({len(row) for row in rows.flat if isinstance(row, (list, tuple, np.ndarray))}) > 1


def native(rows: Array) -> Array:
    """Returns rows in this machine's order of bytes, which is what models read."""
    return rows.astype(rows.dtype.newbyteorder("="), copy=False)


def training_dtype(plan: TrainingPlan) -> str:
    """Returns the type of the numbers that a plan trains on: float32 or float64."""
    return plan.phases[0].config.blank((), plan.seed).parameters.layout.dtype


def _widened(labels: Array) -> Array:
    """Labels as Spark reads them: the order of rows by their content is then the same."""
    is_whole = np.issubdtype(labels.dtype, np.integer)
    return labels.astype(np.int64 if is_whole else np.float64, copy=False)


def part_of(rows: Rows, plan: TrainingPlan) -> WorkerData:
    """Returns a worker's part: its own rows, or its share of rows that all can read."""
    if plan.validation:
        rows, validation_rows = rows.parted(plan.validation)
        return replace(part_of(rows, replace(plan, validation=0.0)), held=validation_rows)
    config = plan.phases[0].config
    should_measure_span = config.reads_probabilities or config.is_far_by_features
    span = value_range(rows.features, rows.scale) if should_measure_span else None
    if not plan.is_shared:
        labels = label_counts(rows.labels)
        return WorkerData(
            len(rows),
            lambda order: PartitionFeed(rows, order),
            labels=labels,
            span=span,
            digest=rows.digest(),
            room=rows.room,
            is_weightless=rows.is_weightless,
        )
    return WorkerData(
        -(-len(rows) // plan.workers),
        lambda order: SharedFeed(rows, order),
        span=span,
        digest=rows.digest(),
        room=rows.room,
        is_weightless=rows.is_weightless,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSpec(Callbacks):
    """What an engine runs: a plan, its data, and the coordinator's callbacks and timeouts."""

    plan: TrainingPlan
    data: Any
    """ArrayData, or what the engine reads besides."""
    run: bytes
    """The run's 16 bytes, which no other run has."""
    snapshot: RunSnapshot | None = None
    """What to continue from."""
    has_view: bool = False
    """A live view of the run is drawn on a screen."""
    security: str = "tls"
    """none: frames in clear, for a network that is trusted as a whole."""
    transport: str = SOCKETS
    """Or the address of a folder that all see: frames are then files in it; torch: workers sum up
    through torch.distributed."""
    restarts: int = 100
    """How many lost workers may be started again, in all."""
    reconnect_seconds: float = 30.0
    """How long a worker looks for a coordinator that it lost, before it ends by itself."""
    folder: str = ""
    """The run's, where there is one: on Spark Connect the coordinator finds it from its task."""
    urgency: Urgency = field(default_factory=Urgency)
    """How it stands among other runs that want the same seats."""
    fingerprint: str = ""
    """Of the job, which its checkpoints must have."""
    LIMITS = {  # noqa: RUF012
        **Callbacks.LIMITS,
        "security": one_of("tls", "none"),
        "restarts": whole(0),
        "reconnect_seconds": above(0),
    }

    @property
    def backend(self) -> str:
        """The backend of torch.distributed that makes the sums; empty: none of them."""
        return BACKENDS.get(self.transport, "")

    def sent(self) -> RunSpec:
        """Returns what is sent to a task in which the coordinator runs."""
        defaults = Callbacks()
        return replace(
            self,
            plan=self.plan.sent(),
            data=None,
            snapshot=None,
            emit=defaults.emit,
            enter=defaults.enter,
            save=defaults.save,
            best=defaults.best,
            scratch=defaults.scratch,
            advice=defaults.advice,
        )


class Engine(ABC):
    """Where workers run: simulated, on this machine, or as tasks of Spark."""

    name: str

    def clock(self) -> float:
        """Returns the seconds in which its runs pass; they never go back."""
        return time.monotonic()

    @abstractmethod
    def run(self, run_spec: RunSpec) -> RunResult:
        """Trains until all phases are over, and returns what was agreed.

        Raises:
            RunFailedError: the run ended without a result.
            DataError: a row is wrong.
            NotReadyError: the machine or the cluster lacks something.
        """
