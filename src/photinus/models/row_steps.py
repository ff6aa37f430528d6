"""Steps in place: of the rows of tables by their own optimizers, of the other layers by torch's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from photinus.core.errors import UsageError
from photinus.core.parameters import Layout, Vector
from photinus.models.base import BatchLike, Model
from photinus.models.optimizers import InnerOptimizer, InPlaceOptimizer
from photinus.models.schedules import Schedule
from photinus.nn import ADAGRAD, ADAM, SGD, ShardedEmbedding

if TYPE_CHECKING:
    from photinus.models.sharded import ShardedModel

_EPS = 1e-8
_BETAS = 0.9, 0.999


def sgd(rows: Vector, gradients: Vector, rate: float) -> None:
    """θ ← θ − rate · g, for rows [r, D] and their gradients [r, D]."""
    rows -= np.float32(rate) * gradients


def adagrad(rows: Vector, gradients: Vector, rate: float) -> None:
    """Adagrad with one sum of squares a row.

    a ← a + mean(g²);  θ ← θ − rate · g / (√a + ε), for rows of θ and a [r, D + 1].

    Source: Duchi et al. (2011), with one number a row as FBGEMM's exact row-wise Adagrad has it.
    """
    width = gradients.shape[1]
    rows[:, width] += np.mean(gradients * gradients, axis=1)
    scale = np.float32(rate) / (np.sqrt(rows[:, width]) + np.float32(_EPS))
    rows[:, :width] -= scale[:, None] * gradients


def adam(rows: Vector, gradients: Vector, rate: float) -> None:
    """Adam with one second moment a row, corrected by how often the row was stepped.

    m ← β₁m + (1−β₁)g;  v ← β₂v + (1−β₂)mean(g²);  t ← t + 1;
    θ ← θ − rate · m/(1−β₁ᵗ) / (√(v/(1−β₂ᵗ)) + ε), for rows of θ, m, v and t [r, 2D + 2].

    Source: Kingma and Ba (2015), with one number a row as FBGEMM's partial row-wise Adam has it.
    """
    width, (beta1, beta2) = gradients.shape[1], _BETAS
    mean, square, steps = rows[:, width : 2 * width], rows[:, 2 * width], rows[:, 2 * width + 1]
    mean += np.float32(1 - beta1) * (gradients - mean)
    square += np.float32(1 - beta2) * (np.mean(gradients * gradients, axis=1) - square)
    steps += 1
    root = np.sqrt(square / (1 - np.float32(beta2) ** steps)) + np.float32(_EPS)
    scale = np.float32(rate) / (1 - np.float32(beta1) ** steps) / root
    rows[:, :width] -= scale[:, None] * mean


class RowOptimizer(NamedTuple):
    """What steps the rows of a table."""

    step: Callable[[Vector, Vector, float], None]
    """Moves rows with what is kept of them [r, D + S] by their gradients [r, D], at a rate."""
    rate: float
    """The highest one, where the user gives none."""
    state_width: Callable[[int], int]
    """D -> S: how many numbers it keeps with each row."""


OPTIMIZERS: Mapping[str, RowOptimizer] = {
    ADAGRAD: RowOptimizer(adagrad, 0.05, lambda _: 1),
    ADAM: RowOptimizer(adam, 0.005, lambda width: width + 2),
    SGD: RowOptimizer(sgd, 0.1, lambda _: 0),
}


def row_size(table: ShardedEmbedding) -> int:
    """Returns how many numbers a row of a table has, with what its optimizer keeps.

    Example:
        >>> row_size(ShardedEmbedding(10, 16, optimizer="adam"))
        34
    """
    return table.embedding_dim + OPTIMIZERS[table.optimizer].state_width(table.embedding_dim)


class RowSteps(InPlaceOptimizer):
    """Steps the rows that a batch reads, and the layers beside the tables.

    Args:
        layout: of the other layers.
        make_dense: returns what steps parts of them, given the layout of these.
        rate: theirs, whose course the tables' rates follow.
        clip: the largest norm of a step's whole gradient; 0: none.
    """

    def __init__(
        self,
        layout: Layout,
        make_dense: Callable[[Layout], InnerOptimizer],
        rate: Schedule,
        clip: float = 0.0,
    ) -> None:
        self.make_dense, self._rate, self.clip = make_dense, rate, clip
        self.dense = make_dense(layout) if layout.size() else None
        """Steps the other layers; None where there are none."""
        self._peak = max(value for _, value in rate.points)

    def descend(
        self, model: Model, batch: BatchLike, seed: int, progress: float
    ) -> Mapping[str, float]:
        """Takes one step by the gradient of a batch."""
        sharded: ShardedModel = model  # type: ignore[assignment]
        dense, row_gradients, metrics = sharded.gradients(batch, seed)
        if self.clip:
            sharded.to_host(dense)
            dense, row_gradients = _clip_gradients(dense, row_gradients, self.clip)
        if self.dense is not None:
            self.dense.step(sharded.dense, dense, progress)
        for name, (ids, gradients) in row_gradients.items():
            table = sharded.table(name)
            rows = table[ids]
            self.step_rows(sharded.embeddings[name], rows, gradients, progress)
            table[ids] = rows
        return metrics

    def step_rows(
        self, table: ShardedEmbedding, rows: Vector, gradients: Vector, progress: float
    ) -> None:
        """Steps rows [r, D + S] of a table by their gradients [r, D], at its rate of now."""
        optimizer = OPTIMIZERS[table.optimizer]
        peak_rate = optimizer.rate if table.lr is None else table.lr
        relative_rate = self._rate.at(progress) / self._peak if self._peak else 0.0
        with np.errstate(over="ignore", invalid="ignore"):  # refused where rows are sent
            optimizer.step(rows, gradients, peak_rate * relative_rate)

    def step(self, trained: Vector, gradient: Vector, progress: float) -> None:  # noqa: ARG002
        """Refuses: rows are stepped where they lie."""
        raise UsageError("sharded tables are stepped in place", do="call descend")

    def state(self) -> dict[str, Vector]:
        """Returns the state of the other layers' optimizer; a row's state is with the row."""
        return {} if self.dense is None else self.dense.state()

    def load(self, state: Mapping[str, Vector]) -> None:
        """Takes up a `state()`."""
        if self.dense is not None:
            self.dense.load(state)


def clip_factor(squares: float, max_norm: float) -> np.float32:
    """Returns min(1, c/‖g‖) of a gradient whose numbers have this sum of squares."""
    return np.float32(min(1.0, max_norm / max(np.sqrt(squares), 1e-30)))


_RowGradients = dict[str, tuple[Vector, Vector]]


def _clip_gradients(
    dense: Vector, row_gradients: _RowGradients, max_norm: float
) -> tuple[Vector, _RowGradients]:
    """Returns a gradient that is no longer than it may be."""
    squares = float(np.dot(dense, dense)) + sum(
        float(np.vdot(g, g)) for _, g in row_gradients.values()
    )
    factor = clip_factor(squares, max_norm)
    clipped = {name: (ids, gradients * factor) for name, (ids, gradients) in row_gradients.items()}
    return dense * factor, clipped
