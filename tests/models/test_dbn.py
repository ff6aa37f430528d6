import pickle  # noqa: TID251 - as a launcher hands configs to its own children
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from photinus.core.errors import UsageError
from photinus.core.settings import from_dict, to_dict
from photinus.models import dbn as dbn_file
from photinus.models.dbn import DBN, FineTuning, Pretraining
from photinus.models.schedules import Schedule
from photinus.testing import check_model

pytestmark = pytest.mark.numerics


def digits(rows=600, seed=0):
    """Three classes: noisy copies of three patterns of 12 bits."""
    rng = np.random.default_rng(seed)
    patterns = np.random.default_rng(9).random((3, 12)) < 0.5
    labels = rng.integers(0, 3, rows)
    noisy = patterns[labels] ^ (rng.random((rows, 12)) < 0.08)
    return SimpleNamespace(features=noisy.astype(np.float32), labels=labels)


def small(**settings):
    fine = FineTuning(
        epochs=15, batch_size=30, lr=Schedule.cosine(0.01), dropout_input=0.0, dropout_hidden=(0.1,)
    )
    return DBN(
        **{
            "inputs": 12,
            "hidden": (10, 8),
            "classes": 3,
            "pretraining": Pretraining(epochs=4, batch_size=20),
            "fine_tuning": fine,
            "precision": "mkl",
            **settings,
        }
    )


