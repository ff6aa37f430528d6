import sys
from collections import OrderedDict, namedtuple
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from photinus.core.errors import DataError, UsageError
from photinus.core.parameters import Parameters
from photinus.core.settings import from_dict, to_dict
from photinus.models.module import ModuleConfig
from photinus.models.module_model import Learning, ModuleModel
from photinus.models.reading import cast_floats
from photinus.models.schedules import Schedule, check_rates

pytestmark = pytest.mark.numerics


def batch(rows=16, width=4, classes=3):
    rng = np.random.default_rng(0)
    features = rng.standard_normal((rows, width)).astype(np.float32)
    return SimpleNamespace(features=features, labels=rng.integers(0, classes, rows))


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


def test_the_modules_numbers_are_kept_and_become_views():
    before = {n: p.detach().clone() for n, p in net().named_parameters()}
    model = ModuleModel(net(), "cross_entropy")
    for name, value in before.items():
        np.testing.assert_array_equal(model.parameters.view(name), value.numpy())
    model.parameters.trained[:] = 0.5
    assert all((p == 0.5).all() for p in model.module.parameters())


def test_the_gradient_is_autograds():
    model, reference = ModuleModel(net(), "cross_entropy"), net()
    b = batch()
    gradient, metrics = model.learn(b, 0)
    features, labels = torch.from_numpy(b.features), torch.from_numpy(b.labels)
    loss = nn.functional.cross_entropy(reference(features), labels)
    loss.backward()
    expected = np.concatenate([p.grad.numpy().reshape(-1) for p in reference.parameters()])
    np.testing.assert_array_equal(gradient, expected)
    assert metrics == {"loss": pytest.approx(float(loss.detach()))}


def test_every_steps_gradient_stands_in_the_same_buffer():
    model = ModuleModel(net(), "cross_entropy")
    first, _ = model.learn(batch(), 0)
    second, _ = model.learn(batch(), 1)
    assert first is second
    assert all(p.grad is None for p in model.module.parameters()), "a second copy is held"


