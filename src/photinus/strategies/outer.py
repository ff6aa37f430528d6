"""Outer optimizers: apply the merged delta; the same function on every worker.

A delta is anchor − parameters: it points uphill, like a gradient. The state is a tuple of
vectors, so that it can be sent to a joiner and saved as it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from photinus.core.errors import UsageError
from photinus.core.factories import resolve_user_code
from photinus.core.parameters import Vector
from photinus.core.settings import (
    Limit,
    above,
    at_least,
    between,
    from_dict,
    unknown_name,
    validate,
    whole,
)

State = tuple[Vector, ...]


class OuterOptimizer(ABC):
    """init(vector) -> state · update(vector, delta, state) -> (vector, state)."""

    name: str
    is_by_row = False
    """True where a row of a table may be stepped alone, and not at all in a round that leaves it
    as it is."""

    @property
    def gain(self) -> float | None:
        """How far a constant delta carries in the end, as a multiple; None where undefined."""
        return None

    def init(self, vector: Vector) -> State:  # noqa: ARG002 - some keep nothing
        """Returns the state at the start of a phase."""
        return ()

    @abstractmethod
    def update(self, vector: Vector, delta: Vector, state: State) -> tuple[Vector, State]:
        """Returns the new vector [n] and state; the arguments stay as they are."""


@dataclass(frozen=True, slots=True)
class Sgd(OuterOptimizer):
    """θ ← θ − lr·Δ. With lr 1 this is plain averaging (Moritz et al., 2015).

    Example:
        >>> Sgd().update(np.ones(2), np.array([0.5, 0.0]), ())[0].tolist()
        [0.5, 1.0]
    """

    lr: float = 1.0
    """The rate: the share of the merged delta that is applied."""
    name = "sgd"
    is_by_row = True
    LIMITS = {"lr": above(0)}  # noqa: RUF012

    def __post_init__(self) -> None:
        validate(self)

    @property
    def gain(self) -> float:
        """The learning rate itself."""
        return self.lr

    def update(self, vector: Vector, delta: Vector, state: State) -> tuple[Vector, State]:
        """θ ← θ − lr·Δ."""
        step = delta if self.lr == 1 else _scaled(self.lr, delta)
        return vector - step, state


@dataclass(frozen=True, slots=True)
class _MomentumOptimizer(OuterOptimizer):
    """An optimizer with momentum: its gain is the learning rate over (1 − momentum)."""

    lr: float
    """The rate."""
    momentum: float = 0.5
    """β: the share of the buffer that stays after each update."""
    LIMITS = {"lr": above(0), "momentum": between(0, 0.999)}  # noqa: RUF012

    def __post_init__(self) -> None:
        validate(self)

    @property
    def gain(self) -> float:
        """The learning rate over (1 − momentum)."""
        return self.lr / (1 - self.momentum)

    def init(self, vector: Vector) -> State:
        """Returns an empty momentum buffer."""
        return (np.zeros_like(vector),)


@dataclass(frozen=True, slots=True)
class Nesterov(_MomentumOptimizer):
    """b ← βb + Δ; θ ← θ − lr·(Δ + βb) (DiLoCo: Douillard et al., 2023)."""

    lr: float = 0.7
    momentum: float = 0.5
    name = "nesterov"

    def update(self, vector: Vector, delta: Vector, state: State) -> tuple[Vector, State]:
        """One step: b ← βb + Δ; θ ← θ − lr·(Δ + βb)."""
        b = _scaled(self.momentum, state[0])
        b += delta
        step = _scaled(self.momentum, b)
        step += delta
        step *= vector.dtype.type(self.lr)
        return vector - step, (b,)


@dataclass(frozen=True, slots=True)
class SlowMo(_MomentumOptimizer):
    """u ← βu + Δ; θ ← θ − lr·u: heavy-ball momentum over rounds (Wang et al., 2019)."""

    lr: float = 1.0
    momentum: float = 0.5
    name = "slowmo"

    def update(self, vector: Vector, delta: Vector, state: State) -> tuple[Vector, State]:
        """One step: u ← βu + Δ; θ ← θ − lr·u."""
        u = _scaled(self.momentum, state[0])
        u += delta
        return vector - _scaled(self.lr, u), (u,)


@dataclass(frozen=True, slots=True)
class _SquaresOptimizer(OuterOptimizer):
    """An optimizer that divides by the root of the squares so far."""

    lr: float = 0.1
    """The rate of a number's first update."""
    eps: float = 1e-6
    """ε, which keeps the quotient finite."""
    initial: float = 0.0
    """What every sum s begins at."""
    is_by_row = True
    LIMITS = {"lr": above(0), "eps": above(0), "initial": at_least(0)}  # noqa: RUF012

    def __post_init__(self) -> None:
        validate(self)

    def update(self, vector: Vector, delta: Vector, state: State) -> tuple[Vector, State]:
        """One step: s ← s + the squares of Δ; θ ← θ − lr·Δ / (√s + ε)."""
        s = state[0] + self._squares(delta)
        return vector - _scaled(self.lr, delta) / (np.sqrt(s) + vector.dtype.type(self.eps)), (s,)

    @abstractmethod
    def _squares(self, delta: Vector) -> Vector:
        """Returns what is added to the sums s."""


