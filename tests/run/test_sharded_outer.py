"""Dense layers beside sharded tables by an outer optimizer with momentum, which no table has."""

from dataclasses import replace

import numpy as np
import pytest
from torch import nn

from photinus.core.clock import Steps
from photinus.core.errors import UsageError
from photinus.core.events import RoundClosed
from photinus.embeddings.word2vec import Word2VecConfig
from photinus.engine.base import ArrayData
from photinus.nn import ShardedEmbedding
from photinus.report.ledger import audit
from photinus.run.job import Job
from photinus.run.train import resume, train
from photinus.strategies import recipes
from photinus.strategies.outer import Adagrad, Adam, Nesterov, RowAdagrad, Sgd, SlowMo
from photinus.testing import Faults
from tests.run.scores import DIM, ITEMS, MEAN, SHORT, USERS, events, run, went_back

MOMENTUM = recipes.averaging(every=Steps(4), outer=Nesterov(0.7, 0.5), gradients_until=0.0)


class Beside(nn.Module):
    """A layer that learns by itself, beside a table that learns nothing."""

    def __init__(self, kind=ShardedEmbedding):
        super().__init__()
        self.layer = nn.Linear(2, 2)  # drawn first: tables draw otherwise
        self.table = kind(USERS, DIM)

    def forward(self, x):
        return self.layer(x / 30 - 1) + 0 * self.table(x[:, 0].long())[:, :2]


class Whole(Beside):
    """The same with a table that every worker holds."""

    def __init__(self):
        super().__init__(nn.Embedding)


class Tables(nn.Module):
    """Nothing but tables."""

    def __init__(self):
        super().__init__()
        self.users, self.items = ShardedEmbedding(USERS, 2), ShardedEmbedding(ITEMS, 2)

    def forward(self, x):
        user, item = x.long().T
        return self.users(user) * self.items(item)


