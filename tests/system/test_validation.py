"""Rows set aside, on which the agreed point is measured: what is best, and when to stop."""

from dataclasses import replace

import numpy as np
import pytest

from photinus.coordinator.callbacks import Callbacks
from photinus.coordinator.coordinator import Coordinator
from photinus.core.clock import Steps
from photinus.data.base import Batch
from photinus.engine.base import RunSpec, part_of
from photinus.engine.simulation.cluster import SimulatedCluster
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.engine.simulation.simulator import Simulation
from photinus.strategies.recipes import all_reduce, averaging

RECIPES = {"averaging": averaging(every=Steps(5)), "all_reduce": all_reduce(codec="fp32")}


class Played:
    """A run with validation in the simulator, and all that it said."""

    def __init__(self, field, recipe, *, patience=0, lr=0.2, epochs=4, kill=None, bad=()):
        plan = replace(field.plan(recipe, epochs=epochs, lr=lr), validation=0.2, patience=patience)
        self.events, self.best, self.saved = [], [], []
        callbacks = Callbacks(
            emit=self.events.append, best=self.best.append, save=self.saved.append
        )
        picks = [np.arange(slot, len(field.features), 4) for slot in range(4)]
        self.rows = [field.rows(pick) for pick in picks]
        parts = [part_of(rows, plan) for rows in self.rows]
        self.held = [part.held for part in parts]
        self.simulation = Simulation(
            plan, parts, SimulatedCluster(), coordinator=Coordinator(plan, callbacks)
        )
        if kill is not None:
            self.simulation.at(kill, self.simulation.kill, 2, 0.3)
        self.result = self.simulation.run()
        self.model = plan.build(0, ())

    def of(self, kind):
        return [e for e in self.events if type(e).__name__ == kind]

    def measured(self, vector):
        """The oracle: the model's own measure over all rows that were set aside."""
        self.model.load(vector)
        sums = {}
        for part in self.held:
            batch = part.batch(part.order)
            for name, value in self.model.measure(Batch(batch.features, batch.labels)).items():
                sums[name] = sums.get(name, 0.0) + value
        return sums


def test_rows_set_aside_are_no_rows_to_train_on(field):
    rows = field.rows()
    train, validation = rows.parted(0.2)
    assert len(train) + len(validation) == len(rows)
    assert not set(train.order.tolist()) & set(validation.order.tolist())
    assert 0.1 < len(validation) / len(rows) < 0.3
    again = field.rows(np.arange(len(rows))[::-1])
    same = {tuple(x) for x in again.features[again.parted(0.2)[1].order]}
    assert same == {tuple(x) for x in rows.features[validation.order]}, "whoever holds them"


@pytest.mark.parametrize("name", RECIPES)
def test_the_agreed_point_is_measured_once_an_epoch(field, name):
    played = Played(field, RECIPES[name])
    evaluated = played.of("Evaluated")
    assert {e.name for e in evaluated} == {"validation"}
    assert len(evaluated) in (3, 4), "the last one only where all have as much to do"
    assert {e.examples for e in evaluated} == {sum(map(len, played.held))}
    best = [e for e in evaluated if e.extra.get("best")]
    for event, cut in zip(best, played.best, strict=True):
        oracle = played.measured(cut.point.vector)
        assert event.metrics["loss"] == pytest.approx(oracle["loss"] / oracle["examples"])
        assert event.metrics["error"] == pytest.approx(oracle["errors"] / oracle["examples"])
    trained = sum(len(rows) for rows in played.rows) - sum(map(len, played.held))
    assert played.of("PhaseEnded")[0].examples == 4 * trained


@pytest.mark.parametrize("name", RECIPES)
def test_the_best_point_is_kept_with_what_it_measured(field, name):
    played = Played(field, RECIPES[name], lr=3.0, epochs=6)
    best = [e for e in played.of("Evaluated") if e.extra.get("best")]
    assert len(best) == len(played.best) > 0
    assert best[-1].metrics["error"] == min(e.metrics["error"] for e in played.of("Evaluated"))
    sums = played.measured(played.best[-1].point.vector)
    assert sums["errors"] / sums["examples"] == pytest.approx(best[-1].metrics["error"])


@pytest.mark.parametrize("name", RECIPES)
def test_patience_ends_a_phase_at_its_best_point(field, name):
    played = Played(field, RECIPES[name], patience=2, lr=3.0, epochs=60)
    evaluated = played.of("Evaluated")
    assert len(evaluated) < 60, "it stopped"
    assert not any(e.extra.get("best") for e in evaluated[-2:]), "after two that were no better"
    assert np.array_equal(played.result.vectors[-1], played.best[-1].point.vector)
    [warned] = [e.text for e in played.of("Warned") if "no better point" in e.text]
    assert "at its best point" in warned
    progress = max(e.progress for e in played.of("RoundClosed"))
    assert progress < 1


@pytest.mark.parametrize("kill", [0.16, 0.25, 0.3, 0.44])
@pytest.mark.parametrize("name", RECIPES)
def test_a_lost_worker_holds_no_measurement_up(field, name, kill):
    played = Played(field, RECIPES[name], kill=kill)
    assert played.of("WorkerLost")
    assert len(played.of("Evaluated")) == 4, "also where all others had told before it was lost"


def test_an_engine_sets_the_same_rows_aside(tiny):
    plan = replace(tiny.plan(recipes=(RECIPES["averaging"],)), validation=0.2)
    events = []
    SimulatedEngine().run(RunSpec(plan=plan, data=tiny.data, run=bytes(16), emit=events.append))
    evaluated = [e for e in events if type(e).__name__ == "Evaluated"]
    assert len(evaluated) in (2, 3)
    joined = [e.examples for e in events if type(e).__name__ == "WorkerJoined"]
    assert sum(joined) + evaluated[0].examples == 90