class Sometimes(nn.Module):
    """Its second layer takes part only when told; its table's gradient is sparse."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 4, sparse=True)
        self.first, self.second = nn.Linear(4, 3), nn.Linear(3, 3)
        self.is_deep = True

    def forward(self, x):
        y = self.first(self.table(x).mean(dim=1))
        return self.second(y) if self.is_deep else y


def test_the_gradient_of_what_took_no_part_is_zero_and_a_sparse_one_is_made_dense():
    torch.manual_seed(0)
    model = ModuleModel(Sometimes(), "cross_entropy")
    rows = SimpleNamespace(features=np.array([[0, 3], [3, 1]]), labels=np.array([0, 2]))
    model.learn(rows, 0)
    model.module.is_deep = False
    gradient, _ = model.learn(rows, 0)
    views = Parameters(model.parameters.layout, trained=gradient)
    assert not views.view("second.weight").any()
    assert views.view("first.weight").any()
    table = views.view("table.weight")
    assert table[[0, 1, 3]].any(axis=1).all()
    assert not table[[2, 4]].any()


def test_batch_norms_statistics_lie_in_floats_and_its_counter_in_integers():
    model, reference = ModuleModel(net(), "cross_entropy"), net()
    b = batch()
    model.learn(b, 0)
    reference(torch.from_numpy(b.features))
    expected = torch.cat([reference[1].running_mean, reference[1].running_var]).numpy()
    np.testing.assert_array_equal(model.parameters.floats, expected)
    assert model.parameters.integers.tolist() == [1]
    model.load(model.parameters.trained.copy(), np.zeros(10, np.float32), np.array([7]))
    assert model.module[1].running_var.sum() == 0
    assert int(model.module[1].num_batches_tracked) == 7


def test_measure_uses_the_running_statistics_and_sums():
    model, b = ModuleModel(net(), "cross_entropy"), batch()
    sums = model.measure(b)
    reference = net().eval()
    outputs = reference(torch.from_numpy(b.features))
    labels = torch.from_numpy(b.labels)
    assert sums["examples"] == 16
    assert sums["errors"] == float((outputs.argmax(1) != labels).sum())
    loss = nn.functional.cross_entropy(outputs, labels, reduction="sum")
    assert sums["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
    assert model.parameters.integers.tolist() == [0]


def test_a_batch_of_one_row_is_normalized_by_the_running_statistics():
    model, reference = ModuleModel(net(), "cross_entropy"), net().eval()
    one = batch(rows=1)
    model.learn(batch(), 1)
    reference.load_state_dict(model.module.state_dict())
    means = model.module[1].running_mean.clone()
    slope, metrics = model.learn(one, 2)
    logits = reference(torch.from_numpy(one.features))
    loss = nn.functional.cross_entropy(logits, torch.from_numpy(one.labels))
    assert metrics["loss"] == pytest.approx(float(loss.detach()), rel=1e-6)
    loss.backward()
    wanted = torch.cat([p.grad.ravel() for p in reference.parameters()])
    np.testing.assert_allclose(slope, wanted.numpy(), rtol=1e-5, atol=1e-6)
    assert torch.equal(model.module[1].running_mean, means)
    model.learn(batch(), 3)
    assert not torch.equal(model.module[1].running_mean, means), "the next batch has statistics"


def test_dropout_follows_the_seed_and_leaves_torchs_own_chance_alone():
    torch.manual_seed(1)
    model = ModuleModel(nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3)), "cross_entropy")
    b = batch()
    before = torch.get_rng_state()
    first = model.learn(b, 8)[0].copy()
    other = model.learn(b, 9)[0].copy()
    assert not np.array_equal(first, other)
    assert np.array_equal(model.learn(b, 8)[0], first)
    assert torch.equal(torch.get_rng_state(), before)


def test_tied_parameters_are_one_entry():
    module = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    module[1].weight = module[0].weight
    model = ModuleModel(module, "cross_entropy")
    assert model.parameters.layout.names() == ("0.weight",)
    model.parameters.trained[:] = 2
    assert (module[1].weight == 2).all()
    model.learn(batch(classes=4), 0)


def test_parameters_that_overlap_otherwise_are_refused():
    module = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    module[1].weight = nn.Parameter(module[0].weight.detach().t())
    with pytest.raises(UsageError, match=r"share memory; got 0\.weight and 1\.weight; tie them"):
        ModuleModel(module, "cross_entropy")


def test_frozen_parameters_are_constants():
    module = net()
    module[0].weight.requires_grad_(False)
    model = ModuleModel(module, "cross_entropy")
    assert "0.weight" not in model.parameters.layout.names()
    model.learn(batch(), 0)


@pytest.mark.parametrize(
    "module", [nn.Linear(4, 3).half(), nn.ReLU(), nn.Sequential(nn.Linear(4, 4), net().double())]
)
def test_other_types_than_one_of_float_are_refused(module):
    with pytest.raises(UsageError, match="trainable parameters, all float32 or all float64"):
        ModuleModel(module, "cross_entropy")


def test_a_float64_module_takes_float32_rows():
    model = ModuleModel(nn.Linear(4, 3).double(), "cross_entropy")
    assert model.learn(batch(), 0)[0].dtype == np.float64


def test_regression_reads_a_column_of_labels():
    model, b = ModuleModel(nn.Linear(4, 1), "mse"), batch()
    b.labels = b.features.sum(1).astype(np.float64)
    outputs = model.module(torch.from_numpy(b.features))[:, 0].detach().numpy()
    assert model.learn(b, 0)[1]["loss"] == pytest.approx(float(np.mean((outputs - b.labels) ** 2)))
    assert sorted(model.measure(b)) == ["examples", "loss"]


def test_bfloat16_gives_the_gradient_within_its_precision():
    b = batch()
    plain = ModuleModel(net(), "cross_entropy").learn(b, 0)[0]
    low, metrics = ModuleModel(net(), "cross_entropy", Learning(precision="bfloat16")).learn(b, 0)
    assert low.dtype == np.float32
    assert np.abs(low - plain).max() < 0.03
    assert isinstance(metrics["loss"], float)


def test_weights_weigh_the_examples(rounding):
    b, model = batch(), ModuleModel(nn.Linear(4, 3), "cross_entropy")
    b.weights = np.arange(16) < 4
    weighed = model.learn(b, 0)[0].copy()
    part = SimpleNamespace(features=b.features[:4], labels=b.labels[:4])
    close = rounding(4, 16, scale=np.abs(b.features).max())
    np.testing.assert_allclose(4 * weighed, model.learn(part, 0)[0], atol=4 * close)


def test_without_labels_the_inputs_are_the_target():
    model, b = ModuleModel(nn.Linear(4, 4), "mse"), batch()
    b.labels = None
    assert model.learn(b, 0)[1]["loss"] > 0


@pytest.mark.parametrize(
    "change",
    [
        {"features": np.ones((16, 7), np.float32)},
        {"labels": np.full(16, 10)},
        {"labels": np.zeros(3, int)},
    ],
)
def test_a_batch_that_does_not_fit_is_one_clear_sentence(change):
    b = batch()
    vars(b).update(change)
    with pytest.raises(DataError, match="Linear with loss cross_entropy does not take this batch"):
        ModuleModel(nn.Linear(4, 3), "cross_entropy").learn(b, 0)


class Mistaken(nn.Linear):
    def forward(self, features):
        return super().forward(features)[:, 7]


def test_an_error_in_the_user_s_module_is_told_with_its_line():
    with pytest.raises(DataError, match=r"out of bounds .* \(test_module.py, line \d+\); compare"):
        ModuleModel(Mistaken(4, 3), "cross_entropy").learn(batch(), 0)


class Late(nn.Module):
    """Makes a layer at the first call, or at the first one in training."""

    def __init__(self, is_tried):
        super().__init__()
        self.line, self.last, self.is_tried = nn.Linear(4, 3), None, is_tried

    def forward(self, features):
        if self.last is None and (self.training or self.is_tried):
            self.last = nn.Linear(3, 3)
        return self.line(features) if self.last is None else self.last(self.line(features))


@pytest.mark.parametrize("ask", ["learn", "measure", "outputs", "learn after a measurement"])
def test_layers_that_are_made_in_forward_are_refused(ask):
    model = ModuleModel(Late(ask != "learn after a measurement"), "cross_entropy")
    wrong = "Late makes layers in forward; got last.weight, last.bias; make them in __init__"
    if ask == "learn after a measurement":
        model.measure(batch())
    calls = {
        "measure": lambda: model.measure(batch()),
        "outputs": lambda: model.outputs(batch().features),
    }
    with pytest.raises(UsageError, match=wrong):
        calls.get(ask, lambda: model.learn(batch(), 0))()


def config(**settings):
    arguments = {"in_features": 4, "out_features": 3}
    return ModuleConfig(**{"module": "torch.nn:Linear", "arguments": arguments, **settings})


def test_a_config_builds_the_same_module_from_the_same_seed():
    one, two, other = (config().build((), seed) for seed in (1, 1, 2))
    assert np.array_equal(one.parameters.trained, two.parameters.trained)
    assert not np.array_equal(one.parameters.trained, other.parameters.trained)


def test_a_config_goes_through_plain_values_and_back():
    made = config(lr=Schedule.cosine(0.1), settings={"weight_decay": 0.1}, optimizer="sgd")
    assert from_dict(ModuleConfig, to_dict(made)) == made


def test_a_config_trains():
    made = config(lr=Schedule.constant(0.1))
    model, b = made.build((), 0), batch()
    inner = made.inner(model.parameters.layout)
    losses = []
    for step in range(30):
        gradient, metrics = model.learn(b, step)
        inner.step(model.parameters.trained, gradient, step / 30)
        losses.append(metrics["loss"])
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"module": "torch.nn"}, "a module is named package.module:name"),
        ({"module": "no_such_package:net"}, "cannot be imported; got ModuleNotFoundError"),
        ({"module": "torch.nn:Linaer"}, "torch.nn has no 'Linaer'"),
        ({"module": "torch.nn.init:math"}, "is not callable; got module"),
        ({"module": "math:sqrt"}, "must be the user's own code; got 'math:sqrt' of Python's"),
        (
            {"module": "torch.hub:load"},
            "must be the user's own code; got 'torch.hub:load' of torch",
        ),
        ({"module": "torch.optim:SGD"}, "is a class of another kind; got SGD"),
        ({"arguments": {"width": 3}}, "cannot be made from its arguments"),
        ({"module": "here:factory_of_no_module", "arguments": {}}, "must return a torch.nn.Module"),
    ],
)
def test_a_wrong_factory_is_one_clear_sentence(settings, says, monkeypatch):
    monkeypatch.setitem(sys.modules, "here", SimpleNamespace(factory_of_no_module=lambda: 3))
    with pytest.raises(UsageError, match=says):
        config(**settings).build((), 0)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"loss": "cros_entropy"}, "unknown loss; got 'cros_entropy'; did you mean"),
        ({"optimizer": "adm"}, "unknown optimizer"),
        ({"batch_size": 0}, "batch_size of ModuleConfig must be a whole number of at least 1"),
    ],
)
def test_wrong_settings_are_refused_where_they_are_made(settings, says):
    with pytest.raises(UsageError, match=says):
        config(**settings)


def halved(features, draws):
    """A reader for the tests: whole numbers are halved; a draw adds itself."""
    x = features.astype(np.float32) / 2
    return x if draws is None else x + draws[:, None].astype(np.float32)


HALVED = f"{__name__}:halved"


def test_reads_turns_features_and_takes_draws_in_training_only(monkeypatch):
    monkeypatch.setitem(sys.modules, __name__, SimpleNamespace(halved=halved))
    model = ModuleModel(nn.Linear(4, 3), "cross_entropy", Learning(reads=HALVED))
    plain = ModuleModel(nn.Linear(4, 3), "cross_entropy")
    plain.load(model.parameters.trained)
    whole = np.arange(20).reshape(5, 4)
    examples = SimpleNamespace(features=whole, labels=np.arange(5) % 3, draws=np.arange(5))
    still = SimpleNamespace(features=(whole / 2).astype("f4"), labels=examples.labels)
    moved = SimpleNamespace(features=still.features + examples.draws[:, None].astype("f4"))
    moved.labels = examples.labels
    assert model.measure(examples) == plain.measure(still)
    assert np.array_equal(model.learn(examples, 0)[0], plain.learn(moved, 0)[0])
    assert np.array_equal(model.outputs(whole), plain.outputs(still.features))


def test_l2_is_added_to_loss_and_gradient_of_what_it_names():
    b = batch()
    plain = ModuleModel(net(), "cross_entropy")
    model = ModuleModel(net(), "cross_entropy", Learning(l2={"[03].weight": 0.3, "3.*": 0.1}))
    base, loss = plain.learn(b, 0)
    slope, total = model.learn(b, 0)
    expected, w = base.copy(), model.parameters
    at = w.layout.entry
    penalty = 0.0
    for name, factor in (("0.weight", 0.3), ("3.weight", 0.4), ("3.bias", 0.1)):
        part = slice(at(name).offset, at(name).offset + at(name).size)
        expected[part] += factor * w.trained[part]
        penalty += factor / 2 * float((w.trained[part] ** 2).sum())
    np.testing.assert_allclose(slope, expected, rtol=1e-5, atol=1e-7)
    assert total["loss"] == pytest.approx(loss["loss"] + penalty)
    with pytest.raises(UsageError, match=r"unknown parameter in l2; got '5\.weight'"):
        ModuleModel(net(), "cross_entropy", Learning(l2={"5.weight": 0.1}))


def test_outputs_of_a_layer_are_what_the_module_computes_there():
    model, b = ModuleModel(net(), "cross_entropy"), batch(2500)
    first = model.outputs(b.features, "0")
    reference = net().eval()
    with torch.no_grad():
        expected = reference[0](torch.from_numpy(b.features))
        whole = reference(torch.from_numpy(b.features))
    np.testing.assert_allclose(first, expected.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.outputs(b.features), whole.numpy(), rtol=1e-5, atol=1e-6)
    with pytest.raises(UsageError, match="unknown layer; got '7'"):
        model.outputs(b.features, "7")


def test_auto_is_decided_once_and_needs_an_example():
    arguments = {"in_features": 4, "out_features": 3}
    config = ModuleConfig(module="torch.nn:Linear", arguments=arguments, precision="auto")
    with pytest.raises(UsageError, match='"auto" needs example'):
        config.resolved()
    decided = replace(config, example=(4,)).resolved()
    assert decided.precision in ("float32", "bfloat16")
    assert decided.resolved() is decided
    assert from_dict(ModuleConfig, to_dict(decided)) == decided
    with pytest.raises(UsageError, match=r"does not read examples of shape \[5\]"):
        replace(config, example=(5,)).resolved()


def test_parts_of_a_step_give_the_whole_ones_gradient():
    whole, parts = batch(rows=11), batch(rows=11)

    def plain():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()

    first, _ = ModuleModel(plain(), "cross_entropy").learn(whole, 0)
    expected = first.copy()
    for count in (2, 4, 30):
        how = Learning(accumulate=count)
        gradient, metrics = ModuleModel(plain(), "cross_entropy", how).learn(parts, 0)
        np.testing.assert_allclose(gradient, expected, rtol=1e-10, atol=1e-14)
    assert metrics["loss"] > 0


def test_weighted_parts_of_a_step_give_the_whole_ones_gradient():
    b = batch(rows=9)
    b.weights = np.arange(1.0, 10.0)
    nets = [nn.Linear(4, 3).double() for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    expected = ModuleModel(nets[0], "cross_entropy").learn(b, 0)[0].copy()
    parts = ModuleModel(nets[1], "cross_entropy", Learning(accumulate=4)).learn(b, 0)[0]
    np.testing.assert_allclose(parts, expected, rtol=1e-10, atol=1e-14)


def test_a_step_in_parts_passes_through_the_module_as_often():
    model = ModuleModel(net(), "cross_entropy", Learning(accumulate=4))
    model.learn(batch(), 0)
    assert model.parameters.view("1.num_batches_tracked") == 4


SMALL_CONFIG = {"module": "torch.nn:Linear", "arguments": {"in_features": 4, "out_features": 3}}


class Early:
    """Takes a model's gradient part by part, as it was when it was final."""

    def __init__(self, model):
        self.model, self.parts, self.seen = (
            model,
            [],
            np.full_like(model.parameters.trained, np.nan),
        )
        model.on_gradient = self

    def __call__(self, gradient, start, stop):
        assert np.isnan(self.seen[start:stop]).all(), "a number was final twice"
        self.seen[start:stop] = gradient[start:stop]
        self.parts.append(self.model.parameters.layout.names()[self._place(start)])

    def _place(self, start):
        entries = [e for e in self.model.parameters.layout.entries if e.section == "trained"]
        return [e.offset for e in entries].index(start)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.unused, self.last = nn.Linear(4, 4), nn.Linear(2, 2), nn.Linear(4, 3)

    def forward(self, x):
        return self.last(torch.relu(self.first(torch.relu(self.first(x)))))


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"accumulate": 3},
        {"l2": {"*.weight": 0.3, "last.*": 0.1}},
        {"activation_memory": "offload"},
        {"precision": "bfloat16"},
        {"precision": "float16"},
    ],
)
def test_parts_of_the_gradient_are_final_early_and_have_the_same_bits(how):
    plain = ModuleModel(Tied(), "cross_entropy", Learning(**how))
    expected, metrics = plain.learn(batch(), 3)
    model = ModuleModel(Tied(), "cross_entropy", Learning(**how))
    early = Early(model)
    gradient, plain_metrics = model.learn(batch(), 3)
    np.testing.assert_array_equal(gradient, expected)
    np.testing.assert_array_equal(early.seen, expected)
    assert plain_metrics == metrics
    if how != {"precision": "float16"}:
        assert {*early.parts[:2]} == {"last.weight", "last.bias"}, "the last layer is final first"
        assert {*early.parts[4:]} == {"unused.weight", "unused.bias"}


