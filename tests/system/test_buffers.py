"""Running statistics travel beside the parameters, from the worker to the result."""

import numpy as np
import pytest

from photinus.core.clock import Steps
from photinus.core.parameters import FLOATS, INTEGERS, TRAINED, Layout, Parameters
from photinus.models.logistic import LogisticModel
from photinus.strategies.outer import Nesterov
from photinus.strategies.recipes import all_reduce, averaging


class Counting(LogisticModel):
    """Remembers how many examples it saw, and a running number as BatchNorm does."""

    def __init__(self, features, classes, dtype):
        super().__init__(features, classes, dtype)
        trained = [(e.name, e.shape, TRAINED) for e in self.parameters.layout.entries]
        buffers = [("mean", (1,), FLOATS), ("seen", (1,), INTEGERS)]
        self.parameters = Parameters(Layout.of([*trained, *buffers], dtype))

    def learn(self, batch, seed):
        self.parameters.floats += np.float32(0.1) * (1 - self.parameters.floats)
        self.parameters.integers += 1
        return super().learn(batch, seed)


def config_of(field, epochs):
    class CountingConfig(type(field.config())):
        def build(self, history, seed):
            return Counting(self.features, self.classes, self.dtype)

    return CountingConfig(features=6, classes=3, epochs=epochs, batch_size=8, dtype="float64")


@pytest.mark.parametrize(
    "strategy",
    [
        averaging(every=Steps(5), outer=Nesterov(0.7, 0.6)),
        averaging(every=Steps(5), outer=Nesterov(0.7, 0.6), owners=4),
        all_reduce(),
    ],
    ids=lambda a: f"{a.recipe} {a.owners}",
)
def test_buffers_reach_the_result_merged_and_never_stepped(field, strategy):
    played = field.play(strategy, configs=[config_of(field, 6)]).run()
    steps = 6 * 15
    assert played.result.integers.tolist() == [steps], "the largest count of all"
    expected = 1 - 0.9**steps  # all saw as much, so their mean is what each has
    assert played.result.floats[0] == pytest.approx(expected, rel=1e-5)
    assert played.result.floats[0] <= 1.0, "an outer optimizer would have carried it past 1"


def test_a_joiner_takes_the_buffers_too(field):
    played = field.play(averaging(every=Steps(5)), configs=[config_of(field, 6)])
    played.simulation.at(0.3, played.simulation.kill, 1, 0.1)
    played.run()
    assert played.result.integers[0] >= 6 * 15
