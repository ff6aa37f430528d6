"""word2vec in plain numpy: the reference of the fast kernel, and used where numba is missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np

from photinus.core.parameters import Vector
from photinus.embeddings.draws import (
    IGNORED,
    DrawTables,
    Subwords,
    add_input_rows,
    draw_negatives,
    draw_window,
    fill_context,
    huffman_path,
    max_input_rows,
    max_outputs,
    sample_sentence,
)

OUTPUTS = 6
"""How many outputs of a centre take a step together."""
LOSS_EVERY = 64
"""The loss is taken of every so many centres."""


class Tables(NamedTuple):
    """What is trained, and how far each row moves."""

    inputs: Vector
    """A row for each word, and one for each n-gram's bucket [V + B, D] float32."""
    outputs: Vector
    """A row for each word, or for each inner node of the Huffman tree [O, D] float32."""
    input_gain: Vector
    """By what the steps of each row are multiplied [V + B] float32."""
    output_gain: Vector
    """Likewise [O]."""


class Rule(NamedTuple):
    """The settings that decide a step."""

    window: int
    negatives: int
    """0: hierarchical softmax."""
    cbow: bool
    contexts_per_step: int = 0
    """0: all of a centre's."""


def centres(
    text: Vector, chances: DrawTables, rule: Rule, state: int
) -> Iterator[tuple[Vector, Vector, Vector]]:
    """Yields for each centre its context [C], its outputs [O], and their labels [O].

    Args:
        text: numbers of words [T], below 0 between sentences.
        chances: the vocabulary's tables of draws.
        rule: window and negatives.
        state: of the generator.
    """
    most_outputs, cursor = max_outputs(chances, rule.negatives), 0
    words, context = (
        np.empty(len(text), np.int64),
        np.empty(min(2 * rule.window, len(text)), np.int64),
    )
    outputs, labels = np.empty(most_outputs, np.int64), np.empty(most_outputs, np.float32)
    while cursor < len(text):
        count, cursor, state = sample_sentence(text, cursor, chances.keep, state, words)
        cursor += 1
        for position in range(count):
            radius, state = draw_window(rule.window, state)
            context_size, length = (
                fill_context(position, radius, words, count, context),
                most_outputs,
            )
            if not context_size:
                continue
            if rule.negatives:
                state = draw_negatives(
                    int(words[position]), chances.accept, chances.alias, state, outputs, labels
                )
            else:
                length = huffman_path(int(words[position]), *chances[3:6], outputs, labels)
            yield context[:context_size], outputs[:length], labels[:length]


def inputs_of(context: Vector, grams: Subwords, rule: Rule) -> list[Vector]:
    """Returns which rows make each input of a centre: it is their mean.

    Args:
        context: numbers of words [C].
        grams: of the vocabulary.
        rule: CBOW has one input, the mean of all rows of all words.
    """
    members, count = np.empty(len(context) * max_input_rows(grams), np.int64), 0
    ends = [0]
    for word in context:
        count = add_input_rows(int(word), grams, members, count)
        ends.append(count)
    if rule.cbow:
        ends = [0, count]
    return [members[start:end] for start, end in pairwise(ends)]


def mark(
    texts: Vector, chances: DrawTables, rule: Rule, states: Vector, inputs: Vector, outputs: Vector
) -> None:
    """Marks the rows of both tables that steps on rows of text read.

    Args:
        texts: numbers of words [B, T], below 0 between sentences.
        chances: the vocabulary's tables of draws.
        rule: window and negatives.
        states: of the generator, for each row of text [B].
        inputs: truth values [V], set True where a row is read.
        outputs: likewise.
    """
    for text, state in zip(texts, states, strict=True):
        for context, output_rows, _ in centres(text, chances, rule, int(state)):
            outputs[output_rows] = True
            for members in inputs_of(context, chances.grams, rule):
                inputs[members] = True