def test_a_named_metric_is_measured_beside_the_loss():
    config = ModuleConfig(**SMALL_CONFIG, metrics=("accuracy", "f1"))
    metrics = config.finished(config.build((), 0).measure(batch()))
    assert metrics["accuracy"] == pytest.approx(1 - metrics["error"])
    assert sorted(metrics) == ["accuracy", "error", "f1", "loss"]


@pytest.mark.parametrize(("rows", "batch_size", "steps"), [(100, 32, 7), (100, 32, 8), (96, 32, 3)])
def test_as_many_passes_as_the_steps_need(rows, batch_size, steps):
    config = ModuleConfig(**SMALL_CONFIG, batch_size=batch_size, max_steps=steps)
    whole, part = divmod(config.passes(rows), 1.0)
    assert whole * -(-rows // batch_size) + round(part * rows / batch_size) == steps
    assert ModuleConfig(**SMALL_CONFIG, epochs=2.5).passes(rows) == 2.5


@pytest.mark.parametrize(
    ("rows", "passes"), [(0, 200), (105, 200), (1257, 50), (20_000, 4), (64_000, 1), (10**8, 1)]
)
def test_with_nothing_set_few_rows_are_read_more_often(rows, passes):
    assert ModuleConfig(**SMALL_CONFIG, batch_size=32).passes(rows) == passes


def vector_loss(outputs, labels):
    return nn.functional.cross_entropy(outputs, labels, reduction="none")


def test_a_loss_that_returns_a_vector_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "mylosses", SimpleNamespace(vector=vector_loss))
    model = ModuleModel(net(), "mylosses:vector")
    error = (
        r"^the loss mylosses:vector must return one number; got a tensor of shape \[16\]; return"
    )
    with pytest.raises(UsageError, match=error):
        model.learn(batch(), 0)


