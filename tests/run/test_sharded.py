"""Jobs whose module has sharded tables: what is learnt, saved, lost and refused."""

import json
import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from photinus.checkpoint.store import Store
from photinus.core.clock import Seconds, Steps
from photinus.core.errors import RunFailedError, UsageError
from photinus.core.events import RoundClosed
from photinus.data.rows import Rows
from photinus.embeddings.word2vec import Word2VecConfig
from photinus.engine.base import ArrayData
from photinus.engine.simulation.cluster import SimulatedCluster
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.models.module import ModuleConfig
from photinus.models.schedules import Schedule
from photinus.nn import ShardedEmbedding
from photinus.report.ledger import audit
from photinus.run.evaluate import LazyModel, load_trained, measure
from photinus.run.job import Job
from photinus.run.remote_resume import saved_job
from photinus.run.sharded import with_sharded_tables
from photinus.run.train import resume, train
from photinus.strategies import recipes
from photinus.strategies.outer import Descent, Nesterov
from photinus.testing import Faults
from photinus.training import shard_pages
from photinus.training.own_loop import OwnLoop
from photinus.training.placement import device_for, fresh
from tests.run.scores import (
    CONFIG,
    DIM,
    ITEMS,
    MEAN,
    ROUNDS,
    SHORT,
    USERS,
    Scores,
    events,
    run,
    went_back,
)


@pytest.mark.parametrize("strategy", [recipes.averaging(), ROUNDS], ids=["nothing set", "rounds"])
@pytest.mark.parametrize("workers", [1, 3, 7])
def test_with_nothing_set_many_workers_learn_as_one_process_does(workers, strategy, tmp_path):
    outcome = run(tmp_path / "run", workers, strategy=strategy)
    assert outcome.metrics["error"] < 0.03
    job = saved_job(outcome.folder, str(outcome.folder), False)[0]
    assert job.model.sharded == DIM + 1
    assert (job.strategy.owners, job.strategy.rows) == (workers, DIM + 1)
    assert job.strategy.codec == ("fp32" if workers == 1 else "bf16")


@pytest.mark.parametrize(("workers", "epochs"), [(1, 6.0), (3, 12.0), (7, 24.0)])
def test_workers_agree_on_running_statistics(workers, epochs, tmp_path):
    model = replace(CONFIG, module="tests.run.scores:Normed", epochs=epochs)
    outcome = run(tmp_path / "run", workers, model=model)  # of at least 16 rows a worker and step
    assert outcome.metrics["error"] < 0.03
    norm, trained = outcome.model().norm, outcome.model().train()
    trained.norm.momentum = 1.0
    trained(torch.from_numpy(events()[0]))  # the statistics of all rows
    np.testing.assert_allclose(norm.running_var, trained.norm.running_var, rtol=0.35)
    least = trained.norm.running_var.min().sqrt()
    np.testing.assert_allclose(norm.running_mean, trained.norm.running_mean, atol=0.3 * least)


def test_with_a_lost_worker_or_devices_running_statistics_have_the_same_bits(tmp_path):
    model = replace(SHORT, module="tests.run.scores:Normed")
    whole = run(tmp_path / "whole", model=model)
    lost = run(tmp_path / "lost", model=model, faults=Faults().kill(slot=1, step=40))
    on_devices = run(tmp_path / "apart", model=model, device=("stand-in", "cpu", "stand-in:1"))
    first, *other_states = (one.state_dict() for one in (whole, lost, on_devices))
    assert {"norm.running_mean", "norm.running_var"} < {*first}
    for state in other_states:
        assert all(np.array_equal(first[name], state[name]) for name in first)


@pytest.mark.parametrize("workers", [3, 7])
def test_by_the_plain_mean_rare_rows_would_hardly_move(workers, tmp_path):
    outcome = run(
        tmp_path / "run", workers, strategy=recipes.averaging(merge="uniform", gradients_until=0.0)
    )
    assert outcome.metrics["error"] > 0.3


