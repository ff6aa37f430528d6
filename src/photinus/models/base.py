"""The interface of a model: flat parameters, and a gradient in the same layout.

A `Model` learns from one batch; a `Stage` says what one phase trains and is small enough to send.
`check_model` tells whether a model, one's own too, keeps the contract.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np

from photinus.core.errors import UsageError
from photinus.core.parameters import (
    FLOATS,
    INTEGERS,
    TRAINED,
    Layout,
    Parameters,
    Vector,
    is_finite,
)
from photinus.models.metrics import finished

if TYPE_CHECKING:
    from photinus.models.optimizers import Inner

__all__ = ["Batch", "Model", "Stage", "check_model"]


class Batch(Protocol):
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
        for name, given in ((TRAINED, trained), (FLOATS, floats), (INTEGERS, integers)):
            own = self.parameters.section(name)
            if given is None:
                continue
            if given.shape != own.shape:
                raise UsageError(
                    f"the {name} vector must have {own.size} numbers",
                    got=list(given.shape),
                    do="load it into a model made from the same settings",
                )
            own[...] = given
            self.to_device(own)

    def place(self, device: str, inner: Inner) -> Inner:  # noqa: ARG002
        """Moves to a device, where it learns from now on; returns the inner optimizer, moved too.

        Args:
            device: a name of torch's, such as "cuda:1", or "stand-in".
            inner: that steps on what this model learns.

        Raises:
            UsageError: it computes on the processor only.
        """
        name = type(self).__name__
        raise UsageError(f"{name} computes on the processor only", got=device, do='device="cpu"')

    def to_host(self, *vectors: Vector) -> None:  # noqa: B027 - without a device it is there
        """Brings the newest numbers of its own vectors, the gradient too, to where others read."""

    def to_device(self, *vectors: Vector) -> None:  # noqa: B027 - likewise
        """Takes its own vectors, which were written to, to where it learns."""

    @abstractmethod
    def learn(self, batch: Batch, seed: int) -> tuple[Vector, Mapping[str, float]]:
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
    def measure(self, batch: Batch) -> Mapping[str, float]:
        """Returns sums over the batch, "examples" among them, to be added up and divided."""


class Stage(ABC):
    """One phase's definition: frozen, small, of plain values."""

    name: str
    epochs: float
    batch_size: int
    """Examples of one step of all workers together."""
    max_steps: int = 0
    """The phase ends after so many steps, however many passes these are; 0: by `epochs`."""

    def passes(self, rows: int) -> float:
        """Returns how many passes the phase takes over so many rows of all workers.

        An epoch of N rows has ⌈N/B⌉ steps of B rows, of which the last one may be smaller.
        """
        if not self.max_steps:
            return self.epochs
        whole, rest = divmod(self.max_steps, -(-max(1, rows) // self.batch_size))
        return whole + rest * self.batch_size / max(1, rows)

    @abstractmethod
    def build(self, history: tuple[Vector, ...], seed: int) -> Model:
        """Returns the model with its first parameters, the same on every worker.

        Args:
            history: what the earlier phases agreed on, in their order, each [n].
            seed: decides the first parameters.
        """

    def prepare(self, features: Vector, history: tuple[Vector, ...]) -> Vector:  # noqa: ARG002
        """Returns what this phase's model reads, [B, ...], for the job's features [B, ...].

        Rows are prepared once a phase and kept beside the job's own, where there is room.
        """
        return features

    @property
    def prepares(self) -> bool:
        """Whether `prepare` changes the features; where not, the rows are read as they are."""
        return type(self).prepare is not Stage.prepare

    def finished(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Returns metrics out of the sums of `Model.measure`: their means over the examples."""
        return finished((), sums)

    def preload(self) -> None:  # noqa: B027 - to have nothing to load is usual
        """Imports what `build` and `inner` will need, before a lease runs: it may take seconds.

        Nothing of the user's is called.
        """

    @property
    def takes_gradients(self) -> bool:
        """Whether a step follows from a batch's gradient; where not, workers agree on parameters.

        Its `inner` is then an `InPlace`.
        """
        return True

    @property
    def reads_probabilities(self) -> bool:
        """Whether the job's features should lie in 0..1; the user is told where they do not."""
        return False

    @abstractmethod
    def inner(self, layout: Layout) -> Inner:
        """Returns a fresh inner optimizer.

        Args:
            layout: of the parameters of the model that `build` returned.
        """


def check_model(make_model: Callable[[], Model], batch: Batch, *, is_gradient: bool = True) -> None:
    """Asserts what every model owes.

    Args:
        make_model: returns a fresh model, each time with the same first parameters.
        batch: a small batch that it can learn from.
        is_gradient: whether `learn` returns the true gradient of "loss" at any seed; contrastive
            divergence and dropout do not.

    Raises:
        AssertionError: names the claim that does not hold.
    """
    _check_views(make_model())
    _check_learn(make_model(), make_model(), batch)
    _check_load(make_model(), make_model(), batch)
    if is_gradient:
        _check_finite_differences(make_model(), batch)


def _check_views(model: Model) -> None:
    for name, view in model.parameters.tensors().items():
        section = model.parameters.section(model.parameters.layout.entry(name).section)
        assert view.size == 0 or np.shares_memory(view, section), f"{name} is no view"


def _check_learn(model: Model, twin: Model, batch: Batch) -> None:
    before = model.parameters.trained.copy()
    assert np.array_equal(before, twin.parameters.trained), "first parameters differ"
    gradient, metrics = model.learn(batch, 3)
    model.to_host(gradient, model.parameters.trained)
    assert np.array_equal(before, model.parameters.trained), "learn changed the parameters"
    assert gradient.shape == before.shape, "the gradient has another length than the parameters"
    assert gradient.dtype == before.dtype, "the gradient has another type than the parameters"
    assert is_finite(gradient), "the gradient is not finite"
    assert all(isinstance(v, float) for v in metrics.values()), "a metric is no float"
    first = gradient.copy()
    again, _ = twin.learn(batch, 3)
    twin.to_host(again)
    assert np.array_equal(first, again), "the same seed gave other bits"
    sums = model.measure(batch)
    assert sums["examples"] == len(batch.features), "measure counts other examples"
    assert np.array_equal(before, model.parameters.trained), "measure changed the parameters"


def _check_load(model: Model, other: Model, batch: Batch) -> None:
    other.parameters.trained += np.float32(0.01)
    other.to_device(other.parameters.trained)
    p = other.parameters
    model.load(p.trained, p.floats, p.integers)
    assert np.array_equal(model.parameters.trained, p.trained), "load lost numbers"
    assert not np.shares_memory(model.parameters.trained, p.trained), "load kept a reference"
    left, right = _gradient(model, batch, 5), _gradient(other, batch, 5)
    assert np.array_equal(left, right), "a loaded model learns otherwise"


def _gradient(model: Model, batch: Batch, seed: int) -> Vector:
    gradient, _ = model.learn(batch, seed)
    model.to_host(gradient)
    return gradient.copy()


def _check_finite_differences(model: Model, batch: Batch) -> None:
    """Compares the slope along some random directions with the loss's own."""
    trained = model.parameters.trained
    saved, chance = trained.copy(), np.random.default_rng(0)
    state = [model.parameters.floats.copy(), model.parameters.integers.copy()]
    size = 1e-6 if trained.dtype == np.float64 else 1e-2

    def loss(at: Vector) -> float:
        model.load(at, *state)
        return float(model.learn(batch, 1)[1]["loss"])

    for _ in range(4):
        direction = chance.standard_normal(saved.size).astype(saved.dtype)
        direction /= np.linalg.norm(direction)
        model.load(saved, *state)
        slope = float(_gradient(model, batch, 1) @ direction)
        rise = loss(saved + size * direction) - loss(saved - size * direction)
        model.load(saved, *state)
        close = np.isclose(rise / (2 * size), slope, rtol=2e-2, atol=2e-3)
        assert close, f"the loss rises by {rise / (2 * size):g}, the gradient says {slope:g}"