@pytest.mark.parametrize("per_tensor", [False, True])
def test_an_optimizer_sees_shapes_where_that_is_asked_for(per_tensor):
    arguments = {"in_features": 4, "out_features": 3, "bias": False}
    config = ModuleConfig(
        module="torch.nn:Linear", arguments=arguments, optimizer="adafactor", per_tensor=per_tensor
    )
    model = config.build((), 0)
    inner = config.inner(model.parameters.layout)
    inner.step(model.parameters.trained, np.ones(12, np.float32), progress=0.5)
    assert ("row_var" in inner.state()) == per_tensor, "it keeps rows' and columns' of matrices"


class Heads(nn.Module):
    """Two heads on one layer."""

    def __init__(self, makes=tuple):
        super().__init__()
        self.below, self.price, self.kind = nn.Linear(4, 5), nn.Linear(5, 1), nn.Linear(5, 3)
        self._makes = makes

    def forward(self, x):
        h = torch.relu(self.below(x))
        outputs = {"price": self.price(h).squeeze(1), "kind": self.kind(h)}
        return outputs if self._makes is dict else self._makes(outputs.values())


Both = namedtuple("Both", ("price", "kind"))


def of_both(outputs, labels):
    price, kind = outputs.values() if isinstance(outputs, dict) else outputs
    squares = nn.functional.mse_loss(price, labels.to(price.dtype))
    return squares + nn.functional.cross_entropy(kind, labels)


