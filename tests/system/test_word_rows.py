"""A table of word vectors under `downpour(rows=...)`: what changed travels, to the same bits."""

import dataclasses
import os

import numpy as np
import pytest

from photinus.core.clock import Steps
from photinus.core.events import PhaseEnded, RoundClosed
from photinus.core.parameters import TRAINED, Layout, Parameters
from photinus.data.rows import Rows
from photinus.engine.base import ArrayData, RunSpec
from photinus.engine.local.engine import LocalEngine
from photinus.engine.simulation.cluster import SimulatedCluster
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.models.base import Model, ModelConfig
from photinus.models.logistic import GradientDescent
from photinus.strategies.outer import Adagrad, Sgd
from photinus.strategies.recipes import downpour
from photinus.training.plan import Phase, TrainingPlan

WORDS, WIDTH, CLASSES, LENGTH = 2000, 6, 3, 4


class Bag(Model):
    """p = softmax(mean of the words' vectors · W): its table comes first, the layer behind it."""

    def __init__(self):
        tables = [("words", (WORDS, WIDTH), TRAINED), ("W", (WIDTH, CLASSES), TRAINED)]
        self.parameters = Parameters(Layout.of(tables))
        self._gradient = Parameters(self.parameters.layout)
        rng = np.random.default_rng(0)
        self.parameters.trained[:] = 0.1 * rng.normal(size=self.parameters.trained.size)

    def _forward(self, batch):
        words, labels = batch.features.astype(int), np.asarray(batch.labels).astype(int)
        hidden = self.parameters.view("words")[words].mean(1)  # [B, WIDTH]
        z = np.exp(hidden @ self.parameters.view("W"))
        p = z / z.sum(1, keepdims=True)
        return words, labels, hidden, p, -np.log(p[np.arange(len(p)), labels])

    def learn(self, batch, seed):
        words, labels, hidden, p, loss = self._forward(batch)
        p[np.arange(len(p)), labels] -= 1
        p /= len(p)
        self._gradient.trained[:] = 0
        back = (p @ self.parameters.view("W").T / LENGTH)[:, None].repeat(LENGTH, 1)
        np.add.at(self._gradient.view("words"), words, back)
        self._gradient.view("W")[:] = hidden.T @ p
        return self._gradient.trained, {"loss": float(loss.mean())}

    def measure(self, batch):
        _, labels, _, p, loss = self._forward(batch)
        errors = float((p.argmax(1) != labels).sum())
        return {"examples": float(len(p)), "errors": errors, "loss": float(loss.sum())}


@dataclasses.dataclass(frozen=True, kw_only=True)
class BagConfig(ModelConfig):
    name: str = "bag"
    epochs: float = 6.0
    batch_size: int = 4

    def build(self, history, seed):
        return Bag()

    def inner(self, layout):
        return GradientDescent(0.5)


def texts():
    """Rows of words that tell their class, of a long tail of words as in language."""
    rng = np.random.default_rng(1)
    labels = rng.integers(0, CLASSES, 240)
    words = np.minimum(rng.zipf(1.3, (240, LENGTH)), WORDS // CLASSES) * CLASSES - 1
    return ArrayData((words - labels[:, None]).astype("f4"), labels)


def trained(engine, strategy, workers, **fields):
    plan = TrainingPlan(phases=(Phase(config=BagConfig(), strategy=strategy),), workers=workers)
    events = []
    assignment = RunSpec(plan=plan, data=texts(), run=os.urandom(16), emit=events.append, **fields)
    return engine.run(assignment).vectors[0], events


def sent(events):
    rounds = [e for e in events if isinstance(e, RoundClosed)]
    return sum(e.bytes_up for e in rounds), sum(e.bytes_down for e in rounds)


def loss(vector):
    model, data = Bag(), texts()
    model.load(vector)
    batch = Rows.of(data.features, data.labels).batch(np.arange(len(data.labels)))
    sums = model.measure(batch)
    return sums["loss"] / sums["examples"]


EVENLESS = SimulatedCluster(step_seconds=(0.01, 0.013, 0.0171), bytes_per_second=1e18)
"""Nobody is at the same point as another, and time does not depend on what is sent."""


@pytest.mark.parametrize("outer", [Sgd(), Adagrad(lr=0.5)], ids=str)
@pytest.mark.parametrize("codec", ["fp32", "bf16"])
def test_pushes_of_rows_train_to_the_bits_of_whole_pushes(outer, codec):
    runs = []
    for rows in (0, WIDTH):
        parts = {"every": Steps(3), "codec": codec, "outer": outer}
        runs.append(trained(SimulatedEngine(EVENLESS), downpour(rows=rows, **parts), 3))
    (whole, events), (some, events_some) = runs
    np.testing.assert_array_equal(some, whole)
    assert loss(some) < 0.8 < 1.0 < loss(Bag().parameters.trained)
    for all_of_it, of_rows in zip(sent(events), sent(events_some), strict=True):
        assert 0 < of_rows < all_of_it / 10


def test_a_fetch_of_its_own_brings_the_rows_that_others_moved():
    strategy = downpour(every=Steps(4), fetch=Steps(3), rows=WIDTH, codec="fp32")
    whole = dataclasses.replace(strategy, rows=0)
    (some, _), (other, _) = (trained(SimulatedEngine(EVENLESS), a, 3) for a in (strategy, whole))
    # what is not pushed yet is carried over by a sum and a difference, which a row that did not
    # move is spared: equal but for the last bits
    np.testing.assert_allclose(some, other, rtol=0, atol=1e-5)


@pytest.mark.processes
def test_rows_travel_over_real_links(tmp_path):
    alone, _ = trained(LocalEngine(), downpour(every=Steps(3), rows=WIDTH, codec="fp32"), 1)
    plain, _ = trained(SimulatedEngine(), downpour(every=Steps(3), codec="fp32"), 1)
    np.testing.assert_array_equal(alone, plain)
    some, events = trained(LocalEngine(), downpour(every=Steps(3), rows=WIDTH), 2)
    assert loss(some) < 0.9
    (end,) = [e for e in events if isinstance(e, PhaseEnded)]
    pushes = sum(e.rounds for e in events if isinstance(e, RoundClosed))
    assert end.examples >= 6 * 240
    assert all(0 < n < pushes * Bag().parameters.trained.nbytes / 10 for n in sent(events))
