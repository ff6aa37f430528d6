"""A module with sharded tables: rows, gradients and steps, and what is refused."""

from fnmatch import fnmatch

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from photinus.core.errors import DataError, UsageError
from photinus.data.rows import Rows
from photinus.models.module import ModuleConfig
from photinus.models.row_steps import adagrad, adam, sgd
from photinus.models.schedules import Schedule
from photinus.models.sharded import ShardedModel, row_size_of, tables_of
from photinus.nn import ShardedEmbedding
from photinus.testing import check_model
from photinus.training.placement import fresh

USERS, ITEMS, DIM = 30, 11, 4
LINEAR = {"arguments": {"in_features": 2, "out_features": 1}}


class Net(nn.Module):
    """Two tables and two layers; the users of a row are several, one of them a filler."""

    def __init__(self, optimizer="sgd", lr=None, dim=DIM, hidden=5):
        super().__init__()
        how = {"optimizer": optimizer, "lr": lr}
        self.users = ShardedEmbedding(USERS, dim, padding_idx=2, std=1.0, **how)
        self.items = ShardedEmbedding(ITEMS, dim, std=0.5, **how)
        self.hidden, self.drop = nn.Linear(dim, hidden), nn.Dropout(0.3)
        self.out = nn.Linear(hidden, 3)

    def forward(self, x):
        x = x.long()
        products = self.users(x[:, :2]).sum(1) * self.items(x[:, 2])
        return self.out(self.drop(torch.tanh(self.hidden(products))))


class Bare(nn.Module):
    """Nothing but tables, one of which is read twice."""

    def __init__(self, dim=DIM):
        super().__init__()
        self.items = ShardedEmbedding(ITEMS, dim)

    def forward(self, x):
        x = x.long()
        score = (self.items(x[:, 1] % ITEMS) * self.items(x[:, 2])).sum(1)
        return torch.stack([score, -score, 0 * score], 1)


class Two(Net):
    def __init__(self):
        super().__init__()
        self.items = ShardedEmbedding(ITEMS, 2 * DIM)


class Normed(Net):
    """With layers that keep statistics, and buffers beside them that no step changes."""

    def __init__(self, optimizer="sgd", lr=None, dim=DIM, momentum=0.1):
        super().__init__(optimizer, lr, dim)
        self.norm, self.drop = nn.BatchNorm1d(5, momentum=momentum), nn.Identity()
        self.register_buffer("scale", torch.full((1,), 0.7))
        self.outer = nn.BatchNorm1d(3)

    def forward(self, x):
        x = x.long()
        products = self.users(x[:, :2]).sum(1) * self.items(x[:, 2])
        return self.outer(self.out(self.norm(self.hidden(products)))) * self.scale


class Doubles(Net):
    def __init__(self):
        super().__init__()
        self.double()


class Tied(Net):
    def __init__(self):
        super().__init__()
        self.back = nn.Linear(DIM, ITEMS, bias=False)
        self.back.weight = self.items.weight


class Initialized(Net):
    def __init__(self):
        super().__init__()
        nn.init.uniform_(self.items.weight)


class Buffered(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(1))
        self.register_buffer("offset", torch.tensor([1]))

    def forward(self, x):
        if self.training:
            self.steps += 1
        return super().forward(x)


class Assigning(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.zeros(()))
        self.register_buffer("offset", torch.tensor([1]))

    def forward(self, x):
        if self.training:
            self.n = self.n + 1
        return super().forward(x)


class Chained(Net):
    """Which user is looked up hangs on what the item's row holds."""

    def forward(self, x):
        item = self.items(x[:, 2].long())
        return self.out(torch.tanh(self.hidden(self.users((item[:, 0] > 0).long() + 7))))


class Unseen(Net):
    """The same, where no gradient is taken of what is looked up."""

    def forward(self, x):
        with torch.no_grad():
            far = self.users((self.items(x[:, 2].long())[:, 0] > 0).long() + 7)
        return super().forward(x) + far.sum(1, keepdim=True)


