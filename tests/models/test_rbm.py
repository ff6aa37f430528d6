from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.neural_network import BernoulliRBM

from photinus.core.errors import DataError, UsageError
from photinus.models import matmul
from photinus.models.matmul import PRODUCTS
from photinus.models.optimizers import Momentum
from photinus.models.random import RandomStream
from photinus.models.rbm import RBM, ContrastiveDivergence, first_parameters
from photinus.models.schedules import Schedule

pytestmark = pytest.mark.numerics

needs_onednn = pytest.mark.skipif(not matmul._has_onednn(), reason="torch without oneDNN")
EVERY = [pytest.param(p, marks=needs_onednn if p == "onednn" else ()) for p in PRODUCTS]


def batch(rows=50, width=6, seed=0):
    """Bits with something to learn: the right half repeats the left one, mostly."""
    rng = np.random.default_rng(seed)
    left = rng.random((rows, width // 2)) < np.linspace(0.2, 0.8, width // 2)
    right = left ^ (rng.random(left.shape) < 0.1)
    return SimpleNamespace(features=np.hstack([left, right]).astype(np.float32), labels=None)


def machine(visible=6, hidden=4, deviation=0.5, **settings):
    rbm = RBM(first_parameters(visible, hidden, 1, deviation), ContrastiveDivergence(**settings))
    rbm.parameters.view("a")[...] = np.linspace(-0.5, 0.5, visible)
    rbm.parameters.view("b")[...] = np.linspace(-0.3, 0.3, hidden)
    return rbm


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def cosine(x, y):
    return float(x @ y / np.linalg.norm(x) / np.linalg.norm(y))


def log_partition(rbm):
    """The exact log Z, by enumerating every hidden state."""
    w, a, b = (torch.from_numpy(rbm.parameters.view(n)).double() for n in "Wab")
    states = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * len(b))
    states = states.reshape(-1, len(b))  # [2^H, H]
    field = states @ w.t()  # [2^H, V]
    if rbm.settings.visible == "gaussian":
        visible = (field.square() / 2 + field * a).sum(1) + len(a) * np.log(2 * np.pi) / 2
    else:
        visible = torch.nn.functional.softplus(field + a).sum(1)
    return float(torch.logsumexp(states @ b + visible, 0))


def log_likelihood(rbm, features):
    """The mean of log p(v) = −F(v) − log Z."""
    return float(-rbm.free_energy(features).mean()) - log_partition(rbm)


def likelihood_slope(rbm, features):
    """The exact gradient of −mean log p(v), by enumerating every visible state."""
    w, a, b = (rbm.parameters.view(n).astype(np.float64) for n in "Wab")
    grid = np.indices((2,) * len(a)).reshape(len(a), -1).T.astype(np.float64)
    p = np.exp(-rbm.free_energy(grid) - log_partition(rbm))
    assert p.sum() == pytest.approx(1)
    h0, h1 = sigmoid(features @ w + b), sigmoid(grid @ w + b)
    n = len(features)
    slope_w = (grid * p[:, None]).T @ h1 - features.T @ h0 / n
    return np.concatenate([slope_w.ravel(), p @ grid - features.mean(0), p @ h1 - h0.mean(0)])


def test_one_step_is_the_equation(rounding):
    rbm, b = machine(), batch()
    gradient, _ = rbm.learn(b, 7)
    w, a, bias = (rbm.parameters.view(n) for n in "Wab")
    v0 = b.features
    h0 = sigmoid(v0 @ w + bias)
    sample = RandomStream(7).bernoulli(torch.from_numpy(h0), torch.empty(50, 4)).numpy()
    v1 = sigmoid(sample @ w.T + a)
    h1 = sigmoid(v1 @ w + bias)
    slope_w = (v1.T @ h1 - v0.T @ h0) / 50
    expected = np.concatenate([slope_w.ravel(), (v1 - v0).mean(0), (h1 - h0).mean(0)])
    np.testing.assert_allclose(gradient, expected, atol=rounding(6, 4, 6, 50, scale=2))


@pytest.mark.parametrize("kind", EVERY)
def test_each_path_of_products_gives_the_plain_direction(kind, rounding):
    b = batch(rows=400)
    plain = np.mean([machine().learn(b, s)[0].copy() for s in range(5)], 0)
    fast = np.mean([machine(products=kind).learn(b, s)[0].copy() for s in range(5)], 0)
    # two means over the rows, of products of what sums over units gave
    close = 0.02 if kind == "bfloat16" else rounding(6, 4, 6, 400, scale=2)
    assert np.abs(fast - plain).max() < close


def test_a_long_chain_gives_the_exact_gradient_of_the_likelihood():
    rbm = machine(steps=60, samples_visible=True)
    b = batch(rows=40_000)
    gradient, _ = rbm.learn(b, 3)
    np.testing.assert_allclose(gradient, likelihood_slope(rbm, b.features), atol=0.015)


def test_one_step_points_where_the_likelihood_falls():
    rbm, b = machine(), batch(rows=20_000)
    assert cosine(rbm.learn(b, 3)[0], likelihood_slope(rbm, b.features)) > 0.8


def test_the_exact_gradient_is_that_of_the_log_likelihood():
    rbm, b = machine(), batch()
    slope = likelihood_slope(rbm, b.features)
    trained, saved = rbm.parameters.trained, rbm.parameters.trained.copy()
    direction = slope / np.linalg.norm(slope)
    ends = []
    for sign in (1, -1):
        trained[:] = saved + sign * 1e-2 * direction
        ends.append(-log_likelihood(rbm, b.features))
    assert (ends[0] - ends[1]) / 2e-2 == pytest.approx(np.linalg.norm(slope), rel=1e-3)


def test_a_gaussian_machines_density_integrates_to_one():
    rbm = RBM(first_parameters(1, 3, 1, 0.8), ContrastiveDivergence(visible="gaussian"))
    grid = np.linspace(-12, 12, 4001)[:, None]
    density = np.exp(-rbm.free_energy(grid) - log_partition(rbm))
    assert density.sum() * (grid[1, 0] - grid[0, 0]) == pytest.approx(1, abs=1e-6)


def test_free_energy_and_means_are_sklearns(rounding):
    rbm, b = machine(), batch()
    theirs = sklearns(rbm)
    np.testing.assert_allclose(
        rbm.free_energy(b.features), theirs._free_energy(b.features), rtol=1e-5
    )
    close = rounding(6, scale=3)
    np.testing.assert_allclose(rbm.up(b.features), theirs._mean_hiddens(b.features), atol=close)


def sklearns(rbm, rate=0.1):
    theirs = BernoulliRBM(n_components=4, learning_rate=rate, batch_size=50, random_state=0)
    theirs.components_ = rbm.parameters.view("W").T.copy()
    theirs.intercept_hidden_ = rbm.parameters.view("b").copy()
    theirs.intercept_visible_ = rbm.parameters.view("a").copy()
    return theirs


def test_the_update_is_sklearns_given_the_same_samples():
    # units that are sure of themselves draw the same samples whatever the source of chance
    rbm, b = machine(persistent=True, samples_visible=True), batch()
    rng = np.random.default_rng(5)
    rbm.parameters.trained[:] = 2000 * rng.standard_normal(34)
    theirs = sklearns(rbm)
    theirs.h_samples_ = (rbm.up(b.features) > 0.5).astype(np.float32)
    for _ in range(3):
        gradient = rbm.learn(b, 0)[0]
        theirs._fit(b.features, np.random.RandomState(0))
        start = sklearns(rbm)
        update = [
            (theirs.components_ - start.components_).T.ravel(),
            theirs.intercept_visible_ - start.intercept_visible_,
            theirs.intercept_hidden_ - start.intercept_hidden_,
        ]
        np.testing.assert_allclose(-0.1 * gradient, np.concatenate(update), atol=5e-4)
        theirs.components_ = start.components_
        theirs.intercept_visible_ = start.intercept_visible_
        theirs.intercept_hidden_ = start.intercept_hidden_


def test_it_learns_as_well_as_sklearn():
    b = batch(rows=500, width=10)
    theirs = BernoulliRBM(
        n_components=8, learning_rate=0.1, batch_size=50, n_iter=40, random_state=0
    ).fit(b.features)
    rbm = RBM(first_parameters(10, 8, 1), ContrastiveDivergence())
    inner = Momentum(rbm.parameters.layout, Schedule.constant(0.1), Schedule.constant(0.5))
    for step in range(400):
        part = b.features[step % 10 * 50 :][:50]
        gradient, _ = rbm.learn(SimpleNamespace(features=part), step)
        inner.step(rbm.parameters.trained, gradient, step / 400)
    ours = sklearns(rbm)
    goal = theirs.score_samples(b.features).mean()
    assert ours.score_samples(b.features).mean() > goal - 0.15
    untrained = sklearns(RBM(first_parameters(10, 8, 1)))
    assert untrained.score_samples(b.features).mean() < goal - 0.5


def test_a_persistent_chain_continues_and_samples_the_model():
    rbm, b = machine(persistent=True, samples_visible=True), batch(rows=5_000)
    first = rbm.learn(b, 1)[0].copy()
    mean = np.mean([rbm.learn(b, s)[0].copy() for s in range(2, 80)][20:], 0)
    exact = likelihood_slope(rbm, b.features)
    assert np.abs(mean - exact).max() < 0.01
    assert np.linalg.norm(mean - exact) < 0.5 * np.linalg.norm(first - exact)
    other_size = rbm.learn(batch(rows=7), 1)[0]
    assert np.isfinite(other_size).all()


def test_sampled_inputs_have_the_means_given():
    rbm = machine(samples_inputs=True)
    halves = SimpleNamespace(features=np.full((20_000, 6), 0.3, np.float32))
    rbm.learn(halves, 1)
    v0 = rbm._work_buffers.get("v", (40_000, 6))[:20_000].numpy()
    assert set(np.unique(v0)) == {0.0, 1.0}
    assert abs(v0.mean() - 0.3) < 0.01


def test_a_gaussian_machine_learns_continuous_inputs():
    rng = np.random.default_rng(0)
    features = (rng.standard_normal((400, 2)) @ rng.standard_normal((2, 6))).astype("f4")
    features /= features.std(0)
    rbm = RBM(first_parameters(6, 4, 1, 0.01), ContrastiveDivergence(visible="gaussian"))
    b = SimpleNamespace(features=features)
    before, likely = rbm.measure(b)["reconstruction"], log_likelihood(rbm, features)
    inner = Momentum(rbm.parameters.layout, Schedule.constant(0.01), Schedule.constant(0.5))
    for step in range(300):
        inner.step(rbm.parameters.trained, rbm.learn(b, step)[0], 0.0)
    assert rbm.measure(b)["reconstruction"] < 0.7 * before
    assert log_likelihood(rbm, features) > likely


def test_the_reconstruction_is_measured_at_every_eighth_seed():
    rbm, b = machine(), batch()
    assert [sorted(rbm.learn(b, seed)[1]) for seed in (0, 1, 8)] == [
        ["reconstruction"],
        [],
        ["reconstruction"],
    ]
    field = rbm.measure(b)
    assert rbm.learn(b, 0)[1]["reconstruction"] == pytest.approx(
        field["reconstruction"] / 50, rel=0.3
    )


def test_rows_of_another_width_are_refused():
    with pytest.raises(DataError, match="rows of 6 numbers"):
        machine().learn(batch(width=8), 0)


@pytest.mark.parametrize("settings", [{"steps": 0}, {"visible": "poisson"}, {"products": "cuda"}])
def test_wrong_settings_are_refused(settings):
    with pytest.raises(UsageError, match="of ContrastiveDivergence must be"):
        ContrastiveDivergence(**settings)
