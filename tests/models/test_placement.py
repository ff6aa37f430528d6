from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from photinus.core.errors import UsageError
from photinus.core.parameters import Layout
from photinus.models.dbn import DBN, Pretraining
from photinus.models.logistic import LogisticConfig
from photinus.models.module_model import Learning, ModuleModel
from photinus.models.optimizers import TorchOptimizer
from photinus.models.placement import CPU, DeviceParameters
from photinus.testing import check_model

LAYOUT = Layout.of([("w", (2, 3), "trained"), ("mean", (3,), "floats"), ("n", (), "integers")])


def batch(rows=16):
    rng = np.random.default_rng(0)
    features = rng.standard_normal((rows, 4)).astype(np.float32)
    return SimpleNamespace(features=features, labels=rng.integers(0, 3, rows))


def model():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))
    return ModuleModel(net, "cross_entropy", Learning(l2={"0.weight": 0.1}, average=0.9))


def on_stand_in():
    made = model()
    made.inner = made.place("stand-in", TorchOptimizer(made.parameters.layout, "adam"))
    return made


def test_on_the_processor_both_sides_are_one_memory_and_nothing_is_copied():
    placed = DeviceParameters(LAYOUT, CPU)
    placed.view("w").fill_(2.0)
    placed.parameters.floats[:] = 3.0
    assert (placed.parameters.trained == 2.0).all()
    assert (placed.tensor(placed.parameters.floats) == 3.0).all()
    placed.to_host([placed.parameters.trained])
    placed.to_device([placed.parameters.trained])
    placed.sync()
    assert (placed.bytes_to_host, placed.bytes_to_device) == (0, 0)


def test_a_devices_numbers_reach_the_host_only_when_it_asks():
    placed = DeviceParameters(LAYOUT, "stand-in")
    trained = placed.parameters.trained
    placed.view("w").fill_(2.0)
    placed.mark_changed(trained)
    assert (trained == 0.0).all()
    placed.to_host([trained])
    assert (trained == 2.0).all()
    placed.to_host([trained])
    assert placed.bytes_to_host == trained.nbytes, "what is not old is not copied again"


def test_what_the_host_wrote_reaches_the_device_before_the_next_work():
    placed = DeviceParameters(LAYOUT, "stand-in")
    trained = placed.parameters.trained
    trained[:] = 5.0
    placed.to_device([trained])
    placed.to_device([trained])
    assert (placed.view("w") == 0.0).all()
    placed.sync()
    assert (placed.view("w") == 5.0).all()
    assert placed.bytes_to_device == trained.nbytes, "told twice, copied once"


def test_what_the_host_wrote_is_newer_than_what_the_device_had_changed_before():
    placed = DeviceParameters(LAYOUT, "stand-in")
    trained = placed.parameters.trained
    placed.mark_changed(trained)
    trained[:] = 5.0
    placed.to_device([trained])
    placed.to_host([trained])
    assert (trained == 5.0).all()


def test_a_modules_buffers_may_be_counted_up_between_normalisations():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)
            self.register_buffer("passes", torch.zeros(1))

        def forward(self, x):
            x = self.norm(x)
            self.passes += 1
            return x

    made = ModuleModel(nn.Sequential(Counting(), Counting(), nn.Linear(4, 3)), "cross_entropy")
    made.learn(batch(), 0)
    assert made.parameters.view("0.passes").tolist() == [1.0]


def test_a_model_on_the_stand_in_keeps_the_contract_of_models():
    check_model(on_stand_in, batch(), is_gradient=False)


def test_its_parameters_and_gradient_share_no_memory_with_the_hosts():
    made = on_stand_in()
    before = made.parameters.trained.copy()
    gradient, _ = made.learn(batch(), 8)
    made.inner.step(made.parameters.trained, gradient, 0.0)
    assert np.array_equal(made.parameters.trained, before)
    assert not gradient.any()
    made.to_host(made.parameters.trained, gradient)
    assert (made.parameters.trained != before).any()
    assert gradient.any()


