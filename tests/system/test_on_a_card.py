"""Runs on a real card come near the processor's; skipped where this machine has none.

`test_on_a_device` proves on every machine that the code is the same on all devices. A card adds up
in another order, so here numbers are compared within a tolerance, and chance is left out.
"""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from photinus import Job, train
from photinus.core.clock import Steps
from photinus.core.errors import DataError, NotReadyError, UsageError
from photinus.data.base import Batch
from photinus.data.checks import RowChecks
from photinus.devices.discovery import check_memory, found, ready
from photinus.embeddings import reference
from photinus.embeddings.torch_steps import TorchSteps
from photinus.embeddings.vocabulary import NO_GRAMS, draw_tables
from photinus.engine.base import ArrayData, RunSpec
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.models.dbn import DBN, FineTuning
from photinus.models.images import crops, imagenet
from photinus.models.module import ModuleConfig
from photinus.models.placement import torch_device
from photinus.nn import ShardedEmbedding
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
from photinus.training.placement import device_for, fresh
from photinus.training.plan import TrainingPlan, phases_of

STRATEGIES = {
    "averaging": averaging(every=Steps(3)),
    "averaging, from its start by gradients on": averaging(every=Steps(3), gradients_until=0.5),
    "diloco in int8": diloco(every=Steps(5), codec="int8"),
    "streaming": streaming(every=Steps(4), fragments=2, gradients_until=0.0),
    "all_reduce": all_reduce(codec="bf16"),
    "all_reduce among workers": all_reduce(owners=2),
    "full_gradient": full_gradient(),
    "downpour": downpour(gradients_until=0.0),
    "elastic": elastic(gradients_until=0.0),
    "post_local": post_local(),
    "publish": publish(gradients_until=0.0),
    "gossip": gossip(gradients_until=0.0),
}
CARD = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
CARDS = [str(CARD)] if CARD else []
pytestmark = pytest.mark.skipif(not CARDS, reason="this machine has no card")


def net():
    """Has statistics of its own and a constant."""
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    net[0].bias.requires_grad_(False)
    return net


