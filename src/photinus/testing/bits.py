"""What of two states is compared bit for bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from photinus.core.parameters import Vector
from photinus.strategies.base import Message


def key(value: object) -> object:
    """Returns an array as something that equals only its own bits; all else as it is."""
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes())
    return value


def values(state: object) -> list[object]:
    """Returns all that a state is made of, in order.

    Example:
        >>> values({"version": 3, "slots": (0, 1)})
        ['version', 3, 'slots', 0, 1]
    """
    if isinstance(state, Mapping):
        return [v for name, value in state.items() for v in (name, *values(value))]
    if isinstance(state, (tuple, list)):
        return [v for value in state for v in values(value)]
    if dataclasses.is_dataclass(state):
        return [v for f in dataclasses.fields(state) for v in values(getattr(state, f.name))]
    return [key(state)]


def whole(message: Message) -> Vector:
    """Returns the vector that a message must carry."""
    assert message.vector is not None, f"a message of kind {message.kind} carries a vector"
    return message.vector