def test_its_optimizers_state_is_saved_and_taken_up_with_the_same_bits():
    made, twin = on_stand_in(), on_stand_in()
    for seed in range(3):
        made.inner.step(made.parameters.trained, made.learn(batch(), seed)[0], 0.0)
    state = {name: value.copy() for name, value in made.inner.state().items()}
    made.to_host(made.parameters.trained, made.parameters.floats, made.parameters.integers)
    twin.load(made.parameters.trained, made.parameters.floats, made.parameters.integers)
    twin.inner.load(state)
    for one in (made, twin):
        one.inner.step(one.parameters.trained, one.learn(batch(), 7)[0], 0.0)
        one.to_host(one.parameters.trained)
    assert np.array_equal(made.parameters.trained, twin.parameters.trained)


def test_a_gradient_that_is_not_the_models_own_is_sent_to_the_device():
    made = on_stand_in()
    before, own = made.parameters.trained.copy(), np.ones_like(made.parameters.trained)
    made.inner.step(made.parameters.trained, own, 0.0)
    made.to_host(made.parameters.trained)
    np.testing.assert_allclose(made.parameters.trained, before - 1e-3, rtol=1e-4)


def test_on_a_device_the_loss_is_read_in_one_step_of_eight():
    made = on_stand_in()
    assert [sorted(made.learn(batch(), seed)[1]) for seed in (7, 8, 9)] == [[], ["loss"], []]


def test_the_outputs_are_the_processors():
    features = batch().features
    assert np.array_equal(on_stand_in().outputs(features), model().outputs(features))


def test_a_model_of_the_processor_alone_refuses_a_device():
    config = LogisticConfig(features=4, classes=3)
    made = config.build((), 0)
    with pytest.raises(UsageError, match="LogisticModel computes on the processor only; got cuda"):
        made.place("cuda:0", config.inner(made.parameters.layout))


PIXELS = SimpleNamespace(
    features=np.random.default_rng(1).random((20, 9), np.float32),
    labels=np.random.default_rng(2).integers(0, 3, 20),
)
BELIEF = DBN(
    inputs=9,
    hidden=(7, 5),
    classes=3,
    pretraining=Pretraining(epochs=1, persistent=True, cd_steps=2, reads="samples"),
)


@pytest.mark.numerics
@pytest.mark.parametrize("precision", ["mkl", "onednn", "bfloat16"])
@pytest.mark.parametrize("phase", [0, -1])
def test_a_belief_networks_phases_on_the_stand_in_have_the_processors_bits(precision, phase):
    config = replace(BELIEF, precision=precision).configs()[phase]
    on_host, on_device = config.build((), 3), config.build((), 3)
    first = config.inner(on_host.parameters.layout)
    apart = on_device.place("stand-in", config.inner(on_device.parameters.layout))
    for seed in range(4):
        mine, metrics = on_host.learn(PIXELS, seed)
        theirs, device_metrics = on_device.learn(PIXELS, seed)
        on_device.to_host(theirs)
        assert np.array_equal(mine, theirs)
        assert device_metrics == (metrics if seed % 8 == 0 else {})
        first.step(on_host.parameters.trained, mine, seed / 4)
        apart.step(on_device.parameters.trained, theirs, seed / 4)
    assert on_device.measure(PIXELS) == on_host.measure(PIXELS)
    on_device.to_host(on_device.parameters.trained)
    assert np.array_equal(on_device.parameters.trained, on_host.parameters.trained)
    for name, value in first.state().items():
        assert np.array_equal(apart.state()[name], value)


def test_a_belief_networks_device_copies_no_parameters_between_turns():
    config = BELIEF.configs()[0]
    made = config.build((), 3)
    inner = made.place("stand-in", config.inner(made.parameters.layout))
    made.learn(PIXELS, 0)
    at = inner.placed
    before = at.bytes_to_host, at.bytes_to_device
    for seed in range(1, 4):
        inner.step(made.parameters.trained, made.learn(PIXELS, seed)[0], 0.5)
    assert at.bytes_to_host == before[0]
    assert at.bytes_to_device - before[1] == 3 * PIXELS.features.nbytes
