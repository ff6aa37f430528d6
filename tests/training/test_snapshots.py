"""What a cut says of itself."""

import dataclasses

import numpy as np

from photinus.strategies.base import Message
from photinus.training.snapshots import RunSnapshot

HERE = RunSnapshot(
    phase=1,
    version=7,
    applied=64,
    budget=100,
    point=Message("heal", np.zeros(2), version=7),
    positions={0: 32, 1: 32},
    rows={0: 50, 1: 50},
)


def test_names_sort_by_the_order_of_saving():
    later = dataclasses.replace(HERE, version=10)
    assert HERE.name < later.name < dataclasses.replace(HERE, phase=2, version=0).name


def test_a_phase_starts_where_nobody_has_used_a_row_yet():
    """The rest of a stage continues in the rows: as many workers as before must hold them."""
    rest = dataclasses.replace(HERE, version=0)
    assert not rest.is_phase_start
    assert not HERE.is_phase_start
    assert dataclasses.replace(rest, positions={0: 0, 1: 0}).is_phase_start
