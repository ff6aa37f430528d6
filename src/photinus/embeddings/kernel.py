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

from photinus.embeddings.draws import (
    DEAD,
    advance,
    around,
    longest,
    negatives,
    path,
    sentence,
    window,
)
from photinus.embeddings.lanes import LANES, STEPS, move, steps
from photinus.embeddings.plain import LOSS_EVERY, OUTPUTS

for _draw in (advance, around, negatives, longest, path, sentence, window):
    register_jitable(inline="always")(_draw)


@njit(nogil=True, fastmath=True, error_model="numpy", cache=True)
def mark(texts: Any, chances: Any, rule: Any, states: Any, inputs: Any, outputs: Any) -> None:
    """Does what `plain.mark` does."""
    keep, own, other, starts, nodes, codes = chances
    most = longest(chances, rule.negatives)
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
                    inputs[context[c]] = True
                for i in range(length):
                    outputs[drawn[i]] = True


@functools.cache
def descent(dims: int, cbow: bool, lanes: int = LANES) -> Callable[..., tuple[float, int]]:
    """Returns `plain.descend` over rows of text [B, T], compiled for vectors of `dims` numbers.

    Args:
        dims: of a vector.
        cbow: an input is the mean of a context.
        lanes: how many numbers an instruction takes.
    """

    @njit(nogil=True, fastmath=True, error_model="numpy", cache=True)
    def descend(
        texts: Any, tables: Any, chances: Any, rule: Any, rate: Any, states: Any
    ) -> tuple[float, int]:
        inputs, outputs, input_gain, output_gain = tables
        keep, own, other, starts, nodes, codes = chances
        most, room = longest(chances, rule.negatives), min(2 * rule.window, texts.shape[1])
        kept, context = np.empty(texts.shape[1], np.int64), np.empty(room, np.int64)
        drawn, given = np.empty(most, np.int64), np.empty(most, np.float32)
        rows, labels = np.empty(OUTPUTS, np.int64), np.full(STEPS, DEAD, np.float32)
        taken = np.empty(OUTPUTS * room + STEPS, np.float32)
        x, only = np.empty((2, dims), np.float32), np.zeros(1, np.int64)
        plain = np.ones(1, np.float32)
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
                    if cbow:
                        x[:] = 0
                        for c in range(held):
                            for k in range(dims):
                                x[0, k] += inputs[context[c], k] / np.float32(held)
                        x[1] = x[0]
                        table, gains, near = x, plain, only
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
                    if cbow:
                        for c in range(held):
                            for k in range(dims):
                                moved = x[0, k] - x[1, k]
                                inputs[context[c], k] += input_gain[context[c]] * moved
                    if is_told:
                        pairs += len(near)
        return loss, pairs

    return descend