@pytest.mark.parametrize("device", ["stand-in", ("stand-in", "cpu", "stand-in:1")])
@pytest.mark.parametrize("faults", [None, Faults().kill(slot=1, step=40)], ids=["whole", "lost"])
def test_on_devices_a_run_has_the_bits_of_the_processor(device, faults, whole_vector, tmp_path):
    outcome = run(tmp_path / "run", model=SHORT, device=device, faults=faults)
    np.testing.assert_array_equal(outcome.trained.model().parameters.trained, whole_vector)


def test_auto_measures_a_step_over_tables_of_zeros(caplog):
    with_tables = with_sharded_tables(LazyModel(Job(model=CONFIG, workers=3, device="auto"))).job
    assert with_tables.device == "auto"
    pairs, labels = events(64)
    batch = Rows.of(pairs, labels).batch(np.arange(64))

    def make(device):
        return fresh(with_tables.model, (), 0, device)

    with caplog.at_level(logging.INFO, logger="photinus"):
        chosen = device_for("auto", make, lambda: batch, ("cpu", "stand-in"))
    assert chosen in ("cpu", "stand-in:0")
    assert "ms on stand-in" in caplog.text


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
def test_sharded_tables_end_with_the_bits_of_whole_ones(optimizer, tmp_path):
    row = {"sgd": DIM, "adagrad": DIM + 1, "adam": 2 * DIM + 2}[optimizer]
    config = replace(CONFIG, sharded=row, epochs=1.0, arguments={"optimizer": optimizer})
    vectors = []
    for rows in (0, row):
        strategy = recipes.averaging(**MEAN, every=Steps(4), owners=3, rows=rows)
        outcome = run(tmp_path / str(rows), model=config, strategy=strategy)
        vectors.append(outcome.trained.model().parameters.trained)
    assert abs(vectors[0] - config.build((), 0).parameters.trained).max() > 0.01
    np.testing.assert_array_equal(*vectors)


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """The outcome of a run with nothing set."""
    return run(tmp_path_factory.mktemp("usual"))


def test_the_trained_module_has_whole_tables_of_its_own(usual):
    outcome, module, test = usual, usual.model(), events(500, 1)
    with torch.no_grad():
        error = (module(torch.from_numpy(test[0])).argmax(1).numpy() != test[1]).mean()
    assert error == pytest.approx(outcome.metrics["error"])
    shapes = {name: tuple(tensor.shape) for name, tensor in outcome.state_dict().items()}
    assert shapes == {
        "users.weight": (USERS, DIM), "items.weight": (ITEMS, DIM),
        "out.weight": (2, DIM), "out.bias": (2,),
    }  # fmt: skip
    for name, tensor in module.state_dict().items():
        assert np.array_equal(tensor.numpy(), outcome.state_dict()[name])


def test_a_saved_model_measures_the_same_and_starts_another_run(usual, tmp_path):
    outcome = usual
    saved, _ = load_trained(outcome.folder / "model")
    metrics, _ = measure(saved, rows_to_measure())
    assert metrics["error"] == pytest.approx(outcome.metrics["error"])
    still = replace(CONFIG, epochs=0.01, lr=Schedule.constant(0.0))
    again = run(tmp_path / "again", model=still, start=str(outcome.folder / "model"))
    for name, tensor in again.state_dict().items():
        np.testing.assert_allclose(tensor, outcome.state_dict()[name], atol=1e-6)


def rows_to_measure():
    from photinus.run.data import TestRows

    return TestRows(*events(500, 1))


class Fixed(Scores):
    """With a layer that is not trained, and a buffer of chance."""

    def __init__(self):
        super().__init__()
        self.register_buffer("turn", torch.randn(DIM, DIM))

    def forward(self, x):
        user, item = x.long().T
        return self.out((self.users(user) * self.items(item)) @ self.turn)


