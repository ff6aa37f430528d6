"""The steps of other devices are those of the plain form, of some centres together."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from photinus.core.errors import UsageError
from photinus.core.threads import limit_threads
from photinus.data.base import Batch
from photinus.embeddings import reference, torch_steps
from photinus.embeddings.subwords import Ngrams
from photinus.embeddings.torch_steps import TorchSteps
from photinus.embeddings.vocabulary import NO_GRAMS, draw_tables
from photinus.embeddings.word2vec import RowDescent, Word2VecConfig
from photinus.engine.base import ArrayData
from photinus.run.evaluate import LazyModel
from photinus.run.job import Job
from photinus.run.train import train_lazy
from photinus.strategies.outer import Sgd
from photinus.strategies.recipes import averaging
from photinus.training.placement import device_for, fresh

V, B, D = 60, 40, 20
CPU = torch.device("cpu")
GRAMS = Ngrams(3, 4, B).of([f"word{number}" for number in range(V)], first=V)
CONFIG = Word2VecConfig(words=V, dims=D, epochs=4.0, batch_size=4, sample=0.0, lr=0.05)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Many small operations of several threads wait for each other on a busy machine."""
    with limit_threads(1):
        yield


def texts(rows=12):
    """Sentences of ten words, of which none occurs twice."""
    rng = np.random.default_rng(0)
    sentences = np.array([[rng.permutation(V)[:10] for _ in range(9)] for _ in range(rows)])
    return (
        np.pad(sentences, ((0, 0), (0, 0), (0, 1)), constant_values=-1)
        .astype("<i4")
        .reshape(rows, -1)
    )


def counts(rows):
    return np.bincount(rows[rows >= 0], minlength=V)


def tables():
    rng = np.random.default_rng(1)
    vectors = 0.3 * rng.standard_normal((2 * V + B, D)).astype(np.float32)
    gains = rng.uniform(0.5, 1.5, 2 * V + B).astype(np.float32)
    return reference.Tables(vectors[: V + B], vectors[V + B :], gains[: V + B], gains[V + B :])


def largest_after_training(lr, together=0, rows=20):
    """Returns the largest number of both tables after six passes over a text."""
    rule, word_tables, text = reference.Rule(5, 5, False), tables(), texts(rows)
    chances, seeds = draw_tables(counts(text), 0, 5, NO_GRAMS), np.arange(rows)
    for _ in range(6):
        TorchSteps(CPU, together).descend(text, word_tables, chances, rule, lr, seeds)
    return np.abs(np.concatenate(word_tables[:2])).max()


@pytest.mark.numerics
@pytest.mark.parametrize("cbow", [False, True], ids=["skip-gram", "cbow"])
@pytest.mark.parametrize("negatives", [0, 1, 5, 9])
@pytest.mark.parametrize("grams", [NO_GRAMS, GRAMS], ids=["words", "n-grams"])
def test_centres_that_step_alone_take_the_steps_of_the_plain_form(cbow, negatives, grams):
    torch_tables, plain_tables, initial, rows = tables(), tables(), tables(), texts(3)
    chances, rule = (
        draw_tables(counts(rows), 1e-1, negatives, grams),
        reference.Rule(5, negatives, cbow),
    )
    seeds = np.array([5, 6, 7])
    totals = TorchSteps(CPU, together=1).descend(rows, torch_tables, chances, rule, 0.05, seeds)
    for row, seed in zip(rows, seeds, strict=True):
        reference.descend(row, plain_tables, chances, rule, 0.05, int(seed))
    assert abs(plain_tables.inputs - initial.inputs).max() > 0.05
    np.testing.assert_allclose(torch_tables.inputs, plain_tables.inputs, atol=1e-5)
    np.testing.assert_allclose(torch_tables.outputs, plain_tables.outputs, atol=1e-5)
    assert totals[1] > 0
    assert np.isfinite(totals[0])


def test_frequent_words_stay_in_bounds_at_a_rate_at_which_large_steps_do_not():
    assert largest_after_training(0.2) < 10  # below 4 on each processor tried
    assert largest_after_training(0.2, together=4096) > 1e3


@pytest.mark.parametrize("grams", [NO_GRAMS, GRAMS], ids=["words", "n-grams"])
def test_steps_are_cut_where_their_rows_would_take_much_memory(grams, monkeypatch):
    rows, rule = texts(3), reference.Rule(5, 5, True)
    chances, seeds = draw_tables(counts(rows), 0, 5, grams), np.arange(3)
    results = []
    for limit in (1, torch_steps._MEMBERS):
        monkeypatch.setattr(torch_steps, "_MEMBERS", limit)
        results.append(tables())
        together = 0 if limit == 1 else 1
        TorchSteps(CPU, together).descend(rows, results[-1], chances, rule, 0.05, seeds)
    assert np.array_equal(
        results[0].inputs, results[1].inputs
    )  # a centre's rows, however many they are


def test_a_text_without_a_pair_moves_nothing():
    word_tables, rows = tables(), np.array([[3, -1, 5, -1]], "<i4")
    chances, initial = draw_tables(np.ones(V, np.int64), 0, 5, NO_GRAMS), tables()
    rule, seeds = reference.Rule(5, 5, False), np.array([1])
    assert TorchSteps(CPU).descend(rows, word_tables, chances, rule, 0.1, seeds) == (0.0, 0)
    assert np.array_equal(word_tables.inputs, initial.inputs)


def trained(folder, device="cpu", **options):
    rows = texts()
    settings = {
        "every": None,
        "outer": Sgd(),
        "merge": "uniform",
        "gradients_until": 0.0,
        **options,
    }
    job = Job(
        model=replace(CONFIG, kernel="torch", workers=2, round_words=500.0),
        strategy=averaging(
            **{name: value for name, value in settings.items() if value is not None}
        ),
        workers=2,
        engine="simulate",
        device=device,
    )
    draft = LazyModel(job)
    draft.model().parameters.view("counts")[:] = counts(rows)
    return train_lazy(draft, ArrayData(rows), folder=folder).vector


@pytest.mark.parametrize("of", [{}, {"owners": 2, "rows": D, "codec": "fp32"}], ids=str)
def test_a_device_trains_whole_and_sharded_tables_to_the_processors_bits(of, tmp_path):
    plain = trained(tmp_path / "cpu", **of)
    assert np.array_equal(trained(tmp_path / "device", "stand-in", **of), plain)
    assert np.abs(plain).max() > 0.1


def test_auto_measures_steps_in_place():
    def make(device):
        model, inner = fresh(CONFIG, (), 0, device)
        model.parameters.view("counts")[:] = 1
        return model, inner

    batch = Batch(texts(4), None)
    assert device_for("auto", make, lambda: batch, ("cpu", "stand-in")) in ("cpu", "stand-in:0")


def test_an_opencl_device_is_refused():
    with pytest.raises(UsageError, match="word vectors are not trained on OpenCL devices; got dev"):
        Job(model=CONFIG, device="opencl", engine="simulate")


def test_the_plain_form_is_refused_on_a_device():
    config = replace(CONFIG, kernel="numpy")
    with pytest.raises(UsageError, match='kernel="numpy" computes on the processor only; got cuda'):
        config.blank((), 0).place("cuda", RowDescent(config))
