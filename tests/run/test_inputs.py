"""Several inputs in a job: in memory, of Parquet files, resumed, weighed."""

import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from photinus.core.errors import DataError, UsageError
from photinus.core.events import RoundClosed
from photinus.core.factories import resolve_user_code
from photinus.data.arrays import FeedOrder, PartitionFeed
from photinus.data.columns import inputs_from
from photinus.data.rows import Rows
from photinus.engine.base import ArrayData
from photinus.models.dbn import DBN
from photinus.models.module import ModuleConfig
from photinus.report.ledger import audit
from photinus.run.job import Job, Source
from photinus.run.train import resume, train
from photinus.strategies.recipes import all_reduce

NETS = """
import torch
from torch import nn

class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(50, 8), nn.Linear(9, 2)

    def forward(self, tokens, price, mask):
        own = mask[..., None]
        x = (self.table(tokens) * own).sum(1) / own.sum(1)
        return self.head(torch.cat([x, price[:, None]], 1))
"""


@pytest.fixture(autouse=True)
def nets(tmp_path, monkeypatch):
    (tmp_path / "bags_of_tokens.py").write_text(NETS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    yield
    sys.modules.pop("bags_of_tokens", None)


def rows(count=240):
    rng = np.random.default_rng(0)
    labels = np.arange(count) % 2
    tokens = [rng.integers(0, 25, 1 + i % 9) + 25 * int(y) for i, y in enumerate(labels)]
    return {"tokens": tokens, "price": rng.random(count)}, labels


def job(**how):
    settings = {"epochs": 6.0, "batch_size": 16, "lr": 0.05}
    source = how.pop("data", Source(name="given"))
    config = ModuleConfig(module="bags_of_tokens:Bag", **settings | how.pop("model", {}))
    return Job(model=config, data=source, workers=2, engine="simulate", **how)


def test_inputs_in_memory_are_trained_on_and_measured(tmp_path):
    outcome = train(job(), rows(), test=rows(60), folder=tmp_path / "run")
    assert outcome.metrics["error"] < 0.05
    assert audit(outcome.folder / "ledger.jsonl").is_exact


@pytest.mark.processes
def test_processes_of_this_machine_learn_what_the_simulator_does(tmp_path):
    settings = {"strategy": all_reduce(codec="fp32"), "model": {"epochs": 1.0}}
    simulated = train(job(**settings), rows(), folder=tmp_path / "one")
    local = train(replace(job(**settings), engine="local"), rows(), folder=tmp_path / "two")
    np.testing.assert_allclose(simulated.vector, local.vector, atol=1e-6)


def test_files_are_read_without_spark_as_they_are_in_memory(tmp_path):
    (inputs, labels), path = rows(), str(tmp_path / "rows.parquet")
    columns = {"ids": pa.array([r.tolist() for r in inputs["tokens"]]), "amount": inputs["price"]}
    pq.write_table(pa.table({**columns, "y": labels}), path)
    inputs_by_name = {"tokens": "ids", "price": "amount"}
    source = Source(name="parquet", path=path, inputs=inputs_by_name, label="y", test=path)
    file_job = job(data=source)
    assert Job.from_dict(file_job.to_dict()) == file_job
    from_file = train(file_job, folder=tmp_path / "one")
    from_memory = train(job(), (inputs, labels), folder=tmp_path / "two")
    assert np.array_equal(from_file.vector, from_memory.vector)
    assert from_file.metrics["error"] < 0.05


def test_a_stopped_run_continues_to_the_same_bits(tmp_path):
    exact_job = job(strategy=all_reduce(codec="fp32"), checkpoint_seconds=0.0)
    whole = train(exact_job, rows(), folder=tmp_path / "whole")
    event_types = []

    def stop(event):
        event_types.append(type(event))
        if type(event) is RoundClosed and event_types.count(RoundClosed) == 40:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(exact_job, rows(), folder=tmp_path / "half", callbacks=[stop])
    assert any((tmp_path / "half" / "checkpoints").iterdir())
    resumed = resume(tmp_path / "half", rows())
    assert np.array_equal(resumed.vector, whole.vector)


class Line(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.a.weight)

    def forward(self, x):
        return self.a(x)


def test_k_workers_with_weights_take_the_step_of_one_process():
    """The mean over workers of the weighed gradients is that of all rows, whatever the weights."""
    from photinus.models.module_model import ModuleModel

    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 1)).astype(np.float32)
    y, w = (3 * x[:, 0]).astype(np.float64), rng.exponential(10, 40).astype(np.float32)

    def gradient(indices):
        order = FeedOrder(batch_size=len(x[indices]), epochs=1.0)
        (batch,) = PartitionFeed(Rows.of(x[indices], y[indices], w[indices]), order)
        assert batch.weights is not None
        return ModuleModel(Line(), "mse").learn(batch, 0)[0].copy()

    parts = [gradient(slice(i, None, 4)) for i in range(4)]
    np.testing.assert_allclose(np.mean(parts, axis=0), gradient(slice(None)), rtol=1e-5)
    by_hand = -(w * 2 * y * x[:, 0]).mean()
    np.testing.assert_allclose(gradient(slice(None)), [by_hand], rtol=1e-5)