OF_BOTH = f"{__name__}:of_both"


class Attributes(OrderedDict):
    """A dict whose items are attributes, too, as many libraries return."""

    def __getattr__(self, name):
        return self[name]


KINDS = [tuple, list, dict, Both._make]


@pytest.mark.parametrize("given", [torch.ones(2), [torch.ones(2)], (torch.ones(2), 1, None)])
def test_floats_of_outputs_get_a_type_and_the_rest_stays(given):
    cast = cast_floats(given, torch.bfloat16)
    assert type(cast) is type(given)
    assert next(getattr(part, "dtype", part) for part in cast) == torch.bfloat16
    assert isinstance(given, Tensor) or list(cast[1:]) == list(given[1:])


def test_outputs_keep_their_class():
    outputs = Attributes(logits=torch.ones(2), best=torch.ones(2).argmax())
    cast = cast_floats(outputs, torch.bfloat16)
    assert (cast.logits.dtype, cast.best.dtype) == (torch.bfloat16, torch.int64)
    assert outputs.logits.dtype == torch.float32, "the module's own is changed"
    assert isinstance(cast_floats(torch.ones(2, 2).max(0), torch.bfloat16), torch.return_types.max)


@pytest.mark.parametrize("makes", KINDS, ids=str)
def test_a_loss_of_ones_own_reads_several_outputs(makes):
    model, reference, b = ModuleModel(Heads(makes), OF_BOTH), Heads(makes), batch()
    reference.load_state_dict(model.module.state_dict())
    features, labels = torch.from_numpy(b.features), torch.from_numpy(b.labels)
    loss = of_both(reference(features), labels)
    loss.backward()
    expected = np.concatenate([p.grad.numpy().reshape(-1) for p in reference.parameters()])
    np.testing.assert_array_equal(model.learn(b, 0)[0], expected)
    assert model.measure(b) == {"examples": 16.0, "loss": pytest.approx(16 * float(loss.detach()))}
    outputs = reference(features)
    price, kind = outputs.values() if makes is dict else outputs
    side_by_side = torch.cat([price[:, None], kind], 1).detach()
    np.testing.assert_array_equal(model.outputs(b.features), side_by_side)


