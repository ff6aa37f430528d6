"""The interface of a model: flat parameters, and a gradient in the same layout.

A `Model` learns from one batch. A `ModelConfig` holds the settings of what one phase trains; it is
small enough to send.
`photinus.testing.check_model` checks whether a model of your own keeps the contract.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from photinus.core.errors import UsageError
from photinus.core.parameters import (
    FLOATS,
    INTEGERS,
    TRAINED,
    Layout,
    Parameters,
    Vector,
)
from photinus.models.metrics import finished

if TYPE_CHECKING:
    from torch import Tensor

    from photinus.models.optimizers import InnerOptimizer

USUAL_STEPS, MOST_PASSES = 2000, 200
"""A training of few rows has so many steps where nothing is set, in so many passes at most."""
_MOST_TRIALS = 20.0
"""See `ModelConfig.trials`."""


class BatchLike(Protocol):
    """What a model reads: the feed's batches have these two attributes, and may have more."""

    @property
    def features(self) -> Vector:
        """Inputs [B, ...]."""

    @property
    def labels(self) -> Vector | None:
        """Targets [B] or [B, ...]; None where the inputs are the target.

        `weights` [B], where a batch has them, weigh the examples of a supervised loss.
        """


class Model(ABC):
    """Holds the parameters and computes gradients; it never updates what is trained."""

    parameters: Parameters
    """The three buffers; the model's tensors are views of them."""
    on_gradient: Callable[[Vector, int, int], None] | None = None
    """Where it is set, `learn` may call it with the gradient [n], start and stop as soon as the
    numbers start..stop will not change any more, at most once for each number."""
    give_gradient: Callable[[int, Tensor], bool] | None = None
    """Where it is set, `learn` may call it with a parameter's start in the gradient [n], and its
    part of it: where that is taken, the gradient that `learn` returns does not hold it."""

    def load(
        self, trained: Vector, floats: Vector | None = None, integers: Vector | None = None
    ) -> None:
        """Copies the numbers into the model's own buffers; a section left out stays.

        Args:
            trained: the agreed parameters [n].
            floats: running statistics [m], float32.
            integers: counters [c], int64.

        Raises:
            UsageError: a vector has another length than the model's section.
        """
        for name, values in ((TRAINED, trained), (FLOATS, floats), (INTEGERS, integers)):
            target = self.parameters.section(name)
            if values is None:
                continue
            if values.shape != target.shape:
                raise UsageError(
                    f"the {name} vector must have {target.size} numbers",
                    got=list(values.shape),
                    do="load it into a model made from the same settings",
                )
            target[...] = values
            self.to_device(target)

    @property
    def device_bytes(self) -> int:
        """How many bytes of trained parameters a device must hold."""
        return self.parameters.trained.nbytes

    def place(self, device: str, inner: InnerOptimizer) -> InnerOptimizer:  # noqa: ARG002
        """Moves to a device, where it learns from now on; returns the inner optimizer, moved too.

        Args:
            device: a name of torch's, such as "cuda:1", or "stand-in".
            inner: that steps on what this model learns.

        Raises:
            UsageError: it computes on the processor only.
        """
        name = type(self).__name__
        raise UsageError(f"{name} computes on the processor only", got=device, do='device="cpu"')

    @property
    def send(self) -> Callable[[Any], Any] | None:
        """Sends a batch to the device, in any thread, and returns what `learn` takes for it.

        None where there is nothing to send.
        """
        return None

    def to_host(self, *vectors: Vector) -> None:  # noqa: B027 - without a device it is there
        """Brings the newest numbers of its own vectors, the gradient too, to where others read."""

    def to_device(self, *vectors: Vector) -> None:  # noqa: B027 - likewise
        """Takes its own vectors, which were written to, to where it learns."""

    def rows(self, batch: BatchLike, seed: int) -> Vector:  # noqa: ARG002
        """Returns which rows [r] of its parameters a step on a batch reads; it changes no others.

        Of a sharded table the other rows are not there.

        Args:
            batch: of which nothing is trained on yet.
            seed: as the step will get it.

        Raises:
            UsageError: it does not know them.
        """
        name = type(self).__name__
        raise UsageError(f"{name} does not say which rows a batch reads", do="use rows=0")

    def measured_rows(self, batch: BatchLike) -> Vector:  # noqa: ARG002
        """Returns which rows [r] of its parameters `measure` reads of a batch, in order.

        Raises:
            UsageError: it does not know them.
        """
        name = type(self).__name__
        raise UsageError(f"{name} does not say which rows a batch reads", do="use rows=0")

    @property
    def dense_rows(self) -> int:
        """How many rows dense layers have: the first of its parameters, which every step reads."""
        return 0

    def forget(self) -> None:  # noqa: B027 - to keep them is no fault
        """Gives back the memory of its trained parameters: those that are needed come anew."""

    def first_rows(self, shard: Vector, slot: int, seed: int, shards: int) -> None:  # noqa: ARG002
        """Writes the first numbers of a worker's shard of a table: those that the config builds.

        Here they are those that it holds. A model whose table is larger than a worker's memory
        makes only these rows.

        Args:
            shard: rows slot, slot + shards, ... of the table [m, width], all 0.
            slot: the worker's.
            seed: as of the config's `build`.
            shards: how many workers own the table.
        """
        shard[...] = self.parameters.trained.reshape(-1, shard.shape[1])[slot::shards]

    @abstractmethod
    def learn(self, batch: BatchLike, seed: int) -> tuple[Vector, Mapping[str, float]]:
        """Returns the gradient [n] of one batch's mean loss, and what was measured on the way.

        Args:
            batch: features [B, ...] and labels.
            seed: decides all chance of this step (dropout, samples): nothing is left to save.

        Returns:
            The gradient, float32 in the layout of `parameters`, valid until the next call and to
            be read after `to_host`, and metrics (means over the batch), of which a costly one may
            be missing from most steps.
        """

    @abstractmethod
    def measure(self, batch: BatchLike) -> Mapping[str, float]:
        """Returns sums over the batch, "examples" among them, to be added up and divided."""