CONFIG = ModuleConfig(
    module=f"{__name__}:net", epochs=2.0, batch_size=16, l2={"3.*": 0.01}, average=0.99, lr=0.01
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
def test_a_card_gives_the_processors_parameters(name, trained):
    plain = trained(plan_of(STRATEGIES[name]))
    there = trained(plan_of(STRATEGIES[name], devices=(CARDS[0],)))
    for mine, theirs in zip(there.vectors, plain.vectors, strict=True):
        assert np.allclose(mine, theirs, atol=5e-3)
    assert np.allclose(there.floats, plain.floats, atol=5e-3)
    assert np.array_equal(there.integers, plain.integers)


@pytest.mark.parametrize("name", ["averaging", "all_reduce"])
def test_a_run_on_a_card_has_the_same_bits_again_and_after_a_cut(name, trained):
    snapshots, plan = [], plan_of(STRATEGIES[name], devices=(CARDS[0],))
    whole = trained(plan, save=snapshots.append, checkpoint_seconds=0.0)
    assert np.array_equal(trained(plan).vectors[-1], whole.vectors[-1])
    middle = next(snapshot for snapshot in snapshots if snapshot.version > 1)
    assert np.array_equal(trained(plan, snapshot=middle, term=2).vectors[-1], whole.vectors[-1])


class Scores(nn.Module):
    """Two tables whose rows are the workers', and a layer."""

    def __init__(self):
        super().__init__()
        self.users = ShardedEmbedding(60, 4, std=0.5, padding_idx=2)
        self.items = ShardedEmbedding(40, 4, std=0.5)
        self.out = nn.Linear(4, 2)

    def forward(self, x):
        user, item = x.long().T
        return self.out(self.users(user) * self.items(item))


@pytest.mark.parametrize("how", [{}, {"clip": 0.1}, {"precision": "bfloat16"}], ids=str)
def test_layers_beside_sharded_tables_learn_on_a_card(how, tmp_path):
    rng = np.random.default_rng(0)
    pairs = np.stack([rng.integers(0, 60, 3000), rng.integers(0, 40, 3000)], 1)
    rows = ArrayData(pairs.astype(np.float32), (pairs[:, 0] % 2 == pairs[:, 1] % 2).astype(int))
    config, ends = ModuleConfig(module=f"{__name__}:Scores", epochs=1.0, lr=0.01, **how), []
    first = config.build((), 0).tensors()["items.weight"]
    for device in ("cpu", CARDS[0], (CARDS[0], "cpu")):
        job = Job(model=config, workers=2, engine="simulate", device=device)
        outcome = train(job, rows, folder=tmp_path / str(device), verbose=False)
        ends.append(outcome.state_dict()["items.weight"] - first)
    assert np.linalg.norm(ends[0]) > 0.1 * np.linalg.norm(first)
    tolerance = 0.05 if how.get("precision") else 1e-3
    for there in ends[1:]:
        assert np.linalg.norm(ends[0] - there) < tolerance * np.linalg.norm(ends[0])


def learned(config, device, history=(), width=6, seeds=(8,), classes=1):
    """Returns the mean gradient of a batch, over some seeds."""
    model, _ = fresh(config, history, 0, ready(device))
    rng = np.random.default_rng(0)
    batch = Batch(rng.random((64, width), dtype=np.float32), np.arange(64) % classes)
    gradients = []
    for seed in seeds:
        gradient, _ = model.learn(batch, seed)
        model.to_host(gradient)
        gradients.append(gradient.copy())
    return np.mean(gradients, 0)


@pytest.mark.parametrize("precision", ["mkl", "bfloat16"])
def test_a_belief_networks_mean_direction_on_a_card_is_the_processors(precision):
    """A card draws numbers of its own, so it is the mean over many that is the same."""
    dbn = DBN(inputs=20, hidden=(15, 10), classes=3, precision=precision)
    first, second, tuning = dbn.configs()
    below = (first.build((), 1).parameters.trained,)
    for config, history, width in ((first, (), 20), (second, below, 15), (tuning, (), 20)):
        how = {"history": history, "width": width, "seeds": range(8, 1600, 8)}
        on_cpu, on_card = (learned(config, device, **how) for device in ("cpu", CARDS[0]))
        assert np.linalg.norm(on_cpu - on_card) < 0.05 * np.linalg.norm(on_cpu)


def test_fine_tuning_without_dropout_on_a_card_has_the_processors_gradient():
    still = FineTuning(dropout_input=0.0, dropout_hidden=(0.0,))
    config = DBN(inputs=20, hidden=(15,), classes=3, fine_tuning=still, precision="mkl").configs()[
        -1
    ]
    on_cpu, on_card = (learned(config, d, width=20, seeds=[8] * 4) for d in ("cpu", CARDS[0]))
    assert np.linalg.norm(on_cpu - on_card) < 1e-4 * np.linalg.norm(on_cpu)


def in_pairs():
    return nn.Sequential(nn.Linear(6, 8), nn.Unflatten(1, (2, 4)))


@pytest.mark.parametrize("loss", ["in_batch", "cross_entropy", "multi_margin"])
def test_a_loss_on_a_card_is_the_processors(loss):
    module = "in_pairs" if loss == "in_batch" else "net"
    config = ModuleConfig(module=f"{__name__}:{module}", loss=loss, lr=0.01, clip=1e-3, epochs=1.0)
    on_cpu, on_card = (learned(config, d, classes=3) for d in ("cpu", CARDS[0]))
    assert np.linalg.norm(on_cpu - on_card) < 1e-4 * np.linalg.norm(on_cpu)


def chancy():
    return nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.Dropout(0.5), nn.Linear(32, 3))


class Attention(nn.Module):
    """Has torch's own attention with dropout in it."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 2, 64, 0.1, batch_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(64, 3)

    def forward(self, x):
        x = x[:, :, None].expand(-1, -1, 64)  # [B, T, 64]
        return self.head(self.layers(x).mean(1))


def test_a_transformer_with_dropout_is_recorded():
    config = ModuleConfig(
        module=f"{__name__}:Attention", lr=0.01, cuda_graph=True, precision="bfloat16", epochs=1.0
    )
    assert np.isfinite(learned(config, "cuda", width=32, seeds=range(8, 80, 8))).all()


class Assigning(nn.Module):
    """Assigns its running mean, and does not write into it."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(6, 3)
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return self.line(x - self.mean)


