"""Softmax regression in plain numpy: the smallest model, for fast tests.

It runs in float32 or float64, without torch's threads and allocator, so that a simulation of a
thousand workers takes seconds, and it is the oracle's side of many tests: the loss is convex.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from photinus.core.errors import DataError
from photinus.core.parameters import TRAINED, Layout, Parameters, Vector
from photinus.core.settings import Limit, above, at_least, named_settings, one_of, validate, whole
from photinus.models.base import BatchLike, Model, ModelConfig
from photinus.models.optimizers import InnerOptimizer
from photinus.models.tensors import as_rows


class LogisticModel(Model):
    """p(y = c | x) = softmax(xW + b)_c, with the mean cross-entropy as its loss.

    Args:
        features: numbers in a row.
        classes: how many labels there are.
        dtype: float32 or float64.
    """

    def __init__(self, features: int, classes: int, dtype: str = "float32") -> None:
        layout = Layout.of([("W", (features, classes), TRAINED), ("b", (classes,), TRAINED)], dtype)
        self.parameters = Parameters(layout)
        self._gradient = Parameters(layout)

    def learn(self, batch: BatchLike, seed: int) -> tuple[Vector, Mapping[str, float]]:  # noqa: ARG002
        """Returns xᵀ(p − y)/B and Σ(p − y)/B, and the loss."""
        x, p, loss = self._forward(batch)
        labels = _labels(batch)
        p[np.arange(len(x)), labels] -= 1
        p /= len(x)
        np.matmul(x.T, p, out=self._gradient.view("W"))
        np.sum(p, axis=0, out=self._gradient.view("b"))
        return self._gradient.trained, {"loss": float(loss.mean())}

    def measure(self, batch: BatchLike) -> Mapping[str, float]:
        """Returns the sums of examples, errors and loss."""
        x, p, loss = self._forward(batch)
        errors = float(np.sum(p.argmax(axis=1) != _labels(batch)))
        return {"examples": float(len(x)), "errors": errors, "loss": float(loss.sum())}

    def outputs(self, features: Vector) -> Vector:
        """Returns xW + b, [B, classes]."""
        x = as_rows(features, len(self.parameters.view("W"))).numpy()
        z: Vector = x @ self.parameters.view("W") + self.parameters.view("b")
        return z

    def _forward(self, batch: BatchLike) -> tuple[Vector, Vector, Vector]:
        """Returns inputs [B, n], probabilities [B, c] and losses [B]."""
        rows = as_rows(batch.features, len(self.parameters.view("W"))).numpy()
        x = rows.astype(self.parameters.layout.dtype, copy=False)
        z = x @ self.parameters.view("W") + self.parameters.view("b")
        z -= z.max(axis=1, keepdims=True)
        np.exp(z, out=z)
        z /= z.sum(axis=1, keepdims=True)
        tiny = np.finfo(z.dtype).tiny
        return x, z, -np.log(np.maximum(z[np.arange(len(x)), _labels(batch)], tiny))


def _labels(batch: BatchLike) -> Vector:
    if batch.labels is None:
        raise DataError("the batch has no labels", do="softmax regression needs them")
    labels: Vector = np.asarray(batch.labels).astype(np.int64, copy=False)
    return labels


class GradientDescent(InnerOptimizer):
    """Plain gradient descent without state: θ ← θ − lr·g."""

    def __init__(self, lr: float) -> None:
        self._lr = lr

    def step(self, trained: Vector, gradient: Vector, progress: float) -> None:  # noqa: ARG002
        """One step: θ ← θ − lr·g."""
        trained -= trained.dtype.type(self._lr) * gradient


@named_settings
@dataclass(frozen=True, kw_only=True)
class LogisticConfig(ModelConfig):
    """A phase of softmax regression by plain gradient descent.

    Example:
        >>> LogisticConfig(features=4, classes=3).build((), seed=0).parameters.trained.size
        15
    """

    features: int
    """Numbers in one row."""
    classes: int
    """Labels are 0..classes-1."""
    name: str = "logistic"
    """Of the phase."""
    epochs: float | None = None
    """Passes over the rows. Left out, as many as make 2,000 steps, from 1 to 200."""
    batch_size: int = 32
    """Examples of one step of all workers together."""
    lr: float = 0.1
    """The learning rate."""
    dtype: str = "float32"
    """Of the parameters: "float32" or "float64"."""
    LIMITS = {  # noqa: RUF012
        "features": whole(1),
        "classes": whole(2),
        "epochs": Limit.optional(at_least(0)),
        "batch_size": whole(1),
        "lr": above(0),
        "dtype": one_of("float32", "float64"),
    }

    def __post_init__(self) -> None:
        validate(self)

    def build(self, history: tuple[Vector, ...], seed: int) -> LogisticModel:  # noqa: ARG002
        """All zeros: the loss is convex."""
        return LogisticModel(self.features, self.classes, self.dtype)

    def inner(self, layout: Layout) -> GradientDescent:  # noqa: ARG002
        """Plain gradient descent."""
        return GradientDescent(self.lr)
