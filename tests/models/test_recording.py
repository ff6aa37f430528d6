"""Recorded steps are those of the plain path; a graph of its own stands for CUDA's."""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from photinus.core.errors import DataError, UsageError
from photinus.data.base import Batch
from photinus.models.dbn import DBN, FineTuning
from photinus.models.module import ModuleConfig
from photinus.models.placement import DeviceParameters
from photinus.models.recording import Recorder, no_dropout
from photinus.training.placement import fresh


class Graph:
    """Repeats the step that was called while it recorded."""

    recording = None

    def __init__(self):
        self.call = None

    def pool(self):
        return "pool"

    def replay(self):
        step, inputs, result = self.call
        result.copy_(step(inputs, None))


@contextmanager
def graph(recording, pool, capture_error_mode):
    Graph.recording = recording
    try:
        yield
    finally:
        Graph.recording = None


@pytest.fixture
def graphs(monkeypatch):
    """Has every recorder record on the stand-in device; returns how many graphs were made."""
    recorded = []
    start, take = Recorder.__init__, Recorder.take

    def init(self, storage, name, can_record=True, **how):
        start(self, storage, name, **how)
        self._can_record = can_record and storage.is_on_device

    def taken(self, step, inputs, seed):
        storage, name = self._storage, self._name

        def noted(inputs, seed):
            if Graph.recording is None:
                return step(inputs, seed)
            recorded.append(name)
            buffers = [
                storage.tensor(v) for v in (storage.parameters.floats, storage.parameters.integers)
            ]
            before = [buffer.clone() for buffer in buffers]
            result = step(inputs, seed).clone()
            for buffer, values in zip(buffers, before, strict=True):
                buffer.copy_(values)  # CUDA computes nothing while it records
            Graph.recording.call = (step, inputs, result)
            return result

        return take(self, noted, inputs, seed)

    def seed(self, seed):
        torch.default_generator.manual_seed(seed)

    monkeypatch.setattr(Recorder, "__init__", init)
    monkeypatch.setattr(Recorder, "take", taken)
    monkeypatch.setattr(DeviceParameters, "seed", seed)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    return recorded


def net():
    """Has statistics, and chance."""
    return nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3)
    )


class Moody(nn.Module):
    """Does something else at every call."""

    def __init__(self):
        super().__init__()
        self.line, self.calls = nn.Linear(6, 3), 0

    def forward(self, x):
        self.calls += 1
        return self.line(x) * self.calls


class Peeking(nn.Module):
    """Cannot be recorded: it reads a number."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(6, 3)

    def forward(self, x):
        if Graph.recording is not None:
            raise RuntimeError("operation not permitted when stream is capturing\nmore of it")
        return self.line(x)


class Assigning(nn.Module):
    """Assigns its running mean, and does not write into it."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(6, 3)
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return self.line(x - self.mean)


def batches(sizes=(16,) * 5 + (7,) * 4 + (16, 7, 1, 16), weights=False):
    rng = np.random.default_rng(0)
    for size in sizes:
        x = rng.standard_normal((size, 6)).astype(np.float32)
        row_weights = rng.random(size).astype(np.float32) if weights else None
        yield Batch(x, rng.integers(0, 3, size).astype(np.float64), weights=row_weights)


def trained(config, device, **of):
    model, inner = fresh(config, (), 3, device)
    losses = []
    for number, batch in enumerate(batches(**of)):
        gradient, metrics = model.learn(batch, 8 * number)
        inner.step(model.parameters.trained, gradient, 0.0)
        losses.append(metrics["loss"])
    p = model.parameters
    model.to_host(p.trained, p.floats, p.integers)
    return p.trained, p.floats, p.integers, losses


CONFIG = ModuleConfig(module=f"{__name__}:net", lr=0.01, average=0.9, l2={"4.*": 0.01})


@pytest.mark.parametrize("weights", [False, True], ids=["", "weights"])
def test_a_recorded_module_learns_the_plain_paths_bits(weights, graphs):
    plain = trained(CONFIG, "stand-in", weights=weights)
    assert not graphs
    recorded = trained(replace(CONFIG, cuda_graph=True), "stand-in", weights=weights)
    assert len(graphs) == 2 * 2, "for each size but one row, a graph to compare and one to keep"
    for mine, theirs in zip(recorded, plain, strict=True):
        assert np.array_equal(mine, theirs)


def test_a_recorded_step_keeps_a_buffer_that_is_assigned(graphs):
    config = ModuleConfig(module=f"{__name__}:Assigning", lr=0.01)
    plain = trained(config, "stand-in")
    recorded = trained(replace(config, cuda_graph=True), "stand-in")
    assert graphs
    assert plain[1].all()
    for mine, theirs in zip(recorded, plain, strict=True):
        assert np.array_equal(mine, theirs)


def test_on_the_processor_nothing_is_recorded(graphs):
    recorded = trained(replace(CONFIG, cuda_graph=True), "cpu")
    assert not graphs
    assert np.array_equal(recorded[0], trained(CONFIG, "cpu")[0])


