"""word2vec as a model of a job: every strategy trains it, on every engine."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from gensim.models import Word2Vec

from photinus.checkpoint.mapped import is_mapped
from photinus.checkpoint.store import Store
from photinus.core.clock import Seconds, Steps
from photinus.core.errors import NotReadyError, RunFailedError, UsageError
from photinus.core.events import RoundClosed
from photinus.data.base import Batch
from photinus.embeddings.subwords import Ngrams
from photinus.embeddings.word2vec import RowDescent, Word2VecConfig
from photinus.engine.base import ArrayData
from photinus.engine.simulation.cluster import SimulatedCluster
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.engine.simulation.simulator import Simulation
from photinus.models.base import Model
from photinus.report.ledger import audit
from photinus.run.evaluate import LazyModel, first_parameters, load_trained
from photinus.run.job import Job
from photinus.run.remote_resume import saved_job
from photinus.run.train import resume, train, train_lazy
from photinus.strategies.outer import RowAdagrad, RowAdam, Sgd
from photinus.strategies.recipes import all_reduce, averaging, downpour, elastic, gossip, publish
from photinus.testing import Faults, check_model

V = 40
CONFIG = Word2VecConfig(words=V, dims=20, epochs=6.0, batch_size=4, sample=0.0, lr=0.05)
GRAMS = Ngrams(3, 4, 30).of([f"word{number}" for number in range(V)], first=V)
WITH_GRAMS = replace(CONFIG, buckets=30, grams=len(GRAMS.rows))


def texts_of_two_topics(rows=48, seed=0):
    """Sentences of words from one half of the vocabulary each."""
    rng = np.random.default_rng(seed)
    texts = rng.integers(0, V // 2, (rows, 90)).astype(np.int32)
    texts[:, ::9] = -1
    half = np.repeat(rng.integers(0, 2, (rows, 10)), 9, axis=1)
    return np.where(texts < 0, -1, texts + half * (V // 2)).astype(np.int32)


def counts_of(texts):
    return 1 + np.bincount(texts[texts >= 0], minlength=V)


def filled_model(job, texts):
    lazy_model = LazyModel(job)
    fill(lazy_model.model(), texts)
    return lazy_model


def fill(model, texts):
    """Gives a model what comes with the first parameters."""
    view = model.parameters.view
    view("counts")[:] = counts_of(texts)
    if "gram_rows" in model.parameters.tensors():
        view("gram_starts")[:], view("gram_rows")[:] = GRAMS


def separation(vectors):
    """Returns the mean cosine within the halves, less that between them."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = unit @ unit.T
    half = V // 2
    return (
        cosines[:half, :half].mean() / 2
        + cosines[half:, half:].mean() / 2
        - cosines[:half, half:].mean()
    )


@pytest.mark.parametrize("config", [CONFIG, WITH_GRAMS], ids=["words", "n-grams"])
@pytest.mark.parametrize("cbow", [False, True])
def test_the_model_keeps_the_contract(cbow, config):
    texts = texts_of_two_topics(2)

    def make():
        model = replace(config, cbow=cbow, kernel="numpy").build((), 1)
        fill(model, texts)
        model.parameters.trained[:] *= 10
        model.parameters.view("outputs")[:] = model.parameters.view("inputs")[V - 1 :: -1]
        return model

    check_model(make, Batch(texts, None))


