"""All hold the same agreed point bit for bit; who does not is found, and heals."""

from dataclasses import dataclass, field
from itertools import count

import numpy as np
import pytest

from photinus.core.clock import Steps
from photinus.strategies.base import GRADIENT, Strategy
from photinus.strategies.outer import Nesterov
from photinus.strategies.recipes import all_reduce, averaging
from photinus.training.offer_accept import FINGERPRINT_EVERY

pytestmark = pytest.mark.numerics

RECIPES = {
    "averaging": averaging(every=Steps(2), outer=Nesterov(0.7, 0.5)),
    "all_reduce": all_reduce(codec="fp32"),
}


class Flipping(Strategy):
    """A bit of what the third worker that begins holds as agreed flips, once, at a version."""

    def __init__(self, inside, version, begun):
        self.site, self._inside, self._version, self._begun = inside.site, inside, version, begun

    def init(self, vector):
        self._version = self._version if next(self._begun) == 2 else -1
        return self._inside.init(vector)

    def due(self, clock, state):
        return self._inside.due(clock, state)

    def offer(self, turn, vector, clock, state):
        return self._inside.offer(turn, vector, clock, state)

    def accept(self, vector, incoming, state):
        state = self._inside.accept(vector, incoming, state)
        if incoming.version == self._version:
            target = vector if self.site == GRADIENT else state.anchor
            target[0] += 2.0
            self._version = -1
        return state


@dataclass
class Flips:
    """A strategy in which the third worker's memory is bad."""

    inside: object
    version: int
    begun: object = field(default_factory=count)

    @property
    def is_deterministic(self):
        return self.inside.is_deterministic

    def owner(self):
        return self.inside.owner()

    def worker(self):
        return Flipping(self.inside.worker(), self.version, self.begun)


@pytest.mark.parametrize("name", RECIPES)
def test_a_worker_with_other_bits_is_named_and_heals(field, name):
    clean = field.play(RECIPES[name], epochs=8).run()
    at = FINGERPRINT_EVERY if name == "averaging" else FINGERPRINT_EVERY - 1
    bad = field.play(Flips(RECIPES[name], at), epochs=8).run()
    [warning] = bad.tape.warnings()
    assert warning.startswith("worker 2 has other parameters than the other workers; got ")
    assert "; it gets the agreed parameters" in warning
    assert bad.counts["missed"] == 1
    assert bad.counts["applied"] >= clean.counts["applied"]
    assert field.loss(bad.vector) == pytest.approx(field.loss(clean.vector), rel=0.01)
    assert bad.tape.of("PhaseEnded")[0].examples == clean.tape.of("PhaseEnded")[0].examples
    bad.tape.assert_exact()


def test_without_the_check_the_wrong_delta_would_have_counted(field):
    """The fault is a real one: between two checks it moves the agreed point."""
    clean = field.play(RECIPES["averaging"], epochs=8).run(until=0.6)
    late = field.play(Flips(RECIPES["averaging"], FINGERPRINT_EVERY + 1), epochs=8).run(until=0.6)
    moved = [p.simulation.coordinator.owner.point.vector for p in (clean, late)]
    assert np.abs(moved[0] - moved[1]).max() > 0.1
    late.run()
    assert len(late.tape.warnings()) == 1, "found at the next check"


@pytest.mark.parametrize("name", RECIPES)
def test_without_a_fault_nobody_is_told_to_heal(field, name):
    played = field.play(RECIPES[name], epochs=8).run()
    assert played.tape.warnings() == []
    assert played.counts["missed"] == 0
