"""Outer optimizers against torch's, where the formula is the same, and by hand where not."""

import numpy as np
import pytest
import torch

from photinus.core.errors import UsageError
from photinus.strategies.outer import (
    OUTERS,
    Adagrad,
    Adam,
    DelayedNesterov,
    Descent,
    Nesterov,
    OuterOptimizer,
    RowAdagrad,
    RowAdam,
    Sgd,
    SlowMo,
    outer_from_dict,
)
from photinus.strategies.recipes import averaging


class RowWiseAdam(torch.optim.Optimizer):
    """Adam with one mean square a row, from its formula: torch has none."""

    def __init__(self, parameters, **settings):
        super().__init__(parameters, settings)

    @torch.no_grad()
    def step(self):
        (group,) = self.param_groups
        for rows in group["params"]:
            moments = self.state[rows]
            m = moments["m"] = moments.get("m", 0 * rows).lerp(rows.grad, 1 - group["beta1"])
            square = rows.grad.square().mean(-1, keepdim=True)
            v = moments["v"] = moments.get("v", 0 * square).lerp(square, 1 - group["beta2"])
            t = moments["t"] = moments.get("t", 0) + 1
            root = (v / (1 - group["beta2"] ** t)).sqrt() + group["eps"]
            rows -= group["lr"] * m / (1 - group["beta1"] ** t) / root


class RowWise(torch.optim.Optimizer):
    """AdaGrad with one sum of mean squares a row, from its formula: torch has none."""

    def __init__(self, parameters, lr, eps, initial):
        super().__init__(parameters, {"lr": lr, "eps": eps, "initial": initial})

    @torch.no_grad()
    def step(self):
        (group,) = self.param_groups
        for rows in group["params"]:
            start = torch.full((*rows.shape[:-1], 1), group["initial"], dtype=rows.dtype)
            sums = self.state[rows].setdefault("sums", start)
            sums += rows.grad.square().mean(-1, keepdim=True)
            rows.addcdiv_(rows.grad, sums.sqrt() + group["eps"], value=-group["lr"])


ORACLES = {
    "sgd": (Sgd(lr=0.8), lambda p: torch.optim.SGD(p, lr=0.8)),
    "nesterov": (
        Nesterov(lr=0.7, momentum=0.9),
        lambda p: torch.optim.SGD(p, lr=0.7, momentum=0.9, nesterov=True),
    ),
    "slowmo": (
        SlowMo(lr=0.9, momentum=0.6),
        lambda p: torch.optim.SGD(p, lr=0.9, momentum=0.6),
    ),
    "adagrad": (
        Adagrad(lr=0.3, eps=1e-4, initial=0.1),
        lambda p: torch.optim.Adagrad(p, lr=0.3, eps=1e-4, initial_accumulator_value=0.1),
    ),
    "row_adagrad": (
        RowAdagrad(lr=0.3, eps=1e-4, initial=0.1),
        lambda p: RowWise(p, lr=0.3, eps=1e-4, initial=0.1),
    ),
    "adam": (
        Adam(lr=0.05, beta1=0.8, beta2=0.95, eps=1e-3),
        lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.8, 0.95), eps=1e-3),
    ),
    "row_adam": (
        RowAdam(lr=0.05, beta1=0.8, beta2=0.95, eps=1e-3),
        lambda p: RowWiseAdam(p, lr=0.05, beta1=0.8, beta2=0.95, eps=1e-3),
    ),
    "delayed_nesterov": (
        DelayedNesterov(lr=0.7, momentum=0.9, pushes=1),
        lambda p: torch.optim.SGD(p, lr=0.7, momentum=0.9, nesterov=True),
    ),
}


def test_every_outer_optimizer_has_an_oracle():
    assert set(ORACLES) == set(OUTERS)


@pytest.mark.parametrize(("dtype", "close"), [("float32", 1e-5), ("float64", 1e-12)])
@pytest.mark.parametrize("name", OUTERS)
def test_an_outer_optimizer_steps_as_torch_does(name, dtype, close):
    outer, oracle = ORACLES[name]
    rng = np.random.default_rng(0)
    vector = rng.normal(size=31).astype(dtype)
    tensor = torch.nn.Parameter(torch.from_numpy(vector.copy()))
    optimizer, state = oracle([tensor]), outer.init(vector)
    for _ in range(20):
        delta = rng.normal(size=31).astype(dtype)
        tensor.grad = torch.from_numpy(delta.copy())
        optimizer.step()
        vector, state = outer.update(vector, delta, state)
        assert vector.dtype == np.dtype(dtype)
    np.testing.assert_allclose(vector, tensor.detach().numpy(), rtol=close, atol=close)


@pytest.mark.parametrize("outer", [RowAdagrad(lr=0.3), RowAdam(lr=0.3)], ids=lambda o: o.name)
def test_by_row_each_row_of_a_table_has_a_state_of_its_own(outer):
    rng = np.random.default_rng(1)
    table = rng.normal(size=(3, 5))
    state = outer.init(table)
    for _ in range(4):
        delta = rng.normal(size=(3, 5))
        each = [
            outer.update(row, d, states)[0]
            for row, d, *states in zip(table, delta, *state, strict=True)
        ]
        table, state = outer.update(table, delta, state)
        np.testing.assert_allclose(table, each, rtol=1e-12)
    assert state[-1].shape == (3, 1)


