"""A strategy on a worker's model: where the vectors lie, buffers, and fingerprints of the bits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from photinus.core.clock import Clock
from photinus.core.errors import UsageError
from photinus.core.parameters import Vector, fingerprint
from photinus.data.base import Batch
from photinus.models.base import Model
from photinus.strategies.base import GRADIENT, TURNS, Message, Strategy, Turn
from photinus.strategies.sparse import to_sparse
from photinus.training.phase_context import PhaseContext
from photinus.training.segments import EarlyGradient

BUFFERS_EVERY = 50
"""With agreement on gradients, float buffers are averaged every so many steps."""
FINGERPRINT_EVERY = 20
"""Every so many rounds a push carries a fingerprint of what its worker holds as agreed."""


def due(strategy: Strategy, clock: Clock, state: Any) -> tuple[Turn, ...]:  # noqa: ANN401
    """Returns the turns that are due.

    Raises:
        UsageError: a strategy of the user's returned something else.
    """
    turns = strategy.due(clock, state)
    if turns == ():
        return ()
    is_formed = isinstance(turns, (tuple, list)) and all(type(turn) is Turn for turn in turns)
    if not is_formed or any(turn.kind not in TURNS for turn in turns):
        wrong = f"due() of {type(strategy).__name__} must return a tuple of Turns"
        do = f"Turn takes one of {', '.join(TURNS)}; () is none"
        raise UsageError(wrong, got=repr(turns), do=do)
    return tuple(turns)


def offer(
    strategy: Strategy,
    model: Model,
    turn: Turn,
    vector: Vector,
    clock: Clock,
    state: Any,  # noqa: ANN401 - each strategy has a state of its own
) -> tuple[Message | None, Any]:
    """Returns what a strategy offers, and its new state; a push carries the model's buffers.

    Where the model has sparse tables, what did not change does not travel.
    """
    model.to_host(vector)
    offered = strategy.offer(turn, vector, clock, state)
    _check_offered(strategy, turn, offered)
    message, state = offered
    if message is not None and message.kind == "push":
        message = _with_buffers(strategy, model, message)
        message = _with_fingerprint(strategy, model, message, state)
    model.to_device(vector)  # some write into it
    if message is not None and model.parameters.layout.sparse:
        message = to_sparse(message)
    return message, state


def accept(
    strategy: Strategy,
    model: Model,
    vector: Vector,
    messages: Iterable[Message],
    state: Any,  # noqa: ANN401
) -> Any:  # noqa: ANN401
    """Accepts what arrived, one message after the other; returns the strategy's new state."""
    parameters = model.parameters
    for incoming in messages:
        if incoming.rows is not None and incoming.rows.size and incoming.table.moved is not None:
            model.forget()
        model.to_host(vector)
        state = strategy.accept(vector, incoming, state)
        model.to_device(vector)
        if incoming.floats is not None and incoming.integers is not None:
            model.to_host(parameters.floats, parameters.integers)
            np.copyto(parameters.floats, incoming.floats)
            np.copyto(parameters.integers, incoming.integers)
            model.to_device(parameters.floats, parameters.integers)
    return state


def early(context: PhaseContext, clock: Clock, batch: Batch, state: Any) -> EarlyGradient | None:  # noqa: ANN401
    """Returns what sends this step's gradient while it is computed; None where nothing may.

    Buffers, and what a sparse table left out, are known at the end of a step only.
    """
    sending, model = context.early, context.model
    if sending is None or model.parameters.layout.sparse or not sending.pays():
        return None

    def send_alone(run: Message, size: int, merge: str) -> None:
        if not _has_buffers(context.strategy, model, run):
            sending.send(run, size, merge)

    after = clock.after(batch.examples, clock.seconds, clock.epochs)
    size = model.parameters.trained.size
    return EarlyGradient(context.strategy, after, state, size, send_alone)


def _check_offered(strategy: Strategy, turn: Turn, offered: object) -> None:
    """Refuses what a strategy of the user's returns: the answer to it would never come."""
    wanted = (Message, type(None)) if turn.kind == "take" else Message
    is_pair = isinstance(offered, tuple) and len(offered) == 2
    first = offered[0] if isinstance(offered, tuple) and is_pair else offered
    if is_pair and isinstance(first, wanted):
        return
    wrong = f"offer() of {type(strategy).__name__} must return a Message and the state"
    name = type(first).__name__
    got = f"({name}, state)" if is_pair else name
    raise UsageError(wrong, got=f"{got} at a turn {turn.kind!r}", do="return (message, state)")


def _with_buffers(strategy: Strategy, model: Model, push: Message) -> Message:
    if not _has_buffers(strategy, model, push):
        return push
    floats, integers = model.parameters.floats, model.parameters.integers
    model.to_host(floats, integers)
    return push._replace(floats=floats.copy(), integers=integers.copy())


def _has_buffers(strategy: Strategy, model: Model, push: Message) -> bool:
    is_time = strategy.site != GRADIENT or push.version % BUFFERS_EVERY == 0
    count = model.parameters.floats.size + model.parameters.integers.size
    return is_time and count > 0 and push.table.owned is None


def _with_fingerprint(strategy: Strategy, model: Model, push: Message, state: Any) -> Message:  # noqa: ANN401
    """Adds a fingerprint of what all hold alike: the anchor, or with gradients the parameters."""
    if push.version % FINGERPRINT_EVERY or getattr(strategy, "has_late_answers", False):
        return push
    is_gradient = strategy.site == GRADIENT
    if is_gradient:
        model.to_host(model.parameters.trained)
    agreed = model.parameters.trained if is_gradient else getattr(state, "anchor", None)
    return push if agreed is None else push._replace(fingerprint=fingerprint(agreed))
