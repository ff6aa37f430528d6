"""`compress`: a strategy whose pushes travel in a codec, with error feedback where it needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast, overload

import numpy as np

from photinus.core.clock import Clock
from photinus.core.errors import UsageError
from photinus.core.parameters import Vector
from photinus.strategies.base import ALL, Message, Strategy, Turn, part
from photinus.strategies.codecs import codec as codec_of
from photinus.strategies.codecs import encode, residual

if TYPE_CHECKING:
    from photinus.strategies.spec import StrategySpec


@overload
def compress(
    strategy: StrategySpec, codec: str, *, error_feedback: bool | None = None
) -> StrategySpec: ...


@overload
def compress(strategy: Strategy, codec: str, *, error_feedback: bool | None = None) -> Strategy: ...


def compress(
    strategy: Strategy | StrategySpec, codec: str, *, error_feedback: bool | None = None
) -> Strategy | StrategySpec:
    """Returns a strategy whose pushes travel in a codec.

    With error feedback, what the codec leaves out of a push is added to the next one:
    e ← e + Δ; send Q(e); e ← e − Q(e). The answer to a push names the codec that it travels in:
    every strategy here reads any of them.

    Args:
        strategy: of a recipe, which is returned with this codec; or the worker's half of a
            strategy. A delta or gradient that it offers is a vector of its own.
        codec: "fp32", "bf16", "int8" or "int4".
        error_feedback: whether with it; None: in "int8" and "int4", not in "bf16".

    Raises:
        UsageError: there is no such codec, or it is no strategy.

    Example:
        >>> from photinus.strategies.recipes import averaging
        >>> compress(averaging(), "int8") == averaging(codec="int8")
        True
        >>> from photinus.strategies.rounds import Averaging
        >>> worker, vector = compress(Averaging(), "bf16"), np.zeros(3, np.float32)
        >>> message, _ = worker.offer(Turn("swap"), vector, Clock(1, 8), worker.init(vector))
        >>> message.codec, message.vector.nbytes
        ('bf16', 6)

    Source: Seide et al., 1-Bit Stochastic Gradient Descent, 2014.
    """
    if hasattr(strategy, "recipe") and hasattr(strategy, "codec"):
        spec = cast("StrategySpec", strategy)
        if "codec" not in spec.known:
            wrong = f"compress encodes pushes of deltas or gradients; {spec.recipe} has none"
            do = f"{spec.recipe}(codec_down={codec!r}) encodes what comes back"
            raise UsageError(wrong, got=f"codec {codec!r}", do=do)
        options = {} if error_feedback is None else {"error_feedback": error_feedback}
        return spec.with_settings({"codec": codec, **options})
    if not hasattr(strategy, "offer"):
        wrong = "compress wraps a recipe, or the worker's half of a strategy"
        raise UsageError(wrong, got=repr(strategy), do='such as compress(averaging(), "int8")')
    if getattr(strategy, "is_sharded", False):
        wrong, do = "compress does not encode rows of a sharded table", f"set codec={codec!r} in it"
        raise UsageError(wrong, got=type(strategy).__name__, do=do)
    if codec == "fp32":
        return strategy
    if error_feedback not in (True, False, None):
        wrong = "error_feedback of compress must be True or False, or left out"
        raise UsageError(wrong, got=repr(error_feedback))
    if error_feedback is None:
        error_feedback = codec_of(codec).has_feedback
    return ErrorFeedback(strategy, codec) if error_feedback else Encoded(strategy, codec)


class Encoded(Strategy):
    """A strategy whose pushes travel in a codec: all else of it is as it was."""

    def __init__(self, strategy: Strategy, codec: str) -> None:
        self.strategy, self.codec, self.site = strategy, codec, strategy.site
        self.has_late_answers = bool(getattr(strategy, "has_late_answers", False))
        self.is_peer_to_peer = bool(getattr(strategy, "is_peer_to_peer", False))
        self.own_fields: tuple[str, ...] = getattr(strategy, "own_fields", ())

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - an attribute of any strategy
        """Returns any other attribute of the strategy, such as `every` and `whole_part`."""
        if name == "strategy" or name.startswith("__"):  # asked by copy, before it has any
            raise AttributeError(name)
        return getattr(self.strategy, name)

    def init(self, vector: Vector) -> Any:  # noqa: ANN401
        """As of the strategy."""
        return self.strategy.init(vector)

    def due(self, clock: Clock, state: Any) -> tuple[Turn, ...]:  # noqa: ANN401
        """As of the strategy."""
        return self.strategy.due(clock, state)

    def offer(
        self,
        turn: Turn,
        vector: Vector,
        clock: Clock,
        state: Any,  # noqa: ANN401
    ) -> tuple[Message | None, Any]:
        """Offers what the strategy does, encoded."""
        message, state = self.strategy.offer(turn, vector, clock, state)
        if message is None or message.vector is None:
            return message, state
        return message._replace(vector=encode(self.codec, message.vector), codec=self.codec), state

    def accept(self, vector: Vector, incoming: Message, state: Any) -> Any:  # noqa: ANN401
        """As of the strategy."""
        return self.strategy.accept(vector, incoming, state)


class FeedbackState(NamedTuple):
    """A strategy's state, and what its codec left out."""

    state: Any
    """Of the strategy."""
    left: Vector
    """What was left out of the pushes that were agreed on [n]."""
    pending: Vector
    """The same of the push that is under way, should it be agreed on."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - a field of any state
        """Returns a field of the strategy's state."""
        if name.startswith("__"):  # asked of every tuple, as by copy
            raise AttributeError(name)
        return getattr(self.state, name)


class ErrorFeedback(Encoded):
    """A strategy's pushes in a codec, with error feedback."""

    def __init__(self, strategy: Strategy, codec: str) -> None:
        super().__init__(strategy, codec)
        self.own_fields = (*self.own_fields, "left")

    def init(self, vector: Vector) -> FeedbackState:
        """Nothing was left out yet."""
        zeros = np.zeros_like(vector)
        return FeedbackState(self.strategy.init(vector), zeros, zeros)

    def due(self, clock: Clock, state: FeedbackState) -> tuple[Turn, ...]:
        """As of the strategy."""
        return self.strategy.due(clock, state.state)

    def offer(
        self, turn: Turn, vector: Vector, clock: Clock, state: FeedbackState
    ) -> tuple[Message | None, FeedbackState]:
        """Offers the strategy's push, and on it what was left out before."""
        message, inner = self.strategy.offer(turn, vector, clock, state.state)
        if message is None or message.vector is None:
            return message, state._replace(state=inner)
        delta = message.vector
        delta += part(state.left, turn.fragment)
        encoded = encode(self.codec, delta)
        pending = residual(self.codec, delta, encoded)
        message = message._replace(vector=encoded, codec=self.codec)
        return message, state._replace(state=inner, pending=pending)

    def accept(self, vector: Vector, incoming: Message, state: FeedbackState) -> FeedbackState:
        """Takes in what was agreed: what was left out of it is known then."""
        state = state._replace(state=self.strategy.accept(vector, incoming, state.state))
        if incoming.kind != "agreed":
            return state
        if incoming.fragment == ALL:
            return state._replace(left=state.pending)
        left = state.left.copy()
        part(left, incoming.fragment)[:] = state.pending
        return state._replace(left=left)
