"""A worker's life with the faults that are planned for it."""

import resource

import numpy as np
import pytest

from photinus.core.clock import Steps
from photinus.engine.faults.plan import Faults
from photinus.engine.faults.worker import Victim
from photinus.strategies.recipes import averaging


def test_an_allocation_fails_in_the_step_that_was_named_and_the_limit_is_taken_back(field):
    before = resource.getrlimit(resource.RLIMIT_AS)
    world = {"faults": Faults().no_memory(slot=1, step=7)}
    played = field.play(averaging(every=Steps(5)), world=world)
    with pytest.raises(MemoryError, match=r"Unable to allocate 1\.00 GiB") as failed:
        played.run()
    assert played.simulation.steps[1] == 6
    assert "memory ran out: use a smaller batch, or fewer workers" in failed.value.__notes__
    assert resource.getrlimit(resource.RLIMIT_AS) == before
    assert len(np.ones(64 << 20, np.uint8)) == 64 << 20


def test_what_lasts_is_done_after_every_step_and_the_rest_once(field):
    happened = []
    faults = Faults().slow(slot=1, factor=2.0, step=3).cut(slot=1, step=3, seconds=0.0)
    victim = Victim(faults.of(1), lambda fault, _: happened.append(fault.kind), None)
    victim.lease = 1
    for _ in range(5):
        victim.stepped(0.0)
    assert happened == ["slow", "cut", "slow", "slow"]