@pytest.mark.parametrize("cbow", [False, True], ids=["skip-gram", "cbow"])
@pytest.mark.parametrize("negatives", [0, 5], ids=["hierarchical softmax", "negatives"])
def test_topics_are_told_apart_as_well_as_by_gensim(cbow, negatives, tmp_path):
    texts = texts_of_two_topics(96)
    rows = [row[row >= 0].reshape(-1, 8) for row in texts]
    sentences = [[str(word) for word in sentence] for row in rows for sentence in row]
    counts = counts_of(texts)
    gensim_model = Word2Vec(
        vector_size=20, alpha=0.05, min_count=1, sample=0, workers=1, seed=1, epochs=10,
        sg=int(not cbow), hs=int(not negatives), negative=negatives,
    )  # fmt: skip
    gensim_model.build_vocab_from_freq({str(word): int(counts[word]) for word in range(V)})
    gensim_model.train(sentences, total_examples=len(sentences), epochs=10)
    expected = separation(np.stack([gensim_model.wv[str(word)] for word in range(V)]))
    config = replace(CONFIG, cbow=cbow, negatives=negatives, epochs=10.0, batch_size=2)
    job = Job(model=config, workers=1, engine="simulate", strategy=publish())
    outcome = train_lazy(filled_model(job, texts), ArrayData(texts), folder=tmp_path / "run")
    assert expected > 0.3
    assert separation(outcome.model().weight.detach().numpy()) > expected - 0.1


@pytest.mark.parametrize(
    "strategy",
    [
        averaging(every=Steps(4), outer=Sgd(), merge="uniform"),
        averaging(),
        downpour(every=Steps(4)),
        publish(every=Steps(4)),
        gossip(every=Steps(4)),
    ],
    ids=lambda strategy: str(strategy).partition(",")[0],
)
def test_every_strategy_over_parameters_tells_two_topics_apart(strategy, tmp_path):
    texts = texts_of_two_topics()
    config = replace(CONFIG, epochs=16.0, workers=3, round_words=1500.0)
    job = Job(model=config, workers=3, engine="simulate", strategy=strategy)
    outcome = train_lazy(filled_model(job, texts), ArrayData(texts), folder=tmp_path / "run")
    assert separation(outcome.model().weight.detach().numpy()) > 0.3
    loaded, _ = load_trained(tmp_path / "run" / "model")
    assert np.array_equal(loaded.vector, outcome.vector)
    assert np.array_equal(loaded.model().parameters.view("counts"), counts_of(texts))


def test_the_kernel_and_the_plain_form_train_the_same_job_to_the_same_numbers(tmp_path):
    texts = texts_of_two_topics(12)
    vectors = []
    for kernel in ("numba", "numpy"):
        job = Job(model=replace(CONFIG, epochs=1.0, kernel=kernel), workers=1, engine="simulate")
        outcome = train_lazy(filled_model(job, texts), ArrayData(texts), folder=tmp_path / kernel)
        vectors.append(outcome.vector)
    np.testing.assert_allclose(*vectors, atol=1e-4)


@pytest.mark.processes
def test_two_processes_train_word_vectors(tmp_path):
    texts = texts_of_two_topics()
    job = Job(model=replace(CONFIG, workers=2, epochs=12.0), workers=2, engine="local")
    outcome = train_lazy(filled_model(job, texts), ArrayData(texts), folder=tmp_path / "run")
    assert separation(outcome.model().weight.detach().numpy()) > 0.3


@pytest.mark.parametrize("strategy", [elastic(), downpour(), averaging()], ids=lambda s: s.recipe)
def test_one_worker_trains_the_same_under_any_strategy(strategy, tmp_path):
    texts, config = texts_of_two_topics(12), replace(CONFIG, epochs=2.0)
    job = Job(model=config, workers=1, engine="simulate", strategy=strategy)
    outcome = train_lazy(filled_model(job, texts), ArrayData(texts), folder=tmp_path / "run")
    plain_job = Job(model=config, workers=1, engine="simulate", strategy=publish())
    plain_outcome = train_lazy(
        filled_model(plain_job, texts), ArrayData(texts), folder=tmp_path / "other"
    )
    assert np.array_equal(outcome.vector, plain_outcome.vector)