class ModelConfig(ABC):
    """The settings of what one phase trains: frozen, small, of plain values."""

    name: str
    epochs: float | None
    """Passes over the rows; None: as many as make `USUAL_STEPS`."""
    least_passes: ClassVar[int] = 1
    """Where `epochs` is None."""
    batch_size: int
    """Examples of one step of all workers together."""
    max_steps: int = 0
    """The phase ends after so many steps, however many passes these are; 0: by `epochs`."""

    def passes(self, rows: int) -> float:
        """Returns how many passes the phase takes over so many rows of all workers.

        An epoch of N rows has ⌈N/B⌉ steps of B rows, of which the last one may be smaller.
        """
        steps_of_pass = -(-max(1, rows) // self.batch_size)
        if not self.max_steps:
            usual = min(MOST_PASSES, max(self.least_passes, -(-USUAL_STEPS // steps_of_pass)))
            return float(usual) if self.epochs is None else self.epochs
        full_passes, extra_steps = divmod(self.max_steps, steps_of_pass)
        return full_passes + extra_steps * self.batch_size / max(1, rows)

    def trials(self, passes: float) -> float:
        """Returns how often so many passes are measured on rows set aside: after each one.

        Where nothing is set a small table has many passes, which hardly differ: it is measured 20
        times.
        """
        return passes if self.epochs is not None or self.max_steps else min(passes, _MOST_TRIALS)

    @abstractmethod
    def build(self, history: tuple[Vector, ...], seed: int) -> Model:
        """Returns the model with its first parameters, the same on every worker.

        Args:
            history: what the earlier phases agreed on, in their order, each [n].
            seed: decides the first parameters.
        """

    def blank(self, history: tuple[Vector, ...], seed: int) -> Model:
        """Returns the model with any first parameters: they are loaded before it learns."""
        return self.build(history, seed)

    @property
    def row_size(self) -> int:
        """How many numbers a row holds, where its model knows which rows a batch reads; else 0.

        A table of such rows may be sharded over the workers. The `inner` is then an
        `InPlaceOptimizer`, and the model has no float buffers.
        """
        return 0

    def over(self, trained: Vector) -> Model | None:  # noqa: ARG002
        """Returns the model over trained parameters that lie elsewhere, as in a memory map.

        Args:
            trained: [n]; never written to.

        Returns:
            None where a model's parameters lie in memory of its own.
        """
        return None

    def prepare(self, features: Vector, history: tuple[Vector, ...]) -> Vector:  # noqa: ARG002
        """Returns what this phase's model reads, [B, ...], for the job's features [B, ...].

        Rows are prepared once a phase and kept beside the job's own, where there is room.
        """
        return features

    @property
    def prepares(self) -> bool:
        """Whether `prepare` changes the features; where not, the rows are read as they are."""
        return type(self).prepare is not ModelConfig.prepare

    def finished(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Returns metrics out of the sums of `Model.measure`: their means over the examples."""
        return finished((), sums)

    def agreed_until(self, share: float) -> ModelConfig:  # noqa: ARG002
        """Returns the config for workers that agree on every step until a share of the phase.

        After it they train alone between rounds, where a usual learning rate may be too high.
        """
        return self

    def preload(self) -> None:  # noqa: B027 - to have nothing to load is usual
        """Imports what `build` and `inner` will need, before a lease runs: it may take seconds.

        Nothing of the user's is called.
        """

    @property
    def takes_gradients(self) -> bool:
        """Whether a step follows from a batch's gradient; where not, workers agree on parameters.

        Its `inner` is then an `InPlaceOptimizer`.
        """
        return True

    @property
    def reads_probabilities(self) -> bool:
        """Whether the job's features should lie in 0..1; a warning says where they do not."""
        return False

    @property
    def far_loss(self) -> float:
        """A first loss above this shows that labels should be scaled; a warning says so."""
        return math.inf

    @property
    def is_far_by_features(self) -> bool:
        """Whether such a loss shows that the features should be scaled, and not the labels."""
        return False

    @abstractmethod
    def inner(self, layout: Layout) -> InnerOptimizer:
        """Returns a fresh inner optimizer.

        Args:
            layout: of the parameters of the model that `build` returned.
        """