@dataclass(frozen=True, slots=True)
class Adagrad(_SquaresOptimizer):
    """s ← s + Δ²; θ ← θ − lr·Δ / (√s + ε) (Duchi et al., 2011; FedAdagrad: Reddi et al., 2020)."""

    name = "adagrad"

    def init(self, vector: Vector) -> State:
        """Returns the accumulator at its initial value."""
        return (np.full_like(vector, self.initial),)

    def _squares(self, delta: Vector) -> Vector:
        return delta * delta


@dataclass(frozen=True, slots=True)
class RowAdagrad(_SquaresOptimizer):
    """s ← s + mean Δ²; θ ← θ − lr·Δ / (√s + ε), one s for each row of a table [m, width].

    A table of moments would take as much room as the table. Of a flat vector there is one s.
    Source: Duchi et al., 2011; by row: Mudigere et al., Software-hardware co-design for fast and
    scalable training of deep learning recommendation models, 2022.

    Example:
        >>> rows, (sums,) = np.zeros((2, 2)), (np.zeros((2, 1)),)
        >>> delta = np.array([[3.0, 3.0], [0.0, 0.0]])
        >>> RowAdagrad(lr=0.5).update(rows, delta, (sums,))[0].round(3).tolist()
        [[-0.5, -0.5], [0.0, 0.0]]
    """

    name = "row_adagrad"

    def init(self, vector: Vector) -> State:
        """Returns a sum for each row, at its initial value."""
        return (np.full((*vector.shape[:-1], 1), self.initial, vector.dtype),)

    def _squares(self, delta: Vector) -> Vector:
        squares: Vector = (delta * delta).mean(axis=-1, keepdims=True)
        return squares


@dataclass(frozen=True, slots=True)
class Adam(OuterOptimizer):
    """FedAdam: m ← β₁m + (1−β₁)Δ; v ← β₂v + (1−β₂)Δ²; θ ← θ − lr·m̂/(√v̂ + ε) (Reddi et al., 2020).

    Both moments are corrected for their start at zero, as Kingma and Ba (2015) do.
    """

    lr: float = 0.01
    """The rate."""
    beta1: float = 0.9
    """β₁, of the mean."""
    beta2: float = 0.99
    """β₂, of the mean square."""
    eps: float = 1e-3
    """ε, which keeps the quotient finite."""
    name = "adam"
    LIMITS = {  # noqa: RUF012
        "lr": above(0),
        "beta1": between(0, 0.9999),
        "beta2": between(0, 0.99999),
        "eps": above(0),
    }

    def __post_init__(self) -> None:
        validate(self)

    def init(self, vector: Vector) -> State:
        """Returns both moments at zero, and the count of updates [1]."""
        return np.zeros_like(vector), np.zeros_like(vector), np.zeros(1, vector.dtype)

    def update(self, vector: Vector, delta: Vector, state: State) -> tuple[Vector, State]:
        """θ ← θ − lr·m̂/(√v̂ + ε)."""
        m, v, t = state
        real = vector.dtype.type
        m = _scaled(self.beta1, m) + _scaled(1 - self.beta1, delta)
        v = _scaled(self.beta2, v) + _scaled(1 - self.beta2, delta * delta)
        t = t + real(1)
        m_hat = m / real(1 - self.beta1 ** float(t[0]))
        v_hat = v / real(1 - self.beta2 ** float(t[0]))
        return vector - real(self.lr) * m_hat / (np.sqrt(v_hat) + real(self.eps)), (m, v, t)


@dataclass(frozen=True, slots=True)
class RowAdam(OuterOptimizer):
    """Adam with one mean square v for each row of a table [m, width], and a count of its updates t.

    t ← t + 1; m ← β₁m + (1−β₁)Δ; v ← β₂v + (1−β₂)·mean Δ²; θ ← θ − lr·m̂/(√v̂ + ε), with
    m̂ = m/(1−β₁ᵗ) and v̂ = v/(1−β₂ᵗ). A row that is not updated keeps its m, v and t. Of a flat
    vector there is one v. Source: Kingma and Ba, 2015; of the rows updated only, as torch's
    SparseAdam; a v for each row as in Zhang et al., Adam-mini: use fewer learning rates to gain
    more, 2024.

    Example:
        >>> rows, delta = np.zeros((2, 2)), np.array([[3.0, 3.0], [0.1, -0.1]])
        >>> outer = RowAdam(lr=0.5)
        >>> outer.update(rows, delta, outer.init(rows))[0].round(2).tolist()
        [[-0.5, -0.5], [-0.5, 0.5]]
    """

    lr: float = 0.01
    """The rate."""
    beta1: float = 0.9
    """β₁, of the mean."""
    beta2: float = 0.99
    """β₂, of the mean square."""
    eps: float = 1e-6
    """ε, which keeps the quotient finite."""
    name = "row_adam"
    is_by_row = True
    LIMITS = Adam.LIMITS

    def __post_init__(self) -> None:
        validate(self)

    def init(self, vector: Vector) -> State:
        """Returns the means [m, width], the mean squares [m, 1] and the counts [m, 1] at zero."""
        by_row = (*vector.shape[:-1], 1)
        return np.zeros_like(vector), np.zeros(by_row, vector.dtype), np.zeros(by_row, vector.dtype)

    def update(self, vector: Vector, delta: Vector, state: State) -> tuple[Vector, State]:
        """θ ← θ − lr·m̂/(√v̂ + ε)."""
        m, v, t = state
        real = vector.dtype.type
        square = (delta * delta).mean(axis=-1, keepdims=True)
        m = _scaled(self.beta1, m) + _scaled(1 - self.beta1, delta)
        v = _scaled(self.beta2, v) + _scaled(1 - self.beta2, square)
        t = t + real(1)
        root = np.sqrt(v / (real(1) - real(self.beta2) ** t)) + real(self.eps)
        step = m / ((real(1) - real(self.beta1) ** t) * root)
        return vector - _scaled(self.lr, step), (m, v, t)