def test_rows_of_bytes_are_rows_of_words():
    texts = texts_of_two_topics(3)
    model, bytes_model = CONFIG.build((), 1), CONFIG.build((), 1)
    for one, features in ((model, texts), (bytes_model, texts.view(np.uint8).reshape(3, -1))):
        one.parameters.view("counts")[:] = counts_of(texts)
        RowDescent(CONFIG).descend(one, Batch(features, None), 5, 0.0)
    assert np.array_equal(model.parameters.trained, bytes_model.parameters.trained)


def test_the_rate_falls_in_a_straight_line_over_the_run():
    rate = RowDescent(replace(CONFIG, lr=0.1, least_lr=0.02, kernel="numpy")).rate
    assert [round(rate(at), 3) for at in (0.0, 0.5, 1.0)] == [0.1, 0.06, 0.02]


@pytest.mark.parametrize(
    "strategy", [all_reduce(), averaging(gradients_until=0.5), downpour(payload="gradient")]
)
def test_agreement_on_gradients_is_refused(strategy):
    with pytest.raises(UsageError, match="a Word2VecConfig updates its tables in place"):
        Job(model=CONFIG, workers=2, strategy=strategy)


def test_without_counts_nothing_is_trained(tmp_path):
    with pytest.raises(Exception, match="need the count of every word"):
        train(
            Job(model=CONFIG, workers=1, engine="simulate"),
            texts_of_two_topics(),
            folder=tmp_path / "r",
        )


def test_missing_numba_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "photinus.embeddings.kernel", None)
    with pytest.raises(NotReadyError, match=r'pip install "photinus\[words\]"'):
        CONFIG.inner(CONFIG.build((), 0).parameters.layout)


# -- a sharded table --------------------------------------------------------------------

MEAN = {"every": Steps(4), "outer": Sgd(), "merge": "uniform", "gradients_until": 0.0}


def train_table(
    folder,
    workers=3,
    faults=None,
    lr=0.05,
    callbacks=(),
    seconds=60.0,
    start="",
    base=CONFIG,
    step_seconds=0.01,
    **parts,
):
    config = replace(base, epochs=16.0, workers=workers, round_words=1500.0, lr=lr)
    strategy = averaging(**{**MEAN, "codec": "fp32", "owners": workers, **parts})
    settings = {"start": start, "checkpoint_seconds": seconds}
    job = Job(model=config, workers=workers, engine="simulate", strategy=strategy, **settings)
    texts = texts_of_two_topics()
    cluster = SimulatedCluster(faults=faults or Faults(), step_seconds=step_seconds)
    engine = SimulatedEngine(cluster)
    lazy_model, data = filled_model(job, texts), ArrayData(texts)
    return train_lazy(lazy_model, data, folder=folder, engine=engine, callbacks=list(callbacks))


def trained_inputs(outcome):
    return outcome.trained.model().parameters.view("inputs")


@pytest.mark.parametrize("config", [CONFIG, WITH_GRAMS], ids=["words", "n-grams"])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_sharded_table_ends_with_the_bits_of_whole_ones(workers, config, tmp_path):
    whole = train_table(tmp_path / "whole", workers, base=config)
    sharded = train_table(tmp_path / "sharded", workers, rows=CONFIG.dims, base=config)
    one, other = (outcome.trained.model().parameters.trained for outcome in (whole, sharded))
    assert abs(one).max() > 0.1
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "outer", [Sgd(), RowAdagrad(lr=0.3), RowAdam(lr=0.03)], ids=lambda outer: outer.name
)
def test_with_owners_lost_one_after_the_other_the_table_ends_with_the_same_bits(outer, tmp_path):
    faults, settings = (
        Faults().kill(slot=1, step=9).kill(2, 20),
        {"outer": outer, "rows": CONFIG.dims},
    )
    whole, outcome = (
        train_table(tmp_path / "whole", **settings),
        train_table(tmp_path / "run", faults=faults, **settings),
    )
    assert np.array_equal(outcome.vector, whole.vector)
    assert '"back"' not in (outcome.folder / "ledger.jsonl").read_text()