def train(configs, data):
    """One worker, a plain loop; returns the history and the last model."""
    history = ()
    for config in configs:
        features = config.prepare(data.features, history)
        model = config.build(history, 1)
        inner = config.inner(model.parameters.layout)
        steps = int(config.epochs * len(features) // config.batch_size)
        order = np.random.default_rng(0)
        for step in range(steps):
            chosen = order.choice(len(features), config.batch_size, replace=False)
            part = SimpleNamespace(features=features[chosen], labels=data.labels[chosen])
            gradient, _ = model.learn(part, step)
            inner.step(model.parameters.trained, gradient, step / steps)
        history += (model.parameters.trained.copy(),)
    return history, model


@pytest.mark.parametrize("precision", ["mkl", "bfloat16"])
def test_layer_by_layer_then_together_it_learns_the_classes(precision):
    dbn = small(precision=precision)
    history, _ = train(dbn.configs(), digits())
    test = digits(seed=1)
    chances = dbn.predict(history[-1], test.features)
    np.testing.assert_allclose(chances.sum(1), 1, atol=1e-5)
    assert (chances.argmax(1) != test.labels).mean() < 0.05


def test_the_configs_have_their_names_sizes_and_order():
    configs = DBN(precision="mkl").configs()
    assert [s.name for s in configs] == ["rbm1", "rbm2", "rbm3", "fine-tune"]
    assert [len(s.build((), 0).parameters.trained) for s in configs[:3]] == [
        784 * 500 + 784 + 500,
        500 * 500 + 1000,
        500 * 2000 + 2500,
    ]
    assert (configs[0].batch_size, configs[-1].batch_size) == (100, 250)


@pytest.mark.parametrize(
    ("rows", "passes"), [(60_000, [20, 20, 60]), (1257, [154, 154, 200]), (9, [200, 200, 200])]
)
def test_with_nothing_set_layers_have_more_passes_over_few_rows(rows, passes):
    assert [config.passes(rows) for config in DBN(hidden=(8, 8)).configs()] == passes
    once = DBN(hidden=(8, 8), pretraining=Pretraining(epochs=0), fine_tuning=FineTuning(epochs=1))
    assert [config.passes(rows) for config in once.configs()] == [1]


def test_the_first_step_of_the_usual_fine_tuning_moves_every_weight():
    """With agreement on whole gradients a step is an epoch, and the first may be the only one."""
    config = small(fine_tuning=FineTuning()).configs()[-1]
    parameters = config.build((), 1).parameters
    trained, before = parameters.trained, parameters.trained.copy()
    config.inner(parameters.layout).step(trained, np.ones_like(trained), 0.0)
    assert (trained != before).all()


@pytest.mark.parametrize("hidden", [(5,), (9, 8, 7, 6, 5)])
def test_any_depth(hidden):
    dbn = small(
        hidden=hidden, pretraining=Pretraining(epochs=0.1), fine_tuning=FineTuning(epochs=0.5)
    )
    history, _ = train(dbn.configs(), digits(rows=600))
    assert dbn.predict(history[-1], digits(rows=5).features).shape == (5, 3)
    assert len(history) == len(hidden) + 1


def test_fine_tuning_starts_from_the_layers_below(rounding):
    dbn = small()
    configs = dbn.configs()
    history = tuple(s.build((), i).parameters.trained + 0.1 for i, s in enumerate(configs[:2]))
    network = configs[-1].build(history, 1)
    data = digits(rows=20)
    below = configs[1].prepare(data.features, history)
    top = configs[1].build(history, 1)
    top.load(history[1])
    hidden = network._forward(torch.from_numpy(data.features), None)[0]
    np.testing.assert_allclose(hidden[1], below, atol=rounding(12))
    np.testing.assert_allclose(hidden[2], top.up(below), atol=rounding(12, 10))
    assert np.abs(network.parameters.view("W3")).max() < 0.1


def test_the_same_seed_builds_the_same_bits_and_every_config_its_own():
    for config in small(hidden=(12, 12)).configs():
        one, two, other = (config.build((), seed).parameters.trained for seed in (1, 1, 2))
        assert np.array_equal(one, two)
        assert not np.array_equal(one, other)
    first, second, _ = small(hidden=(12, 12)).configs()
    assert not np.array_equal(
        first.build((), 1).parameters.trained, second.build((), 1).parameters.trained
    )


def test_without_pretraining_there_is_one_config():
    dbn = small(pretraining=Pretraining(epochs=0))
    (config,) = dbn.configs()
    check_model(lambda: config.build((), 1), digits(rows=20), is_gradient=True)
    history, _ = train((config,), digits())
    assert dbn.predict(history[-1], digits().features).shape == (600, 3)


def test_the_autoencoder_is_the_stack_unrolled():
    dbn = small()
    *layers, last = dbn.autoencoder()
    history = tuple(s.build((), i).parameters.trained + 0.1 for i, s in enumerate(layers))
    model = last.build(history, 1)
    assert model.settings.sizes == (12, 10, 8, 10, 12)
    first = layers[0].build((), 0)
    first.load(history[0])
    np.testing.assert_array_equal(model.parameters.view("W4"), first.parameters.view("W").T)
    np.testing.assert_array_equal(model.parameters.view("b4"), first.parameters.view("a"))
    check_model(lambda: last.build(history, 1), digits(rows=20))


@pytest.mark.parametrize("loss", ["reconstruction_cross_entropy", "reconstruction_mse"])
def test_the_autoencoder_learns_to_reconstruct(loss):
    data = digits()
    history, model = train(small().autoencoder(loss), data)
    before = small().autoencoder(loss)[-1].build(history[:-1], 1).measure(data)["loss"]
    assert model.measure(data)["loss"] < 0.92 * before
    codes = small().codes(history[-1], data.features)
    assert codes.shape == (600, 8)
    assert 0 <= codes.min() < codes.max() <= 1


def test_a_regression_gives_plain_numbers():
    fine = FineTuning(epochs=20, batch_size=30, loss="mse", dropout_input=0.0, dropout_hidden=(0,))
    dbn = small(classes=1, fine_tuning=fine)
    data = digits()
    data.labels = data.features.sum(1) / 12
    history, model = train(dbn.configs(), data)
    assert model.measure(data)["loss"] / 600 < np.var(data.labels)
    assert dbn.predict(history[-1], data.features).shape == (600, 1)


def test_the_module_is_plain_and_its_state_dict_comes_back(rounding):
    dbn = small()
    trained = dbn.configs()[-1].build((), 3).parameters.trained
    module = dbn.module(trained)
    assert [type(m).__name__ for m in module] == [
        "Linear",
        "Sigmoid",
        "Linear",
        "Sigmoid",
        "Linear",
    ]
    data = digits(rows=9)
    outputs = torch.softmax(module(torch.from_numpy(data.features)), 1).detach().numpy()
    close = rounding(12, 10, 8)
    np.testing.assert_allclose(outputs, dbn.predict(trained, data.features), atol=close)
    state = {n: t.numpy() for n, t in module.state_dict().items()}
    assert np.array_equal(dbn.trained(state), trained)


def test_settings_pass_through_to_the_machines():
    dbn = small(
        pretraining=Pretraining(visible="gaussian", reads="samples", cd_steps=3, persistent=True)
    )
    first, second, _ = (s.build((), 0) for s in dbn.configs())
    assert (first.settings.visible, second.settings.visible) == ("gaussian", "bernoulli")
    assert (first.settings.samples_inputs, second.settings.samples_inputs) == (False, True)
    assert first.settings.steps == 3
    assert first.settings.persistent


def test_the_precision_is_measured_once_and_shipped_plain(monkeypatch):
    calls = []
    monkeypatch.setattr(dbn_file, "resolve", lambda p, shapes: calls.append((p, shapes)) or "mkl")
    configs = small(precision="auto").configs()
    assert calls == [("auto", [(20, 12, 10), (20, 10, 8)])]
    assert {s.products for s in configs[:-1]} | {configs[-1].network.products} == {"mkl"}


def test_it_goes_through_plain_values_and_its_configs_are_small():
    dbn = small()
    assert from_dict(DBN, to_dict(dbn)) == dbn
    for config in DBN(precision="mkl").configs():
        sent = pickle.dumps(config)
        assert len(sent) < 2000
        assert pickle.loads(sent) == config


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"hidden": ()}, "hidden of DBN must be"),
        ({"precision": "float16"}, "precision of DBN must be one of"),
        ({"classes": 0}, "classes of DBN"),
    ],
)
def test_wrong_settings_are_refused(settings, says):
    with pytest.raises(UsageError, match=says):
        small(**settings)


