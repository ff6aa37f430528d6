"""A job whose module has sparse tables: why all rows travel, where they must, is told."""

import numpy as np
import pytest

from photinus.core.clock import Steps
from photinus.core.errors import UsageError
from photinus.core.events import Warned
from photinus.core.parameters import TRAINED, Layout
from photinus.models.module import ModuleConfig
from photinus.run.job import Job, Source
from photinus.run.train import train
from photinus.strategies import recipes

NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.EmbeddingBag(90, 4, sparse=True)

    def forward(self, x):
        return self.words(x.long())
"""
LAYOUT = Layout.of([("words", (90, 4), TRAINED), ("out", (4,), TRAINED)], sparse=["words"])


def job(strategy, **fields):
    model = ModuleConfig(module="net_of_words:Net", batch_size=8, **fields.pop("model", {}))
    defaults = {"model": model, "data": Source(name="given"), "workers": 2, "engine": "simulate"}
    return Job(strategy=strategy, **defaults | fields)


@pytest.mark.parametrize(
    ("strategy", "why"),
    [
        (recipes.elastic(), "elastic sends whole parameters"),
        (recipes.gossip(), "gossip sends whole parameters"),
        (recipes.downpour(), "a fetch of downpour brings whole parameters; set rows=4"),
        (recipes.streaming(alpha=0.3), "to mix by alpha=0.3 rounds every row"),
    ],
)
def test_why_all_rows_travel_is_one_sentence(strategy, why):
    [warning] = job(strategy).table_warnings(LAYOUT)
    assert "all rows of sparse tables travel" in warning
    assert why in warning
    assert job(strategy).table_warnings(Layout(LAYOUT.entries)) == []


@pytest.mark.parametrize("name", ["averaging", "diloco", "streaming", "all_reduce", "publish"])
def test_where_only_rows_travel_nothing_is_told(name):
    assert job(recipes.RECIPES[name].build()).table_warnings(LAYOUT) == []
    assert job(recipes.downpour(rows=4)).table_warnings(LAYOUT) == []


def test_sums_by_torch_are_of_whole_vectors():
    fields = {"transport": "torch", "security": "none", "engine": "local"}
    [warning] = job(recipes.all_reduce(owners=2), **fields).table_warnings(LAYOUT)
    assert "transport torch sums whole vectors" in warning


@pytest.fixture
def rows(tmp_path, monkeypatch):
    (tmp_path / "net_of_words.py").write_text(NET)
    monkeypatch.syspath_prepend(str(tmp_path))
    rng = np.random.default_rng(0)
    return rng.integers(0, 90, (32, 2)).astype("f4"), rng.integers(0, 4, 32)


def test_a_run_tells_it_once_before_training(rows, tmp_path):
    events = []
    elastic_job = job(recipes.elastic(every=Steps(2), gradients_until=0))
    train(elastic_job, rows, folder=tmp_path / "run", callbacks=[events.append])
    texts = [e.text for e in events if isinstance(e, Warned) and "sends whole" in e.text]
    assert len(texts) == 1


def test_an_optimizer_that_moves_all_rows_is_refused_before_a_folder_is_made(rows, tmp_path):
    refused_job = job(recipes.averaging(), model={"optimizer": "rmsprop"})
    with pytest.raises(UsageError, match="of the sparse table words"):
        train(refused_job, rows, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()