@pytest.mark.parametrize("outer", [Sgd(), RowAdagrad(lr=0.3)], ids=lambda outer: outer.name)
def test_owners_of_unlike_speed_that_wait_for_no_steps_tell_two_topics_apart(outer, tmp_path):
    faults, speeds = Faults().kill(slot=2, step=9), (0.01, 0.01, 0.05)
    settings = {"outer": outer, "rows": CONFIG.dims, "release": "immediate"}
    outcome = train_table(tmp_path, faults=faults, step_seconds=speeds, **settings)
    assert separation(trained_inputs(outcome)) > 0.3
    report = audit(tmp_path / "ledger.jsonl")
    assert report.is_exact, report.offences


def test_where_two_workers_never_reach_each_other_again_the_run_ends(tmp_path, monkeypatch):
    original_init = Simulation.__init__

    def cut(self, *args, **kwargs):
        original_init(self, *args, **kwargs)
        self.at(0.2, self.cut, 0, 1)

    monkeypatch.setattr(Simulation, "__init__", cut)
    message = (
        r"agreed on nothing after version \d+; got 10 times one .*; repair the network; resume"
    )
    with pytest.raises(RunFailedError, match=message):
        train_table(tmp_path, workers=2, rows=CONFIG.dims)


@pytest.mark.parametrize(
    "outer", [RowAdagrad(lr=0.3), RowAdam(lr=0.03)], ids=lambda outer: outer.name
)
def test_an_optimizer_at_the_owners_and_bf16_tell_two_topics_apart(outer, tmp_path):
    settings = {"outer": outer, "codec": "bf16", "rows": CONFIG.dims}
    assert separation(trained_inputs(train_table(tmp_path, **settings))) > 0.3


@pytest.mark.parametrize("kernel", ["numba", "torch", "numpy"])
@pytest.mark.parametrize(("cbow", "negatives"), [(False, 5), (True, 3), (False, 0)])
def test_a_step_changes_no_row_that_was_not_named(kernel, cbow, negatives):
    texts = texts_of_two_topics(4)
    config = replace(CONFIG, kernel=kernel, cbow=cbow, negatives=negatives, sample=1e-2, words=400)
    model = config.build((), 1)
    model.parameters.view("counts")[:] = 1 + np.arange(400)
    before = model.parameters.trained.copy()
    named_rows = model.rows(Batch(texts, None), 77)
    for _ in range(2):  # outputs of 0 leave the inputs where they are
        RowDescent(config).descend(model, Batch(texts, None), 77, 0.0)
    changed = (model.parameters.trained != before).reshape(-1, config.dims).any(axis=1)
    assert np.isin(np.flatnonzero(changed), named_rows).all()
    assert 0.5 * len(named_rows) < changed.sum() <= len(named_rows) < 2 * config.words


def test_a_worker_holds_no_table_before_its_rows_come():
    model = CONFIG.blank((), 1)
    assert not model.parameters.trained.any()
    model.parameters.view("inputs")[:] = 1.0
    model.forget()
    assert not model.parameters.trained.any()


@pytest.mark.parametrize("workers", [1, 3])
def test_a_worker_forgets_the_counts_after_its_first_step_and_trains_on_as_before(workers):
    config = replace(CONFIG, workers=workers, round_words=1500.0)
    steps, texts, trained_values = RowDescent(config), Batch(texts_of_two_topics(4), None), []
    for forgets in (True, False):
        model = config.blank((), 1)
        fill(model, texts.features)
        model.parameters.view("inputs")[:] = config.build((), 1).parameters.view("inputs")
        first = model.parameters.trained.copy()
        model.forget()  # as its rows come: nothing was made of the counts yet
        assert model.parameters.view("counts").all()
        model.parameters.trained[:] = first
        for seed in (1, 2):
            steps.descend(model, texts, seed, 0.0)
            values = model.parameters.trained.copy()
            if forgets:
                model.forget()
                assert not model.parameters.view("counts").any()
                model.parameters.trained[:] = values
        trained_values.append(values)
    assert np.array_equal(*trained_values)