@pytest.mark.parametrize(
    ("module", "precision"),
    [("chancy", "float32"), ("chancy", "bfloat16"), ("Assigning", "float32")],
)
def test_a_recorded_run_on_a_card_has_the_plain_ones_bits(module, precision, trained):
    config = replace(
        CONFIG, module=f"{__name__}:{module}", precision=precision, l2={}, epochs=6.0, clip=1.0
    )
    results = []
    for recorded in (False, True):
        plan = plan_of(
            averaging(every=Steps(3)), replace(config, cuda_graph=recorded), devices=("cuda",)
        )
        results.append(trained(plan))
    assert np.array_equal(results[0].vectors[-1], results[1].vectors[-1])
    assert np.array_equal(results[0].floats, results[1].floats)
    assert np.array_equal(results[0].integers, results[1].integers)


@pytest.mark.parametrize("recorded", [False, True])
def test_batches_that_are_sent_ahead_give_the_same_bits(recorded, trained, monkeypatch):
    config = replace(CONFIG, module=f"{__name__}:chancy", l2={}, epochs=6.0, cuda_graph=recorded)
    plan = plan_of(averaging(every=Steps(3)), config, devices=("cuda",))
    plain = trained(plan)
    monkeypatch.setattr("photinus.training.ahead.LEAST_BYTES", 0)
    assert np.array_equal(trained(plan).vectors[-1], plain.vectors[-1])


class Flat(nn.Linear):
    """A layer over images."""

    def forward(self, x):
        return super().forward(x.flatten(1))


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize(
    ("function", "side"), [(crops, 32), (imagenet, 256)], ids=["crops", "imagenet"]
)
def test_a_card_prepares_images_as_the_host_does(function, side, recorded):
    name = f"photinus.models.images:{function.__name__}"
    sizes = {"out_features": 3, "in_features": 3 * (24 if side == 32 else 224) ** 2}
    how = {"reads": name, "cuda_graph": recorded, "arguments": sizes}
    config = ModuleConfig(module=f"{__name__}:Flat", **how)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (16, 3 * side**2)).astype(np.uint8)
    draws = rng.integers(0, 2**64, 16, dtype=np.uint64)
    batch, gradients = Batch(images, np.arange(16) % 3, None, draws), []
    for device in ("cpu", CARDS[0]):
        model, _ = fresh(config, (), 0, ready(device))
        model.load(fresh(config, (), 0, "cpu")[0].parameters.trained)
        for _ in range(5):
            gradient, _ = model.learn(batch if model.send is None else model.send(batch), 8)
        model.to_host(gradient)
        gradients.append(gradient)
    assert np.linalg.norm(gradients[0] - gradients[1]) < 1e-4 * np.linalg.norm(gradients[0])


