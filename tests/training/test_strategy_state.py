"""What only a worker knows of its agreement survives a cut."""

from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from photinus.core.clock import Clock
from photinus.core.parameters import Vector
from photinus.training.strategy_state import keep, position_of, split_state, take_up


class Held(NamedTuple):
    left: Vector
    sent: Clock
    counted: tuple[Clock, ...]
    anchor: Vector


NOW = Clock(30, 240, 1.5, 9.0)
STATE = Held(np.arange(3.0), Clock(28, 224, 1.4, 8.5), (Clock(10, 80), Clock(20, 160)), np.ones(3))
FRESH = Held(np.zeros(3), Clock(), (Clock(), Clock()), np.ones(3))
ALL_OF_IT = SimpleNamespace(own_fields=("parameters", "left", "sent", "counted"))


def test_arrays_clocks_and_parameters_come_back_as_old_as_they_were():
    snapshot = keep(ALL_OF_IT, np.full(3, 7.0), NOW, STATE, 240)
    assert all(value.ndim == 1 for value in snapshot.values()), "as frames carry them"
    inner, mine = split_state({"momentum": np.ones(2), **snapshot})
    assert list(inner) == ["momentum"]
    vector = np.zeros(3)
    state = take_up(vector, FRESH, mine)
    assert vector.tolist() == [7.0] * 3
    assert state.left.tolist() == [0.0, 1.0, 2.0]
    now = Clock()
    assert now.since(state.sent)[:2] == NOW.since(STATE.sent)[:2]
    assert [now.since(c)[:2] for c in state.counted] == [(20, 160), (10, 80)]
    assert position_of(mine, 200) == 240, "the rows behind its own parameters"


def test_what_is_kept_does_not_change_when_the_worker_continues():
    vector, left = np.zeros(3), np.zeros(3)
    snapshot = keep(ALL_OF_IT, vector, NOW, STATE._replace(left=left), 240)
    vector += 1
    left += 1
    assert not snapshot["agreement.parameters"].any()
    assert not snapshot["agreement.left"].any()


def test_where_nothing_is_alone_nothing_is_kept():
    for strategy in (SimpleNamespace(), SimpleNamespace(own_fields=("left",))):
        assert keep(strategy, np.ones(3), NOW, STATE._replace(left=np.zeros(0)), 240) == {}
    assert take_up(np.ones(3), FRESH, {}) is FRESH
    assert position_of({}, 200) == 200