@pytest.mark.parametrize("seed", [0, 5])
def test_what_is_not_trained_is_that_of_the_jobs_seed(seed, tmp_path):
    rate = Schedule.cosine(0.05)
    config = replace(CONFIG, module=f"{__name__}:Fixed", frozen=("out.*",), lr=rate, epochs=9.0)
    outcome = run(tmp_path / "run", model=config, seed=seed)
    assert outcome.metrics["error"] < 0.15
    untrained = config.made(seed)
    assert np.array_equal(outcome.state_dict()["turn"], untrained.turn.numpy())
    assert np.array_equal(outcome.state_dict()["out.weight"], untrained.out.weight.detach().numpy())


def test_frozen_layers_come_from_the_model_that_a_run_starts_from(tmp_path):
    first = run(tmp_path / "first", seed=3)
    config = replace(CONFIG, frozen=("out.*",), epochs=0.5)
    outcome = run(tmp_path / "run", model=config, start=str(first.folder / "model"))
    for name in ("out.weight", "out.bias"):
        assert np.array_equal(outcome.state_dict()[name], first.state_dict()[name])
    assert outcome.metrics["error"] < 0.05


class Towers(nn.Module):
    """Its second table is whole, and each of its rows is read by one worker alone."""

    def __init__(self):
        super().__init__()
        self.owned, self.whole = ShardedEmbedding(4, DIM, std=0.0), nn.Embedding(2, DIM)

    def forward(self, x):
        return (self.owned(x.long()[:, 0]) + self.whole(x.long()[:, 0])).sum(1, keepdim=True)


def test_a_layer_that_one_worker_alone_changes_moves_by_the_mean(tmp_path):
    tables = []
    for merge in ("uniform", None):
        options = {} if merge is None else {"merge": merge}
        config = ModuleConfig(
            module=f"{__name__}:Towers", loss="mse", optimizer="sgd", lr=Schedule.constant(0.1),
            batch_size=8, max_steps=16,
        )  # fmt: skip
        job = Job(
            model=config, workers=2, engine="simulate", shuffle=False,
            strategy=recipes.averaging(codec="fp32", **options, gradients_until=0.0),
        )  # fmt: skip
        rows = np.repeat([0.0, 1.0], 20)[:, None].astype(np.float32)
        outcome = train(
            job,
            ArrayData(rows, rows[:, 0].astype(np.float64)),
            folder=tmp_path / str(merge),
            verbose=False,
        )
        tables.append(outcome.state_dict()["whole.weight"])
    np.testing.assert_allclose(*tables, atol=1e-6)


@pytest.fixture(scope="module")
def whole_vector(tmp_path_factory):
    """The table of a run without a fault."""
    outcome = run(tmp_path_factory.mktemp("whole"), model=SHORT)
    return outcome.trained.model().parameters.trained


@pytest.mark.parametrize(
    "faults",
    [
        Faults().kill(slot=1, step=40),
        Faults().kill(slot=0, step=32),
        Faults().kill(slot=1, step=40).kill(1, 9, lease=2).kill(1, 30, lease=3),
        Faults().kill(slot=1, step=25).kill(slot=2, step=45).kill(slot=0, step=80),
        Faults().freeze(slot=1, step=40, seconds=9.0),
    ],
    ids=["within a round", "as a round ends", "thrice the same", "one after the other", "frozen"],
)
@pytest.mark.parametrize("seconds", [1e6, 0.4], ids=["from the start", "from a checkpoint"])
def test_a_lost_owners_shard_is_restored_to_the_bit(faults, seconds, whole_vector, tmp_path):
    outcome = run(tmp_path / "run", model=SHORT, faults=faults, checkpoint_seconds=seconds)
    assert went_back(outcome) == 0
    np.testing.assert_array_equal(outcome.trained.model().parameters.trained, whole_vector)
    report = audit(outcome.folder / "ledger.jsonl")
    assert report.is_exact, report.offences


