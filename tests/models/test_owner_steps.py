"""Steps of an owner, by the gradients of all workers."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from photinus.core.errors import DataError
from photinus.models.module import ModuleConfig
from photinus.models.optimizers import OPTIMIZERS, TorchOptimizer
from photinus.models.owner_steps import OwnerSteps, is_elementwise
from tests.run.scores import DIM

CONFIG = ModuleConfig(module="tests.run.scores:Normed", optimizer="adamw", lr=0.1, sharded=DIM + 1)
SLOT, WORKERS = 1, 2


def owner(config=CONFIG, slot=SLOT):
    """Returns what steps the rows of a worker, and these [m, width]."""
    model = config.build((), 0)
    steps = OwnerSteps(model, config.inner(model.parameters.layout), slot, WORKERS)
    return steps, model.parameters.trained.reshape(-1, model.row_size)[slot::WORKERS].copy()


def gradients(rows, seed):
    return np.random.default_rng(seed).normal(size=rows.shape).astype(np.float32)


def take(steps, own, seed, agree=True):
    """Takes a step of all rows; returns these after it."""
    rows = own.copy()
    state = steps.step_rows(np.arange(len(own)), rows, gradients(own, seed), 0.0)
    if agree:
        steps.load(state)
    return rows


def test_a_step_that_is_not_agreed_on_is_taken_again_from_where_it_began():
    (steps, own), (twin, _) = owner(), owner()
    for seed in range(3):
        take(steps, own, seed + 10, agree=False)
        before = steps.state()
        take(steps, own, seed + 20, agree=False)
        for name, array in before.items():
            np.testing.assert_array_equal(steps.state()[name], array)
        own, expected = take(steps, own, seed), take(twin, own, seed)
        np.testing.assert_array_equal(own, expected)


def test_a_step_copies_the_state_of_the_optimizer_once(monkeypatch):
    steps, own = owner()
    take(steps, own, 0)
    copies = []
    state = TorchOptimizer.state
    monkeypatch.setattr(TorchOptimizer, "state", lambda s: copies.append(s) or state(s))
    take(steps, own, 1)
    assert len(copies) == 1


def test_owners_shorten_a_gradient_by_its_whole_length_and_leave_running_statistics_out():
    model = CONFIG.build((), 0)
    dense, first = model.dense.size, model.first_row("users.weight")
    whole = gradients(model.parameters.trained.reshape(-1, DIM + 1), 0)
    squares = np.vdot(whole.ravel()[:dense], whole.ravel()[:dense])
    squares += np.vdot(whole[first:, :DIM], whole[first:, :DIM])
    clipped = replace(CONFIG, clip=1.0)
    owners = [owner(clipped, slot) for slot in range(WORKERS)]
    places = [np.arange(len(own)) for _, own in owners]
    told = [
        steps.squares(at, whole[slot::WORKERS])
        for slot, ((steps, _), at) in enumerate(zip(owners, places, strict=True))
    ]
    assert sum(told) == pytest.approx(squares, rel=1e-5)
    shorter = whole * np.float32(1 / np.sqrt(sum(told)))
    shorter.ravel()[model.statistics_offset : first * (DIM + 1)] = whole.ravel()[
        model.statistics_offset : first * (DIM + 1)
    ]
    for slot, ((steps, rows), at) in enumerate(zip(owners, places, strict=True)):
        twin, expected = owner(CONFIG, slot)
        steps.step_rows(at, rows, whole[slot::WORKERS].copy(), 0.0, sum(told))
        twin.step_rows(at, expected, shorter[slot::WORKERS].copy(), 0.0)
        np.testing.assert_array_equal(rows, expected)


class Normed(torch.optim.SGD):
    """Steps by the gradient over its norm."""

    def step(self):
        for tensor in self.param_groups[0]["params"]:
            tensor.grad = tensor.grad / tensor.grad.norm()
        super().step()


def test_a_step_to_numbers_that_are_not_finite_is_refused():
    steps, own = owner()
    rows, large = own.copy(), gradients(own, 0)
    large[-1, 0] = 1e30  # its square is more than float32 holds
    with pytest.raises(DataError, match="by the mean gradient makes numbers of rows that are not"):
        steps.step_rows(np.arange(len(own)), rows, large, 0.0)


ELEMENTWISE = {
    **dict.fromkeys(OPTIMIZERS.keys() - {"muon"}, True),
    "adafactor": False,
    f"{__name__}:Normed": False,
}


@pytest.mark.parametrize("name", sorted(ELEMENTWISE))
def test_an_optimizer_that_looks_at_whole_tensors_is_found_by_trying_it(name):
    config = ModuleConfig(module="torch.nn:Linear", optimizer=name, lr=1.0)
    assert is_elementwise(config.inner) == ELEMENTWISE[name]