class Few(nn.Module):
    """A table and a layer with fewer rows than there are workers."""

    def __init__(self):
        super().__init__()
        self.table, self.out = ShardedEmbedding(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.out(self.table(x[:, 0].long() % 3))


def vector(outcome):
    return outcome.trained.model().parameters.trained


@pytest.mark.parametrize("outer", [Nesterov(0.7, 0.5), SlowMo(1.0, 0.4), Adam(0.05)], ids=str)
@pytest.mark.parametrize(("workers", "merge"), [(2, "uniform"), (3, "reads"), (7, "uniform")])
def test_dense_layers_learn_as_by_averaging_of_whole_vectors(outer, workers, merge, tmp_path):
    layers = []
    for module, merged in (("Beside", merge), ("Whole", "uniform")):
        model = replace(SHORT, module=f"{__name__}:{module}", epochs=1.0, optimizer="sgd")
        strategy = recipes.averaging(**MEAN | {"outer": outer}, every=Steps(4))
        if merged == "reads":  # the default beside tables, which no whole vector has
            strategy = recipes.averaging(
                every=Steps(4), outer=outer, codec="fp32", gradients_until=0.0
            )
        outcome = run(tmp_path / module, workers, model=model, strategy=strategy)
        tensors = outcome.trained.model().tensors() if module == "Beside" else None
        tensors = tensors or outcome.trained.model().parameters.tensors()
        layers.append(tensors["layer.weight"])
    assert abs(layers[1]).max() > 0.05
    np.testing.assert_allclose(*layers, atol=1e-6)


def test_tables_and_layers_move_by_the_mean_where_there_is_no_momentum(tmp_path):
    vectors = []
    for outer in (Sgd(), SlowMo(lr=1.0, momentum=0.0)):
        strategy = recipes.averaging(every=Steps(8), outer=outer, codec="fp32", gradients_until=0.0)
        vectors.append(vector(run(tmp_path / outer.name, model=SHORT, strategy=strategy)))
    np.testing.assert_array_equal(*vectors)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """All parameters of a run with momentum."""
    return vector(run(tmp_path_factory.mktemp("whole"), model=SHORT, strategy=MOMENTUM))


@pytest.mark.parametrize("seconds", [1e6, 0.4], ids=["from the start", "from a checkpoint"])
@pytest.mark.parametrize(
    "faults",
    [
        Faults().kill(slot=0, step=40),
        Faults().kill(slot=1, step=25).kill(slot=2, step=45).kill(slot=0, step=80),
        Faults().kill(slot=1, step=40).kill(slot=2, step=40),
    ],
    ids=["one", "one after the other", "two at once"],
)
def test_with_lost_workers_the_momentum_is_the_same(faults, seconds, undisturbed, tmp_path):
    outcome = run(
        tmp_path / "run",
        model=SHORT,
        strategy=MOMENTUM,
        faults=faults,
        checkpoint_seconds=seconds,
    )
    np.testing.assert_array_equal(vector(outcome), undisturbed)
    report = audit(outcome.folder / "ledger.jsonl")
    assert report.is_exact, report.offences


@pytest.mark.parametrize(
    ("strategy", "version"),
    [(MOMENTUM, 40), (recipes.diloco(gradients_until=0.0), 4)],
    ids=["averaging", "diloco"],
)
def test_a_run_with_momentum_that_was_stopped_continues_with_the_same_bits(
    strategy, version, tmp_path
):
    def stop(event):
        if isinstance(event, RoundClosed) and event.version == version:
            raise InterruptedError

    undisturbed = vector(run(tmp_path / "whole", model=SHORT, strategy=strategy))
    job = Job(model=SHORT, workers=3, engine="simulate", strategy=strategy, checkpoint_seconds=0.2)
    data = ArrayData(*events())
    with pytest.raises(InterruptedError):
        train(job, data, folder=tmp_path / "run", callbacks=[stop], verbose=False)
    resumed = resume(tmp_path / "run", data, verbose=False)
    np.testing.assert_array_equal(vector(resumed), undisturbed)


@pytest.mark.parametrize("workers", [1, 3])
def test_a_trained_model_starts_another_run_with_momentum(workers, tmp_path):
    start = str(run(tmp_path / "first", model=SHORT, strategy=MOMENTUM).folder / "model")
    more = {"model": SHORT, "strategy": MOMENTUM, "start": start, "checkpoint_seconds": 0.4}
    outcome = run(tmp_path / "run", workers, **more)
    faults = Faults().kill(slot=0, step=150)
    again = run(tmp_path / "lost", workers, faults=faults, **more)
    np.testing.assert_array_equal(vector(again), vector(outcome))
    assert outcome.metrics["loss"] < 0.6


@pytest.mark.parametrize("parts", [{}, {"gradients_until": 0.0}], ids=["nothing set", "rounds"])
@pytest.mark.parametrize("workers", [1, 3])
def test_diloco_with_nothing_set_learns(workers, parts, tmp_path):
    outcome = run(tmp_path / "run", workers, strategy=recipes.diloco(**parts))
    assert outcome.metrics["error"] < 0.05
    assert went_back(outcome) == 0


@pytest.mark.parametrize(
    "job",
    [
        {"model": replace(SHORT, module=f"{__name__}:Tables")},
        {
            "model": Word2VecConfig(words=20, dims=8),
            "strategy": recipes.averaging(
                **MEAN | {"outer": Nesterov()}, every=Steps(4), owners=3, rows=8
            ),
        },
    ],
    ids=["module", "word vectors"],
)
def test_momentum_without_dense_layers_is_refused(job, tmp_path):
    with pytest.raises(UsageError, match="nesterov steps layers beside sharded tables, and here"):
        run(tmp_path / "run", **{"strategy": MOMENTUM, **job})


@pytest.mark.parametrize("outer", [Adagrad(), RowAdagrad()], ids=str)
def test_an_owner_without_rows_has_no_state_of_any(outer, tmp_path):
    model = replace(SHORT, module=f"{__name__}:Few", epochs=0.2)
    strategy = recipes.averaging(every=Steps(4), outer=outer, gradients_until=0.0)
    outcome = run(tmp_path / "run", 7, model=model, strategy=strategy)
    assert np.isfinite(vector(outcome)).all()


def test_what_adam_keeps_in_a_row_is_not_stepped_from_outside(tmp_path):
    model = replace(SHORT, arguments={"optimizer": "adam"})
    with pytest.raises(UsageError, match="also steps what the tables' adam keeps in a row; got"):
        run(tmp_path / "run", model=model, strategy=recipes.averaging(outer=Adagrad()))
