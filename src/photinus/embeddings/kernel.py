"""word2vec as a numba kernel: six outputs of a centre times all of its contexts.

It does what `plain.descend` does, from the same draws, by the vector instructions of `lanes`.

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
    DEAD,
    advance,
    around,
    longest,
    most_parts,
    negatives,
    parts,
    path,
    sentence,
    window,
)
from photinus.embeddings.reference import LOSS_EVERY, OUTPUTS
from photinus.embeddings.simd import LANES, STEPS, move, steps

for _draw in (advance, around, longest, most_parts, negatives, parts, path, sentence, window):
    register_jitable(inline="always")(_draw)

paired = njit(nogil=True, cache=True)(draws.paired)
"""Does what `draws.paired` does, with the same bits."""


@njit(nogil=True, fastmath=True, error_model="numpy", cache=True)
def mark(texts: Any, chances: Any, rule: Any, states: Any, inputs: Any, outputs: Any) -> None:
    """Does what `plain.mark` does."""
    keep, own, other, starts, nodes, codes, grams = chances
    most, members = longest(chances, rule.negatives), np.empty(most_parts(grams), np.int64)
    room = texts.shape[1]
    kept, context = np.empty(room, np.int64), np.empty(min(2 * rule.window, room), np.int64)
    drawn, given = np.empty(most, np.int64), np.empty(most, np.float32)
    for t in range(texts.shape[0]):
        text, at, state = texts[t], 0, states[t]
        while at < len(text):
            count, at, state = sentence(text, at, keep, state, kept)
            at += 1
            for place in range(count):
                side, state = window(rule.window, state)
                held = around(place, side, kept, count, context)
                if held == 0:
                    continue
                length = most
                if rule.negatives:
                    state = negatives(kept[place], own, other, state, drawn, given)
                else:
                    length = path(kept[place], starts, nodes, codes, drawn, given)
                for c in range(held):
                    for m in range(parts(context[c], grams, members, 0)):
                        inputs[members[m]] = True
                for i in range(length):
                    outputs[drawn[i]] = True


@njit(nogil=True, fastmath=True, error_model="numpy", cache=True)
def draw(texts: Any, chances: Any, rule: Any, states: Any, to: Any) -> tuple[int, int, int]:
    """Returns how many centres, inputs and members of inputs some rows of text have.

    Args:
        texts: numbers of words [B, T], below 0 between sentences.
        chances: as of the vocabulary.
        rule: window, negatives, CBOW or skip-gram.
        states: of the generator, for each row of text [B].
        to: a `Drawn`, which is filled in if it has room.
    """
    keep, own, other, starts, nodes, codes, grams = chances
    members, member_ends, input_ends, outputs, labels = to
    # the loop of `mark`, written again: as a generator for both it takes 2.7 times as long
    most, has_room = longest(chances, rule.negatives), len(members) > 0
    room = texts.shape[1]
    kept, context = np.empty(room, np.int64), np.empty(min(2 * rule.window, room), np.int64)
    some, given = np.empty(most, np.int64), np.empty(most, np.float32)
    parts_of = np.empty(most_parts(grams), np.int64)
    centres, inputs, held_members = 0, 0, 0
    for t in range(texts.shape[0]):
        text, at, state = texts[t], 0, states[t]
        while at < len(text):
            count, at, state = sentence(text, at, keep, state, kept)
            at += 1
            for place in range(count):
                side, state = window(rule.window, state)
                held = around(place, side, kept, count, context)
                if held == 0:
                    continue
                length = most
                if rule.negatives:
                    state = negatives(kept[place], own, other, state, some, given)
                else:
                    length = path(kept[place], starts, nodes, codes, some, given)
                for c in range(held):
                    made = parts(context[c], grams, parts_of, 0)
                    if has_room:
                        members[held_members : held_members + made] = parts_of[:made]
                    held_members += made
                    if not rule.cbow or c == held - 1:
                        inputs += 1
                        if has_room:
                            member_ends[inputs] = held_members
                if has_room:
                    outputs[centres, :length], labels[centres, :length] = (
                        some[:length],
                        given[:length],
                    )
                    input_ends[centres + 1] = inputs
                centres += 1
    return centres, inputs, held_members


@functools.cache
def descent(
    dims: int, cbow: bool, *, has_grams: bool = False, lanes: int = LANES
) -> Callable[..., tuple[float, int]]:
    """Returns `plain.descend` over rows of text [B, T], compiled for vectors of `dims` numbers.

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
        keep, own, other, starts, nodes, codes, grams = chances
        most, room = longest(chances, rule.negatives), min(2 * rule.window, texts.shape[1])
        kept, context = np.empty(texts.shape[1], np.int64), np.empty(room, np.int64)
        drawn, given = np.empty(most, np.int64), np.empty(most, np.float32)
        rows, labels = np.empty(OUTPUTS, np.int64), np.full(STEPS, DEAD, np.float32)
        taken = np.empty(OUTPUTS * room + STEPS, np.float32)
        wide = room if is_mean else 0
        x, first = np.empty((wide, dims), np.float32), np.empty((wide, dims), np.float32)
        each, plain = np.arange(wide), np.ones(wide, np.float32)
        members, ends = np.empty(wide * most_parts(grams), np.int64), np.zeros(wide + 1, np.int64)
        loss, pairs, rate = 0.0, 0, np.float32(rate)
        for t in range(texts.shape[0]):
            text, at, state, number = texts[t], 0, states[t], 0
            while at < len(text):
                count, at, state = sentence(text, at, keep, state, kept)
                at += 1
                for place in range(count):
                    side, state = window(rule.window, state)
                    held, length = around(place, side, kept, count, context), most
                    if held == 0:
                        continue
                    if rule.negatives:
                        state = negatives(kept[place], own, other, state, drawn, given)
                    else:
                        length = path(kept[place], starts, nodes, codes, drawn, given)
                    table, gains, near = inputs, input_gain, context[:held]
                    if is_mean:
                        made = 0
                        for c in range(held):
                            made = parts(context[c], grams, members, made)
                            ends[1 if cbow else c + 1] = made
                        near = each[: 1 if cbow else held]
                        for c in near:
                            x[c] = 0
                            for m in members[ends[c] : ends[c + 1]]:
                                for k in range(dims):
                                    x[c, k] += inputs[m, k]
                            for k in range(dims):
                                x[c, k] /= np.float32(ends[c + 1] - ends[c])
                                first[c, k] = x[c, k]
                        table, gains = x, plain
                    is_told = number % LOSS_EVERY == 0
                    number += 1
                    for g in range(0, length, OUTPUTS):
                        for i in range(OUTPUTS):
                            is_one = g + i < length
                            rows[i] = drawn[g + i] if is_one else drawn[g]
                            label = given[g + i] if is_one else np.float32(DEAD)
                            labels[i] = labels[OUTPUTS + i] = label
                        for c in range(0, len(near), 2):
                            both = near[c], near[min(c + 1, len(near) - 1)]
                            steps(  # type: ignore[call-arg]
                                dims,
                                lanes,
                                table,
                                both,
                                outputs,
                                rows,
                                labels,
                                rate,
                                taken[c * OUTPUTS :],
                            )
                        if is_told:
                            for i in range(len(near) * OUTPUTS):
                                if labels[i % OUTPUTS] >= 0:
                                    loss -= np.log(max(1.0 - abs(taken[i] / rate), 1e-12))
                        move(  # type: ignore[call-arg]
                            dims, lanes, table, gains, near, outputs, output_gain, rows, taken
                        )
                    if is_mean:
                        for c in near:
                            for m in members[ends[c] : ends[c + 1]]:
                                for k in range(dims):
                                    inputs[m, k] += input_gain[m] * (x[c, k] - first[c, k])
                    if is_told:
                        pairs += len(near)
        return loss, pairs

    return descend
