"""Tables of which a batch reads few rows: what moves, by which optimizer, and what is refused."""

import numpy as np
import pytest
import torch
from torch import nn

from photinus.core.errors import UsageError
from photinus.data.rows import Rows
from photinus.models.module import ModuleConfig
from photinus.models.module_model import ModuleModel
from photinus.models.tables import check_tables, sparse_tables

ROWS, WIDTH = 40, 3


class Net(nn.Module):
    def __init__(self, sparse=True):
        super().__init__()
        self.items = nn.Embedding(ROWS, WIDTH, sparse=sparse)
        self.out = nn.Linear(WIDTH, 2)

    def forward(self, x):
        return self.out(torch.tanh(self.items(x.long())).mean(1))


class Bare(nn.Module):
    """Nothing but a table."""

    def __init__(self):
        super().__init__()
        self.items = nn.EmbeddingBag(ROWS, 2, mode="sum", sparse=True)

    def forward(self, x):
        return self.items(x.long())


class Tied(Net):
    def __init__(self):
        super().__init__()
        self.back = nn.Linear(WIDTH, ROWS, bias=False)
        self.back.weight = self.items.weight


class Whole(Net):
    def forward(self, x):
        return super().forward(x) + self.items.weight.sum()


def batch(ids):
    ids = np.array(ids, np.float32)
    return Rows.of(ids, np.arange(len(ids)) % 2).batch(np.arange(len(ids)))


def config(module=Net, **fields):
    return ModuleConfig(module=f"{__name__}:{module.__name__}", batch_size=2, **fields)


def test_only_what_is_trained_and_sparse_is_a_sparse_table():
    net = Net()
    assert sparse_tables(net) == ("items.weight",)
    assert ModuleModel(net, "cross_entropy").parameters.layout.sparse == ("items.weight",)
    assert sparse_tables(Net(sparse=False)) == ()
    net.items.weight.requires_grad = False
    assert sparse_tables(net) == ()


@pytest.mark.parametrize("sparse", [True, False])
def test_a_sparse_gradient_has_the_bits_of_the_dense_one(sparse):
    torch.manual_seed(0)
    model = ModuleModel(Net(sparse=sparse), "cross_entropy")
    gradient, _ = model.learn(batch([[1, 1, 5], [7, 1, 39], [0, 0, 0]]), 0)
    torch.manual_seed(0)
    plain = Net(sparse=False)
    rows = torch.tensor([[1, 1, 5], [7, 1, 39], [0, 0, 0]])
    nn.functional.cross_entropy(plain(rows), torch.tensor([0, 1, 0])).backward()
    whole = np.concatenate([p.grad.numpy().ravel() for p in plain.parameters()])
    np.testing.assert_array_equal(gradient, whole)


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam", "adamw"])
def test_rows_step_as_by_torch_and_the_other_layers_by_their_optimizer(optimizer):
    settings = {"weight_decay": 0.1, "lr": 0.05}
    how = config(optimizer=optimizer, settings=settings)
    model = how.build((), 1)
    inner = how.inner(model.parameters.layout)
    net = how.made(1)
    by_name = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad}
    table = by_name.get(optimizer, torch.optim.SparseAdam)([net.items.weight], lr=0.05)
    optimizer_class = {**by_name, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[optimizer]
    dense = optimizer_class(net.out.parameters(), **settings)
    for ids in ([[1, 2, 3], [4, 5, 6]], [[3, 8, 9], [7, 5, 0]], [[1, 2, 3], [4, 5, 6]]):
        gradient, _ = model.learn(batch(ids), 0)
        inner.step(model.parameters.trained, gradient, 0.0)
        table.zero_grad()
        dense.zero_grad()
        nn.functional.cross_entropy(net(torch.tensor(ids)), torch.tensor([0, 1])).backward()
        with torch.sparse.check_sparse_tensor_invariants(enable=True):  # torch warns without
            table.step()
        dense.step()
    for name, parameter in net.named_parameters():
        theirs = parameter.detach().numpy()
        np.testing.assert_allclose(model.parameters.view(name), theirs, rtol=0, atol=2e-7)


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam", "adamw"])
@pytest.mark.parametrize("module", [Net, Bare])
def test_a_row_that_no_batch_reads_never_moves(optimizer, module):
    how = config(module, optimizer=optimizer, settings={"weight_decay": 0.1})
    model = how.build((), 1)
    inner, before = how.inner(model.parameters.layout), model.parameters.view("items.weight").copy()
    for ids in ([[1, 2]], [[5, 2]], [[9, 9]]):
        inner.step(model.parameters.trained, model.learn(batch(ids), 0)[0], 0.0)
    moved = (model.parameters.view("items.weight") != before).any(1)
    assert np.flatnonzero(moved).tolist() == [1, 2, 5, 9]


@pytest.mark.parametrize("module", [Net, Bare])
def test_the_state_of_both_optimizers_continues_to_the_same_bits(module):
    how = config(module, optimizer="adam")
    ends = []
    for is_resumed in (False, True):
        model = how.build((), 1)
        inner = how.inner(model.parameters.layout)
        for ids in ([[1, 2, 3]], [[3, 4, 9]], [[1, 9, 8]]):
            gradient, _ = model.learn(batch(ids), 0)
            inner.step(model.parameters.trained, gradient, 0.5)
            if is_resumed:
                saved, inner = inner.state(), how.inner(model.parameters.layout)
                inner.load(saved)
        ends.append(model.parameters.trained.copy())
    np.testing.assert_array_equal(*ends)


def test_a_table_on_a_device_learns_as_on_the_processor():
    ends = []
    for device in ("cpu", "stand-in"):
        how = config(optimizer="adam")
        model = how.build((), 1)
        inner = how.inner(model.parameters.layout)
        inner = inner if device == "cpu" else model.place(device, inner)
        for ids in ([[1, 2, 3]], [[3, 4, 9]]):
            gradient, _ = model.learn(batch(ids), 0)
            inner.step(model.parameters.trained, gradient, 0.5)
        model.to_host(model.parameters.trained)
        ends.append(model.parameters.trained.copy())
    np.testing.assert_array_equal(*ends)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"module": Tied}, "back shares it, whose gradient is dense"),
        ({"l2": {"*.weight": 0.1}}, r"l2='\*.weight' moves all rows"),
        ({"average": 0.9}, "average=0.9 travels whole"),
        ({"optimizer": "rmsprop"}, "optimizer='rmsprop' moves rows that no batch reads"),
        ({"optimizer": "sgd", "settings": {"momentum": 0.9}}, "momentum=0.9 is for dense"),
        ({"optimizer": "adam", "settings": {"amsgrad": True}}, "amsgrad=True is for dense"),
    ],
)
def test_what_would_move_all_rows_is_refused_before_training(fields, words):
    with pytest.raises(UsageError, match=words):
        config(fields.pop("module", Net), **fields).build((), 1)


def test_a_dense_gradient_of_a_sparse_table_is_refused_at_the_first_step():
    check_tables(Whole(), {}, 0.0)
    model = config(Whole).build((), 1)
    with pytest.raises(UsageError, match="the forward pass uses it otherwise"):
        model.learn(batch([[1, 2, 3]]), 0)
