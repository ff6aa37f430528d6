import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from photinus.core.errors import UsageError
from photinus.models.activations import ACTIVATIONS, Activations, PeakBytes, choose_mode
from photinus.models.module import ModuleConfig
from photinus.models.module_model import Learning, ModuleModel
from photinus.models.optimizers import TorchOptimizer

MIB = 2**20


class Transformer(nn.Module):
    """Layers with attention and dropout."""

    def __init__(self, layers=4, width=32, dropout=0.2):
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 3)

    def forward(self, x):  # [B, T, D] -> [B, 3]
        return self.head(self.encoder(x).mean(1))


class Counting(nn.Module):
    """Counts its forward passes in a buffer that no normalisation has."""

    def __init__(self):
        super().__init__()
        self.inside = nn.Linear(8, 8)
        self.register_buffer("passes", torch.zeros(1))

    def forward(self, x):
        self.passes += 1
        return self.inside(x).relu()


def layers():
    return nn.Sequential(
        nn.Linear(8, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 3)
    )


def blocks():
    def block():
        return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3))

    return nn.Sequential(*(nn.Sequential(block(), Counting()) for _ in range(3)), nn.Linear(8, 3))


def batch(module, rows=512):
    rng = np.random.default_rng(0)
    shape = (rows // 8, 16, 32) if isinstance(module, Transformer) else (rows, 8)
    features = rng.standard_normal(shape).astype(np.float32)
    return SimpleNamespace(features=features, labels=rng.integers(0, 3, len(features)))


def model(net, **how):
    torch.manual_seed(0)
    return ModuleModel(net(), "cross_entropy", Learning(**how))


def peak(trained, of):
    with PeakBytes() as bytes_:
        trained.learn(of, 0)
    return bytes_.most


@pytest.mark.parametrize("device", ["cpu", "stand-in"])
@pytest.mark.parametrize("net", [Transformer, layers, blocks])
@pytest.mark.parametrize("how", ACTIVATIONS[1:])
def test_gradients_and_statistics_have_the_same_bits_in_every_way(net, how, device):
    plain, other = model(net), model(net, activation_memory=how)
    if device != "cpu":
        other.place(device, TorchOptimizer(other.parameters.layout, "sgd", {"lr": 0.1}))
    for seed in range(3):
        expected = plain.learn(batch(plain.module), seed)[0]
        gradient = other.learn(batch(other.module), seed)[0]
        other.to_host(gradient, other.parameters.floats, other.parameters.integers)
        assert np.array_equal(gradient, expected)
        assert np.array_equal(other.parameters.floats, plain.parameters.floats)
        assert np.array_equal(other.parameters.integers, plain.parameters.integers)


def test_bits_are_the_same_under_bfloat16_too():
    plain = model(Transformer, precision="bfloat16")
    expected = plain.learn(batch(plain.module), 1)[0]
    for how in ACTIVATIONS[1:]:
        other = model(Transformer, precision="bfloat16", activation_memory=how)
        assert np.array_equal(other.learn(batch(other.module), 1)[0], expected)


@pytest.mark.parametrize("how", ACTIVATIONS[1:])
def test_a_step_needs_less_memory_than_where_all_is_kept(how):
    of = batch(Transformer())
    whole = peak(model(Transformer, activation_memory="keep"), of)
    assert peak(model(Transformer, activation_memory=how), of) < 0.75 * whole


def test_a_module_is_left_as_it_was():
    made = model(blocks, activation_memory="recompute")
    made.learn(batch(made.module), 0)
    assert not [m for m in made.module.modules() if "forward" in vars(m)]
    copy.deepcopy(made.module)


def test_a_module_without_blocks_or_layers_is_refused_for_recomputing():
    with pytest.raises(UsageError, match=r"nothing in this module .* got Linear; put its blocks"):
        Activations(nn.Linear(2, 2)).using("recompute").__enter__()


def test_auto_takes_the_first_way_under_its_budget_and_stays_under_it():
    of = batch(Transformer())
    needs = {how: peak(model(Transformer, activation_memory=how), of) for how in ACTIVATIONS}
    for how, budget in (("keep", needs["keep"]), ("recompute", needs["keep"] * 0.9)):
        budget = int(budget * 1.02)
        made = model(Transformer, activation_memory="auto", activation_bytes=budget)
        gradient = made.learn(of, 1)[0].copy()
        assert made._mode_choice == (how, len(of.features))
        assert peak(made, of) <= budget
        assert np.array_equal(gradient, model(Transformer).learn(of, 1)[0])


class Wide(nn.Module):
    """No sequence and no list of blocks: nothing in it can be computed again."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(32, 4096), nn.Linear(4096, 3)

    def forward(self, x):
        return self.last(self.first(x).tanh().sin().cos())


def test_auto_offloads_where_nothing_can_be_computed_again():
    x = np.random.default_rng(0).standard_normal((256, 32)).astype(np.float32)
    of = SimpleNamespace(features=x, labels=np.arange(256) % 3)
    budget = int(peak(model(Wide, activation_memory="offload"), of) * 1.02)
    assert peak(model(Wide), of) > budget
    made = model(Wide, activation_memory="auto", activation_bytes=budget)
    gradient = made.learn(of, 1)[0].copy()
    assert made._mode_choice == ("offload", 256)
    assert np.array_equal(gradient, model(Wide).learn(of, 1)[0])


def test_auto_refuses_a_budget_that_no_way_stays_under():
    made = model(Transformer, activation_memory="auto", activation_bytes=1000)
    with pytest.raises(UsageError, match=r"more memory than its 0.0 MiB; got MiB for 64 rows: k"):
        made.learn(batch(made.module), 0)


def test_auto_leaves_no_trace_of_its_measuring_in_statistics():
    plain = model(layers)
    made = model(layers, activation_memory="auto", activation_bytes=100 * MIB)
    for one in (plain, made):
        one.learn(batch(one.module), 1)
    assert np.array_equal(made.parameters.floats, plain.parameters.floats)


def test_what_a_whole_batch_needs_is_on_a_line_through_two_parts():
    calls = []

    def line(how, rows):
        calls.append((how, rows))
        return {"keep": 100, "recompute": 50, "offload": 40}[how] * rows + 1000

    assert choose_mode(line, 80, 5000) == ("recompute", {"keep": 9000, "recompute": 5000})
    assert calls == [("keep", 10), ("keep", 20), ("recompute", 10), ("recompute", 20)]


def test_the_most_memory_at_a_time_is_counted():
    with PeakBytes() as bytes_:
        first = torch.ones(1000)
        second = first + 1
        second.add_(1).view(10, 100)
        del first
        torch.ones(500)
    assert (bytes_.most, bytes_.now) == (8000, 4000)


def test_a_budget_is_held_in_a_way_by_name_too():
    made = model(Transformer, activation_bytes=1_000_000)
    with pytest.raises(
        UsageError, match=r'more memory than its 1.0 MiB; .*, or activation_memory="auto"'
    ):
        made.learn(batch(made.module), 0)


def test_auto_without_a_budget_is_refused():
    with pytest.raises(UsageError, match="needs a budget; got none; set activation_bytes"):
        ModuleConfig(module="torch.nn:Linear", activation_memory="auto")
