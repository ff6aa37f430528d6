"""word2vec as a stage: every strategy trains it, on every engine."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from photinus.core.clock import Steps
from photinus.core.errors import NotReadyError, UsageError
from photinus.data.base import Batch
from photinus.embeddings.word2vec import RowDescent, Word2VecStage
from photinus.engine.base import ArrayData
from photinus.models.base import check_model
from photinus.run.evaluate import Draft, load_trained
from photinus.run.job import Job
from photinus.run.train import train, train_draft
from photinus.strategies.outer import Sgd
from photinus.strategies.recipes import all_reduce, averaging, downpour, elastic, gossip, publish

V = 40
STAGE = Word2VecStage(words=V, dims=20, epochs=6.0, batch_size=4, sample=0.0, lr=0.05)


def pairs_of_words(rows=48, seed=0):
    """Sentences of words from one half of the vocabulary each."""
    chance = np.random.default_rng(seed)
    texts = chance.integers(0, V // 2, (rows, 90)).astype(np.int32)
    texts[:, ::9] = -1
    half = np.repeat(chance.integers(0, 2, (rows, 10)), 9, axis=1)
    return np.where(texts < 0, -1, texts + half * (V // 2)).astype(np.int32)


def counts_of(texts):
    return 1 + np.bincount(texts[texts >= 0], minlength=V)


def draft(job, texts):
    made = Draft(job)
    made.model().parameters.view("counts")[:] = counts_of(texts)
    return made


def apart(vectors):
    """Returns the mean cosine within the halves, less that between them."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    near = unit @ unit.T
    half = V // 2
    return near[:half, :half].mean() / 2 + near[half:, half:].mean() / 2 - near[:half, half:].mean()


@pytest.mark.parametrize("cbow", [False, True])
def test_the_model_keeps_the_contract(cbow):
    texts = pairs_of_words(2)

    def make():
        model = replace(STAGE, cbow=cbow, kernel="numpy").build((), 1)
        model.parameters.view("counts")[:] = counts_of(texts)
        model.parameters.trained[:] *= 10
        model.parameters.view("outputs")[:] = model.parameters.view("inputs")[::-1]
        return model

    check_model(make, Batch(texts, None))


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
    texts = pairs_of_words()
    stage = replace(STAGE, epochs=16.0, workers=3, round_words=1500.0)
    job = Job(model=stage, workers=3, engine="simulate", strategy=strategy)
    outcome = train_draft(draft(job, texts), ArrayData(texts), folder=tmp_path / "run")
    assert apart(outcome.model().weight.detach().numpy()) > 0.3
    again, _ = load_trained(tmp_path / "run" / "model")
    assert np.array_equal(again.vector, outcome.vector)
    assert np.array_equal(again.model().parameters.view("counts"), counts_of(texts))


def test_the_kernel_and_the_plain_form_train_the_same_job_to_the_same_numbers(tmp_path):
    texts = pairs_of_words(12)
    vectors = []
    for kernel in ("numba", "numpy"):
        job = Job(model=replace(STAGE, epochs=1.0, kernel=kernel), workers=1, engine="simulate")
        made = train_draft(draft(job, texts), ArrayData(texts), folder=tmp_path / kernel)
        vectors.append(made.vector)
    np.testing.assert_allclose(*vectors, atol=1e-4)


@pytest.mark.processes
def test_two_processes_train_word_vectors(tmp_path):
    texts = pairs_of_words()
    job = Job(model=replace(STAGE, workers=2, epochs=12.0), workers=2, engine="local")
    outcome = train_draft(draft(job, texts), ArrayData(texts), folder=tmp_path / "run")
    assert apart(outcome.model().weight.detach().numpy()) > 0.3


@pytest.mark.parametrize("strategy", [elastic(), downpour(), averaging()], ids=lambda s: s.recipe)
def test_one_worker_trains_the_same_under_any_strategy(strategy, tmp_path):
    texts, stage = pairs_of_words(12), replace(STAGE, epochs=2.0)
    job = Job(model=stage, workers=1, engine="simulate", strategy=strategy)
    made = train_draft(draft(job, texts), ArrayData(texts), folder=tmp_path / "run")
    plain = Job(model=stage, workers=1, engine="simulate", strategy=publish())
    other = train_draft(draft(plain, texts), ArrayData(texts), folder=tmp_path / "other")
    assert np.array_equal(made.vector, other.vector)


def test_rows_of_bytes_are_rows_of_words():
    texts = pairs_of_words(3)
    model, other = STAGE.build((), 1), STAGE.build((), 1)
    for one, features in ((model, texts), (other, texts.view(np.uint8).reshape(3, -1))):
        one.parameters.view("counts")[:] = counts_of(texts)
        RowDescent(STAGE).descend(one, Batch(features, None), 5, 0.0)
    assert np.array_equal(model.parameters.trained, other.parameters.trained)


def test_the_rate_falls_in_a_straight_line_over_the_run():
    rate = RowDescent(replace(STAGE, lr=0.1, least_lr=0.02, kernel="numpy")).rate
    assert [round(rate(at), 3) for at in (0.0, 0.5, 1.0)] == [0.1, 0.06, 0.02]


@pytest.mark.parametrize(
    "strategy", [all_reduce(), averaging(gradients_until=0.5), downpour(payload="gradient")]
)
def test_agreement_on_gradients_is_refused(strategy):
    with pytest.raises(UsageError, match="word vectors take their steps in place"):
        Job(model=STAGE, workers=2, strategy=strategy)


def test_without_counts_nothing_is_trained(tmp_path):
    with pytest.raises(Exception, match="need the count of every word"):
        train(
            Job(model=STAGE, workers=1, engine="simulate"), pairs_of_words(), folder=tmp_path / "r"
        )


def test_missing_numba_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "photinus.embeddings.kernel", None)
    with pytest.raises(NotReadyError, match=r'pip install "photinus\[words\]"'):
        STAGE.inner(STAGE.build((), 0).parameters.layout)
