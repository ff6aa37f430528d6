"""word2vec as a numba kernel: six outputs of a centre times all of its contexts.

It does what `reference.descend` does, from the same draws, by the vector instructions of `lanes`.

Reference: Ji et al., Parallelizing word2vec in shared and distributed memory (2016).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit
from numba.extending import register_jitable

from photinus.embeddings import draws
from photinus.embeddings.draws import (
    IGNORED,
    add_input_rows,
    advance,
    draw_negatives,
    draw_window,
    fill_context,
    huffman_path,
    max_input_rows,
    max_outputs,
    sample_sentence,
)
from photinus.embeddings.reference import LOSS_EVERY, OUTPUTS
from photinus.embeddings.simd import LANES, STEPS, move, steps

for _draw in (
    advance,
    fill_context,
    max_outputs,
    max_input_rows,
    draw_negatives,
    add_input_rows,
    huffman_path,
    sample_sentence,
    draw_window,
):
    register_jitable(inline="always")(_draw)

fill_alias_table = njit(nogil=True, cache=True)(draws.fill_alias_table)
"""Does what `draws.fill_alias_table` does, with the same bits."""


@njit(nogil=True, fastmath=True, error_model="numpy", cache=True)
def mark(texts: Any, chances: Any, rule: Any, states: Any, inputs: Any, outputs: Any) -> None:
    """Does what `reference.mark` does."""
    keep, accept, alias, starts, nodes, codes, grams = chances
    most_outputs, members = (
        max_outputs(chances, rule.negatives),
        np.empty(max_input_rows(grams), np.int64),
    )
    row_length = texts.shape[1]
    words, context = (
        np.empty(row_length, np.int64),
        np.empty(min(2 * rule.window, row_length), np.int64),
    )
    output_rows, labels = np.empty(most_outputs, np.int64), np.empty(most_outputs, np.float32)
    for t in range(texts.shape[0]):
        text, cursor, state = texts[t], 0, states[t]
        while cursor < len(text):
            count, cursor, state = sample_sentence(text, cursor, keep, state, words)
            cursor += 1
            for position in range(count):
                radius, state = draw_window(rule.window, state)
                context_size = fill_context(position, radius, words, count, context)
                if context_size == 0:
                    continue
                length = most_outputs
                if rule.negatives:
                    state = draw_negatives(
                        words[position], accept, alias, state, output_rows, labels
                    )
                else:
                    length = huffman_path(
                        words[position], starts, nodes, codes, output_rows, labels
                    )
                for c in range(context_size):
                    for m in range(add_input_rows(context[c], grams, members, 0)):
                        inputs[members[m]] = True
                for i in range(length):
                    outputs[output_rows[i]] = True


@njit(nogil=True, fastmath=True, error_model="numpy", cache=True)
def draw(texts: Any, chances: Any, rule: Any, states: Any, out: Any) -> tuple[int, int, int]:
    """Returns how many centres, inputs and members of inputs some rows of text have.

    Args:
        texts: numbers of words [B, T], below 0 between sentences.
        chances: the vocabulary's tables of draws.
        rule: window, negatives, CBOW or skip-gram.
        states: of the generator, for each row of text [B].
        out: a `DrawnCentres`, which is filled in if it has room.
    """
    keep, accept, alias, starts, nodes, codes, grams = chances
    members, member_ends, input_ends, outputs, labels = out
    # the loop of `mark`, written again: as a generator for both it takes 2.7 times as long
    most_outputs, has_room = max_outputs(chances, rule.negatives), len(members) > 0
    row_length = texts.shape[1]
    words, context = (
        np.empty(row_length, np.int64),
        np.empty(min(2 * rule.window, row_length), np.int64),
    )
    output_rows, output_labels = (
        np.empty(most_outputs, np.int64),
        np.empty(most_outputs, np.float32),
    )
    word_members = np.empty(max_input_rows(grams), np.int64)
    centres, inputs, member_count = 0, 0, 0
    for t in range(texts.shape[0]):
        text, cursor, state = texts[t], 0, states[t]
        while cursor < len(text):
            count, cursor, state = sample_sentence(text, cursor, keep, state, words)
            cursor += 1
            for position in range(count):
                radius, state = draw_window(rule.window, state)
                context_size = fill_context(position, radius, words, count, context)
                if context_size == 0:
                    continue
                length = most_outputs
                if rule.negatives:
                    state = draw_negatives(
                        words[position], accept, alias, state, output_rows, output_labels
                    )
                else:
                    length = huffman_path(
                        words[position], starts, nodes, codes, output_rows, output_labels
                    )
                for c in range(context_size):
                    added = add_input_rows(context[c], grams, word_members, 0)
                    if has_room:
                        members[member_count : member_count + added] = word_members[:added]
                    member_count += added
                    if not rule.cbow or c == context_size - 1:
                        inputs += 1
                        if has_room:
                            member_ends[inputs] = member_count
                if has_room:
                    outputs[centres, :length], labels[centres, :length] = (
                        output_rows[:length],
                        output_labels[:length],
                    )
                    input_ends[centres + 1] = inputs
                centres += 1
    return centres, inputs, member_count


@functools.cache
def descent(
    dims: int, cbow: bool, *, has_grams: bool = False, lanes: int = LANES
) -> Callable[..., tuple[float, int]]:
    """Returns `reference.descend` over rows of text [B, T], compiled for vectors of `dims` numbers.

    Args:
        dims: of a vector.
        cbow: an input is the mean of a context.
        has_grams: an input is the mean of a word's row and of those of its n-grams.
        lanes: how many numbers an instruction takes.
    """
    is_mean = cbow or has_grams

    @njit(nogil=True, fastmath=True, error_model="numpy", cache=True)
    def descend(
        texts: Any, tables: Any, chances: Any, rule: Any, rate: Any, states: Any
    ) -> tuple[float, int]:
        inputs, outputs, input_gain, output_gain = tables
        keep, accept, alias, starts, nodes, codes, grams = chances
        most_outputs, most_context = (
            max_outputs(chances, rule.negatives),
            min(2 * rule.window, texts.shape[1]),
        )
        words, context = np.empty(texts.shape[1], np.int64), np.empty(most_context, np.int64)
        output_rows, output_labels = (
            np.empty(most_outputs, np.int64),
            np.empty(most_outputs, np.float32),
        )
        rows, labels = np.empty(OUTPUTS, np.int64), np.full(STEPS, IGNORED, np.float32)
        step_sizes = np.empty(OUTPUTS * most_context + STEPS, np.float32)
        most_inputs = most_context if is_mean else 0
        x, before = (
            np.empty((most_inputs, dims), np.float32),
            np.empty((most_inputs, dims), np.float32),
        )
        input_numbers, unit_gains = np.arange(most_inputs), np.ones(most_inputs, np.float32)
        members, ends = (
            np.empty(most_inputs * max_input_rows(grams), np.int64),
            np.zeros(most_inputs + 1, np.int64),
        )
        loss, pairs, rate = 0.0, 0, np.float32(rate)
        together = rule.contexts_per_step or most_context
        for t in range(texts.shape[0]):
            text, cursor, state, centre = texts[t], 0, states[t], 0
            while cursor < len(text):
                count, cursor, state = sample_sentence(text, cursor, keep, state, words)
                cursor += 1
                for position in range(count):
                    radius, state = draw_window(rule.window, state)
                    context_size, length = (
                        fill_context(position, radius, words, count, context),
                        most_outputs,
                    )
                    if context_size == 0:
                        continue
                    if rule.negatives:
                        state = draw_negatives(
                            words[position], accept, alias, state, output_rows, output_labels
                        )
                    else:
                        length = huffman_path(
                            words[position], starts, nodes, codes, output_rows, output_labels
                        )
                    table, gains, input_rows = inputs, input_gain, context[:context_size]
                    if is_mean:
                        member_count = 0
                        for c in range(context_size):
                            member_count = add_input_rows(context[c], grams, members, member_count)
                            ends[1 if cbow else c + 1] = member_count
                        input_rows = input_numbers[: 1 if cbow else context_size]
                        for c in input_rows:
                            x[c] = 0
                            for m in members[ends[c] : ends[c + 1]]:
                                for k in range(dims):
                                    x[c, k] += inputs[m, k]
                            for k in range(dims):
                                x[c, k] /= np.float32(ends[c + 1] - ends[c])
                                before[c, k] = x[c, k]
                        table, gains = x, unit_gains
                    has_loss = centre % LOSS_EVERY == 0
                    centre += 1
                    for g in range(0, length, OUTPUTS):
                        for i in range(OUTPUTS):
                            is_output = g + i < length
                            rows[i] = output_rows[g + i] if is_output else output_rows[g]
                            label = output_labels[g + i] if is_output else np.float32(IGNORED)
                            labels[i] = labels[OUTPUTS + i] = label
                        for first in range(0, len(input_rows), together):
                            some = input_rows[first : first + together]
                            for c in range(0, len(some), 2):
                                pair = some[c], some[min(c + 1, len(some) - 1)]
                                steps(  # type: ignore[call-arg]
                                    dims,
                                    lanes,
                                    table,
                                    pair,
                                    outputs,
                                    rows,
                                    labels,
                                    rate,
                                    step_sizes[c * OUTPUTS :],
                                )
                            if has_loss:
                                for i in range(len(some) * OUTPUTS):
                                    if labels[i % OUTPUTS] >= 0:
                                        loss -= np.log(max(1.0 - abs(step_sizes[i] / rate), 1e-12))
                            move(  # type: ignore[call-arg]
                                dims,
                                lanes,
                                table,
                                gains,
                                some,
                                outputs,
                                output_gain,
                                rows,
                                step_sizes,
                            )
                    if is_mean:
                        for c in input_rows:
                            for m in members[ends[c] : ends[c + 1]]:
                                for k in range(dims):
                                    inputs[m, k] += input_gain[m] * (x[c, k] - before[c, k])
                    if has_loss:
                        pairs += len(input_rows)
        return loss, pairs

    return descend
