"""Steps of an owner: of its rows, by the mean gradient of all workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from photinus.core.errors import DataError, UsageError
from photinus.core.pages import Pages
from photinus.core.parameters import TRAINED, Layout, Parameters, Vector, is_finite
from photinus.models.base import BatchLike, Model
from photinus.models.optimizers import InnerOptimizer, InPlaceOptimizer
from photinus.models.row_steps import RowSteps, clip_factor
from photinus.models.sharded import ShardedModel, dense_layout
from photinus.nn import ShardedEmbedding

_TRIAL = (1.0, -2.0, 0.5), ((0.1, -1.0, 2.0), (3.0, 0.5, -0.2), (-0.4, 2.0, 0.1))
"""Numbers, and gradients that are not alike, to try an optimizer with."""


def is_elementwise(make: Callable[[Layout], InnerOptimizer]) -> bool:
    """Returns whether an optimizer steps each number by itself: it is tried.

    Args:
        make: returns one at a rate that shows, given the layout of what it steps.
    """
    whole, in_parts = _after_trial(make, slice(0, 3)), _after_trial(make, slice(0, 1), slice(1, 3))
    return np.allclose(whole, in_parts, rtol=1e-3, equal_nan=True)


def _after_trial(make: Callable[[Layout], InnerOptimizer], *parts: slice) -> Vector:
    """Returns the numbers of the trial after its steps, by an optimizer for each part."""
    numbers, gradients = (np.array(one, np.float32) for one in _TRIAL)
    for part in parts:
        own = numbers[part]
        inner = make(Layout.of([("trial", (own.size, 1), TRAINED)]))
        for gradient in gradients:
            inner.step(own, gradient[part], 0.0)
    return numbers


class OwnerSteps(InPlaceOptimizer):
    """Learns the gradients of rows, and steps the rows that its worker owns by the mean of all.

    Of the other layers an owner steps the numbers in its rows, and keeps the optimizer's state of
    these alone. Running statistics move by the workers' mean. A gradient that is too long is
    shortened by all owners alike, who tell each other the sum of squares of their parts.

    A step counts once its round is agreed on, when its state is loaded. If a round comes to
    nothing, the next step begins where that one began.

    Args:
        model: whose rows these are.
        steps: the optimizers of its tables and layers.
        slot: of the worker, which owns row r where r mod `workers` is its slot.
        workers: all of the run.
    """

    def __init__(self, model: ShardedModel, steps: RowSteps, slot: int, workers: int) -> None:
        self._model, self._steps = model, steps
        self._slot, self._workers = slot, workers
        self._pages = Pages(model.parameters.trained.size, "float32")
        self.gradient: Vector = self._pages.vector
        """Of the last batch [n], where its rows lie."""
        self.rows: Vector = np.empty(0, np.int64)
        """The rows [r] that the last batch has a gradient of, in order."""
        self._result = Parameters(model.parameters.layout, self.gradient)
        rows = np.arange(slot, model.first_row(next(iter(model.embeddings))), workers)
        self._row_count = rows.size
        """How many of the own rows are of the other layers."""
        numbers = (rows[:, None] * model.row_size + np.arange(model.row_size)).ravel()
        ends = np.searchsorted(numbers, (model.dense.size, model.statistics_offset))
        self._size, self._statistics = (int(end) for end in ends)
        """How many of their numbers are stepped, and at which running statistics begin."""
        layout = _part_of(dense_layout(model.parameters.layout), numbers[: self._size])
        self._dense = steps.make_dense(layout) if self._size else None
        self._agreed: Mapping[str, Vector] = {}
        """The state of the optimizer of the other layers after the last step that counts."""
        self._next: Mapping[str, Vector] | None = None
        """The state after a step that is not agreed on yet."""

    def descend(
        self,
        model: Model,  # noqa: ARG002 - it knows its own
        batch: BatchLike,
        seed: int,
        progress: float,  # noqa: ARG002
    ) -> Mapping[str, float]:
        """Learns the gradient of a batch, and steps nothing."""
        self._pages.forget()
        self.rows, metrics = self._model.learn_into(self._result, batch, seed)
        self._model.statistics_into(self._result)
        return metrics

    def step(self, trained: Vector, gradient: Vector, progress: float) -> None:  # noqa: ARG002
        """Refuses: rows are stepped where they lie."""
        raise UsageError("an owner steps its own rows alone", do="call step_rows")

    @property
    def clips(self) -> bool:
        """True where gradients are shortened."""
        return self._steps.clip > 0

    def squares(self, at: Vector, gradients: Vector) -> float:
        """Returns the sum of squares of this owner's part of the mean gradient.

        Args:
            at: which rows of the shard these are [r], in order.
            gradients: [r, width].
        """
        dense = self._dense_of(at, gradients)[: self._size]
        tables = (gradients[span, : t.embedding_dim] for t, span in self._spans(at))
        return sum((float(np.vdot(part, part)) for part in tables), float(np.vdot(dense, dense)))

    def step_rows(
        self, at: Vector, rows: Vector, gradients: Vector, progress: float, squares: float = 0.0
    ) -> Mapping[str, Vector]:
        """Steps rows of the shard by the mean gradient of all workers.

        Args:
            at: which rows of the shard these are [r], in order: all of the other layers, or none.
            rows: their numbers [r, width], changed in place.
            gradients: [r, width]; of running statistics, how far these move.
            progress: the phase's agreed progress 0..1.
            squares: the sum of squares of the mean gradient, of all owners.

        Returns:
            The optimizer's state after the step.

        Raises:
            DataError: numbers of the rows are not finite after it.
        """
        if self._dense is not None and self._next is not None:
            self._dense.load(self._agreed)
        factor = clip_factor(squares, self._steps.clip) if self.clips else np.float32(1.0)
        if (dense := self._dense_of(at, gradients)).size:
            self._step_dense(self._dense_of(at, rows), dense, factor, progress)
        for table, span in self._spans(at):
            gradient = gradients[span, : table.embedding_dim]
            if factor < 1:
                gradient = gradient * factor
            self._steps.step_rows(table, rows[span], gradient, progress)
        if not is_finite(rows.ravel()):
            wrong = "a step by the mean gradient makes numbers of rows that are not finite"
            raise DataError(wrong, do="look at the rows of data, or lower the learning rate")
        self._next = {} if self._dense is None else self._dense.state()
        return self._next

    def _dense_of(self, at: Vector, rows: Vector) -> Vector:
        """Returns the own numbers of the other layers, a view, where their rows are here."""
        count = self._row_count if at.size and at[0] < self._row_count else 0
        return rows[:count].ravel()

    def _spans(self, at: Vector) -> Iterator[tuple[ShardedEmbedding, slice]]:
        """Yields each table and where its rows are among those at places of the shard."""
        numbers = at * self._workers + self._slot  # rows of all parameters [r]
        for name, table in self._model.embeddings.items():
            first = self._model.first_row(name)
            span = slice(*np.searchsorted(numbers, (first, first + table.num_embeddings)))
            if span.start < span.stop:
                yield table, span

    def _step_dense(
        self, numbers: Vector, gradient: Vector, factor: np.float32, progress: float
    ) -> None:
        """Steps the own numbers of the other layers, and moves the statistics behind them."""
        numbers[self._statistics :] -= gradient[self._statistics :]
        if self._dense is not None:
            part = gradient[: self._size]
            self._dense.step(numbers[: self._size], part * factor if factor < 1 else part, progress)

    def state(self) -> dict[str, Vector]:
        """Returns the agreed state of the optimizer of the other layers."""
        return dict(self._agreed)

    def load(self, state: Mapping[str, Vector]) -> None:
        """Takes up a `state()`, or agrees on the last step, whose state it is."""
        if self._dense is not None and state is not self._next:
            self._dense.load(state)
        self._agreed, self._next = state, None


def _part_of(layout: Layout, numbers: Vector) -> Layout:
    """Returns the layout of some numbers [s] of a vector; weights stay of two dimensions."""
    edges = ((e, np.searchsorted(numbers, (e.offset, e.offset + e.size))) for e in layout.entries)
    sizes = ((e, int(stop - start)) for e, (start, stop) in edges)
    return Layout.of(
        (e.name, (size, 1) if len(e.shape) > 1 else (size,), TRAINED) for e, size in sizes if size
    )