def test_several_outputs_in_bfloat16_reach_the_loss_in_float32():
    inputs = []
    model = ModuleModel(Heads(dict), OF_BOTH, Learning(precision="bfloat16"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "_loss", lambda o, *_: inputs.append(o) or o["kind"].mean())
        model.learn(batch(), 0)
    assert {part.dtype for part in inputs[0].values()} == {torch.float32}


def test_what_is_fastest_is_measured_with_several_outputs_too():
    config = ModuleConfig(
        module=f"{__name__}:Heads", loss=OF_BOTH, precision="auto", memory="auto", example=(4,)
    )
    assert config.resolved().precision in ("float32", "bfloat16")


@pytest.mark.parametrize(
    ("loss", "how", "said"),
    [
        ("mse", {}, "for a loss of your own alone, .* got loss mse, tuple; return one tensor"),
        ("in_batch", {}, r"got loss in_batch, tuple; return torch.stack\(\[one, other\], 1\)"),
        (OF_BOTH, {"metrics": ("accuracy",)}, "and for no metric; got loss .*:of_both, tuple"),
    ],
)
def test_several_outputs_are_refused_by_what_reads_one(loss, how, said):
    model = ModuleModel(Heads(), loss, Learning(**how))
    with pytest.raises(UsageError, match=said):
        model.measure(batch())


def test_outputs_that_are_no_rows_are_refused():
    model = ModuleModel(nn.LSTM(4, 5), OF_BOTH)
    wrong = r"the module must return tensors \[B, ...\]; got tuple of \[16, 5\], tuple"
    with pytest.raises(UsageError, match=wrong):
        model.outputs(batch().features)


class Frozen(nn.Module):
    """Keeps its statistics as they are, as fine-tuned networks do."""

    def __init__(self):
        super().__init__()
        self.norm, self.line = nn.BatchNorm1d(4), nn.Linear(4, 3)

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x):
        return self.line(self.norm(x))


