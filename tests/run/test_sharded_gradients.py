"""Jobs whose module has sharded tables and whose workers agree on every step's gradient."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from photinus.checkpoint.store import Store
from photinus.core.errors import UsageError
from photinus.core.events import RoundClosed
from photinus.embeddings.word2vec import Word2VecConfig
from photinus.engine.base import ArrayData
from photinus.engine.simulation.cluster import SimulatedCluster
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.models import row_steps
from photinus.models.schedules import Schedule
from photinus.report.ledger import audit
from photinus.run.job import Job
from photinus.run.train import resume, train
from photinus.strategies import recipes
from photinus.testing import Faults
from tests.run.scores import CONFIG, DIM, ITEMS, Scores, events, run, went_back

BATCH = 10
ROW = {"sgd": DIM, "adagrad": DIM + 1, "adam": 2 * DIM + 2}


class Deep(Scores):
    """With layers of several shapes beside the tables; it notes what it is trained on."""

    batches = []  # noqa: RUF012 - of all workers of a simulator, one after the other

    def __init__(self, optimizer="adagrad"):
        super().__init__(optimizer)
        self.inside = nn.Sequential(nn.Linear(DIM, 7), nn.Tanh(), nn.Linear(7, DIM))

    def forward(self, x):
        user, item = x.long().T
        if torch.is_grad_enabled():
            self.batches.append(x.numpy().copy())
        return self.out(self.inside(self.users(user) * self.items(item)))


DEEP = replace(
    CONFIG, module=f"{__name__}:Deep", arguments={"optimizer": "adagrad"}, max_steps=12,
    batch_size=BATCH, optimizer="adamw", settings={"weight_decay": 0.1}, lr=Schedule.cosine(0.02),
)  # fmt: skip


def plain_steps(config, batches, budget):
    """Returns the numbers of one process that takes each of these batches of all rows as a step."""
    model = replace(config, sharded=ROW[config.arguments["optimizer"]]).build((), 0)
    tables = {name: model.table(name).copy() for name in model.embeddings}  # [N, D + S]
    module = model.filled()
    dense = [p for name, p in module.named_parameters() if name not in tables]
    optimizer = torch.optim.AdamW(dense, **config.settings)
    by_row = row_steps.OPTIMIZERS[config.arguments["optimizer"]]
    done = 0
    for x in batches:
        rate = config.lr.at(done / budget)
        done += len(x)
        optimizer.param_groups[0]["lr"] = rate
        module.zero_grad()
        labels = torch.from_numpy((x[:, 0] % 2 == x[:, 1] % 2).astype(np.int64))
        nn.functional.cross_entropy(module(torch.from_numpy(x)), labels).backward()
        if config.clip:
            norm = nn.utils.clip_grad_norm_(module.parameters(), config.clip)
            assert norm > 2 * config.clip
        optimizer.step()
        for (name, table), ids in zip(tables.items(), x.T.astype(int), strict=True):
            read, weight = np.unique(ids), module.get_parameter(name)
            rows = table[read]
            by_row.step(rows, weight.grad[read].numpy(), by_row.rate * rate / config.lr.at(0.0))
            table[read] = rows
            weight.data[read] = torch.from_numpy(rows[:, :DIM])
    return {name: value.numpy() for name, value in module.state_dict().items()}


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
@pytest.mark.parametrize(
    ("optimizer", "clip"),
    [("sgd", 0.0), ("adagrad", 0.0), ("adam", 0.0), ("sgd", 0.01), ("adagrad", 0.01)],
)
def test_it_is_one_process_with_the_batches_of_all_workers(
    optimizer, clip, workers, tmp_path, monkeypatch
):
    batches = []
    monkeypatch.setattr(Deep, "batches", batches)
    config = replace(DEEP, arguments={"optimizer": optimizer}, clip=clip)
    strategy = recipes.all_reduce()
    job = Job(model=config, workers=workers, engine="simulate", strategy=strategy)
    data = ArrayData(*events(12 * BATCH))
    outcome = train(job, data, folder=tmp_path, verbose=False)
    steps = [np.concatenate(batches[n : n + workers]) for n in range(0, len(batches), workers)]
    assert len(steps) == 12
    expected = plain_steps(config, steps, 12 * BATCH)
    assert expected.keys() == outcome.state_dict().keys()
    for name, value in expected.items():
        np.testing.assert_allclose(outcome.state_dict()[name], value, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("faults", [Faults().nan(1, 5), Faults().no_memory(1, 5)])
@pytest.mark.parametrize("strategy", [recipes.all_reduce(), recipes.averaging(gradients_until=0.0)])
def test_a_fault_of_a_gradient_is_refused_where_rows_are_stepped(faults, strategy, tmp_path):
    job = Job(model=DEEP, workers=2, engine="simulate", strategy=strategy)
    engine = SimulatedEngine(SimulatedCluster(faults=faults))
    with pytest.raises(UsageError, match=r"a fault of a gradient needs .*; got n.*; use another"):
        train(job, ArrayData(*events(120)), folder=tmp_path, engine=engine, verbose=False)


class Looking(Deep):
    """It reads another row for each item, too, by which nothing is differentiated."""

    def forward(self, x):
        user, item = x.long().T
        self.batches.append(x.numpy().copy()) if torch.is_grad_enabled() else None
        other = self.items((item + 1) % ITEMS).detach()
        return self.out(self.inside(self.users(user) * (self.items(item) + other)))


def test_a_row_that_is_read_without_a_gradient_stays_where_it_is(tmp_path, monkeypatch):
    batches = []
    monkeypatch.setattr(Deep, "batches", batches)
    config = replace(DEEP, module=f"{__name__}:Looking", arguments={"optimizer": "adam"})
    job = Job(model=config, workers=2, engine="simulate", strategy=recipes.all_reduce())
    outcome = train(job, ArrayData(*events(12 * BATCH)), folder=tmp_path, verbose=False)
    steps = [np.concatenate(batches[n : n + 2]) for n in range(0, len(batches), 2)]
    for name, value in plain_steps(config, steps, 12 * BATCH).items():
        np.testing.assert_allclose(outcome.state_dict()[name], value, rtol=2e-4, atol=2e-6)


BRIEF = replace(CONFIG, epochs=0.7, lr=Schedule.cosine(0.02))  # 65 steps: for tests of bits
NORMED = "tests.run.scores:Normed"
CLIPPED = replace(BRIEF, clip=0.01, module=NORMED)


def run_by_gradients(folder, **fields):
    strategy = recipes.all_reduce(**fields.pop("parts", {}))
    return run(folder, **{"model": BRIEF, "strategy": strategy, **fields})


def trained_vector(outcome):
    return outcome.trained.model().parameters.trained


@pytest.fixture(scope="module")
def exact_vector(tmp_path_factory):
    """Of a run in fp32."""
    return trained_vector(run_by_gradients(tmp_path_factory.mktemp("exact")))


@pytest.fixture(scope="module")
def normed_vector(tmp_path_factory):
    """Of a run whose module keeps statistics."""
    model = replace(BRIEF, module=NORMED)
    return trained_vector(run_by_gradients(tmp_path_factory.mktemp("normed"), model=model))


@pytest.fixture(scope="module")
def clipped_vector(normed_vector, tmp_path_factory):
    """Of a run whose gradients are shortened."""
    vector = trained_vector(run_by_gradients(tmp_path_factory.mktemp("clipped"), model=CLIPPED))
    assert (vector != normed_vector).any()
    return vector


def test_with_nothing_else_set_many_workers_learn_as_one_process_does(tmp_path):
    outcome = run(tmp_path, 3, strategy=recipes.all_reduce())
    assert outcome.metrics["error"] < 0.03


def test_in_few_bits_it_ends_near_fp32(exact_vector, tmp_path):
    start = replace(BRIEF, sharded=DIM + 1).build((), 0).parameters.trained
    moved = np.linalg.norm(exact_vector - start)
    for codec, most in (("bf16", 0.01), ("int8", 0.02), ("int4", 0.2)):
        outcome = run_by_gradients(tmp_path / codec, parts={"codec": codec})
        off = np.linalg.norm(exact_vector - trained_vector(outcome))
        assert 0 < off < most * moved, codec


@pytest.mark.parametrize("seconds", [1e6, 0.1], ids=["from the start", "from a checkpoint"])
@pytest.mark.parametrize(
    "faults",
    [
        Faults().kill(slot=1, step=40),
        Faults().kill(slot=1, step=5).kill(slot=2, step=25).kill(slot=0, step=50),
        Faults().freeze(slot=1, step=40, seconds=9.0),
    ],
    ids=["one", "one after the other", "frozen"],
)
def test_a_lost_owners_rows_and_its_optimizer_are_restored_to_the_bit(
    faults, seconds, normed_vector, tmp_path
):
    model = replace(BRIEF, module=NORMED)
    fields = {"model": model, "faults": faults, "checkpoint_seconds": seconds}
    outcome = run_by_gradients(tmp_path / "run", **fields)
    assert went_back(outcome) == 0
    np.testing.assert_array_equal(trained_vector(outcome), normed_vector)
    report = audit(outcome.folder / "ledger.jsonl")
    assert report.is_exact, report.offences


@pytest.mark.parametrize(
    "faults",
    [
        Faults().kill(slot=1, step=5).kill(slot=2, step=25).kill(slot=0, step=50),
        Faults().kill(slot=1, step=40).kill(slot=2, step=40),
        Faults().freeze(slot=1, step=40, seconds=9.0),
        Faults().lose(0.05).double(0.05),
    ],
    ids=["one after the other", "two at once", "frozen", "frames lost and doubled"],
)
def test_faults_leave_the_bits_of_gradients_that_all_owners_shorten(
    faults, clipped_vector, tmp_path
):
    fields = {"model": CLIPPED, "faults": faults, "checkpoint_seconds": 0.1}
    outcome = run_by_gradients(tmp_path / "run", **fields)
    np.testing.assert_array_equal(trained_vector(outcome), clipped_vector)
    report = audit(outcome.folder / "ledger.jsonl")
    assert report.is_exact, report.offences


def run_over_slow_links(folder, faults, clip):
    """Returns the outcome of some steps without checkpoints, and its virtual seconds."""
    engine = SimulatedEngine(SimulatedCluster(faults=faults, latency_seconds=0.05))
    job = Job(
        model=replace(BRIEF, epochs=0.2, clip=clip), workers=3, engine="simulate",
        checkpoint_seconds=1e6, strategy=recipes.all_reduce(),
    )  # fmt: skip
    outcome = train(job, ArrayData(*events()), folder=folder, engine=engine, verbose=False)
    return outcome, engine.seconds


@pytest.mark.parametrize("clip", [0.0, 0.01])
def test_at_whatever_point_of_a_step_an_owner_is_lost_the_bits_are_the_same(clip, tmp_path):
    first, seconds = run_over_slow_links(tmp_path / "whole", Faults(), clip)
    for n in range(12):
        faults = Faults().kill(n % 3, at_seconds=seconds * (0.5 + 0.011 * n))
        outcome, _ = run_over_slow_links(tmp_path / f"{n}", faults, clip)
        assert went_back(outcome) == 0
        np.testing.assert_array_equal(trained_vector(outcome), trained_vector(first))


def test_with_two_owners_lost_at_once_it_goes_back_and_ends_with_the_same_bits(
    exact_vector, tmp_path
):
    faults = Faults().kill(slot=1, step=40).kill(slot=2, step=40)
    outcome = run_by_gradients(tmp_path / "run", faults=faults, checkpoint_seconds=0.1)
    assert went_back(outcome) == 1
    np.testing.assert_array_equal(trained_vector(outcome), exact_vector)


@pytest.mark.parametrize(
    ("codec", "module", "last"), [("fp32", "Normed", 15), ("int4", "Scores", 50)]
)
def test_a_run_that_was_stopped_continues_with_the_same_bits(codec, module, last, tmp_path):
    model = replace(BRIEF, module=f"tests.run.scores:{module}")
    fields = {"checkpoint_seconds": 0.05, "model": model, "parts": {"codec": codec}}
    whole = run_by_gradients(tmp_path / "whole", **fields)

    def stop(event):
        if isinstance(event, RoundClosed) and event.version == last:
            raise InterruptedError

    job = Job(
        model=model, workers=3, engine="simulate", checkpoint_seconds=0.05,
        strategy=recipes.all_reduce(codec=codec),
    )  # fmt: skip
    data = ArrayData(*events())
    with pytest.raises(InterruptedError):
        train(job, data, folder=tmp_path / "run", callbacks=[stop], verbose=False)
    names = Store(tmp_path / "run/checkpoints").names()
    assert 0 < int(names[-1][-9:]) < last, "a checkpoint within the phase"
    resumed = resume(tmp_path / "run", data, verbose=False)
    np.testing.assert_array_equal(trained_vector(whole), trained_vector(resumed))


@pytest.mark.parametrize("device", ["stand-in", ("stand-in", "cpu", "stand-in:1")])
def test_on_devices_it_has_the_bits_of_the_processor(device, normed_vector, tmp_path):
    model = replace(BRIEF, module=NORMED)
    outcome = run_by_gradients(tmp_path, model=model, device=device)
    np.testing.assert_array_equal(trained_vector(outcome), normed_vector)


def test_workers_without_rows_step_those_that_they_own_for_the_others(tmp_path, monkeypatch):
    batches = []
    monkeypatch.setattr(Deep, "batches", batches)
    config = replace(DEEP, max_steps=6)
    strategy = recipes.all_reduce()
    job = Job(model=config, workers=7, engine="simulate", strategy=strategy)
    outcome = train(job, ArrayData(*events(5)), folder=tmp_path, verbose=False)
    steps = [np.concatenate(batches[n : n + 5]) for n in range(0, len(batches), 5)]
    assert len(steps) == 6
    for name, value in plain_steps(config, steps, 6 * 5).items():
        np.testing.assert_allclose(outcome.state_dict()[name], value, rtol=2e-4, atol=2e-6)


@pytest.mark.processes
def test_processes_end_with_the_bits_of_the_simulator(exact_vector, tmp_path):
    outcome = run_by_gradients(tmp_path, engine="local")
    np.testing.assert_array_equal(trained_vector(outcome), exact_vector)


def test_a_model_of_word_vectors_takes_no_gradients():
    model = Word2VecConfig(words=20, dims=8)
    with pytest.raises(UsageError, match="updates its tables in place: workers cannot agree on"):
        Job(model=model, workers=2, strategy=recipes.all_reduce(owners=2, rows=8))
