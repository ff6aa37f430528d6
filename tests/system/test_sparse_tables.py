"""Modules with sparse tables: only rows that changed travel, to the bits of whole vectors."""

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest

from photinus.core.clock import Steps
from photinus.core.events import RoundClosed
from photinus.core.parameters import TRAINED, Layout
from photinus.engine.base import ArrayData, RunSpec
from photinus.engine.local.engine import LocalEngine
from photinus.engine.simulation.cluster import SimulatedCluster
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.engine.spark.engine import FrameData, SparkEngine, frame_of
from photinus.models.module import ModuleConfig
from photinus.strategies import recipes
from photinus.strategies.outer import Nesterov, Sgd
from photinus.testing import Faults
from photinus.training.plan import Phase, TrainingPlan

EVERY = {"every": Steps(3)}
STRATEGIES = {
    "averaging": recipes.averaging(**EVERY, codec="fp32"),
    "averaging bf16": recipes.averaging(**EVERY, codec="bf16"),
    "averaging int8": recipes.averaging(**EVERY, codec="int8"),
    "averaging among workers": recipes.averaging(**EVERY, owners=3, codec="bf16"),
    "diloco": recipes.diloco(**EVERY, outer=Nesterov(0.7, 0.9), codec="int4"),
    "iterative_reduce": recipes.iterative_reduce(**EVERY),
    "post_local": recipes.post_local(**EVERY, gradients_until=0.5),
    "streaming": recipes.streaming(every=Steps(6), fragments=3, outer=Sgd(), codec="fp32"),
    "all_reduce": recipes.all_reduce(),
    "all_reduce among workers": recipes.all_reduce(owners=3),
    "full_gradient": recipes.full_gradient(),
    "publish": recipes.publish(**EVERY, codec="bf16"),
    "downpour": recipes.downpour(**EVERY, rows=16, codec="fp32"),
    "downpour gradients": recipes.downpour(**EVERY, payload="gradient", outer=Sgd(0.1)),
    "elastic": recipes.elastic(**EVERY),
    "gossip": recipes.gossip(**EVERY),
}
TABLE = Layout.of([("words.weight", (4_000, 16), TRAINED)], sparse=["words.weight"])
LINKS = SimulatedCluster(bytes_per_second=1e30)
"""Time does not depend on what is sent, not by its last digit: updates come in the same order."""


@pytest.fixture(autouse=True)
def nets(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def texts(rows):
    """Rows of two words each."""
    rng = np.random.default_rng(0)
    words, labels = rng.integers(0, rows, (96, 2)), rng.integers(0, 3, 96)
    return ArrayData(words.astype("f4"), labels)


def plan_of(strategy, workers=3, rows=4_000, *, sparse=True, **fields):
    usual = {"module": "nets_with_tables:Words", "optimizer": "sgd", "lr": 0.5, "epochs": 2}
    usual |= {"batch_size": 8, "arguments": {"rows": rows, "sparse": sparse}}
    phase = Phase(config=ModuleConfig(**usual | fields), strategy=strategy)
    return TrainingPlan(phases=(phase,), workers=workers)


def run(engine, plan, data):
    """Returns what was agreed on [n], and the bytes that went up and down."""
    events = []
    spec = RunSpec(plan=plan, data=data, run=os.urandom(16), emit=events.append)
    vector = engine.run(spec).vectors[0]
    rounds = [e for e in events if isinstance(e, RoundClosed)]
    return vector, sum(e.bytes_up for e in rounds), sum(e.bytes_down for e in rounds)


def trained(engine, strategy, workers=3, rows=4_000, **fields):
    return run(engine, plan_of(strategy, workers, rows, **fields), texts(rows))


@pytest.mark.parametrize("name", STRATEGIES)
def test_rows_that_changed_train_to_the_bits_of_whole_vectors(name):
    engine, strategy = SimulatedEngine(LINKS), STRATEGIES[name]
    some, up, down = trained(engine, strategy)
    plain = dataclasses.replace(strategy, rows=0)
    whole, all_up, all_down = trained(engine, plain, sparse=False)
    np.testing.assert_array_equal(some, whole)
    warning = strategy.table_warning(TABLE)
    assert (up < all_up / 3) == (warning == "" or "fetch" in warning)
    assert (down < all_down / 3) == (warning == "" and all_down > 0)


@pytest.mark.parametrize("name", ["averaging int8", "averaging among workers", "publish"])
@pytest.mark.parametrize(
    "faults",
    [
        Faults().kill(slot=1, step=4),
        Faults().lose(each=7).double(each=5).copy(slot=1, step=3),
        Faults().nan(slot=1, step=5),
    ],
    ids=["killed", "messages lost and doubled", "not finite"],
)
def test_faults_change_no_bit_of_what_sparse_and_whole_vectors_agree_on(name, faults):
    cluster = dataclasses.replace(LINKS, faults=faults)
    ends, happened = [], []
    for sparse in (True, False):
        engine = SimulatedEngine(cluster)
        ends.append(trained(engine, STRATEGIES[name], sparse=sparse)[0])
        happened.append([type(one) for one in engine.happened])
    assert happened[0] == happened[1] != []
    np.testing.assert_array_equal(*ends)


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam", "adamw"])
@pytest.mark.parametrize("module", ["Words", "Bags"])
def test_a_table_of_100_000_rows_sends_below_2_percent_of_its_bytes(optimizer, module):
    rows, strategy = 100_000, recipes.averaging(every=Steps(3), codec="fp32", gradients_until=0)
    fields = {"optimizer": optimizer, "module": f"nets_with_tables:{module}", "max_steps": 9}
    _, up, down = trained(SimulatedEngine(), strategy, 2, rows, **fields)
    pushes, whole = 3 * 2, rows * 16 * 4  # 24 examples of two words a round: at most 48 rows
    assert 0 < up < 0.02 * pushes * whole
    assert 0 < down < 0.02 * pushes * whole


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
@pytest.mark.parametrize("module", ["Words", "Bags"])
def test_a_sparse_table_is_stepped_to_the_bits_of_a_dense_one(optimizer, module):
    fields = {"optimizer": optimizer, "module": f"nets_with_tables:{module}"}
    vectors = [
        trained(SimulatedEngine(), recipes.all_reduce(), sparse=sparse, **fields)[0]
        for sparse in (True, False)
    ]
    np.testing.assert_array_equal(*vectors)


@pytest.mark.processes
@pytest.mark.parametrize("owners", [1, 2])
def test_rows_that_changed_travel_over_real_links(owners):
    strategy = recipes.averaging(**EVERY, owners=owners, codec="bf16")
    ours, theirs = (trained(e, strategy, 2) for e in (LocalEngine(), SimulatedEngine()))
    np.testing.assert_array_equal(ours[0], theirs[0])
    assert ours[1:] == theirs[1:]


@pytest.mark.spark
def test_rows_that_changed_travel_between_tasks_of_spark(spark):
    spark.sparkContext.addPyFile(str(Path(__file__).with_name("nets_with_tables.py")))
    plan, data = plan_of(recipes.averaging(**EVERY, codec="bf16"), 2), texts(4_000)
    frame = frame_of(spark, [data.part(plan, slot) for slot in range(2)])
    ours = run(SparkEngine(), plan, FrameData(frame=frame, features="features", label="label"))
    theirs = run(SimulatedEngine(), plan, data)
    np.testing.assert_array_equal(ours[0], theirs[0])
    assert ours[1:] == theirs[1:]