class Looking(nn.Module):
    """Reads a number of the card's, which no graph can."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(6, 3)

    def forward(self, x):
        return self.line(x) if float(x.sum()) < 1e9 else self.line(-x)


def test_a_module_that_looks_at_numbers_is_not_recorded():
    config = ModuleConfig(module=f"{__name__}:Looking", lr=0.01, cuda_graph=True, epochs=1.0)
    with pytest.raises(UsageError, match="a step of Looking cannot be recorded"):
        learned(config, "cuda", seeds=range(6))


def test_a_label_that_is_no_class_does_not_cost_the_card():
    model, _ = fresh(CONFIG, (), 0, ready(CARDS[0]))
    batch = Batch(np.zeros((16, 6), np.float32), np.array([0, 5] + [1] * 14))
    with pytest.raises(DataError, match=r"label 5 outside 0\.\.2 in its example 1"):
        model.learn(batch, 0)
    learned(CONFIG, CARDS[0])


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("memory", ["keep", "recompute", "offload"])
def test_a_gradient_on_a_card_is_the_processors(precision, memory):
    tolerance = 1e-5 if precision == "float32" else 0.02
    config = replace(CONFIG, activation_memory=memory)
    rows = np.random.default_rng(0).standard_normal((32, 6)).astype(np.float32)
    batch = Batch(rows, np.arange(32) % 3)
    here, _ = fresh(config, (), 0, "cpu")
    there, _ = fresh(replace(config, precision=precision), (), 0, ready(CARDS[0]))
    there.load(here.parameters.trained, here.parameters.floats, here.parameters.integers)
    mine, theirs = here.learn(batch, 8)[0], there.learn(batch, 8)[0]
    there.to_host(theirs)
    assert np.linalg.norm(mine - theirs) < tolerance * np.linalg.norm(mine)


def test_dropout_on_a_card_follows_from_the_seed():
    config = ModuleConfig(module=f"{__name__}:dropped", lr=0.01, epochs=1.0)
    model, _ = fresh(config, (), 0, ready(CARDS[0]))
    batch = Batch(np.ones((64, 6), np.float32), np.arange(64) % 3)

    def gradient(seed):
        learned = model.learn(batch, seed)[0]
        model.to_host(learned)
        return learned.copy()

    one = gradient(1)
    assert np.array_equal(gradient(1), one)
    assert not np.array_equal(gradient(2), one)


def dropped():
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))


@pytest.mark.parametrize("together", [1, 0], ids=["alone", "together"])
@pytest.mark.parametrize("cbow", [False, True], ids=["skip-gram", "cbow"])
def test_word_vectors_on_a_card_are_the_processors(together, cbow):
    rng = np.random.default_rng(0)
    rows = np.pad(rng.integers(0, 60, (6, 90)), ((0, 0), (0, 1)), constant_values=-1)
    rows, first = rows.astype("<i4"), 0.3 * rng.standard_normal((120, 20)).astype(np.float32)
    chances = draw_tables(np.bincount(rows[rows >= 0], minlength=60), 0, 5, NO_GRAMS)
    made = []
    for device in ("cpu", ready(CARDS[0])):
        table, gains = first.copy(), np.ones(120, np.float32)
        tables = reference.Tables(table[:60], table[60:], gains[:60], gains[60:])
        steps = TorchSteps(torch_device(device), together)
        steps.descend(rows, tables, chances, reference.Rule(5, 5, cbow), 0.05, np.arange(6))
        made.append(table)
    assert np.abs(made[0] - first).max() > 0.05
    assert np.allclose(*made, atol=1e-4)


@pytest.mark.processes
@pytest.mark.parametrize(
    "strategy", [averaging(every=Steps(5)), all_reduce()], ids=["rounds", "steps"]
)
def test_two_workers_train_on_one_card(strategy, tmp_path):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((2000, 6)).astype(np.float32)
    labels = (rows @ rng.standard_normal((6, 3))).argmax(1)
    line = ModuleConfig(
        module="torch.nn:Linear", arguments={"in_features": 6, "out_features": 3}, epochs=1.0
    )
    state_dicts = []
    for number, device in enumerate(("cpu", CARDS[0], (CARDS[0], "cpu"))):
        job = Job(model=line, strategy=strategy, workers=2, engine="local", device=device)
        state_dicts.append(train(job, (rows, labels), folder=tmp_path / str(number)).state_dict())
    for other in state_dicts[1:]:
        for name, tensor in state_dicts[0].items():
            assert torch.allclose(tensor, other[name], atol=0.02)


def test_auto_measures_the_card_too(caplog):
    batch = Batch(np.zeros((16, 6), np.float32), np.zeros(16, np.int64))

    def make(device):
        return fresh(CONFIG, (), 0, device)

    chosen = device_for("auto", make, lambda: batch)
    assert chosen in ("cpu", f"{CARDS[0]}:0")
    assert f"ms on {CARDS[0]}:0" in caplog.text


def test_a_card_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(NotReadyError, match=f"there is no device {CARDS[0]}:7.*{CARDS[0]}:0"):
        ready(f"{CARDS[0]}:7")


def test_the_card_is_listed_with_its_memory():
    (card,) = [one for one in found() if one.name == f"{CARDS[0]}:0"]
    assert card.memory_bytes > 2**30


def test_a_model_larger_than_the_card_is_refused():
    (card,) = [one for one in found() if one.name == f"{CARDS[0]}:0"]
    with pytest.raises(NotReadyError, match="has too little memory for this model"):
        check_memory(card.name, card.memory_bytes)


@pytest.mark.processes
def test_a_process_that_spark_forks_can_use_the_card():
    """Its parent has imported torch and photinus, and a card that a parent holds is no child's."""
    script = f"""
import os, photinus.engine.spark.daemon
from photinus.devices.discovery import ready
child = os.fork()
if not child:
    os._exit(0 if ready({CARDS[0]!r}) else 1)
raise SystemExit(os.waitpid(child, 0)[1])
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