@pytest.mark.parametrize("phase", [0, 1, 2])
def test_a_recorded_belief_network_learns_the_plain_paths_numbers(phase, graphs, monkeypatch):
    dbn = DBN(inputs=6, hidden=(5, 4), classes=3, precision="mkl")
    still = FineTuning(dropout_input=0.0, dropout_hidden=(0.0,))
    config = replace(dbn, fine_tuning=still).configs()[phase]
    monkeypatch.setattr("photinus.models.random.np.random.SFC64", lambda _: Still())
    results = []
    for device in ("cpu", "stand-in"):
        model, inner = fresh(config, (), 3, device)
        rows = np.random.default_rng(1).random((8, 16, 6 if phase != 1 else 5), dtype=np.float32)
        for number, x in enumerate(rows):
            gradient, metrics = model.learn(Batch(x, np.arange(16) % 3), 8 * number)
            inner.step(model.parameters.trained, gradient, 0.0)
        model.to_host(model.parameters.trained)
        results.append((model.parameters.trained.copy(), metrics))
    assert len(graphs) == 2
    assert np.array_equal(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]


class Still:
    """Draws the same bits at every step: a graph of the processor's cannot be seeded."""

    def random_raw(self, count):
        return np.random.default_rng(5).integers(0, 2**64, count, dtype=np.uint64)


def test_a_module_that_does_something_else_when_repeated_is_refused(graphs):
    config = ModuleConfig(module=f"{__name__}:Moody", lr=0.01, cuda_graph=True)
    with pytest.raises(UsageError, match=r"a step of Moody cannot be recorded.*from the plain"):
        trained(config, "stand-in")


def test_a_module_that_cannot_be_recorded_is_named_with_the_reason(graphs):
    config = ModuleConfig(module=f"{__name__}:Peeking", lr=0.01, cuda_graph=True)
    with pytest.raises(UsageError, match=r"a step of Peeking cannot be recorded.*not permitted"):
        trained(config, "stand-in")


def test_of_many_shapes_some_stay_plain(graphs):
    sizes = [size for size in range(2, 30) for _ in range(4)]
    config = ModuleConfig(module=f"{__name__}:net", lr=0.01)
    recorded = trained(replace(config, cuda_graph=True), "stand-in", sizes=sizes)
    assert len(graphs) == 2 * 16
    assert np.array_equal(recorded[0], trained(config, "stand-in", sizes=sizes)[0])


@pytest.mark.parametrize("cuda_graph", [False, True])
@pytest.mark.parametrize("before", [0, 4])
def test_a_label_that_is_no_class_is_named_before_a_card_reads_it(cuda_graph, before, graphs):
    config = ModuleConfig(module=f"{__name__}:net", lr=0.01, cuda_graph=cuda_graph)
    model, _ = fresh(config, (), 3, "stand-in")
    for batch in batches((16,) * before):
        model.learn(batch, 0)
    calls = []
    model._loss = lambda *_: calls.append(1)
    with pytest.raises(DataError, match=r"label 5 outside 0\.\.2 in its example 1"):
        model.learn(Batch(np.zeros((16, 6), np.float32), np.array([0, 5] + [1] * 14)), 0)
    assert not calls


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("accumulate", 2),
        ("activation_memory", "recompute"),
        ("activation_bytes", 10**9),
        ("precision", "float16"),
    ],
)
def test_settings_that_no_graph_can_have_are_refused_with_it(field, value):
    with pytest.raises(UsageError, match=f"cannot be recorded as a CUDA graph; got {field}="):
        replace(CONFIG, cuda_graph=True, **{field: value})


class Parts(nn.Module):
    """Drops out in every way: a layer, within a layer, and by functions."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
        self.rnn, self.drop = nn.LSTM(8, 8, 2, dropout=0.5, batch_first=True), nn.Dropout(0.5)

    def forward(self, x):
        x = self.drop(self.rnn(self.attention(x, x, x)[0])[0])
        x = nn.functional.scaled_dot_product_attention(x, x, x, None, 0.5)
        return nn.functional.dropout(nn.functional.dropout1d(x, 0.5), p=0.5)


def test_no_dropout_leaves_out_nothing_and_is_over_afterwards():
    module, x = Parts(), torch.randn(4, 6, 8)
    with no_dropout(module):
        still = [module(x) for _ in range(2)]
    assert torch.equal(*still)
    assert torch.equal(module.eval()(x.clone()).isfinite(), still[0].isfinite())
    module.train()
    assert not torch.equal(module(x), module(x))
    assert (module.attention.dropout, module.rnn.dropout, module.drop.p) == (0.5, 0.5, 0.5)


def test_a_belief_network_that_cannot_be_recorded_learns_by_plain_steps(graphs, caplog):
    config = DBN(inputs=6, hidden=(5,), classes=3, precision="mkl").configs()[0]
    model, _ = fresh(config, (), 3, "stand-in")
    rows = np.random.default_rng(1).random((5, 16, 6), dtype=np.float32)
    plain, _ = fresh(config, (), 3, "cpu")
    for number, x in enumerate(rows):  # it draws other numbers when it is repeated
        mine, _ = model.learn(Batch(x), number + 1)
        model.to_host(mine)
        assert np.array_equal(mine, plain.learn(Batch(x), number + 1)[0])
    assert "cannot be recorded as a CUDA graph" in caplog.text
    assert "its steps stay plain" in caplog.text


def test_sparse_tables_are_refused_with_it():
    config = ModuleConfig(
        module="torch.nn:Embedding",
        arguments={"num_embeddings": 4, "embedding_dim": 2, "sparse": True},
        optimizer="sgd",
        cuda_graph=True,
    )
    with pytest.raises(UsageError, match="a step with sparse tables cannot be recorded"):
        config.build((), 0)
