"""A stage in two parts continues as one, and every worker trains on its own rows equally often."""

import dataclasses
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from photinus.coordinator.coordinator import Coordinator
from photinus.core.clock import Steps
from photinus.data.rows import Rows
from photinus.engine.base import part_of
from photinus.engine.simulation.cluster import SimulatedCluster
from photinus.engine.simulation.simulator import Simulation
from photinus.models import optimizers as inners
from photinus.models.logistic import LogisticConfig
from photinus.models.module import ModuleConfig
from photinus.models.schedules import Schedule
from photinus.strategies import recipes
from photinus.strategies.outer import Sgd
from photinus.strategies.recipes import RECIPES, all_reduce, averaging, iterative_reduce, post_local
from photinus.training.plan import REST, START, Phase, TrainingPlan, phases_of

WIDTH, CLASSES, EPOCHS = 6, 3, 3.0
EVEN = {1: (120,), 2: (60, 60), 3: (40, 40, 40), 4: (30, 30, 30, 30), 5: (24, 24, 24, 24, 24)}
UNEVEN = ((90, 0, 30), (0, 80, 40), (20, 100), (100, 5, 15, 0))
FLAT = Schedule.constant(0.02)
"""A rate that does not change, for what must be equal to the bit."""


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """As a worker has: the bits are those of `WorkerLimits.threads`."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def plain():
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))


def normed():
    return torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, CLASSES)
    )


def thinned():
    return torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, CLASSES)
    )


def net(module="plain", **fields):
    usual = {"optimizer": "sgd", "settings": {"momentum": 0.9}, "lr": FLAT, "epochs": EPOCHS}
    return ModuleConfig(module=f"{__name__}:{module}", batch_size=24, **usual | fields)


CONFIGS = {
    "momentum": net(),
    "adamw": net(optimizer="adamw", settings={}),
    "batch norm": net("normed", optimizer="adamw", settings={}),
    "dropout": net("thinned"),
}


def cut_in_two(config, until, strategy=None):
    """A start and a rest that agree alike; or, until None, the whole."""
    strategy = strategy or all_reduce()
    if until is None:
        return (Phase(config=config, strategy=strategy),)
    return tuple(
        Phase(config=config, strategy=strategy, part=part, until=until) for part in (START, REST)
    )


def rows_of(shares, seed=1):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(sum(shares), WIDTH)).astype("f4")
    labels = (features @ rng.normal(size=(WIDTH, CLASSES))).argmax(1)
    picks = np.split(np.arange(len(features)), np.cumsum(shares)[:-1])
    return [Rows.of(features[pick], labels[pick]) for pick in picks]


@dataclass
class Run:
    """One simulated run and all it told."""

    simulation: Simulation
    events: list
    snapshots: list
    result: object = None

    def go(self, until=float("inf")):
        self.result = self.simulation.run(until)
        return self

    def of(self, kind):
        return [event for event in self.events if type(event).__name__ == kind]


def run_of(
    phases, shares=EVEN[3], *, snapshot=None, parts=None, cluster=None, callbacks=None, **fields
):
    from photinus.coordinator.callbacks import Callbacks

    events, snapshots = [], []
    plan = TrainingPlan(phases=tuple(phases), workers=len(shares), **fields)
    callbacks = Callbacks(emit=events.append, save=snapshots.append, **callbacks or {})
    coordinator = Coordinator(plan, callbacks, snapshot=snapshot)
    parts = parts or [part_of(rows, plan) for rows in rows_of(shares)]
    simulation = Simulation(plan, parts, SimulatedCluster(**cluster or {}), coordinator=coordinator)
    return Run(simulation, events, snapshots)


def assert_same(one, other):
    """To the bit; running means may be averaged at other steps, which changes their rounding."""
    np.testing.assert_array_equal(one.result.vectors[-1], other.result.vectors[-1])
    np.testing.assert_allclose(one.result.floats, other.result.floats, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(one.result.integers, other.result.integers)
    assert len(one.result.vectors) == len(other.result.vectors)


# -- one stage, whole or in two parts ------------------------------------------------------------


@pytest.mark.parametrize("until", [0.05, 0.2, 1 / 3, 0.5, 0.95])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_start_and_its_rest_are_one_training_to_the_bit(name, until):
    config = CONFIGS[name]
    parted = run_of(cut_in_two(config, until)).go()
    assert [e.phase for e in parted.of("PhaseEnded")] == [0, 1]
    assert_same(parted, run_of(cut_in_two(config, None)).go())


@pytest.mark.parametrize("shares", [*EVEN.values(), *UNEVEN], ids=str)
@pytest.mark.parametrize("until", [0.2, 0.55])
def test_it_is_one_training_for_one_to_five_workers_and_any_shares(shares, until):
    config = CONFIGS["adamw"]
    if min(n for n in shares if n) * config.batch_size < sum(shares):
        config = dataclasses.replace(config, batch_size=60)  # each worker has a row for every step
    parted, whole = (run_of(cut_in_two(config, u), shares).go() for u in (until, None))
    assert_same(parted, whole)


@pytest.mark.parametrize("fields", [{"is_shared": True}, {"validation": 0.2}], ids=str)
def test_it_is_one_training_over_shared_rows_and_beside_rows_set_aside(fields):
    shares = EVEN[3]

    def go(until):
        phases = cut_in_two(CONFIGS["adamw"], until)
        plan = TrainingPlan(phases=phases, workers=3, **fields)
        (rows,) = rows_of((sum(shares) + 5,))
        each = [rows] * 3 if plan.is_shared else rows_of(shares)
        return run_of(phases, shares, parts=[part_of(r, plan) for r in each], **fields).go()

    parted, whole = go(0.4), go(None)
    assert_same(parted, whole)
    early_stopping = [[e.metrics for e in run.of("Evaluated")] for run in (parted, whole)]
    assert len(early_stopping[0]) == len(early_stopping[1]) == (3 if "validation" in fields else 0)
    for one, other in zip(*early_stopping, strict=True):
        assert one == pytest.approx(other, abs=1e-6)


def killed_at_the_border(slots):
    """A run in which workers die as soon as the rest has begun, and are started again at once."""
    run = run_of(cut_in_two(CONFIGS["adamw"], 0.4))
    callbacks, emit = (
        run.simulation.coordinator.callbacks,
        run.simulation.coordinator.callbacks.emit,
    )

    def emitting(event):
        emit(event)
        if type(event).__name__ == "PhaseStarted" and event.phase == 1:
            for slot in slots:
                run.simulation.at(0.001, run.simulation.kill, slot, 0.0)

    object.__setattr__(callbacks, "emit", emitting)
    return run.go()


def test_workers_killed_at_the_border_take_the_agreed_state_up():
    """At the border nobody holds anything alone: not a bit is lost with all processes."""
    whole = run_of(cut_in_two(CONFIGS["adamw"], None)).go()
    killed = killed_at_the_border((0, 1, 2))
    assert sorted(e.slot for e in killed.of("WorkerLost")) == [0, 1, 2]
    np.testing.assert_array_equal(killed.result.vectors[-1], whole.result.vectors[-1])


@pytest.mark.parametrize("slot", [0, 1, 2])
def test_one_worker_killed_at_the_border_trains_on_with_the_bits_of_the_others(slot):
    killed = killed_at_the_border((slot,))
    assert [e.slot for e in killed.of("WorkerLost")] == [slot]
    assert not killed.of("Warned"), "all ended with the same bits"
    assert sum(e.examples for e in killed.of("PhaseEnded")) == EPOCHS * sum(EVEN[3])


@pytest.mark.parametrize("shares", [EVEN[3], (0, 80, 40)], ids=str)
def test_a_run_continues_from_the_border_to_the_bit(shares):
    phases = cut_in_two(CONFIGS["adamw"], 0.4)
    whole = run_of(phases, shares).go()
    (border,) = [
        snapshot for snapshot in whole.snapshots if snapshot.phase == 1 and snapshot.version == 0
    ]
    assert sum(border.positions.values()) == border.positions[1] * sum(shares) / shares[1]
    assert border.inner, "moments of Adam"
    resumed = run_of(phases, shares, snapshot=border, callbacks={"term": 2}).go()
    np.testing.assert_array_equal(resumed.result.vectors[-1], whole.result.vectors[-1])


def test_a_run_continues_from_within_a_rest_to_the_bit():
    phases = cut_in_two(CONFIGS["adamw"], 0.4)
    whole = run_of(phases, callbacks={"checkpoint_seconds": 0.05}).go()
    within = [
        snapshot for snapshot in whole.snapshots if snapshot.phase == 1 and snapshot.version > 0
    ]
    assert within
    for snapshot in within:
        resumed = run_of(phases, snapshot=snapshot, callbacks={"term": 2}).go()
        np.testing.assert_array_equal(resumed.result.vectors[-1], whole.result.vectors[-1])


def test_the_border_belongs_to_as_many_workers_as_before():
    phases = cut_in_two(CONFIGS["momentum"], 0.4)
    border = next(snapshot for snapshot in run_of(phases).go().snapshots if snapshot.phase == 1)
    with pytest.raises(Exception, match="continues with as many workers as it has, 3"):
        run_of(phases, EVEN[2], snapshot=border)


# -- what begins and ends a part -----------------------------------------------------------------


def test_the_schedule_continues_over_the_border(monkeypatch):
    progresses, step = [], inners.TorchOptimizer.step

    def stepping(self, trained, gradient, progress):
        progresses.append(progress)
        step(self, trained, gradient, progress)

    monkeypatch.setattr(inners.TorchOptimizer, "step", stepping)
    progress_until = {}
    for until in (0.4, None):
        progresses.clear()
        run_of(cut_in_two(net(), until)).go()
        progress_until[until] = list(progresses)
    assert progress_until[0.4] == sorted(progress_until[0.4])
    assert progress_until[0.4][0] == 0.0
    assert progress_until[0.4] == pytest.approx(progress_until[None], abs=1e-12)
    last_steps = 3 * 24 / (EPOCHS * sum(EVEN[3]))
    assert 1 - last_steps < progress_until[0.4][-1] < 1


@pytest.mark.parametrize("patience", [0, 1])
def test_patience_in_a_start_ends_the_stage_at_its_best_point(patience):
    """A rate far too high: the first point is the best of all."""
    wild = net(lr=Schedule.constant(30.0), epochs=8.0)
    phases = [*cut_in_two(wild, 0.9), Phase(config=net(name="next"), strategy=all_reduce())]
    run = run_of(phases, validation=0.2, patience=patience).go()
    ended = [event.phase for event in run.of("PhaseEnded")]
    assert ended == ([0, 2] if patience else [0, 1, 2])
    assert len(run.result.vectors) == 2


def test_measurements_of_a_start_do_not_set_its_rest_back():
    """With patience left, the rest continues from the last point, not from the best so far."""
    phases = {until: cut_in_two(net(), until) for until in (0.5, None)}
    parted, whole = (
        run_of(phases[until], validation=0.2, patience=50).go() for until in (0.5, None)
    )
    np.testing.assert_array_equal(parted.result.vectors[-1], whole.result.vectors[-1])


def test_a_short_stage_is_by_gradients_from_its_start_to_its_end():
    run = run_of(phases_of(net(), averaging(codec="fp32"), 3)).go()
    assert [event.name for event in run.of("PhaseEnded")] == ["train, by gradients"]
    assert_same(run, run_of(cut_in_two(net(), None)).go())


def test_a_start_without_a_step_is_left_out():
    run = run_of(phases_of(net(), averaging(gradients_until=0.001, every=Steps(3)), 3)).go()
    assert [event.phase for event in run.of("PhaseStarted")] == [1]
    assert run.of("PhaseEnded")[0].examples == EPOCHS * sum(EVEN[3])


def test_where_rows_stream_a_start_ends_with_a_pass():
    phases = phases_of(net(epochs=4.0), averaging(gradients_until=0.4, every=Steps(3)), 3)
    plan = TrainingPlan(phases=phases, workers=3)
    parts = [dataclasses.replace(part_of(r, plan), passes=1) for r in rows_of(EVEN[3])]
    run = run_of(phases, parts=parts).go()
    examples = [event.examples for event in run.of("PhaseEnded")]
    assert examples == [2 * sum(EVEN[3])] * 2


# -- identities that hold by the parts -----------------------------------------------------------

INSIDE = {
    "sgd": net(settings={}),
    "momentum": net(),
    "adamw": net(optimizer="adamw", settings={}),
}


@pytest.mark.parametrize("name", INSIDE)
def test_post_local_until_the_end_is_all_reduce(name):
    parted = run_of(phases_of(INSIDE[name], post_local(gradients_until=1.0), 3)).go()
    assert_same(parted, run_of(phases_of(INSIDE[name], all_reduce(), 3)).go())


@pytest.mark.parametrize("name", INSIDE)
def test_post_local_from_the_start_is_averaging(name):
    one = post_local(gradients_until=0.0, every=Steps(4))
    exact = {"every": Steps(4), "outer": Sgd(), "codec": "fp32", "gradients_until": 0.0}
    parted = run_of(phases_of(INSIDE[name], one, 3)).go()
    assert_same(parted, run_of(phases_of(INSIDE[name], averaging(**exact), 3)).go())


# -- every row equally often ---------------------------------------------------------------------


class CountingConfig(LogisticConfig):
    """Counts the rows that are learnt from: the first feature is a row's number."""

    seen: Counter

    def build(self, history, seed):
        model, seen = super().build(history, seed), self.seen
        learn = model.learn

        def learning(batch, seed):
            seen.update(np.asarray(batch.features)[:, 0].astype(int).tolist())
            return learn(batch, seed)

        model.learn = learning
        return model


