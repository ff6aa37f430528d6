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
    made = 0.3 * rng.standard_normal((2 * V + B, dims)).astype(np.float32)
    gains = rng.uniform(0.5, 1.5, 2 * V + B).astype(np.float32)
    return reference.Tables(made[: V + B], made[V + B :], gains[: V + B], gains[V + B :])


@pytest.mark.numerics
@pytest.mark.parametrize("cbow", [False, True], ids=["skip-gram", "cbow"])
@pytest.mark.parametrize("negatives", [0, 1, 5, 9])
@pytest.mark.parametrize("sentence", [2, 3, 40])
@pytest.mark.parametrize("grams", [NO_GRAMS, GRAMS], ids=["words", "n-grams"])
def test_the_kernel_takes_the_same_steps_as_the_plain_form(cbow, negatives, sentence, grams):
    fast, slow, first = tables(), tables(), tables()
    chances, rule = draw_tables(COUNTS, 1e-2, negatives, grams), reference.Rule(5, negatives, cbow)
    rows, seeds = texts(sentence), np.array([5, 6, 7])
    run = descent(D, cbow, has_grams=len(grams.rows) > 0)
    told = run(rows, fast, chances, rule, 0.05, seeds)
    each = [
        reference.descend(row, slow, chances, rule, 0.05, int(s))
        for row, s in zip(rows, seeds, strict=True)
    ]
    assert abs(slow.inputs - first.inputs).max() > 0.05 or sentence == 2
    np.testing.assert_allclose(fast.inputs, slow.inputs, atol=1e-5)
    np.testing.assert_allclose(fast.outputs, slow.outputs, atol=1e-5)
    assert told[0] == pytest.approx(sum(loss for loss, _ in each), rel=1e-4, abs=1e-6)
    assert told[1] == sum(pairs for _, pairs in each)


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
    at, rule = tables(), reference.Rule(5, 5, cbow)
    drawn = [
        tuple(a.copy() for a in one)
        for one in reference.centres(texts(9)[0], draw_tables(COUNTS, 0, 5), rule, 3)
    ]
    ours = np.zeros((V + B, D), np.float32), np.zeros((V, D), np.float32)
    loss, _ = reference.add_gradient(drawn, at, ours, grams, rule)
    theirs = [torch.tensor(table, requires_grad=True) for table in (at.inputs, at.outputs)]
    total = torch.zeros(())
    for context, rows, labels in drawn:
        members = [
            np.array([word, *grams.rows[grams.starts[word] : grams.starts[word + 1]]])
            if len(grams.rows)
            else np.array([word])
            for word in context
        ]
        members = [np.concatenate(members)] if cbow else members
        x = torch.stack([theirs[0][torch.from_numpy(rows)].mean(0) for rows in members])
        alive = labels != IGNORED
        z = x @ theirs[1][torch.from_numpy(rows[alive])].T
        wanted = torch.from_numpy(labels[alive]).expand_as(z)
        total = total + torch.nn.functional.binary_cross_entropy_with_logits(
            z, wanted, reduction="sum"
        )
    total.backward()
    assert loss == pytest.approx(total.item(), rel=1e-5)
    for mine, true in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, true.grad.numpy(), rtol=1e-4, atol=1e-5)


def test_the_kernel_marks_the_rows_that_the_plain_form_marks():
    chances, rule, rows = (
        draw_tables(COUNTS, 0, 5, GRAMS),
        reference.Rule(5, 5, False),
        texts(9)[:1],
    )
    made = [(np.zeros(V + B, np.bool_), np.zeros(V, np.bool_)) for _ in range(2)]
    for form, marks in zip((mark, reference.mark), made, strict=True):
        form(rows[:, :12], chances, rule, np.array([3]), *marks)
    np.testing.assert_array_equal(np.concatenate(made[0]), np.concatenate(made[1]))
    assert 0 < made[0][0][V:].sum() < B


def test_a_small_step_follows_the_gradient():
    before, after, rule = tables(), tables(), reference.Rule(5, 5, False)
    ones = np.ones(V + B, np.float32)
    before, after = (
        before._replace(input_gain=ones, output_gain=ones),
        after._replace(input_gain=ones, output_gain=ones),
    )
    chances, text, rate = draw_tables(COUNTS, 0, 5), texts(9)[0], 1e-4
    wanted = np.zeros((V + B, D), np.float32), np.zeros((V, D), np.float32)
    reference.add_gradient(
        reference.centres(text, chances, rule, 3), before, wanted, NO_GRAMS, rule
    )
    reference.descend(text, after, chances, rule, rate, 3)
    for table, old, gradient in zip(after, before, wanted, strict=False):
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
    told = [
        subprocess.run(
            [sys.executable, "-c", CALL],
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for _ in range(2)
    ]
    assert told == ["0", "1"]