def test_rows_of_one_number_step_as_torchs_adam_does_on_the_updates_that_each_had():
    outer, rng = RowAdam(lr=0.05, beta2=0.95), np.random.default_rng(2)
    table = rng.normal(size=(6, 1))
    params = [torch.nn.Parameter(torch.from_numpy(row.copy())) for row in table]
    adams = [torch.optim.Adam([p], lr=0.05, betas=(0.9, 0.95), eps=1e-6) for p in params]
    state = outer.init(table)
    for _ in range(30):
        at = np.flatnonzero(rng.random(6) < 0.4)
        delta = rng.normal(size=(len(at), 1))
        table[at], moved = outer.update(table[at], delta, tuple(array[at] for array in state))
        for array, some in zip(state, moved, strict=True):
            array[at] = some
        for row, d in zip(at, delta, strict=True):
            params[row].grad = torch.from_numpy(d.copy())
            adams[row].step()
    np.testing.assert_allclose(table, [p.detach().numpy() for p in params], rtol=1e-12)


@pytest.mark.parametrize("name", OUTERS)
def test_update_leaves_its_arguments_as_they_are(name):
    outer = ORACLES[name][0]
    vector, delta = np.ones(5, np.float32), np.full(5, 0.5, np.float32)
    state = outer.init(vector)
    _, state = outer.update(vector, delta, state)
    before = [a.copy() for a in (vector, delta, *state)]
    new, _ = outer.update(vector, delta, state)
    assert all((a == b).all() for a, b in zip(before, (vector, delta, *state), strict=True))
    assert not np.shares_memory(new, vector)


@pytest.mark.parametrize("name", OUTERS)
def test_the_state_is_of_the_vectors_precision(name):
    outer = ORACLES[name][0]
    vector = np.ones(5, np.float32)
    _, state = outer.update(vector, vector, outer.init(vector))
    assert all(s.dtype == np.float32 for s in state)


def test_gain_is_how_far_a_constant_delta_carries():
    delayed = DelayedNesterov(lr=0.7, momentum=0.5, pushes=4)
    for outer in (Sgd(lr=0.7), Nesterov(lr=0.7, momentum=0.5), SlowMo(0.7, 0.8), delayed):
        vector, delta = np.zeros(1), np.ones(1)
        state = outer.init(vector)
        for _ in range(200):
            vector, state = outer.update(vector, delta, state)
        before = vector
        for _ in range(4):
            vector, state = outer.update(vector, delta, state)
        assert (before[0] - vector[0]) / 4 == pytest.approx(outer.gain)
    assert Adagrad().gain is None
    assert Adam().gain is None


def test_a_delayed_momentum_moves_once_in_so_many_pushes():
    """By hand, N = 2, lr 1/2, momentum 1/4: the momentum is what two pushes bring together."""
    outer = DelayedNesterov(lr=0.5, momentum=0.25, pushes=2)
    vector, path = np.zeros(1), []
    state = outer.init(vector)
    for delta in (1.0, 3.0, 2.0, 0.0):
        vector, state = outer.update(vector, np.array([delta]), state)
        path.append(float(vector[0]))
    # b is 4 after the second push, and 1 + 2 after the fourth
    assert path == [-0.5, -0.5 - 0.5 * (3 + 1), -2.5 - 1.0, -3.5 - 0.5 * 0.75]


def test_a_function_of_the_users_is_the_whole_step_and_has_no_gain():
    outer = Descent(lambda parameters, gradient: parameters - 0.5 * gradient)
    vector, state = outer.update(np.ones(2, np.float32), np.ones(2), ())
    assert (vector == 0.5).all()
    assert (vector.dtype, state, outer.gain) == (np.float32, (), None)
    with pytest.raises(UsageError, match="a function of \\(parameters, delta\\)"):
        Descent(3)


def test_plain_averaging_is_the_fixed_point():
    vector, delta = np.array([1.0, 2.0]), np.array([0.5, -1.0])
    moved, state = Sgd().update(vector, delta, ())
    assert (moved == vector - delta).all()
    assert state == Sgd().init(vector) == ()


def test_an_outer_optimizer_is_made_from_plain_values():
    assert outer_from_dict({"name": "nesterov", "lr": 1, "momentum": 0}) == Nesterov(1.0, 0.0)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"name": "nestorov"}, "unknown outer optimizer; got 'nestorov'; did you mean 'nesterov'?"),
        ({}, "unknown outer optimizer; got ''; known: adagrad, adam, delayed_nesterov"),
        ({"name": "sgd", "rate": 1}, "unknown setting of Sgd; got 'rate'"),
        ({"name": "sgd", "lr": 0}, "lr of Sgd must be a number above 0; got 0"),
        ({"name": "adam", "beta1": 1.0}, "beta1 of Adam must be a number from 0 to 0.9999"),
    ],
)
def test_a_wrong_outer_optimizer_is_refused_in_clear_words(values, words):
    with pytest.raises(UsageError) as raised:
        outer_from_dict(values)
    assert str(raised.value).startswith(words)


def test_an_outer_optimizer_of_ones_own_may_keep_nothing():
    class Half(OuterOptimizer):
        name = "half"

        def update(self, vector, delta, state):
            return vector - delta / 2, state

    half = Half()
    assert half.init(np.ones(2)) == ()
    assert half.gain is None


def test_a_recipe_refuses_an_outer_optimizer_that_a_job_has_no_name_for():
    class Half(Sgd):  # a worker would have read it as the sgd that it names
        def update(self, vector, delta, state):
            return vector - delta / 2, state

    with pytest.raises(UsageError, match=r"such as Nesterov\(\), or a Descent of a "):
        averaging(outer=Half())


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda held, delta: held[:2], r"in the same shape; got shape \(2,\) for \(3,\)"),
        (lambda held, delta: None, "in the same shape; got None"),
    ],
)
def test_a_descent_that_does_not_return_the_new_parameters_is_refused(function, said):
    with pytest.raises(UsageError, match=said):
        Descent(function).update(np.ones(3), np.ones(3), ())
