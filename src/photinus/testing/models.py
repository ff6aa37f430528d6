"""`check_model`: checks that a model keeps the contract."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from photinus.core.parameters import Vector, is_finite
from photinus.models.base import BatchLike, Model


def check_model(
    make_model: Callable[[], Model], batch: BatchLike, *, is_gradient: bool = True
) -> None:
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


def _check_learn(model: Model, twin: Model, batch: BatchLike) -> None:
    before = model.parameters.trained.copy()
    assert np.array_equal(before, twin.parameters.trained), "first parameters differ"
    gradient, metrics = model.learn(batch, 3)
    model.to_host(gradient, model.parameters.trained)
    assert np.array_equal(before, model.parameters.trained), "learn changed the parameters"
    assert gradient.shape == before.shape, "the gradient has another length than the parameters"
    assert gradient.dtype == before.dtype, "the gradient has another type than the parameters"
    assert is_finite(gradient), "the gradient is not finite"
    assert all(isinstance(v, float) for v in metrics.values()), "a metric is no float"
    first_gradient = gradient.copy()
    second_gradient, _ = twin.learn(batch, 3)
    twin.to_host(second_gradient)
    assert np.array_equal(first_gradient, second_gradient), "the same seed gave other bits"
    sums = model.measure(batch)
    assert sums["examples"] == len(batch.features), "measure counts other examples"
    assert np.array_equal(before, model.parameters.trained), "measure changed the parameters"


def _check_load(model: Model, other: Model, batch: BatchLike) -> None:
    other.parameters.trained += np.float32(0.01)
    other.to_device(other.parameters.trained)
    parameters = other.parameters
    model.load(parameters.trained, parameters.floats, parameters.integers)
    assert np.array_equal(model.parameters.trained, parameters.trained), "load lost numbers"
    assert not np.shares_memory(model.parameters.trained, parameters.trained), (
        "load kept a reference"
    )
    left, right = _gradient(model, batch, 5), _gradient(other, batch, 5)
    assert np.array_equal(left, right), "a loaded model learns otherwise"


def _gradient(model: Model, batch: BatchLike, seed: int) -> Vector:
    gradient, _ = model.learn(batch, seed)
    model.to_host(gradient)
    return gradient.copy()


def _check_finite_differences(model: Model, batch: BatchLike) -> None:
    """Compares the slope along some random directions with the loss's own."""
    trained = model.parameters.trained
    start, rng = trained.copy(), np.random.default_rng(0)
    buffers = [model.parameters.floats.copy(), model.parameters.integers.copy()]
    step = 1e-6 if trained.dtype == np.float64 else 1e-2

    def loss(at: Vector) -> float:
        model.load(at, *buffers)
        return float(model.learn(batch, 1)[1]["loss"])

    for _ in range(4):
        direction = rng.standard_normal(start.size).astype(start.dtype)
        direction /= np.linalg.norm(direction)
        model.load(start, *buffers)
        slope = float(_gradient(model, batch, 1) @ direction)
        difference = loss(start + step * direction) - loss(start - step * direction)
        model.load(start, *buffers)
        is_close = np.isclose(difference / (2 * step), slope, rtol=2e-2, atol=2e-3)
        assert is_close, (
            f"the loss rises by {difference / (2 * step):g}, the gradient says {slope:g}"
        )