def descend(
    text: Vector, tables: Tables, chances: DrawTables, rule: Rule, rate: float, state: int
) -> tuple[float, int]:
    """Learns a row of text in place; returns the summed loss of some pairs, and how many they were.

    Six outputs O [6, D] of a centre and all of its contexts X [C, D] take a step together. Where
    `rule.contexts_per_step` is set, so many of these do, and then the next.

    G = rate · (labels − σ(X Oᵀ)). Then each context x ← x + g O, times its gain, in turn: a word
    may be there twice. Then O ← O + Σ gᵀ x, of the x before its step. With CBOW X is one row, the
    mean of all contexts, and each of them then moves as far as it did. With n-grams an input is the
    mean of a word's row and of theirs, and they move likewise.

    Args:
        text: numbers of words [T], below 0 between sentences.
        tables: what is trained.
        chances: the vocabulary's tables of draws.
        rule: window, negatives, CBOW or skip-gram.
        rate: the learning rate.
        state: of the generator.
    """
    inputs, loss, pairs = tables.inputs, 0.0, 0
    together = rule.contexts_per_step or len(text)
    for number, (context, output_rows, labels) in enumerate(centres(text, chances, rule, state)):
        members_by_input = inputs_of(context, chances.grams, rule)
        if rule.cbow or len(chances.grams.rows):
            x = np.stack([inputs[members].mean(axis=0) for members in members_by_input])
            before, input_numbers = x.copy(), np.arange(len(x))
            centre_loss = _step_centre(
                (x, np.ones(len(x), np.float32), input_numbers),
                tables,
                (output_rows, labels),
                rate,
                together,
            )
            for members, change in zip(members_by_input, x - before, strict=True):
                np.add.at(inputs, members, tables.input_gain[members, None] * change)
        else:
            centre_loss = _step_centre(
                (inputs, tables.input_gain, context), tables, (output_rows, labels), rate, together
            )
        if number % LOSS_EVERY == 0:
            loss, pairs = loss + centre_loss, pairs + len(members_by_input)
    return loss, pairs


def _step_centre(
    input_side: tuple[Vector, Vector, Vector],
    tables: Tables,
    targets: tuple[Vector, Vector],
    rate: float,
    together: int,
) -> float:
    """Takes the steps of a centre; returns its loss.

    Args:
        input_side: the inputs [n, D], their gains [n], and which of them are its contexts [C].
        tables: whose outputs move.
        targets: its outputs [O], and their labels.
        rate: the learning rate.
        together: so many contexts take a step together.
    """
    inputs, gains, context = input_side
    outputs, loss = tables.outputs, 0.0
    for g, first in product(range(0, len(targets[0]), OUTPUTS), range(0, len(context), together)):
        rows, labels = targets[0][g : g + OUTPUTS], targets[1][g : g + OUTPUTS]
        words, o = context[first : first + together], outputs[rows]
        change = np.zeros_like(o)
        predicted = 1 / (1 + np.exp(-(inputs[words] @ o.T)))
        error = np.where(labels == IGNORED, 0, labels - predicted)  # [C, O]
        for word, step in zip(words, np.float32(rate) * error, strict=True):
            change += np.outer(step, inputs[word])
            inputs[word] += gains[word] * (step @ o)
        loss -= float(np.log1p(-abs(error)).sum())
        np.add.at(outputs, rows, tables.output_gain[rows, None] * change)
    return loss


def add_gradient(
    examples: Iterable[tuple[Vector, Vector, Vector]],
    tables: Tables,
    gradients: tuple[Vector, Vector],
    grams: Subwords,
    rule: Rule,
) -> tuple[float, int]:
    """Adds the gradient of −Σ log p over all pairs; returns that loss, and how many they are.

    Args:
        examples: contexts, outputs and labels, as of `centres`.
        tables: at which point.
        gradients: both tables' gradients [V + B, D] and [O, D].
        grams: of the vocabulary.
        rule: CBOW or skip-gram.
    """
    loss, pairs = 0.0, 0
    for context, rows, labels in examples:
        members_by_input, o = inputs_of(context, grams, rule), tables.outputs[rows]
        x = np.stack([tables.inputs[members].mean(axis=0) for members in members_by_input])
        error = np.where(labels == IGNORED, 0, 1 / (1 + np.exp(-(x @ o.T))) - labels)  # [C, O]
        for members, change in zip(members_by_input, error @ o, strict=True):
            np.add.at(gradients[0], members, change / len(members))
        np.add.at(gradients[1], rows, error.T @ x)
        loss, pairs = loss - float(np.log1p(-abs(error)).sum()), pairs + len(x)
    return loss, pairs