def run_over_slow_links(folder, faults):
    """Returns the outcome of half a pass without checkpoints, and its virtual seconds."""
    engine = SimulatedEngine(SimulatedCluster(faults=faults, latency_seconds=0.05))
    config = replace(CONFIG, epochs=0.5)
    fields = {"strategy": ROUNDS, "checkpoint_seconds": 1e6}
    job = Job(model=config, workers=3, engine="simulate", **fields)
    outcome = train(job, ArrayData(*events()), folder=folder, engine=engine, verbose=False)
    return outcome, engine.seconds


def test_at_whatever_point_of_a_meeting_an_owner_is_lost_the_bits_are_the_same(tmp_path):
    first, seconds = run_over_slow_links(tmp_path / "whole", Faults())
    for n in range(8):
        lost_at = seconds * (0.5 + 0.02 * n)
        faults = Faults().kill(n % 3, at_seconds=lost_at)
        outcome, _ = run_over_slow_links(tmp_path / f"{n}", faults)
        assert went_back(outcome) == 0
        expected, vector = (o.trained.model().parameters.trained for o in (first, outcome))
        np.testing.assert_array_equal(expected, vector)


@pytest.mark.parametrize(
    "faults", [Faults(), Faults().kill(slot=1, step=40)], ids=["whole", "lost"]
)
def test_by_seconds_a_fast_worker_does_not_wait_for_the_steps_of_a_slow_one(faults, tmp_path):
    seconds = {}
    for every in (Steps(16), Seconds(0.16)):
        cluster = SimulatedCluster(faults=faults, step_seconds=(0.01, 0.01, 0.08))
        engine, folder = SimulatedEngine(cluster), tmp_path / str(every)
        strategy = recipes.averaging(every=every, gradients_until=0.0)
        job = Job(model=CONFIG, workers=3, engine="simulate", strategy=strategy, share="fastest")
        outcome = train(
            job, ArrayData(*events()), test=events(500, 1), folder=folder, engine=engine,
            verbose=False,
        )  # fmt: skip
        assert outcome.metrics["error"] < 0.05
        assert went_back(outcome) == 0
        report = audit(folder / "ledger.jsonl")
        assert report.is_exact, report.offences
        seconds[every] = engine.seconds
    assert seconds[Seconds(0.16)] < 0.6 * seconds[Steps(16)]


def test_by_seconds_a_lost_shard_is_restored_while_a_long_round_continues(tmp_path):
    cluster = SimulatedCluster(faults=Faults().kill(slot=1, step=63), step_seconds=1.0)
    strategy = recipes.averaging(every=Seconds(60) | Steps(1000), gradients_until=0.0)
    job = Job(
        model=replace(CONFIG, epochs=1.0), workers=3, engine="simulate", strategy=strategy,
        checkpoint_seconds=1e6,
    )  # fmt: skip
    outcome = train(
        job, ArrayData(*events()), folder=tmp_path, engine=SimulatedEngine(cluster), verbose=False
    )
    assert went_back(outcome) == 0
    assert audit(tmp_path / "ledger.jsonl").is_exact


def test_rounds_in_seconds_have_a_most_of_steps():
    for every, expected in (
        (Seconds(2), Seconds(2) | Steps(64)),
        (Seconds(2) | Steps(5), Seconds(2) | Steps(5)),
    ):
        job = Job(
            model=CONFIG, workers=3, strategy=recipes.averaging(every=every, gradients_until=0.0)
        )
        assert with_sharded_tables(LazyModel(job)).job.strategy.every == expected


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
def test_rows_in_fewer_bits_end_near_those_in_fp32(optimizer, tmp_path):
    config = replace(SHORT, arguments={"optimizer": optimizer})

    def trained_rows(codec):
        outcome = run(
            tmp_path / codec,
            model=config,
            strategy=recipes.averaging(codec=codec, gradients_until=0.0),
        )
        return outcome.state_dict()["users.weight"].numpy()

    row = {"sgd": DIM, "adagrad": DIM + 1, "adam": 2 * DIM + 2}[optimizer]
    start = replace(config, sharded=row).build((), 0).tensors()["users.weight"]
    exact = trained_rows("fp32")
    for codec, most in (("bf16", 0.003), ("int8", 0.003), ("int4", 0.01)):
        off = np.linalg.norm(exact - trained_rows(codec))
        assert 0 < off < most * np.linalg.norm(exact - start), codec


