import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from photinus.core.errors import CheckpointError, UsageError
from photinus.core.parameters import FLOATS, TRAINED, Layout
from photinus.models.dbn import FineTuning
from photinus.models.eager import eager
from photinus.models.module import ModuleConfig
from photinus.models.optimizers import OPTIMIZERS, Clipped, Momentum, TorchOptimizer
from photinus.models.schedules import Schedule

pytestmark = pytest.mark.numerics

LAYOUT = Layout.of(
    [("w", (7, 5), TRAINED), ("b", (5,), TRAINED), ("m", (3,), FLOATS), ("v", (5, 2), TRAINED)]
)
STEADY = Schedule.constant(0.01)
PER_TENSOR = ("adafactor",)  # not elementwise: it needs the shapes; so does Muon, for matrices only


def gradients(steps, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(LAYOUT.size()).astype(np.float32) for _ in range(steps)]


def start():
    return np.linspace(-1, 1, LAYOUT.size(), dtype=np.float32)


def run(inner, trained, steps):
    for number, gradient in enumerate(steps):
        inner.step(trained, gradient, number / 10)
    return trained


def tensors(trained):
    flat = torch.from_numpy(trained.copy())
    entries = [e for e in LAYOUT.entries if e.section == TRAINED]
    return [
        torch.nn.Parameter(flat[e.offset : e.offset + e.size].reshape(e.shape)) for e in entries
    ]


def plain(make, steps):
    """What torch does with the tensors by themselves."""
    parameters = tensors(start())
    optimizer = make(parameters)
    for gradient in steps:
        for parameter, slope in zip(parameters, tensors(gradient), strict=True):
            parameter.grad = slope.data
        optimizer.step()
    return np.concatenate([p.detach().numpy().reshape(-1) for p in parameters])