def counting(**fields):
    config = CountingConfig(features=2, classes=2, dtype="float64", lr=1e-9, **fields)
    object.__setattr__(config, "seen", Counter())
    return config


SMALL = {
    "averaging": {"every": Steps(4)},
    "diloco": {"every": Steps(6)},
    "downpour": {"every": Steps(3)},
    "elastic": {"every": Steps(3)},
    "gossip": {"every": Steps(3), "exact_every": 2},
    "post_local": {"every": Steps(4)},
    "publish": {"every": Steps(3), "exact_every": 2},
    "streaming": {"every": Steps(8)},
}


@pytest.mark.parametrize("epochs", [1.0, 2.0, 2.5])
@pytest.mark.parametrize("shares", [(285, 15, 0), (100, 100, 100), (7, 1, 292)], ids=str)
@pytest.mark.parametrize("name", RECIPES)
def test_every_row_is_used_as_often_as_there_are_epochs(name, shares, epochs):
    config = counting(epochs=epochs, batch_size=30)
    strategy = RECIPES[name].build(**SMALL.get(name, {}))
    if strategy.gradients_until:
        strategy = dataclasses.replace(strategy, gradients_until=0.5)
    numbers = np.arange(sum(shares), dtype="f8")
    features = np.stack([numbers, np.zeros_like(numbers)], 1)
    picks = np.split(np.arange(len(numbers)), np.cumsum(shares)[:-1])
    phases = phases_of(config, strategy, 3)
    plan = TrainingPlan(phases=phases, workers=3)
    parts = [part_of(Rows.of(features[p], (p % 2).astype(int)), plan) for p in picks]
    run = run_of(phases, shares, parts=parts).go()
    used = [config.seen[row] for row in range(sum(shares))]
    assert set(used) <= {int(epochs), int(np.ceil(epochs))}
    for pick in picks:
        uses, batch = sum(used[row] for row in pick), 30 * len(pick) / sum(shares)
        assert uses == pytest.approx(epochs * len(pick), abs=max(1.0, batch))
    applied = sum(event.examples for event in run.of("PhaseEnded"))
    assert applied == sum(used), "all that was learnt is applied"
    assert applied == pytest.approx(epochs * sum(shares), abs=30)