def test_half_a_history_is_refused():
    configs = small().configs()
    history = (configs[0].build((), 0).parameters.trained,)
    with pytest.raises(UsageError, match="fine-tuning needs 2 pre-trained layers; got 1"):
        configs[-1].build(history, 0)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: FineTuning(loss="mes"), "unknown loss; got 'mes'; did you mean 'mse'?"),
        (lambda: FineTuning(optimizer="adamm"), "unknown optimizer; got 'adamm'; did you mean"),
        (lambda: FineTuning(lr="0.1"), "lr of FineTuning must be a number of at least 0"),
        (lambda: FineTuning(dropout_hidden=0.2), "dropout_hidden of FineTuning must be a list"),
        (lambda: Pretraining(momentum=None), "momentum of Pretraining must be a number of at"),
        (lambda: DBN(hidden=50), "hidden of DBN must be one or more whole numbers above 0"),
        (lambda: DBN(hidden=(5, 2.5)), "hidden of DBN must be one or more whole numbers"),
        (lambda: FineTuning(loss=5), "loss of FineTuning must be a string; got 5"),
        (lambda: FineTuning(dropout_input="x"), "dropout_input of FineTuning must be a number"),
        (lambda: FineTuning(dropout_hidden=(1.0,)), "dropout_hidden of FineTuning must be a list"),
        (lambda: DBN(pretraining={"epochs": 1}), "pretraining of DBN must be of type Pretraining"),
    ],
)
def test_a_wrong_setting_is_refused_before_any_layer_is_trained(make, said):
    with pytest.raises(UsageError, match=re.escape(said)):
        make()


def test_a_number_in_plain_values_is_a_schedule_that_stays():
    assert from_dict(FineTuning, {"lr": 0.25}).lr == Schedule.constant(0.25)
    assert from_dict(Pretraining, {"momentum": 1}).momentum.at(0.7) == 1.0