@pytest.mark.parametrize("name", ["lbfgs", "torch.optim:LBFGS"])
@pytest.mark.parametrize("made", [ModuleConfig, FineTuning])
def test_an_optimizer_whose_step_needs_a_closure_is_refused(name, made):
    message = "an optimizer whose step needs a closure is not taken; got"
    how = {"module": "torch.nn:Linear"} if made is ModuleConfig else {}
    with pytest.raises(UsageError, match=message):
        made(optimizer=name, **how)
    mine = type("Mine", (torch.optim.LBFGS,), {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "mysteps", SimpleNamespace(Mine=mine))
        with pytest.raises(UsageError, match=message):
            TorchOptimizer(LAYOUT, "mysteps:Mine", lr=STEADY)


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd", "adagrad", "rmsprop", "nadam"])
def test_the_flat_buffer_trains_as_the_tensors_do(name):
    settings = {"momentum": 0.9} if name == "sgd" else {}
    ours = run(TorchOptimizer(LAYOUT, name, settings, STEADY), start(), gradients(6))
    theirs = plain(lambda p: OPTIMIZERS[name](p, lr=0.01, **settings), gradients(6))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_without_the_compiler_has_torchs_bits(name):
    matrices = [p for p in tensors(start()) if p.ndim == 2]  # Muon takes no others
    copies = [nn.Parameter(m.detach().clone()) for m in matrices]
    ours, theirs = eager(OPTIMIZERS[name])(matrices, lr=0.01), OPTIMIZERS[name](copies, lr=0.01)
    for step in gradients(3):
        for parameters in (matrices, copies):
            slopes = [t.data for t in tensors(step) if t.ndim == 2]
            for parameter, slope in zip(parameters, slopes, strict=True):
                parameter.grad = slope
        ours.step()
        theirs.step()
    assert all(torch.equal(one, two) for one, two in zip(matrices, copies, strict=True))


@pytest.mark.processes
@pytest.mark.parametrize("name", ["adamw", "sgd", "adafactor"])
def test_the_first_step_of_a_process_does_not_load_the_compiler(name):
    code = f"""
import sys, numpy as np
from photinus.core.parameters import Layout
from photinus.models.optimizers import TorchOptimizer
inner = TorchOptimizer(Layout.of([("w", (2, 2), "trained")]), {name!r}, per_tensor=True)
inner.step(np.ones(4, np.float32), np.ones(4, np.float32), 0.0)
sys.exit("torch._dynamo" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_decay_of_weights_only_is_two_groups():
    inner = TorchOptimizer(LAYOUT, "adamw", {"weight_decay": 0.5}, STEADY, decays="weights")
    ours = run(inner, start(), gradients(4))

    def grouped(parameters):
        groups = [
            {"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.5},
            {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=0.01)

    np.testing.assert_allclose(ours, plain(grouped, gradients(4)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", sorted({*OPTIMIZERS} - {"muon"}))
@pytest.mark.parametrize("per_tensor", [False, True])
def test_every_optimizer_resumes_bit_for_bit(name, per_tensor):
    def make():
        return TorchOptimizer(
            LAYOUT, name, lr=STEADY, decays="weights", per_tensor=per_tensor or name in PER_TENSOR
        )

    steps = gradients(6)
    whole = run(make(), start(), steps)
    first = make()
    trained = run(first, start(), steps[:3])
    state = first.state()
    assert all(v.ndim == 1 for v in state.values())
    second = make()
    second.load(state)
    assert np.array_equal(run(second, trained, steps[3:]), whole)


def test_the_state_has_plain_names_and_a_fresh_one_is_empty():
    inner = TorchOptimizer(LAYOUT, "adam")
    assert inner.state() == {}
    run(inner, start(), gradients(1))
    assert {n: v.shape for n, v in inner.state().items()} == {
        "exp_avg": (50,),
        "exp_avg_sq": (50,),
        "step": (1,),
    }
    inner.load({})
    assert inner.state() == {}


def test_anothers_state_is_refused():
    adam, sgd = TorchOptimizer(LAYOUT, "adam"), TorchOptimizer(LAYOUT, "sgd", {"momentum": 0.9})
    run(adam, start(), gradients(1))
    with pytest.raises(CheckpointError, match="does not fit"):
        sgd.load(adam.state())


def test_a_step_reads_the_gradient_that_it_is_given():
    """Of the same buffer with other numbers, and of another buffer."""
    kept, plain = start(), start()
    optimizer = TorchOptimizer(LAYOUT, "sgd", lr=STEADY)
    buffers = [np.arange(50, dtype="f4"), np.ones(50, "f4")]
    for n in (0, 0, 1, 0, 1):
        buffers[n] += n + 1
        optimizer.step(kept, buffers[n], 0.0)
        TorchOptimizer(LAYOUT, "sgd", lr=STEADY).step(plain, buffers[n].copy(), 0.0)
        np.testing.assert_array_equal(kept, plain)


def test_a_large_gradient_is_taken_for_one_step():
    """What cannot be taken is left to the vector: small, of another order or type, sparse."""
    layout = Layout.of([("b", (5,), TRAINED), ("w", (300, 256), TRAINED)])
    optimizer, trained = TorchOptimizer(layout, "sgd", lr=STEADY), np.zeros(5 + 300 * 256, "f4")
    ones = torch.ones(300, 256)
    assert not optimizer.take(0, torch.ones(5))
    for other in (torch.ones(256, 300).T, ones.double(), ones.to_sparse()):
        assert not optimizer.take(5, other)
    assert optimizer.take(5, ones)
    optimizer.step(trained, np.zeros_like(trained), 0.0)
    np.testing.assert_array_equal(trained, np.repeat(np.float32([0, -0.01]), [5, 300 * 256]))
    optimizer.step(trained, np.ones_like(trained), 0.0)
    np.testing.assert_allclose(trained, np.repeat(np.float32([-0.01, -0.02]), [5, 300 * 256]))


def test_a_gradient_that_two_parameters_share_is_taken_for_one():
    """Of a sum both terms may have the same memory, and an optimizer may write to it."""
    layout = Layout.of([("a", (300, 256), TRAINED), ("b", (300, 256), TRAINED)])
    optimizer, ones = TorchOptimizer(layout, "sgd", lr=STEADY), torch.ones(300, 256)
    assert optimizer.take(0, ones)
    assert not optimizer.take(300 * 256, ones)
    trained = np.zeros(2 * 300 * 256, "f4")
    optimizer.step(trained, np.ones_like(trained), 0.0)
    assert optimizer.take(300 * 256, ones)


@pytest.mark.parametrize("name", ["adam", "adamw", "nadam", "asgd", "adagrad"])
def test_a_state_of_when_large_parameters_were_not_apart_is_taken_up(name):
    """A number that each tensor has, as the steps, was there once for all."""
    layout = Layout.of([("a", (300, 256), TRAINED), ("b", (5,), TRAINED), ("c", (7, 2), TRAINED)])
    size, rng = layout.size(), np.random.default_rng(0)
    steps = [rng.standard_normal(size).astype("f4") for _ in range(4)]
    whole, parts = np.zeros(size, "f4"), np.zeros(size, "f4")
    optimizer = TorchOptimizer(layout, name, lr=STEADY)
    run(optimizer, parts, steps[:2])
    state = optimizer.state()
    assert any(len(numbers) == 2 for numbers in state.values())
    older = {n: numbers[:1] if len(numbers) == 2 else numbers for n, numbers in state.items()}
    second = TorchOptimizer(layout, name, lr=STEADY)
    second.load(older)
    run(second, parts, steps[2:])
    third = TorchOptimizer(layout, name, lr=STEADY)
    run(third, whole, steps[:2])
    run(third, whole, steps[2:])
    np.testing.assert_array_equal(parts, whole)


def test_it_steps_in_place_on_any_buffer_and_leaves_the_gradient():
    inner, gradient = TorchOptimizer(LAYOUT, "sgd", lr=STEADY), np.ones(50, np.float32)
    gradient.flags.writeable = False
    for _ in range(2):
        trained = np.zeros(50, np.float32)
        inner.step(trained, gradient, 0.0)
        np.testing.assert_allclose(trained, -0.01)


def test_the_rate_follows_the_progress():
    inner = TorchOptimizer(LAYOUT, "sgd", lr=Schedule(((0.0, 1.0), (1.0, 0.0))))
    trained = np.zeros(50, np.float32)
    inner.step(trained, np.ones(50, np.float32), 0.75)
    np.testing.assert_allclose(trained, -0.25)


def test_float64_stays_exact():
    layout = Layout.of([("w", (4,), TRAINED)], dtype="float64")
    inner, trained = TorchOptimizer(layout, "adam", lr=STEADY), np.ones(4)
    inner.step(trained, np.ones(4), 0.0)
    np.testing.assert_allclose(trained, 0.99, atol=1e-9)


def test_momentum_is_the_velocity_form_with_decay_on_weights():
    lr, mu = Schedule(((0.0, 0.1), (1.0, 0.0))), Schedule(((0.0, 0.5), (0.2, 0.5), (0.2, 0.9)))
    inner = Momentum(LAYOUT, lr, mu, weight_decay=0.3)
    ours = run(inner, start(), gradients(6))
    w, m = start().astype(float), np.zeros(50)
    is_weight = np.ones(50)
    is_weight[35:40] = 0
    for number, g in enumerate(gradients(6)):
        p = number / 10
        m = mu.at(p) * m - lr.at(p) * (g + 0.3 * is_weight * w)
        w = w + m
    np.testing.assert_allclose(ours, w, atol=1e-6)


def test_momentum_resumes_bit_for_bit_while_the_rate_falls():
    def make():
        lr = Schedule(((0.0, 0.1), (1.0, 0.0)))
        return Momentum(LAYOUT, lr, Schedule.constant(0.9), 1e-3)

    whole = run(make(), start(), gradients(6))
    first = make()
    assert first.state() == {}
    trained = run(first, start(), gradients(6)[:3])
    second = make()
    second.load(first.state())
    for number, gradient in enumerate(gradients(6)[3:], 3):
        second.step(trained, gradient, number / 10)
    assert np.array_equal(trained, whole)


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("admw", {}, "did you mean 'adamw'"),
        ("adam", {"momentum": 0.9}, "unknown argument of the optimizer 'adam'; got 'momentum'; kn"),
        ("sgd", {"momentun": 0.9}, "of the optimizer 'sgd'; got 'momentun'; did you mean 'momentu"),
        ("sgd", {"lr": -1.0}, "does not take these settings; got {'lr': -1.0}; Invalid learning"),
        ("adam", {"betas": (2.0, 0.9)}, "Invalid beta"),
        ("torch.nn:Linear", {}, "is a class of another kind; got Linear; name a subclass of Opt"),
        ("torch.nosuch:Adam", {}, "cannot be imported"),
    ],
)
def test_a_wrong_optimizer_is_one_clear_sentence(name, settings, says):
    with pytest.raises(UsageError, match=says):
        TorchOptimizer(LAYOUT, name, settings)


def test_wrong_decay_and_a_wrong_buffer_are_refused():
    with pytest.raises(UsageError, match="unknown decays"):
        TorchOptimizer(LAYOUT, decays="none")
    with pytest.raises(UsageError, match="another size"):
        TorchOptimizer(LAYOUT).step(np.zeros(3, np.float32), np.zeros(3, np.float32), 0.0)


def test_ones_own_optimizer_is_imported():
    inner = TorchOptimizer(LAYOUT, "torch.optim:Adam", {"lr": 0.01})
    ours = run(inner, start(), gradients(3))
    theirs = run(TorchOptimizer(LAYOUT, "adam", {"lr": 0.01}), start(), gradients(3))
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_a_long_gradient_is_clipped_as_torch_clips_it():
    layout = Layout.of([("w", (3, 2), "trained"), ("b", (2,), "trained")])
    gradient = np.linspace(-3, 4, 8, dtype=np.float32)
    for norm in (0.5, 100.0):
        mine, plain = np.zeros(8, np.float32), nn.Parameter(torch.zeros(8))
        inner = Clipped(
            TorchOptimizer(layout, "sgd", {"momentum": 0.9}, Schedule.constant(1.0)), norm
        )
        optimizer = torch.optim.SGD([plain], 1.0, momentum=0.9)
        for _ in range(2):
            inner.step(mine, gradient, 0.0)
            plain.grad = torch.tensor(gradient)
            nn.utils.clip_grad_norm_([plain], norm)
            optimizer.step()
        np.testing.assert_allclose(mine, plain.detach(), rtol=2e-6)
        assert list(inner.state()) == ["momentum_buffer"]