def test_rows_of_ngrams_stay_when_a_worker_forgets():
    model = WITH_GRAMS.blank((), 1)
    fill(model, texts_of_two_topics(4))
    RowDescent(WITH_GRAMS).descend(model, Batch(texts_of_two_topics(4), None), 1, 0.0)
    model.forget()
    assert np.array_equal(model.parameters.view("gram_rows"), GRAMS.rows)


def test_values_that_are_not_finite_end_the_run(tmp_path):
    with pytest.raises(RunFailedError, match="pushed values that are not finite; look at its rows"):
        train_table(tmp_path, rows=CONFIG.dims, lr=1e30)


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"strategy": averaging(**MEAN, owners=2, rows=7)}, "which rows a batch reads"),
        ({"strategy": averaging(**MEAN, rows=20)}, "owners must be 2, the number of workers"),
        ({"strategy": averaging(**MEAN, owners=2, rows=20), "validation": 0.1}, "measure"),
    ],
)
def test_a_job_that_cannot_be_sharded_is_refused(fields, wrong):
    with pytest.raises(UsageError, match=wrong):
        Job(model=CONFIG, workers=2, **fields)


@pytest.mark.parametrize(
    "parts",
    [
        {"merge": "nova"},
        {"every": Seconds(1.0)},
        {"codec_down": "fp32"},
    ],
    ids=lambda parts: next(iter(parts)),
)
def test_what_no_owner_can_merge_by_rows_is_refused(parts):
    with pytest.raises(
        UsageError,
        match=r"rows in rounds are for deltas|`every` must be Steps|in fp32 or bf16 both ways",
    ):
        averaging(**{**MEAN, "owners": 2, "rows": 8, **parts})


def test_word_vectors_in_shards_have_no_start_by_gradients():
    strategy = averaging(**MEAN | {"gradients_until": 0.5}, owners=2, rows=CONFIG.dims)
    with pytest.raises(UsageError, match="workers cannot agree on gradients"):
        Job(model=CONFIG, workers=2, strategy=strategy)


@pytest.mark.parametrize("dims", [CONFIG.dims, 9])
@pytest.mark.parametrize("kernel", ["numba", "numpy"])
@pytest.mark.parametrize("workers", [1, 3, 7])
def test_a_worker_draws_the_rows_that_a_whole_table_would_have(workers, kernel, dims, monkeypatch):
    monkeypatch.setattr("photinus.embeddings.word2vec._DRAWN", 5 * CONFIG.dims)
    config = replace(CONFIG, kernel=kernel, dims=dims)
    whole = config.build((), 3).parameters.trained.reshape(-1, dims)
    for slot in range(workers):
        shard = np.zeros((len(range(slot, 2 * V, workers)), dims), np.float32)
        config.blank((), 3).first_rows(shard, slot, 3, workers)
        assert np.array_equal(shard, whole[slot::workers])
        Model.first_rows(config.build((), 3), shard, slot, 3, workers)
        assert np.array_equal(shard, whole[slot::workers])


def test_neither_the_first_nor_the_trained_table_is_in_the_drivers_memory(tmp_path):
    outcome = train_table(tmp_path, rows=CONFIG.dims)
    job = saved_job(outcome.folder, str(outcome.folder), False)[0]
    [[first, *_]] = first_parameters(LazyModel(job)).values()
    assert first.size == 0
    assert outcome.trained.is_mapped
    assert is_mapped(outcome.vector)
    assert is_mapped(outcome.trained.model().parameters.trained)
    saved, _ = load_trained(outcome.folder / "model")
    assert np.array_equal(saved.vector, outcome.vector)


