"""Saves and restores a strategy's state that only this worker has.

Clocks are kept by their age: a worker that continues from a snapshot begins to count at 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from photinus.core.clock import Clock
from photinus.core.parameters import Vector
from photinus.strategies.base import OWN_PARAMETERS, Strategy

_PREFIX = "agreement."
_POSITION = "position"
_OUTER = "outer"


def keep(
    strategy: Strategy,
    vector: Vector,
    clock: Clock,
    state: Any,  # noqa: ANN401 - each strategy has a state of its own
    position: int,
) -> dict[str, Vector]:
    """Returns the fields of `strategy.own_fields` by name, as copies; empty ones are left out.

    Args:
        strategy: the worker's half.
        vector: its parameters [n]; kept where they are not the agreed ones.
        clock: its present time.
        state: of the strategy.
        position: of the feed, at these parameters.
    """
    saved: dict[str, Vector] = {}
    for name in getattr(strategy, "own_fields", ()):
        if name == OWN_PARAMETERS:
            saved |= {name: vector.copy(), _POSITION: np.array([position])}
            continue
        value = getattr(state, name)
        if isinstance(value, Clock):
            saved[name] = np.array(clock.since(value), np.float64)  # [5]
        elif isinstance(value, np.ndarray):
            saved[name] = value.copy()
        elif name == _OUTER:
            saved |= {f"{name}.{i}": one.copy() for i, one in enumerate(value)}
        else:
            ages = [clock.since(one) for one in value]
            saved[name] = np.array(ages, np.float64).ravel()  # [clocks · 5]
    return {_PREFIX + name: value for name, value in saved.items() if value.size}


def split_state(saved: Mapping[str, Vector]) -> tuple[dict[str, Vector], dict[str, Vector]]:
    """Splits a worker's part of a snapshot into the inner optimizer's and the strategy's state."""
    inner = {name: value for name, value in saved.items() if not name.startswith(_PREFIX)}
    return inner, {n.removeprefix(_PREFIX): v for n, v in saved.items() if n not in inner}


def is_kept(saved: Mapping[str, Vector]) -> bool:
    """Returns whether what a snapshot holds of a worker includes a strategy's own state."""
    return any(name.startswith(_PREFIX) for name in saved)


def position_of(saved: Mapping[str, Vector], position: int) -> int:
    """Returns where the feed continues: behind the kept parameters' rows, or at `position`."""
    return int(saved[_POSITION][0]) if _POSITION in saved else position


def take_up(vector: Vector, state: Any, saved: Mapping[str, Vector]) -> Any:  # noqa: ANN401
    """Returns the state with what was kept in it; the parameters are written into `vector`."""
    fields: dict[str, Any] = {}
    for name, value in saved.items():
        if name == OWN_PARAMETERS:
            np.copyto(vector, value)
        elif name.startswith(_OUTER):
            fields[_OUTER] = (*fields.get(_OUTER, ()), value.copy())
        elif name != _POSITION:
            fields[name] = _like(getattr(state, name), value)
    return _with(state, fields) if fields else state


def _with(state: Any, fields: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Returns a state with other fields; those it lacks are fields of the state inside it."""
    own = {name: value for name, value in fields.items() if name in state._fields}
    rest = {name: value for name, value in fields.items() if name not in own}
    return state._replace(**own, **({"state": _with(state.state, rest)} if rest else {}))


def _like(current: object, value: Vector) -> object:
    if isinstance(current, Clock):
        return _clock(value)
    if isinstance(current, np.ndarray):
        return value.copy()
    return tuple(_clock(row) for row in np.reshape(value, (-1, len(Clock()))))


def _clock(age: Vector) -> Clock:
    """Returns the clock that is `age` [5] old at 0."""
    steps, examples, epochs, seconds = (float(n) for n in age[:4])
    return Clock(-int(steps), -int(examples), -epochs, -seconds)