def learnt(module, sizes, **how):
    model = ModuleModel(module, "cross_entropy", Learning(**how))
    rng = np.random.default_rng(0)
    for size in sizes:
        rows = rng.standard_normal((size, 4)).astype(np.float32)
        model.learn(SimpleNamespace(features=rows, labels=np.zeros(size, np.int64)), 0)
    return model


def test_a_norm_that_the_module_keeps_still_stays_so_after_a_batch_of_one_row():
    model = learnt(Frozen(), (16, 1, 16))
    assert not model.module.norm.training
    assert not model.module.norm.running_mean.any()


def test_a_norm_learns_again_after_a_batch_of_one_row():
    norm = learnt(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)), (16, 1, 16)).module[0]
    assert norm.training
    assert norm.num_batches_tracked == 2


@pytest.mark.parametrize("loss", ["multi_margin", "cross_entropy"])
def test_the_label_that_cross_entropy_ignores_is_no_class_of_another_loss(loss):
    model = ModuleModel(nn.Linear(4, 3), loss)
    batch = SimpleNamespace(features=np.ones((3, 4), np.float32), labels=np.array([0, -100, 2]))
    if loss == "cross_entropy":
        assert np.isfinite(model.learn(batch, 0)[0]).all()
        return
    with pytest.raises(DataError, match=r"label -100 outside 0\.\.2 in its example 1"):
        model.learn(batch, 0)


def test_two_learning_rates_are_refused_and_one_of_the_settings_outlives_a_start_by_gradients():
    linear = {"module": "torch.nn:Linear", "optimizer": "sgd", "settings": {"lr": 0.9}}
    with pytest.raises(UsageError, match=r"two learning rates are set; got lr, and settings with"):
        check_rates(ModuleConfig(**linear, lr=0.1))
    config = ModuleConfig(**linear)
    check_rates(config)
    assert config.agreed_until(0.5).rate() == config.rate() == Schedule.constant(0.9)