@pytest.mark.parametrize("speeds", [(0.01, 0.01, 0.05), (0.05, 0.01, 0.01)], ids=str)
def test_a_slow_workers_rows_are_used_as_often_unless_speed_comes_first(speeds):
    def used(share):
        config = counting(epochs=4.0, batch_size=30)
        numbers = np.arange(300, dtype="f8")
        features = np.stack([numbers, np.zeros_like(numbers)], 1)
        phases = (Phase(config=config, strategy=recipes.downpour(every=Steps(2))),)
        plan = TrainingPlan(phases=phases, workers=3, share=share)
        picks = np.split(np.arange(300), 3)
        parts = [part_of(Rows.of(features[p], (p % 2).astype(int)), plan) for p in picks]
        run_of(phases, (100,) * 3, parts=parts, cluster={"step_seconds": speeds}, share=share).go()
        return [sum(config.seen[row] for row in pick) / len(pick) for pick in picks]

    assert used("rows") == [4.0, 4.0, 4.0]
    fastest = used("fastest")
    slow = int(np.argmax(speeds))
    assert fastest[slow] < 3 < 4.4 < max(fastest)


def test_an_average_an_epoch_needs_no_more_rounds_than_there_are_epochs():
    run = run_of((Phase(config=net(), strategy=iterative_reduce()),)).go()
    assert len(run.of("RoundClosed")) == EPOCHS