@pytest.fixture
def _small_pages(monkeypatch):
    for module in ("photinus.training.shard_pages", "photinus.coordinator.sharded_table"):
        monkeypatch.setattr(f"{module}.PAGE_NUMBERS", 3 * CONFIG.dims)


def stop_at(version):
    def callback(event):
        if isinstance(event, RoundClosed) and event.version == version:
            raise InterruptedError

    return callback


def write_older_checkpoints(folder, in_slots):
    """Rewrites a run's checkpoints as they were when a shard's file held all of its rows.

    Before that a worker's own file held its owner's optimizer.
    """
    store = Store(folder / "checkpoints")
    for name in store.names():
        snapshot, files = store.load(name), {}
        for file, arrays in snapshot.files.items():
            files[file] = {n: np.array(a) for n, a in arrays.items()}
        shards = [f for f in files if f.startswith("shard-")]
        for slot, file in enumerate(shards):
            assert set(files[file]) == {"at", "first", "vector", "outer.0"}
            rows = np.zeros((len(range(slot, 2 * V, len(shards))), CONFIG.dims), np.float32)
            CONFIG.blank((), 0).first_rows(rows, slot, 0, len(shards))
            whole_arrays = {"vector": rows, "outer.0": np.zeros((len(rows), 1), np.float32)}
            positions = files[file]["at"].ravel()
            for array, numbers in whole_arrays.items():
                numbers[positions] = files[file][array]
            files[file] = {array: numbers.ravel() for array, numbers in whole_arrays.items()}
            if in_slots:
                outer = {"agreement.outer.0": files[file].pop("outer.0")}
                files[f"slot-{int(file[6:]):03d}"] = outer
        store.save(name, snapshot.meta, files)


@pytest.mark.usefixtures("_small_pages")
@pytest.mark.parametrize("written", ["today", "whole", "in slots"])
def test_a_run_continues_from_the_shards_of_its_checkpoint_with_the_same_bits(tmp_path, written):
    settings = {"outer": RowAdagrad(lr=0.3), "rows": CONFIG.dims}
    whole = train_table(tmp_path / "whole", **settings)
    texts = texts_of_two_topics()
    with pytest.raises(InterruptedError):
        train_table(tmp_path / "run", callbacks=[stop_at(34)], seconds=0.2, **settings)
    names = Store(tmp_path / "run/checkpoints").names()
    assert 4 < int(names[-1][-9:]) < 34, "a checkpoint within the phase"
    if written != "today":
        write_older_checkpoints(tmp_path / "run", written == "in slots")
    resumed = resume(tmp_path / "run", ArrayData(texts))
    assert np.array_equal(resumed.vector, whole.vector)
    assert not list((tmp_path / "run/checkpoints/.pages").iterdir())


@pytest.mark.usefixtures("_small_pages")
def test_a_sharded_table_starts_from_a_saved_one(tmp_path):
    first = train_table(tmp_path / "first", rows=CONFIG.dims)
    whole = train_table(tmp_path / "whole", start=str(first.folder / "model"))
    sharded = train_table(tmp_path / "sharded", start=str(first.folder / "model"), rows=CONFIG.dims)
    assert not np.array_equal(first.vector, whole.vector)
    assert np.array_equal(sharded.vector, whole.vector)


def test_counts_stay_with_every_worker(tmp_path):
    outcome = train_table(tmp_path, rows=CONFIG.dims)
    counts = outcome.trained.model().parameters.view("counts")
    assert counts.tolist() == counts_of(texts_of_two_topics()).tolist()


@pytest.mark.parametrize(("given", "first"), [({}, 0.025), ({"cbow": True}, 0.05)])
def test_left_out_the_rate_is_that_of_the_authors_program(given, first):
    config = replace(CONFIG, lr=None, **given)
    assert RowDescent(config).rate(0.0) == pytest.approx(first)
    assert RowDescent(replace(config, lr=0.3)).rate(0.0) == pytest.approx(0.3)
