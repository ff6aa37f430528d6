"""A run on the stand-in device, with buffers and copies of its own, has the processor's bits."""

from dataclasses import replace

import numpy as np
import pytest
from torch import nn

from photinus.core.clock import Steps
from photinus.data.checks import RowChecks
from photinus.engine.base import ArrayData, RunSpec
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.models.dbn import DBN, FineTuning, Pretraining
from photinus.models.mlp import MLP
from photinus.models.module import ModuleConfig
from photinus.models.placement import PlacedModel
from photinus.models.rbm import RBM
from photinus.strategies.recipes import (
    all_reduce,
    averaging,
    diloco,
    downpour,
    elastic,
    full_gradient,
    gossip,
    post_local,
    publish,
    streaming,
)
from photinus.training.plan import TrainingPlan, phases_of

STRATEGIES = {
    "averaging": averaging(every=Steps(3)),
    "averaging, from its start by gradients on": averaging(every=Steps(3), gradients_until=0.5),
    "diloco in int8": diloco(every=Steps(5), codec="int8"),
    "streaming": streaming(every=Steps(4), fragments=2, gradients_until=0.0),
    "all_reduce": all_reduce(codec="bf16"),
    "all_reduce among workers": all_reduce(owners=2),
    "all_reduce in int8": all_reduce(codec="int8"),
    "full_gradient": full_gradient(),
    "downpour": downpour(gradients_until=0.0),
    "elastic": elastic(gradients_until=0.0),
    "post_local": post_local(),
    "publish": publish(gradients_until=0.0),
    "gossip": gossip(gradients_until=0.0),
}


def net():
    """Has statistics of its own, chance, and a constant."""
    net = nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)
    )
    net[0].bias.requires_grad_(False)
    return net


CONFIG = ModuleConfig(
    module=f"{__name__}:net", epochs=2.0, batch_size=16, l2={"4.*": 0.01}, average=0.99, lr=0.01
)


def plan_of(strategy, config=CONFIG, workers=2, **fields):
    return TrainingPlan(phases=phases_of(config, strategy, workers), workers=workers, **fields)


@pytest.fixture
def trained(tiny):
    data = ArrayData(tiny.features, tiny.labels, checks=RowChecks(classes=3))

    def run(plan, **fields):
        return SimulatedEngine().run(RunSpec(plan=plan, data=data, run=bytes(16), **fields))

    return run


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_stand_in_device_gives_the_processors_bits(name, trained):
    plain = trained(plan_of(STRATEGIES[name]))
    on_stand_in = trained(plan_of(STRATEGIES[name], devices=("stand-in",)))
    for mine, theirs in zip(on_stand_in.vectors, plain.vectors, strict=True):
        assert np.array_equal(mine, theirs)
    assert np.array_equal(on_stand_in.floats, plain.floats)
    assert np.array_equal(on_stand_in.integers, plain.integers)


@pytest.mark.parametrize("strategy", [averaging(every=Steps(3)), all_reduce()])
@pytest.mark.parametrize(
    ("job", "layers", "tuned"),
    [
        ("stand-in", "", ""),
        ("cpu", "stand-in", ""),
        ("stand-in", "cpu", ""),
        ("cpu", "", "stand-in"),
    ],
)
def test_a_belief_networks_phases_on_any_device_have_the_processors_bits(
    strategy, job, layers, tuned, tiny, monkeypatch
):
    placed = []
    for model in (RBM, MLP):
        was = model.place

        def place(self, device, inner, was=was):
            placed.append(type(self))
            return was(self, device, inner)

        monkeypatch.setattr(model, "place", place)
    dbn = DBN(
        inputs=tiny.features.shape[1],
        hidden=(7, 5),
        classes=3,
        pretraining=Pretraining(epochs=1, batch_size=16),
        fine_tuning=FineTuning(epochs=2, batch_size=16),
        precision="mkl",
    )
    apart = replace(
        dbn,
        pretraining=replace(dbn.pretraining, device=layers),
        fine_tuning=replace(dbn.fine_tuning, device=tuned),
    )
    data = ArrayData(tiny.features, tiny.labels, checks=RowChecks(classes=3))
    ended = []
    for model, device in ((dbn, "cpu"), (apart, job)):
        placed.clear()
        phases = tuple(p for config in model.configs() for p in phases_of(config, strategy, 2))
        plan = TrainingPlan(phases=phases, workers=2, devices=(device,))
        ended.append(SimulatedEngine().run(RunSpec(plan=plan, data=data, run=bytes(16))).vectors)
    devices = {RBM: layers or job, MLP: tuned or job}
    assert set(placed) == {model for model, device in devices.items() if device != "cpu"}
    assert len(ended[0]) == 3
    for mine, theirs in zip(*ended, strict=True):
        assert np.array_equal(mine, theirs)


@pytest.mark.parametrize("name", ["averaging", "all_reduce", "downpour"])
def test_batches_that_are_sent_ahead_give_the_processors_bits(name, trained, monkeypatch):
    monkeypatch.setattr("photinus.training.ahead.LEAST_BYTES", 0)
    sent = []
    send = PlacedModel._send
    monkeypatch.setattr(PlacedModel, "_send", lambda *of: sent.append(1) or send(*of))
    plain = trained(plan_of(STRATEGIES[name]))
    assert not sent
    snapshots = []
    plan = plan_of(STRATEGIES[name], devices=("stand-in",))
    apart = trained(plan, save=snapshots.append, checkpoint_seconds=0.0)
    assert len(sent) > 8
    for mine, theirs in zip(apart.vectors, plain.vectors, strict=True):
        assert np.array_equal(mine, theirs)
    assert np.array_equal(apart.floats, plain.floats)
    if name != "downpour":
        middle = next(snapshot for snapshot in snapshots if snapshot.version > 1)
        assert np.array_equal(trained(plan, snapshot=middle, term=2).vectors[-1], plain.vectors[-1])


def test_a_run_continues_from_a_cut_on_another_device_with_the_same_bits(trained):
    snapshots, plan = [], plan_of(STRATEGIES["averaging"])
    apart = replace(plan, devices=("stand-in",))
    whole = trained(apart, save=snapshots.append, checkpoint_seconds=0.0)
    middle = next(snapshot for snapshot in snapshots if snapshot.version > 1 and snapshot.inner)
    assert np.array_equal(trained(plan, snapshot=middle, term=2).vectors[-1], whole.vectors[-1])
    assert np.array_equal(trained(apart, snapshot=middle, term=2).vectors[-1], whole.vectors[-1])


def test_each_worker_may_compute_on_a_device_of_its_own(trained):
    plan = plan_of(STRATEGIES["averaging"])
    mixed = trained(replace(plan, devices=("stand-in", "cpu")))
    assert np.array_equal(mixed.vectors[-1], trained(plan).vectors[-1])


def test_a_phases_own_device_wins_over_the_jobs(trained):
    config = replace(CONFIG, device="stand-in")
    plan = plan_of(STRATEGIES["averaging"], config)
    assert plan.device(0, 0) == "stand-in"
    plain = trained(plan_of(STRATEGIES["averaging"]))
    assert np.array_equal(trained(plan).vectors[-1], plain.vectors[-1])