def test_an_older_jobs_checkpoints_fit_where_no_input_is_named(tmp_path):
    from photinus.run.train import _fingerprint

    plain = Job(model=DBN())
    assert _fingerprint(plain) == _fingerprint(replace(plain, data=Source(inputs={})))
    assert _fingerprint(job()) != _fingerprint(job(data=Source(name="given", weight="w")))


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (
            lambda: Source(inputs={"x": "a"}, scale=0.1),
            UsageError,
            "scale is for one array of features",
        ),
        (
            lambda: Source(encoders={"x": "a:b"}).named,
            UsageError,
            "encoders and collate are for inputs, and there are none",
        ),
        (
            lambda: train(Job(model=DBN(), engine="simulate"), rows()),
            UsageError,
            "a DBN takes one input, not several; train a ModuleConfig",
        ),
        (
            lambda: train(job(), ({"tokens": [[1], [2]]}, np.zeros(2, int))),
            DataError,
            "missing 2 required positional arguments|missing 1 required positional argument",
        ),
    ],
)
def test_inputs_that_do_not_fit_are_one_sentence(make, error, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=said):
        make()


def test_the_code_of_encoders_and_collates_is_the_users_own():
    source = Source(inputs={"x": "a"}, encoders={"x": "subprocess:getoutput"})
    with pytest.raises(UsageError, match="a function must be the user's own code"):
        source.named.encoder("x")
    inputs = inputs_from({"x": [[1]]}, replace(source.named, encoders={}, collate="os:listdir"))
    with pytest.raises(UsageError, match="a collate must be the user's own code"):
        inputs.batch(np.array([0]))
    assert resolve_user_code("torch.nn:Linear", "module", nn.Module) is torch.nn.Linear


def test_inputs_in_memory_are_not_sent_to_a_cluster():
    from photinus.engine.spark.engine import _as_frame_data

    data = ArrayData(inputs_from({"x": [[1], [2]]}, None), np.zeros(2, int))
    with pytest.raises(UsageError, match=r'cannot read several inputs from arrays.*engine="local"'):
        _as_frame_data(None, data, None)


def test_a_module_keeps_the_fingerprint_that_it_had_before_it_had_more_settings():
    """That of the job below, as the version that knew no inputs computed it."""
    from photinus.run.train import _fingerprint

    arguments = {"in_features": 2, "out_features": 2}
    config = ModuleConfig(
        module="torch.nn:Linear", arguments=arguments, decays="weights", epochs=1.0
    )
    assert _fingerprint(Job(model=config, data=Source(name="given"))) == "6e2970fb58b0f5d1"
