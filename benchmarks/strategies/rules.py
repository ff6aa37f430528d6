"""Strategies that are no recipes, because they lose: built on the parts of those that are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from photinus.core.parameters import Layout, Vector
from photinus.models.module import ModuleConfig
from photinus.models.optimizers import InnerOptimizer
from photinus.strategies.base import Message, Policy, Reply, Strategy
from photinus.strategies.immediate import ElasticOwner, Immediate, ServerState


@dataclass(frozen=True, kw_only=True)
class Own:
    """A strategy of two halves, beside the recipes."""

    name: str
    halves: tuple[Strategy, Policy]
    """The worker's and the owner's."""
    is_deterministic: bool = False

    def __str__(self) -> str:
        return self.name

    def worker(self) -> Strategy:
        """Returns the worker's half."""
        return self.halves[0]

    def owner(self) -> Policy:
        """Returns the owner's half."""
        return self.halves[1]


class Overwrites(ElasticOwner):
    """Weights are published, and overwrite those of whoever reads them (impetus, literally).

    With `Elastic` as the worker's half: the centre becomes what a worker sends, and the worker
    becomes what the centre was, which is what another worker sent last.
    """

    def receive(
        self, slot: int, message: Message, members: frozenset[int], state: ServerState
    ) -> tuple[list[Reply], ServerState]:
        """Swaps the two."""
        if message.kind == "fetch":
            return super().receive(slot, message, members, state)
        assert message.vector is not None
        version = state.version + 1
        answer = Message(
            "agreed",
            message.vector - state.vector,
            version=version,
            floats=state.floats,
            integers=state.integers,
        )
        return [Reply(slot, answer)], state._replace(vector=message.vector, version=version)


class _Kept(NamedTuple):
    served: ServerState
    read: Mapping[int, Vector]
    """Slot -> the parameters [n] that it fetched last."""
    start: Vector
    squares: Vector
    """The moving mean of g² [n]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Compensated(Immediate):
    """Late gradients are corrected by how far the parameters went meanwhile.

    g̃ = g + λ₀/√(m + ε) · g ⊙ g ⊙ (θ − θᵢ), with m ← 0.95 m + 0.05 g² and θᵢ what the worker read.
    Source: Zheng et al., Asynchronous SGD with Delay Compensation (the adaptive one), 2017.
    """

    strength: float = 2.0
    payload: str = "gradient"

    def init(self, point: Message) -> _Kept:  # type: ignore[override]
        """Nobody has read anything but the start."""
        served = Immediate.init(self, point)
        return _Kept(served, {}, served.vector, np.zeros_like(served.vector))

    def receive(  # type: ignore[override]
        self, slot: int, message: Message, members: frozenset[int], state: _Kept
    ) -> tuple[list[Reply], _Kept]:
        """Corrects a push, or remembers what a worker reads."""
        if message.kind == "push":
            g, now = message.vector, state.served.vector
            assert g is not None
            squares = np.float32(0.95) * state.squares + np.float32(0.05) * g * g
            rate = np.float32(self.strength) / np.sqrt(squares + np.float32(1e-7))
            drift = now - state.read.get(slot, state.start)
            message = message._replace(vector=g + rate * g * g * drift)
            state = state._replace(squares=squares)
        replies, served = Immediate.receive(self, slot, message, members, state.served)
        read = {**state.read, slot: served.vector} if message.kind == "fetch" else state.read
        return replies, state._replace(served=served, read=read)

    def agreed(self, state: _Kept | ServerState) -> Message:
        """Returns what the owner holds."""
        return Immediate.agreed(self, state.served if isinstance(state, _Kept) else state)


class Forgets(InnerOptimizer):
    """An inner optimizer that loses its state every so many steps."""

    def __init__(self, inner: InnerOptimizer, every: int) -> None:
        self._inner, self._every, self._steps = inner, every, 0

    def step(self, trained: Vector, gradient: Vector, progress: float) -> None:
        """Takes a step, and now and then forgets."""
        self._inner.step(trained, gradient, progress)
        self._steps += 1
        if self._steps % self._every == 0:
            self._inner.load({})

    def state(self) -> dict[str, Vector]:
        """As the optimizer's own."""
        return self._inner.state()

    def load(self, state: Mapping[str, Vector]) -> None:
        """As the optimizer's own."""
        self._inner.load(state)


@dataclass(frozen=True, kw_only=True)
class ForgetfulConfig(ModuleConfig):
    """A module's config whose inner optimizer may forget."""

    forgets_every: int = 0

    def inner(self, layout: Layout) -> InnerOptimizer:
        """Returns the optimizer."""
        inner = super().inner(layout)
        return Forgets(inner, self.forgets_every) if self.forgets_every else inner