@pytest.mark.parametrize("seconds", [1e6, 0.4], ids=["from the start", "from a checkpoint"])
@pytest.mark.parametrize("codec", ["int8", "int4"])
def test_a_lost_workers_left_out_numbers_are_dropped_and_no_push_counts_twice(
    codec, seconds, tmp_path
):
    fields = {
        "strategy": recipes.averaging(codec=codec, gradients_until=0.0),
        "checkpoint_seconds": seconds,
    }
    faults = Faults().kill(slot=1, step=40).kill(slot=0, step=200)
    outcome = run(tmp_path / "run", faults=faults, **fields)
    assert went_back(outcome) == 0
    report = audit(outcome.folder / "ledger.jsonl")
    assert report.is_exact, report.offences
    assert outcome.metrics["error"] < 0.03


def test_with_two_owners_lost_at_once_it_goes_back_and_learns_the_same(tmp_path):
    faults = Faults().kill(slot=1, step=40).kill(slot=2, step=40)
    outcome = run(tmp_path / "run", faults=faults)
    assert outcome.metrics["error"] < 0.03
    assert went_back(outcome) == 1


@pytest.mark.parametrize("after_seconds", [0.25, 0.55])
def test_an_owner_may_be_lost_while_another_ones_successor_loads_its_shard(
    after_seconds, tmp_path, monkeypatch
):
    monkeypatch.setattr(shard_pages, "PAGE_NUMBERS", 64)  # so that it loads for seconds
    faults = Faults().kill(0, at_seconds=16.0)
    faults = faults.kill(1, at_seconds=16.0 + after_seconds, back_seconds=0.01)
    job = Job(
        model=replace(CONFIG, epochs=1.0), workers=3, engine="simulate", checkpoint_seconds=0.4,
        strategy=ROUNDS,
    )  # fmt: skip
    outcomes = []
    for name, run_faults in (("whole", Faults()), ("lost", faults)):
        engine = SimulatedEngine(SimulatedCluster(faults=run_faults, latency_seconds=0.2))
        data, folder = ArrayData(*events()), tmp_path / name
        outcomes.append(train(job, data, folder=folder, engine=engine, verbose=False))
    report = audit(outcomes[1].folder / "ledger.jsonl")
    assert report.is_exact, report.offences
    assert went_back(outcomes[1]) == 1
    expected, vector = (o.trained.model().parameters.trained for o in outcomes)
    np.testing.assert_array_equal(expected, vector)


def test_the_audit_is_exact_where_an_owner_is_lost_while_others_are_done(tmp_path):
    backs = []
    first, seconds = run_over_slow_links(tmp_path / "whole", Faults())
    for n in range(1, 13):
        faults = Faults().kill(n % 3, at_seconds=seconds - 0.05 * n)
        outcome, _ = run_over_slow_links(tmp_path / f"{n}", faults)
        report = audit(outcome.folder / "ledger.jsonl")
        assert report.is_exact, report.offences
        backs.append(went_back(outcome))
        expected, vector = (o.trained.model().parameters.trained for o in (first, outcome))
        np.testing.assert_array_equal(expected, vector)
    assert 0 < sum(backs) < len(backs)


def test_a_shard_is_restored_in_pages_and_its_next_backup_is_filled_over_rounds(
    whole_vector, tmp_path, monkeypatch
):
    monkeypatch.setattr("photinus.strategies.shard_backups.PAGE_NUMBERS", 11)
    monkeypatch.setattr("photinus.protocol.row_meeting.BACKLOG_NUMBERS", 22)
    faults = Faults().kill(slot=1, step=40).kill(slot=0, step=200)
    outcome = run(tmp_path / "run", model=SHORT, faults=faults)
    assert went_back(outcome) == 0
    np.testing.assert_array_equal(outcome.trained.model().parameters.trained, whole_vector)