@dataclass(frozen=True, slots=True)
class DelayedNesterov(_MomentumOptimizer):
    """Nesterov for pushes that are applied one by one: the momentum moves once in N of them.

    θ ← θ − lr·Δ, and at every N-th push b ← βb + Σ Δ over the last N; θ ← θ − lr·(Δ + βb).
    The momentum of a plain Nesterov would count each push again with every later one. Source: Liu
    et al., Asynchronous Local-SGD Training for Language Modeling, 2024 (its c = 0).
    """

    lr: float = 0.7
    momentum: float = 0.3
    pushes: int = 0
    """N; 0: as many as the run has workers."""
    name = "delayed_nesterov"
    LIMITS = {**_MomentumOptimizer.LIMITS, "pushes": whole(0)}  # noqa: RUF012

    def init(self, vector: Vector) -> State:
        """Returns an empty momentum, the sum since it moved, and how many are in that [1]."""
        return np.zeros_like(vector), np.zeros_like(vector), np.zeros(1, vector.dtype)

    def update(self, vector: Vector, delta: Vector, state: State) -> tuple[Vector, State]:
        """θ ← θ − lr·Δ; at every N-th push with the momentum on top."""
        b, delta_sum, count = state
        delta_sum, count = delta_sum + delta, count + count.dtype.type(1)
        if count[0] < max(1, self.pushes):
            return vector - _scaled(self.lr, delta), (b, delta_sum, count)
        b = _scaled(self.momentum, b) + delta_sum
        step = delta + _scaled(self.momentum, b)
        return vector - _scaled(self.lr, step), (b, np.zeros_like(b), np.zeros_like(count))


@dataclass(frozen=True, slots=True)
class Descent(OuterOptimizer):
    """A function of the user's: θ ← function(θ, Δ), as DeepDist's `descent`. No guard watches it.

    Args:
        function: takes the parameters [n] and a delta or a sum of gradients [n], and returns the
            new parameters [n] in an array of their own. It must be one that a worker can import;
            in a job's file it stands as "package.module:name".
    """

    function: Callable[[Vector, Vector], Vector]
    name = "descent"
    LIMITS = {"function": Limit("a function of (parameters, delta)", callable)}  # noqa: RUF012

    def __post_init__(self) -> None:
        validate(self)

    def update(self, vector: Vector, delta: Vector, state: State) -> tuple[Vector, State]:
        """θ ← function(θ, Δ).

        Raises:
            UsageError: the function does not return the new parameters.
        """
        new = self.function(vector, delta)
        if np.shape(new) != vector.shape:
            wrong = "the function of Descent must return the new parameters, in the same shape"
            got = "None" if new is None else f"shape {np.shape(new)} for {vector.shape}"
            raise UsageError(wrong, got=got)
        return np.asarray(new, vector.dtype), state


def _scaled(factor: float, vector: Vector) -> Vector:
    """Returns factor·vector in the vector's own precision."""
    scaled: Vector = vector * vector.dtype.type(factor)
    return scaled


_OUTER_CLASSES = (Sgd, Nesterov, SlowMo, Adagrad, RowAdagrad, Adam, RowAdam, DelayedNesterov)
OUTERS: dict[str, type[OuterOptimizer]] = {c.name: c for c in _OUTER_CLASSES}


def outer_from_dict(values: Mapping[str, Any]) -> OuterOptimizer:
    """Builds an outer optimizer from plain values: `{"name": "nesterov", "lr": 0.7}`.

    Raises:
        UsageError: the name or an option is unknown, or a descent cannot be imported.
    """
    options = dict(values)
    name = str(options.pop("name", ""))
    if name == Descent.name:
        return Descent(resolve_user_code(str(options.get("function", "")), "descent"))
    if name not in OUTERS:
        raise unknown_name("outer optimizer", name, OUTERS)
    return from_dict(OUTERS[name], options)
