"""The compiled kernel and the plain form learn the same; the plain form follows torch."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from photinus.embeddings import reference
from photinus.embeddings.draws import IGNORED
from photinus.embeddings.kernel import descent, mark
from photinus.embeddings.subwords import Ngrams
from photinus.embeddings.vocabulary import NO_GRAMS, draw_tables

V, B, D = 60, 40, 20
COUNTS = np.maximum(1, 2000 // np.arange(1, V + 1))
GRAMS = Ngrams(3, 4, B).of([f"word{number}" for number in range(V)], first=V)


def texts(sentence, seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.choice(V, (3, 150), p=COUNTS / COUNTS.sum()).astype(np.int32)
    rows[:, ::sentence] = -1
    rows[:, 140:] = -1
    return rows


def tables(dims=D):
    rng = np.random.default_rng(1)
    vectors = 0.3 * rng.standard_normal((2 * V + B, dims)).astype(np.float32)
    gains = rng.uniform(0.5, 1.5, 2 * V + B).astype(np.float32)
    return reference.Tables(vectors[: V + B], vectors[V + B :], gains[: V + B], gains[V + B :])


@pytest.mark.numerics
@pytest.mark.parametrize("cbow", [False, True], ids=["skip-gram", "cbow"])
@pytest.mark.parametrize("negatives", [0, 1, 5, 9])
@pytest.mark.parametrize("sentence", [2, 3, 40])
@pytest.mark.parametrize("grams", [NO_GRAMS, GRAMS], ids=["words", "n-grams"])
@pytest.mark.parametrize("together", [0, 3], ids=["all contexts", "three"])
def test_the_kernel_takes_the_same_steps_as_the_plain_form(
    cbow, negatives, sentence, grams, together
):
    fast, slow, first = tables(), tables(), tables()
    chances = draw_tables(COUNTS, 1e-2, negatives, grams)
    rule = reference.Rule(5, negatives, cbow, together)
    rows, seeds = texts(sentence), np.array([5, 6, 7])
    run = descent(D, cbow, has_grams=len(grams.rows) > 0)
    totals = run(rows, fast, chances, rule, 0.05, seeds)
    row_results = [
        reference.descend(row, slow, chances, rule, 0.05, int(s))
        for row, s in zip(rows, seeds, strict=True)
    ]
    assert abs(slow.inputs - first.inputs).max() > 0.05 or sentence == 2
    np.testing.assert_allclose(fast.inputs, slow.inputs, atol=1e-5)
    np.testing.assert_allclose(fast.outputs, slow.outputs, atol=1e-5)
    assert totals[0] == pytest.approx(sum(loss for loss, _ in row_results), rel=1e-4, abs=1e-6)
    assert totals[1] == sum(pairs for _, pairs in row_results)


def test_one_context_per_step_is_word2vec_pair_by_pair():
    learnt, expected, row = tables(), tables(), texts(9)[0]
    chances, rate = draw_tables(COUNTS, 1e-2, 5), 0.05
    reference.descend(row, learnt, chances, reference.Rule(5, 5, False, 1), rate, 5)
    for context, outputs, labels in reference.centres(row, chances, reference.Rule(5, 5, False), 5):
        for word in context:
            x = expected.inputs[word].copy()
            for g in range(0, len(outputs), reference.OUTPUTS):
                rows, wanted = (some[g : g + reference.OUTPUTS] for some in (outputs, labels))
                o = expected.outputs[rows]
                step = rate * np.where(wanted == IGNORED, 0, wanted - 1 / (1 + np.exp(-(o @ x))))
                expected.inputs[word] += expected.input_gain[word] * (step @ o)
                gains = expected.output_gain[rows, None]
                np.add.at(expected.outputs, rows, gains * np.outer(step, x))
    np.testing.assert_allclose(learnt.inputs, expected.inputs, atol=1e-5)
    np.testing.assert_allclose(learnt.outputs, expected.outputs, atol=1e-5)


@pytest.mark.numerics
@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("dims", [8, 33])
def test_vectors_of_any_length_take_the_same_steps_by_short_and_long_instructions(dims, lanes):
    fast, slow = tables(dims), tables(dims)
    chances, rule, row = draw_tables(COUNTS, 1e-2, 5), reference.Rule(5, 5, False), texts(9)[0]
    descent(dims, False, lanes=lanes)(row[None], fast, chances, rule, 0.05, np.array([5]))
    reference.descend(row, slow, chances, rule, 0.05, 5)
    np.testing.assert_allclose(fast.inputs, slow.inputs, atol=1e-5)
    np.testing.assert_allclose(fast.outputs, slow.outputs, atol=1e-5)


@pytest.mark.parametrize("grams", [NO_GRAMS, GRAMS], ids=["words", "n-grams"])
@pytest.mark.parametrize("cbow", [False, True], ids=["skip-gram", "cbow"])
def test_the_gradient_is_that_of_torch(cbow, grams):
    point, rule = tables(), reference.Rule(5, 5, cbow)
    examples = [
        tuple(array.copy() for array in centre)
        for centre in reference.centres(texts(9)[0], draw_tables(COUNTS, 0, 5), rule, 3)
    ]
    gradients = np.zeros((V + B, D), np.float32), np.zeros((V, D), np.float32)
    loss, _ = reference.add_gradient(examples, point, gradients, grams, rule)
    torch_tables = [
        torch.tensor(table, requires_grad=True) for table in (point.inputs, point.outputs)
    ]
    total = torch.zeros(())
    for context, rows, labels in examples:
        members = [
            np.array([word, *grams.rows[grams.starts[word] : grams.starts[word + 1]]])
            if len(grams.rows)
            else np.array([word])
            for word in context
        ]
        members = [np.concatenate(members)] if cbow else members
        hidden = torch.stack([torch_tables[0][torch.from_numpy(rows)].mean(0) for rows in members])
        alive = labels != IGNORED
        logits = hidden @ torch_tables[1][torch.from_numpy(rows[alive])].T
        targets = torch.from_numpy(labels[alive]).expand_as(logits)
        total = total + torch.nn.functional.binary_cross_entropy_with_logits(
            logits, targets, reduction="sum"
        )
    total.backward()
    assert loss == pytest.approx(total.item(), rel=1e-5)
    for gradient, torch_table in zip(gradients, torch_tables, strict=True):
        np.testing.assert_allclose(gradient, torch_table.grad.numpy(), rtol=1e-4, atol=1e-5)


def test_the_kernel_marks_the_rows_that_the_plain_form_marks():
    chances, rule, rows = (
        draw_tables(COUNTS, 0, 5, GRAMS),
        reference.Rule(5, 5, False),
        texts(9)[:1],
    )
    both_marks = [(np.zeros(V + B, np.bool_), np.zeros(V, np.bool_)) for _ in range(2)]
    for form, marks in zip((mark, reference.mark), both_marks, strict=True):
        form(rows[:, :12], chances, rule, np.array([3]), *marks)
    np.testing.assert_array_equal(np.concatenate(both_marks[0]), np.concatenate(both_marks[1]))
    assert 0 < both_marks[0][0][V:].sum() < B


def test_a_small_step_follows_the_gradient():
    before, after, rule = tables(), tables(), reference.Rule(5, 5, False)
    ones = np.ones(V + B, np.float32)
    before, after = (
        before._replace(input_gain=ones, output_gain=ones),
        after._replace(input_gain=ones, output_gain=ones),
    )
    chances, text, rate = draw_tables(COUNTS, 0, 5), texts(9)[0], 1e-4
    gradients = np.zeros((V + B, D), np.float32), np.zeros((V, D), np.float32)
    reference.add_gradient(
        reference.centres(text, chances, rule, 3), before, gradients, NO_GRAMS, rule
    )
    reference.descend(text, after, chances, rule, rate, 3)
    for table, old, gradient in zip(after, before, gradients, strict=False):
        np.testing.assert_allclose((old - table) / rate, gradient, atol=2e-2 * abs(gradient).max())


CALL = """
import sys
import numpy as np
from photinus.embeddings import reference
from photinus.embeddings.kernel import descent
from photinus.embeddings.vocabulary import draw_tables
table, ones = np.zeros((9, 20), np.float32), np.ones(9, np.float32)
chances, rule = draw_tables(np.arange(1, 10), 0.0, 5), reference.Rule(5, 5, False)
tables, run = reference.Tables(table, table.copy(), ones, ones), descent(20, False)
run(np.zeros((1, 64), np.int32), tables, chances, rule, 0.1, np.arange(1))
print(sum(run.stats.cache_hits.values()))
"""


def test_the_next_process_compiles_nothing(tmp_path):
    cache_hits = [
        subprocess.run(
            [sys.executable, "-c", CALL],
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for _ in range(2)
    ]
    assert cache_hits == ["0", "1"]