@pytest.mark.parametrize(
    ("codec", "module", "first", "last"),
    [("bf16", "Scores", 4, 20), ("int4", "Scores", 4, 20), ("bf16", "Normed", 2, 9)],
)
def test_a_run_that_was_stopped_continues_with_the_same_bits(codec, module, first, last, tmp_path):
    model = replace(SHORT, module=f"tests.run.scores:{module}")

    def stop(event):
        if isinstance(event, RoundClosed) and event.version == last:
            raise InterruptedError

    data = ArrayData(*events())
    fields = {
        "checkpoint_seconds": 0.2,
        "strategy": recipes.averaging(codec=codec, gradients_until=0.0),
    }
    whole = run(tmp_path / "whole", model=model, **fields)
    job = Job(model=model, workers=3, engine="simulate", **fields)
    with pytest.raises(InterruptedError):
        train(job, data, folder=tmp_path / "run", callbacks=[stop], verbose=False)
    names = Store(tmp_path / "run/checkpoints").names()
    assert first < int(names[-1][-9:]) < last, "a checkpoint within the phase"
    resumed = resume(tmp_path / "run", data, verbose=False)
    expected, vector = (outcome.trained.model().parameters.trained for outcome in (whole, resumed))
    np.testing.assert_array_equal(expected, vector)


def test_a_checkpoint_holds_the_rows_that_have_moved_only(tmp_path):
    pairs, labels = events()
    pairs[:, 0] %= 10
    fields = {"strategy": ROUNDS, "checkpoint_seconds": 0.4}
    job = Job(model=SHORT, workers=3, engine="simulate", **fields)
    outcome = train(job, ArrayData(pairs, labels), folder=tmp_path / "run", verbose=False)
    config = replace(CONFIG, sharded=DIM + 1)
    start, end = config.build((), 0), outcome.trained.model()
    rows = [model.parameters.trained.reshape(-1, DIM + 1) for model in (start, end)]
    moved = np.flatnonzero((rows[0] != rows[1]).any(axis=1))
    assert 10 + ITEMS <= len(moved) < 10 + ITEMS + 4, "and those of the layer"
    files = Store(tmp_path / "run/checkpoints").latest().files
    shards = [files[f"shard-{slot:05d}"] for slot in range(3)]
    positions = [3 * shard["at"].ravel() + slot for slot, shard in enumerate(shards)]
    assert np.array_equal(np.sort(np.concatenate(positions)), moved)


@pytest.mark.processes
def test_processes_end_with_the_bits_of_the_simulator(tmp_path):
    outcomes = [run(tmp_path / name, model=SHORT, engine=name) for name in ("simulate", "local")]
    simulated, local = (outcome.trained.model().parameters.trained for outcome in outcomes)
    np.testing.assert_array_equal(simulated, local)


@pytest.mark.processes
@pytest.mark.fault
def test_a_process_that_is_killed_is_restored_to_the_bit(whole_vector, tmp_path):
    faults = Faults().kill(slot=1, step=40).kill(1, 30, lease=2)
    outcome = run(tmp_path / "run", model=SHORT, real=faults)
    assert went_back(outcome) == 0
    np.testing.assert_array_equal(outcome.trained.model().parameters.trained, whole_vector)