class Counter(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.zeros(1, dtype=torch.int64))

    def forward(self, x):
        self.n += 1
        return super().forward(x)


class Fixed(Net):
    """With a buffer of each kind that no step changes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.full((1,), 0.7))
        self.register_buffer("offset", torch.tensor([1]))

    def forward(self, x):
        return super().forward(x) * self.scale + self.offset


class Sparse(Net):
    def __init__(self):
        super().__init__()
        self.more = nn.Embedding(5, 8, sparse=True)


class Halves(Net):
    def __init__(self):
        super().__init__()
        self.out.half()


class Written(Net):
    def __init__(self):
        super().__init__()
        self.items.weight.data = torch.full((ITEMS, DIM), 7.0)


class Filled(Net):
    def __init__(self):
        super().__init__()
        nn.init.zeros_(self.items.weight)


class Replaced(Net):
    def __init__(self):
        super().__init__()
        self.items.weight = nn.Parameter(torch.ones(ITEMS, DIM))


class Frozen(Net):
    def __init__(self):
        super().__init__()
        self.items.requires_grad_(False)


class Cumulative(Normed):
    def __init__(self):
        super().__init__(momentum=None)


class Small(Net):
    """Looks up by a type that torch does not take."""

    def forward(self, x):
        return super().forward(x) + self.items(x[:, 2].to(torch.int16)).sum()


class Recomputed(Net):
    """Looks its rows up once more on the way back."""

    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


class Strict(Net):
    """Its loss takes no rows of zeros: they are looked up twice, but the loss is not."""

    def forward(self, x):
        return nn.functional.normalize(super().forward(x)).log_softmax(1)


class Direct(Net):
    def forward(self, x):
        return super().forward(x) + self.items.weight.sum()


def config(module=Net, **fields):
    name = f"{__name__}:{module.__name__}"
    return ModuleConfig(**{"module": name, "batch_size": 8, "optimizer": "sgd", **fields})


def batch(rows=8, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, [USERS, USERS, ITEMS], (rows, 3)).astype(np.float32)
    x[0, 1] = 2
    return Rows.of(x, rng.integers(0, 3, rows)).batch(np.arange(rows))


def numbers_of(model):
    """Returns all rows [n], the other layers as they were stepped."""
    model.to_host(model.parameters.trained)
    return model.parameters.trained


def plain_of(model):
    """Returns the same module with tables of its own memory, as torch trains it."""
    module = model.filled().train()
    for parameter in module.parameters():
        parameter.requires_grad_()
    return module


def loss_of(module, examples, seed):
    torch.manual_seed(seed)
    return cross_entropy(
        module(torch.from_numpy(examples.features)), torch.from_numpy(examples.labels)
    )


# -- the layer alone ------------------------------------------------------------------------------


def test_alone_it_is_an_embedding():
    table = ShardedEmbedding(1000, 8, padding_idx=3, std=0.1)
    assert 0.09 < table.weight.std() < 0.11
    assert not table.weight[3].any()
    ids = torch.tensor([[3, 5], [7, 5]])
    assert torch.equal(table(ids), nn.functional.embedding(ids, table.weight))
    table(ids).sum().backward()
    assert not table.weight.grad[3].any()


def test_in_a_run_it_takes_no_memory_before_rows_come():
    made = config(arguments={"hidden": 3}).made(0)
    assert made.items.weight.untyped_storage().nbytes() == 4
    assert {*tables_of(made)} == {"users.weight", "items.weight"}


def test_the_size_of_a_table_may_be_a_tensor():
    table = ShardedEmbedding(torch.tensor([2, 4]).max() + 1, torch.tensor(2))
    assert (table.num_embeddings, table.embedding_dim) == (5, 2)
    assert type(table.num_embeddings) is int


@pytest.mark.parametrize(("optimizer", "beside"), [("sgd", 0), ("adagrad", 1), ("adam", DIM + 2)])
def test_a_row_holds_what_its_optimizer_keeps(optimizer, beside):
    assert row_size_of(Net(optimizer)) == DIM + beside


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"optimizer": "adamax"}, "unknown optimizer of ShardedEmbedding; got 'adamax'"),
        ({"num_embeddings": 0}, "num_embeddings of .* must be a whole number of at least 1; got 0"),
        ({"num_embeddings": 2.5}, "num_embeddings of ShardedEmbedding must be a whole .* got 2.5"),
        ({"embedding_dim": 0}, "embedding_dim of ShardedEmbedding must be a whole number of at le"),
        ({"std": -1.0}, "std of ShardedEmbedding must be a number of at least 0; got -1.0"),
        ({"lr": "0.1"}, "lr of ShardedEmbedding must be a number of at least 0; got '0.1'"),
        ({"padding_idx": 3}, "padding_idx of ShardedEmbedding must be one of its 3 rows; got 3"),
        ({"lr": float("nan")}, "lr of ShardedEmbedding must be a number of at least 0; got nan"),
    ],
)
def test_a_wrong_setting_of_a_table_is_one_sentence(given, wrong):
    with pytest.raises(UsageError, match=wrong):
        ShardedEmbedding(**{"num_embeddings": 3, "embedding_dim": 2, **given})


# -- rows and gradients ---------------------------------------------------------------------------


@pytest.mark.parametrize("module", [Net, Bare])
def test_the_model_keeps_the_contract(module):
    check_model(
        lambda: config(module).build((), 1), batch(), is_gradient=False
    )  # dropout, and an inner state beside the rows


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("module", [Net, Bare])
def test_the_gradient_is_that_of_the_plain_module(module, accumulate):
    fields = {"arguments": {"hidden": 5}} if module is Net else {}
    model = config(module, accumulate=accumulate, **fields).build((), 1)
    plain, examples = plain_of(model), batch()
    for half in range(accumulate):
        part = Rows.of(examples.features, examples.labels).batch(
            np.arange(8)[half * 8 // accumulate : (half + 1) * 8 // accumulate]
        )
        (loss_of(plain, part, 77 ^ half) / accumulate).backward()
    gradient, metrics = model.learn(examples, 77)
    for name, parameter in plain.named_parameters():
        entry = model.parameters.layout.entry(name)
        mine = gradient[entry.offset : entry.offset + entry.size].reshape(entry.shape)
        wanted = parameter.grad.numpy()
        np.testing.assert_allclose(mine[..., : wanted.shape[-1]], wanted, atol=1e-6)
        assert not mine[..., wanted.shape[-1] :].any()
    assert metrics["loss"] > 0


def test_a_look_up_that_is_repeated_on_the_way_back_counts_once():
    one, other = (config(module).build((), 1) for module in (Net, Recomputed))
    gradients = [model.learn(batch(), 77)[0] for model in (one, other)]
    assert abs(gradients[0]).max() > 0.01
    np.testing.assert_allclose(*gradients, atol=1e-7)


@pytest.mark.parametrize("workers", [1, 3, 7])
def test_a_worker_draws_the_rows_that_a_whole_table_would_have(workers, monkeypatch):
    monkeypatch.setattr("photinus.models.sharded._DRAWN", 5 * DIM)
    of = config(arguments={"optimizer": "adagrad"})
    whole = of.build((), 3).parameters.trained.reshape(-1, DIM + 1)
    for slot in range(workers):
        shard = np.zeros((len(whole[slot::workers]), DIM + 1), np.float32)
        of.blank((), 3).first_rows(shard, slot, 3, workers)
        assert np.array_equal(shard, whole[slot::workers])
    table = of.build((), 3).table("users.weight")
    assert not table[2].any()
    assert not table[:, DIM].any()
    assert 0.8 < table[:, :DIM].std() < 1.2
    assert of.build((), 3).table("items.weight")[:, :DIM].std() < 0.7


def test_a_step_reads_the_rows_that_it_named_and_changes_no_other():
    of = config(arguments={"optimizer": "adagrad"})
    model, examples = of.build((), 1), batch(4)
    first = model.parameters.trained.copy()
    named = model.rows(examples, 5)
    of = config(sharded=DIM + 1, arguments={"optimizer": "adagrad"}, lr=1.0)
    inner = of.inner(model.parameters.layout)
    inner.descend(model, examples, 5, 0.0)
    changed = (numbers_of(model) != first).reshape(-1, DIM + 1).any(axis=1)
    assert set(np.flatnonzero(changed)) <= set(named)
    padding = model.parameters.layout.entry("users.weight").offset // (DIM + 1) + 2
    assert padding in named
    assert changed.sum() == len(named) - 1 < len(changed)


def test_a_step_over_named_rows_alone_is_that_over_the_whole_table():
    of = config(sharded=DIM + 1, arguments={"optimizer": "adagrad"}, optimizer="adamw")
    whole, some, examples = of.build((), 1), of.blank((), 1), batch(4)
    rows = some.rows(examples, 5)
    values = whole.parameters.trained.reshape(-1, DIM + 1)[rows]
    some.parameters.trained.reshape(-1, DIM + 1)[rows] = values
    some.to_device(some.parameters.trained)
    for model in (whole, some):
        of.inner(model.parameters.layout).descend(model, examples, 5, 0.3)
    one, other = (numbers_of(model).reshape(-1, DIM + 1)[rows] for model in (whole, some))
    np.testing.assert_array_equal(one, other)
    some.forget()
    assert not some.parameters.trained.any()


def test_a_measurement_over_named_rows_alone_is_that_over_the_whole_table():
    of = config(Normed, sharded=DIM)
    whole, some, examples = of.build((), 1), of.blank((), 1), batch(40)
    of.inner(whole.parameters.layout).descend(whole, batch(), 1, 0.0)
    numbers_of(whole)
    numbers = whole.parameters.trained.reshape(-1, DIM)
    dense = int(some.rows(examples, 0)[0]), some._dense_rows.size
    some.parameters.trained.reshape(-1, DIM)[dense[0] : dense[1]] = numbers[: dense[1]]
    some.to_device(some.parameters.trained)
    rows = some.measured_rows(examples)
    some.parameters.trained.reshape(-1, DIM)[rows] = numbers[rows]
    assert some.measure(examples) == whole.measure(examples)
    assert whole.module.training is False
    whole.rows(examples, 5)
    assert whole.module.training


# -- steps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "beside", "theirs"),
    [
        (sgd, 0, lambda p: torch.optim.SGD(p, lr=0.1)),
        (adagrad, 1, lambda p: torch.optim.Adagrad(p, lr=0.1, eps=1e-8)),
        (adam, 3, lambda p: torch.optim.Adam(p, lr=0.1)),
    ],
    ids=["sgd", "adagrad", "adam"],
)
def test_rows_of_one_number_are_stepped_as_torch_steps_them(step, beside, theirs):
    rng = np.random.default_rng(0)
    rows = np.zeros((6, 1 + beside), np.float32)
    rows[:, 0] = rng.standard_normal(6)
    weight = nn.Parameter(torch.from_numpy(rows[:, :1].copy()))
    optimizer = theirs([weight])
    for _ in range(20):
        slopes = rng.standard_normal((6, 1)).astype(np.float32)
        step(rows, slopes, 0.1)
        weight.grad = torch.from_numpy(slopes)
        optimizer.step()
    np.testing.assert_allclose(rows[:, :1], weight.detach().numpy(), atol=2e-5)


@pytest.mark.parametrize("step", [adagrad, adam])
def test_wider_rows_are_stepped_by_their_formula(step):
    rng, width, rate = np.random.default_rng(1), 3, 0.05
    rows = np.zeros((2, 2 * width + 2 if step is adam else width + 1), np.float32)
    theta, mean, square = np.zeros((2, width)), np.zeros((2, width)), np.zeros((2, 1))
    for at in range(1, 6):
        slopes = rng.standard_normal((2, width)).astype(np.float32)
        step(rows, slopes, rate)
        squares = (slopes.astype(np.float64) ** 2).mean(1, keepdims=True)
        if step is adagrad:
            square += squares
            theta -= rate * slopes / np.sqrt(square)
        else:
            mean = 0.9 * mean + 0.1 * slopes
            square = 0.999 * square + 0.001 * squares
            theta -= rate * (mean / (1 - 0.9**at)) / np.sqrt(square / (1 - 0.999**at))
    np.testing.assert_allclose(rows[:, :width], theta, atol=1e-5)


@pytest.mark.parametrize("module", [Net, Normed])
def test_a_run_of_steps_is_that_of_torch_on_the_plain_module(module):
    of = config(module, sharded=DIM, lr=Schedule.constant(0.1), arguments={"lr": 0.1})
    model = of.build((), 1)
    plain, inner = plain_of(model), of.inner(model.parameters.layout)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for at in range(10):
        examples = batch(seed=at)
        model.rows(examples, at)  # which changes nothing
        inner.descend(model, examples, at, 0.5)
        optimizer.zero_grad()
        loss_of(plain, examples, at).backward()
        optimizer.step()
    numbers_of(model)
    for name, parameter in plain.state_dict().items():
        np.testing.assert_allclose(model.tensors()[name], parameter.numpy(), atol=1e-5)
    examples = batch(seed=99)
    wanted = loss_of(plain.eval(), examples, 0).item()
    assert model.measure(examples)["loss"] / 8 == pytest.approx(wanted, rel=1e-4)


def test_running_statistics_are_rows_that_every_step_reads():
    of = config(Normed, sharded=DIM)
    model, plain = of.build((), 1), config(Net, sharded=DIM).build((), 1)
    more = -(-(2 * 5 + 2 * 3 + 2 * (5 + 3)) // DIM)  # statistics, weights and biases
    read = [one.rows(batch(), 3) for one in (model, plain)]
    assert len(read[0]) - len(read[1]) == pytest.approx(more, abs=1)
    first = model.tensors()["norm.running_var"].copy()
    assert first.tolist() == [1.0] * 5
    of.inner(model.parameters.layout).descend(model, batch(), 3, 0.0)
    numbers_of(model)
    assert (model.tensors()["norm.running_var"] != first).all()


def test_a_step_on_one_row_is_normalized_by_the_running_statistics():
    of = config(Normed, sharded=DIM)
    model, examples = of.build((), 1), batch(1)
    before = model.tensors()["norm.running_mean"].copy()
    model.rows(examples, 3)
    of.inner(model.parameters.layout).descend(model, examples, 3, 0.0)
    numbers_of(model)
    np.testing.assert_array_equal(model.tensors()["norm.running_mean"], before)
    assert model.module.norm.training


def test_the_rate_of_a_table_follows_that_of_the_other_layers():
    examples, moved = batch(), []
    for progress in (0.0, 0.75):
        of = config(sharded=DIM, lr=Schedule.stairs(0.2, 0.25, 0.5), arguments={"lr": 3.0})
        model = of.build((), 1)
        first = model.table("items.weight").copy()
        of.inner(model.parameters.layout).descend(model, examples, 5, progress)
        moved.append(model.table("items.weight") - first)
    np.testing.assert_allclose(moved[0] * 0.25, moved[1], atol=1e-6)


def test_a_gradient_that_is_too_long_is_cut_over_tables_and_layers_together():
    examples, moved = batch(), []
    for clip in (0.0, 0.01):
        of = config(sharded=DIM, clip=clip, lr=Schedule.constant(1.0), arguments={"lr": 1.0})
        model = of.build((), 1)
        first = model.parameters.trained.copy()
        of.inner(model.parameters.layout).descend(model, examples, 5, 0.0)
        moved.append(np.linalg.norm(numbers_of(model) - first))
    assert moved[0] > 0.1
    assert abs(moved[1] - 0.01) < 1e-4


def test_only_the_other_layers_have_a_state_beside_the_rows():
    of = config(sharded=DIM + 1, optimizer="adamw", arguments={"optimizer": "adagrad"})
    model = of.build((), 1)
    inner = of.inner(model.parameters.layout)
    inner.descend(model, batch(), 1, 0.0)
    size = 5 * DIM + 5 + 3 * 5 + 3
    assert {name: len(values) for name, values in inner.state().items()} == {
        "exp_avg": size, "exp_avg_sq": size, "step": 1,
    }  # fmt: skip
    again = of.inner(model.parameters.layout)
    again.load(inner.state())
    twin = of.build((), 1)
    twin.load(numbers_of(model))
    for one, its in ((inner, model), (again, twin)):
        one.descend(its, batch(seed=1), 2, 0.5)
    assert np.array_equal(numbers_of(model), numbers_of(twin))
    bare = config(Bare, sharded=DIM + 1)
    inner = bare.inner(bare.blank((), 0).parameters.layout)
    assert inner.state() == {}
    with pytest.raises(UsageError, match="stepped in place"):
        inner.step(np.zeros(1), np.zeros(1), 0.0)


@pytest.mark.parametrize("clip", [0.0, 0.01])
@pytest.mark.parametrize(
    "module",
    [Net, Bare, Recomputed, Fixed, Normed],
    ids=["net", "bare", "recomputed", "fixed", "normed"],
)
def test_on_a_device_steps_have_the_bits_of_the_processor(module, clip):
    row = row_size_of(module())
    of, ends = config(module, sharded=row, optimizer="adamw", clip=clip), []
    for device in ("cpu", "stand-in"):
        model, inner = fresh(of, (), 1, device)
        model.load(of.build((), 1).parameters.trained)
        for at in range(4):
            rows = model.rows(batch(seed=at), at)
            inner.descend(model, batch(seed=at), at, 0.25 * at)
            if at == 1:  # a round replaces rows of layers and tables
                numbers_of(model).reshape(-1, row)[rows[::3]] *= 0.5
                model.to_device(model.parameters.trained)
        ends.append((numbers_of(model).copy(), inner.state(), model.measure(batch(seed=9))))
    assert abs(ends[0][0] - of.build((), 1).parameters.trained).max() > 1e-3
    np.testing.assert_array_equal(ends[0][0], ends[1][0])
    assert ends[0][1].keys() == ends[1][1].keys()
    assert all(np.array_equal(ends[0][1][name], ends[1][1][name]) for name in ends[0][1])
    assert ends[0][2] == ends[1][2]


def test_a_device_holds_the_other_layers_and_gets_the_rows_of_a_batch():
    of = config(sharded=DIM + 1, arguments={"optimizer": "adagrad"})
    model, _ = fresh(of, (), 1, "stand-in")
    dense = 5 * DIM + 5 + 3 * 5 + 3
    assert model.device_bytes == 4 * dense < model.parameters.trained.nbytes
    at, examples = model._net._storage, batch()
    up, down = at.bytes_to_device, at.bytes_to_host
    _, moves, _ = model.gradients(examples, 5)
    rows = sum(ids.size for ids, _ in moves.values()) + 1  # and the padding
    ids = 8 * 3
    assert at.bytes_to_device - up == 4 * (rows * DIM + ids) + 8 * (ids + 8)
    assert at.bytes_to_host - down == 4 * rows * DIM + 8 * ids


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "fields", "wrong"),
    [
        (Two, {}, "*need one embedding_dim and one optimizer; got 4 and sgd, 8 and adagrad*"),
        (Cumulative, {}, "*statistics need a momentum; got BatchNorm1d, momentum None; set it to*"),
        (Doubles, {}, "*all layers are float32; got float64*"),
        (Halves, {}, "*all layers are float32; got float16*"),
        (Sparse, {}, "*no nn.Embedding is sparse; got more.weight*"),
        (Written, {}, "*owners of items.weight draw its rows*set std only"),
        (Filled, {}, "*owners of items.weight draw its rows*"),
        (Replaced, {}, "*owners of items.weight draw its rows*"),
        (Frozen, {}, "*owners of items.weight draw its rows, and train them*frozen one*"),
        (Net, {"sharded": 9}, "sharded is set by the job itself; got 9*"),
        (Tied, {}, "*items.weight is sharded: nothing else may read it; got back*"),
        (
            Initialized,
            {},
            "*cannot be made from*draw no ShardedEmbedding: set its std",
        ),
        (Net, {"average": 0.9}, "*there is no average*"),
        (Net, {"activation_memory": "recompute"}, "*there is no activation_memory*"),
        (Net, {"activation_bytes": 10**9}, "*there is no activation_bytes*"),
        (Net, {"frozen": ("items*",)}, "unknown parameter in frozen*"),
        (Net, {"l2": {"items.weight": 0.1}}, "unknown parameter in l2*"),
        (Net, {"precision": "auto", "example": (3,)}, "*is not measured*name both"),
    ],
    ids=lambda given: getattr(given, "__name__", "")[:20],
)
def test_what_needs_all_rows_is_refused(module, fields, wrong):
    with pytest.raises(UsageError) as caught:
        config(module, **fields).blank((), 0)
    assert fnmatch(str(caught.value), wrong)


@pytest.mark.parametrize(("id_", "wrong"), [(ITEMS, "no row 11"), (-1, "no row -1")])
def test_an_id_that_a_table_does_not_have_is_named(id_, wrong):
    examples, model = batch(), config().blank((), 0)
    examples.features[1, 2] = id_
    for ask in (lambda: model.rows(examples, 0), lambda: model.learn(examples, 0)):
        with pytest.raises(DataError, match=f"items.weight has rows 0 to 10, and {wrong}"):
            ask()


@pytest.mark.parametrize("module", [Chained, Unseen])
def test_rows_that_hang_on_other_rows_are_refused(module):
    model, examples = config(module).build((), 0), batch()
    examples.features[:, :2] %= 5
    model.rows(examples, 3)
    with pytest.raises(UsageError, match="must follow from its batch alone"):
        model.learn(examples, 3)
    model.measured_rows(examples)
    with pytest.raises(UsageError, match="must follow from its batch alone"):
        model.measure(examples)
    assert model.measure(examples), "the refusal is over: of a whole table all rows are here"


@pytest.mark.parametrize("module", [Buffered, Counter, Assigning])
def test_a_buffer_that_changes_is_refused(module):
    model = config(module).build((), 0)
    assert {"offset", "n"} & {*model.tensors()}
    with pytest.raises(UsageError, match="no buffer but running statistics may change"):
        model.learn(batch(), 3)


def test_ids_of_a_type_that_torch_does_not_take_are_refused():
    with pytest.raises(DataError, match=r"by int32 or int64, and got torch\.int16"):
        config(Small).blank((), 0).rows(batch(), 3)


def test_rows_are_asked_for_without_the_loss():
    examples = batch()
    examples.labels[:] = 99
    assert config(Strict).blank((), 0).rows(examples, 3).size


def test_a_table_that_is_read_directly_gives_no_number():
    model = config(Direct).build((), 0)
    assert np.isnan(model.learn(batch(), 3)[1]["loss"])


def test_a_module_without_such_tables_has_no_row_size():
    plain = ModuleConfig(module="torch.nn:Linear", sharded=9, **LINEAR)
    with pytest.raises(UsageError, match="sharded is set by the job itself; got 9"):
        plain.blank((), 0)


def test_without_steps_in_place_it_stays_on_the_processor():
    model = config().blank((), 0)
    assert isinstance(model, ShardedModel)
    with pytest.raises(UsageError, match="computes on the processor only"):
        model.place("stand-in", config().inner(model.parameters.layout))
