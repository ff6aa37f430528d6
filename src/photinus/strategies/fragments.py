"""`fragments`: a strategy whose vector is pushed in parts, one after the other."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple, cast, overload

import numpy as np

from photinus.core.clock import Clock, Trigger
from photinus.core.errors import UsageError
from photinus.core.parameters import Vector
from photinus.core.settings import between, validate, whole
from photinus.strategies.base import (
    ALL,
    OWN_PARAMETERS,
    PARAMETERS,
    Message,
    Strategy,
    Turn,
    fragments_of,
    part,
)
from photinus.strategies.compress import Encoded, compress
from photinus.strategies.rounds import decoded

if TYPE_CHECKING:
    from photinus.strategies.spec import StrategySpec

_WHOLE_VECTOR_OUTERS = ("adam", "delayed_nesterov", "row_adagrad", "row_adam")
"""Outer optimizers that keep state of the whole vector."""


@overload
def fragments(
    strategy: StrategySpec, count: int, *, delay: int | None = None, alpha: float | None = None
) -> StrategySpec: ...


@overload
def fragments(
    strategy: Strategy, count: int, *, delay: int | None = None, alpha: float | None = None
) -> Strategy: ...


def fragments(
    strategy: Strategy | StrategySpec,
    count: int,
    *,
    delay: int | None = None,
    alpha: float | None = None,
) -> Strategy | StrategySpec:
    """Returns a strategy that pushes the vector in parts, one after the other.

    `delay` steps after a push θᵢ ← α·θᵢ + (1−α)·agreed, within the fragment.

    Each fragment has its turn once in the strategy's `every`, so less travels at a time.

    Args:
        strategy: of a recipe of rounds, which is returned with these parts; or the worker's half
            of one, with a trigger `every`.
        count: parts of the vector.
        delay: steps that a fragment is under way while training continues; None: as the recipe
            has it, else 0.
        alpha: the share of its own parameters that a worker keeps when a fragment arrives; None:
            as the recipe has it, else 0.5.

    Raises:
        UsageError: a part is out of its limits, or the strategy's rounds cannot be cut.

    Example:
        >>> from photinus.strategies.recipes import averaging
        >>> fragments(averaging(), 4) == averaging(fragments=4)
        True
        >>> import numpy as np
        >>> from photinus.strategies.rounds import Averaging
        >>> worker, vector = fragments(Averaging(), 2), np.zeros(6, np.float32)
        >>> worker.due(Clock(25, 200), worker.init(vector))
        (Turn(kind='swap', fragment=(0, 3)),)

    Source: Douillard et al., Streaming DiLoCo, 2025.
    """
    if not whole(1).holds(count):
        raise UsageError(f"count of fragments must be {whole(1).text}", got=repr(count))
    options = {"fragments": count, "delay": delay, "alpha": alpha}
    parts: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if hasattr(strategy, "recipe") and hasattr(strategy, "codec"):
        spec = cast("StrategySpec", strategy)
        if "fragments" not in spec.known:
            wrong = "fragments wraps averaging, diloco and other recipes whose rounds push a delta"
            raise UsageError(wrong, got=spec.recipe, do="leave fragments out, or use averaging()")
        return spec.with_settings(parts)
    if not hasattr(strategy, "offer"):
        wrong = "fragments wraps a recipe, or the worker's half of a strategy"
        raise UsageError(wrong, got=repr(strategy), do="such as fragments(averaging(), 4)")
    if isinstance(strategy, Encoded):
        inner = fragments(strategy.strategy, count, delay=delay, alpha=alpha)
        return compress(inner, strategy.codec)
    return Fragments(strategy=strategy, **parts)


class FragmentsState(NamedTuple):
    """A worker's state between rounds, each of one fragment."""

    states: tuple[Any, ...]
    """Of the strategy, for each fragment."""
    spans: tuple[tuple[int, int], ...]
    """Where each fragment lies: (start, stop)."""
    version: int
    """Rounds so far: the next one is of fragment `version` modulo their count."""
    counted: tuple[Clock, ...]
    """How far the work in each fragment has gone into agreed rounds."""
    sent: Clock
    """When a fragment was last pushed."""
    arrived: Clock
    """When it was taken."""
    is_under_way: bool

    @property
    def outer(self) -> tuple[Vector, ...]:
        """The outer optimizer's state of all fragments together."""
        return tuple(map(np.concatenate, zip(*(s.outer for s in self.states), strict=True)))

    @property
    def turn(self) -> int:
        """The number of the fragment that is agreed on next."""
        return self.version % len(self.spans)

    def with_state(self, turn: int, state: Any, **fields: Any) -> FragmentsState:  # noqa: ANN401
        """Returns the same with another state of one fragment, and other fields."""
        states = (*self.states[:turn], state, *self.states[turn + 1 :])
        return self._replace(states=states, **fields)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Fragments(Strategy):
    """A strategy's rounds, of one fragment each: pushed, trained on for d steps, then mixed in.

    θᵢ ← α·θᵢ + (1−α)·agreed, within the fragment; where nothing was trained meanwhile (no delay,
    the drain) θᵢ ← agreed.

    Raises:
        UsageError: the delay is not shorter than it is from one fragment to the next, or the
            strategy is not one of rounds whose fragments have states of their own.
    """

    strategy: Any
    """The worker's half of a strategy, with a trigger `every`."""
    fragments: int
    delay: int = 0
    """Steps that a fragment is under way."""
    alpha: float = 0.5
    """How much stays of what a worker has when the fragment arrives."""
    site = PARAMETERS
    has_late_answers = True
    own_fields = (OWN_PARAMETERS, "sent", "counted")
    LIMITS = {  # noqa: RUF012
        "fragments": whole(1),
        "delay": whole(0),
        "alpha": between(0, 1),
    }

    def __post_init__(self) -> None:
        validate(self)
        inner = self.strategy
        is_plain = inner.site == PARAMETERS and not any(
            getattr(inner, name, False)
            for name in ("is_peer_to_peer", "has_late_answers", "is_sharded", "own_fields")
        )
        if not (is_plain and isinstance(getattr(inner, "every", None), Trigger)):
            wrong = "only rounds of whole vectors at one owner can be cut into fragments"
            raise UsageError(wrong, got=type(inner).__name__, do="use averaging without owners")
        outer = getattr(getattr(inner, "outer", None), "name", "")
        if outer in _WHOLE_VECTOR_OUTERS:
            wrong = f"{outer} keeps state of a whole vector, which fragments would share"
            raise UsageError(wrong, do="take nesterov, slowmo, adagrad or sgd outside")
        gap = self.gap.steps
        if gap is not None and self.delay >= gap and self.delay > 0:
            wrong = (
                f"a fragment must arrive before the next one goes, {Trigger(steps=gap)} after it"
            )
            got = f"delay {self.delay} and {self.fragments} fragments every {self.every}"
            do = "set fewer fragments or a shorter delay, or agree less often"
            raise UsageError(wrong, got=got, do=do)

    @property
    def every(self) -> Trigger:
        """When each fragment has had its turn."""
        return cast("Trigger", self.strategy.every)

    @property
    def gap(self) -> Trigger:
        """When the next fragment is pushed: a P-th of `every`, whole numbers rounded up."""
        every, count = self.every, self.fragments
        return Trigger(
            steps=None if every.steps is None else -(-every.steps // count),
            seconds=None if every.seconds is None else every.seconds / count,
            examples=None if every.examples is None else -(-every.examples // count),
            epochs=None if every.epochs is None else every.epochs / count,
        )

    def init(self, vector: Vector) -> FragmentsState:
        """Each fragment has a state of its own."""
        spans, never = fragments_of(vector.size, self.fragments), Clock()
        states = tuple(self.strategy.init(part(vector, f)) for f in spans)
        return FragmentsState(
            states, spans, 0, (never,) * len(spans), never, never, is_under_way=False
        )

    def due(self, clock: Clock, state: FragmentsState) -> tuple[Turn, ...]:
        """Push the next fragment; take it after the delay; at the end swap what is unsent."""
        fragment = state.spans[state.turn]
        if state.is_under_way:
            is_due = clock.closing or clock.steps - state.sent.steps >= self.delay
            return (Turn("take", fragment),) if is_due else ()
        if clock.closing:
            is_unsent = any(c.steps < clock.steps for c in state.counted)
            return (Turn("swap", fragment),) if is_unsent else ()
        kind = "push" if self.delay else "swap"
        return (Turn(kind, fragment),) if self.gap.fires(clock, state.sent) else ()

    def offer(
        self, turn: Turn, vector: Vector, clock: Clock, state: FragmentsState
    ) -> tuple[Message | None, FragmentsState]:
        """Offers what the strategy does of a fragment."""
        if turn.kind == "take":
            return None, state._replace(arrived=clock)
        n, span = state.turn, turn.fragment
        message, inner = self.strategy.offer(
            Turn("swap"), part(vector, span), clock, state.states[n]
        )
        since = clock.since(state.counted[n])
        message = message._replace(fragment=span, since=since, version=state.version)
        is_under_way = turn.kind == "push"
        return message, state.with_state(
            n, inner, sent=clock, arrived=clock, is_under_way=is_under_way
        )

    def accept(self, vector: Vector, incoming: Message, state: FragmentsState) -> FragmentsState:
        """Mixes an agreed fragment in; after a miss, takes the agreed point."""
        state = state._replace(is_under_way=False, version=incoming.version)
        if incoming.kind == "heal":
            return self._heal(vector, incoming, state)
        n = state.spans.index(incoming.fragment)
        local = part(vector, incoming.fragment)
        agreed, real = local.copy(), vector.dtype.type
        inner = self.strategy.accept(agreed, incoming._replace(fragment=ALL), state.states[n])
        if state.arrived.steps > state.sent.steps:
            local *= real(self.alpha)
            local += real(1 - self.alpha) * agreed
        else:
            local[:] = agreed
        counted = (*state.counted[:n], state.sent, *state.counted[n + 1 :])
        return state.with_state(n, inner, counted=counted)

    def _heal(self, vector: Vector, incoming: Message, state: FragmentsState) -> FragmentsState:
        point = decoded(incoming, vector.dtype)
        for n, span in enumerate(state.spans):
            outer = tuple(part(state_vector, span) for state_vector in incoming.outer)
            message = incoming._replace(vector=part(point, span), codec="fp32", outer=outer)
            inner = self.strategy.accept(part(vector, span), message, state.states[n])
            state = state.with_state(n, inner)
        return state