def test_a_strategy_for_whole_vectors_is_turned_into_one_for_rows():
    strategy = recipes.averaging(every=Steps(5), codec="fp32", gradients_until=0.0)
    job = with_sharded_tables(LazyModel(Job(model=CONFIG, workers=4, strategy=strategy))).job
    assert str(job.strategy) == (
        "averaging every 5 steps, sgd(lr=1), merge reads, rows of 5 among 4 workers, fp32"
    )
    assert Job.from_dict(json.loads(json.dumps(job.to_dict()))) == job


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        (
            {"strategy": recipes.full_gradient()},
            "averaging, diloco, downpour or all_reduce; got full_gradient",
        ),
        (
            {"strategy": recipes.elastic()},
            "averaging, diloco, downpour or all_reduce; got elastic every",
        ),
        (
            {"strategy": recipes.publish()},
            "averaging, diloco, downpour or all_reduce; got publish every",
        ),
        ({"strategy": recipes.all_reduce(quorum=0.5)}, "quorum of all_reduce.*use quorum=1.0"),
        ({"strategy": recipes.all_reduce(codec_down="bf16")}, "codec_down of all_reduce does not"),
        (
            {"strategy": recipes.all_reduce(codec="int8", error_feedback=True)},
            "error_feedback of all_reduce does not",
        ),
        (
            {"strategy": recipes.all_reduce(), "model": replace(CONFIG, per_tensor=True)},
            "parts of the layers beside them: no owner has a whole tensor; got per_tensor; use an "
            "optimizer that steps each number",
        ),
        (
            {"strategy": recipes.all_reduce(), "model": replace(CONFIG, optimizer="adafactor")},
            "no owner has a whole tensor; got optimizer 'adafactor'; use an optimizer that steps",
        ),
        (
            {"strategy": recipes.all_reduce(owners=3), "transport": "torch", "security": "none"},
            "in fp32, without sharded tables; got all_reduce every step",
        ),
        ({"strategy": recipes.averaging(codec_down="fp32")}, "codec_down of averaging does not"),
        ({"strategy": recipes.averaging(merge="nova")}, "merge of averaging does not.*got nova"),
        ({"strategy": recipes.averaging(quorum=0.5)}, "quorum of averaging.*use quorum=1.0"),
        ({"strategy": recipes.averaging(fragments=2)}, "fragments of averaging does not go"),
        (
            {"strategy": recipes.averaging(release="immediate", outer=Nesterov())},
            "outer of averaging does not go with sharded tables.*use one by row",
        ),
        (
            {"strategy": recipes.averaging(outer=Descent(np.subtract))},
            r"outer of averaging does not.*use Nesterov\(\), SlowMo\(\) or Adam\(\) for the layers",
        ),
        ({"device": "opencl"}, "not trained on OpenCL devices; got device 'opencl'"),
        ({"model": replace(CONFIG, device="opencl")}, "on OpenCL devices; got device 'opencl'"),
    ],
)
def test_what_does_not_go_with_tables_among_the_workers_is_one_sentence(fields, wrong, tmp_path):
    with pytest.raises(UsageError, match=wrong):
        run(tmp_path / "run", **fields)
    assert not (tmp_path / "run").exists()


def test_tables_of_word_vectors_are_not_measured_on_rows_set_aside():
    model = Word2VecConfig(words=20, dims=8)
    strategy = recipes.averaging(**MEAN, owners=2, rows=8)
    with pytest.raises(UsageError, match="no worker holds the whole table, to measure on rows"):
        Job(model=model, workers=2, strategy=strategy, validation=0.1)


def test_reads_is_a_merge_of_tables_among_the_workers_only():
    with pytest.raises(UsageError, match='merge="reads" is for sharded tables'):
        recipes.averaging(merge="reads", gradients_until=0.0)


class ReadsWeight(Scores):
    """A penalty on the whole table, which no worker holds."""

    def forward(self, x):
        return super().forward(x) + self.users.weight.sum()


def test_a_module_that_reads_a_tables_weight_is_told_so(tmp_path):
    model = replace(CONFIG, module=f"{__name__}:ReadsWeight")
    with pytest.raises(RunFailedError, match="must look table rows up, and not read weight itself"):
        run(tmp_path / "run", model=model)


def test_a_loop_of_ones_own_refuses_such_tables():
    with pytest.raises(UsageError, match="a loop of one's own holds whole tables"):
        OwnLoop(Scores())
