"""word2vec as a numba kernel: six outputs of a centre times two of its contexts in one pass.

It does what `plain.descend` does, from the same draws. The outputs of a centre lie in one buffer at
places known when it is compiled, so that every loop becomes vector instructions.

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
from photinus.embeddings.plain import LOSS_EVERY, OUTPUTS

_LANES = 16
"""The twelve sums of a pass, and room up to whole vector registers."""


def _inlined(function: Callable[..., Any], of: str = "") -> Any:
    """Makes a function a part of its caller: a call with arrays costs as much as the work of one.

    The key of numba's cache holds such functions: by a name of its own each process would compile
    all anew.
    """
    made: Any = njit(inline="always", fastmath=True, error_model="numpy")(function)
    made._set_uuid(f"{__name__}.{function.__name__}{of}")
    return made


for _draw in (advance, around, negatives, longest, path, sentence, window):
    register_jitable(inline="always")(_draw)


@_inlined
def _steps(sums: Any, labels: Any, rate: Any) -> None:
    """Sums ← rate · (labels − σ(sums)); tanh is a quotient of two polynomials, as in Eigen."""
    for i in range(_LANES):
        x = min(max(sums[i] * np.float32(0.5), np.float32(-7.9053111)), np.float32(7.9053111))
        s = x * x
        p = np.float32(-2.76076847742355e-16) * s + np.float32(2.00018790482477e-13)
        p = p * s + np.float32(-8.60467152213735e-11)
        p = p * s + np.float32(5.12229709037114e-08)
        p = p * s + np.float32(1.48572235717979e-05)
        p = p * s + np.float32(6.37261928935436e-04)
        p = x * (p * s + np.float32(4.89352455891786e-03))
        q = np.float32(1.19825839466702e-06) * s + np.float32(1.18534705686654e-04)
        q = q * s + np.float32(2.26843463243900e-03)
        q = q * s + np.float32(4.89352518554385e-03)
        step = (labels[i] - np.float32(0.5) - np.float32(0.5) * p / q) * rate
        sums[i] = step if labels[i] >= np.float32(0) else np.float32(0)


@_inlined
def _loss(sums: Any, labels: Any, rate: Any, inputs: int) -> Any:
    """Returns −Σ log p of the labels, from their steps."""
    total = 0.0
    for i in range(inputs * OUTPUTS):
        if labels[i] >= np.float32(0):
            total -= np.log(max(1.0 - abs(sums[i] / rate), 1e-12))
    return total


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
def descent(dims: int, cbow: bool) -> Callable[..., tuple[float, int]]:
    """Returns `plain.descend` over rows of text [B, T], compiled for vectors of `dims` numbers.

    Args:
        dims: at least 8.
        cbow: an input is the mean of a context.
    """
    # loops go on to a multiple of 8, into the next row: there outputs are 0, so nothing is added
    w = -(-dims // 8) * 8
    o0, o1, o2, o3, o4, o5 = (i * w for i in range(OUTPUTS))  # outputs
    d0, d1, d2, d3, d4, d5 = (i * w for i in range(OUTPUTS, 2 * OUTPUTS))  # added to them

    def inlined(function: Callable[..., Any]) -> Any:
        return _inlined(function, f".{dims}")

    @inlined
    def two(
        s: Any, sums: Any, labels: Any, rate: Any, table: Any, gl: Any, gr: Any, l: int, r: int
    ) -> None:
        f0 = f1 = f2 = f3 = f4 = f5 = np.float32(0)
        h0 = h1 = h2 = h3 = h4 = h5 = np.float32(0)
        for k in range(w):
            a, b = table[l, k], table[r, k]
            f0 += a * s[o0 + k]
            f1 += a * s[o1 + k]
            f2 += a * s[o2 + k]
            f3 += a * s[o3 + k]
            f4 += a * s[o4 + k]
            f5 += a * s[o5 + k]
            h0 += b * s[o0 + k]
            h1 += b * s[o1 + k]
            h2 += b * s[o2 + k]
            h3 += b * s[o3 + k]
            h4 += b * s[o4 + k]
            h5 += b * s[o5 + k]
        sums[0], sums[1], sums[2], sums[3], sums[4], sums[5] = f0, f1, f2, f3, f4, f5
        sums[6], sums[7], sums[8], sums[9], sums[10], sums[11] = h0, h1, h2, h3, h4, h5
        _steps(sums, labels, rate)
        f0, f1, f2, f3, f4, f5 = sums[0], sums[1], sums[2], sums[3], sums[4], sums[5]
        h0, h1, h2, h3, h4, h5 = sums[6], sums[7], sums[8], sums[9], sums[10], sums[11]
        for k in range(w):
            a, b = table[l, k], table[r, k]
            p0, p1, p2 = s[o0 + k], s[o1 + k], s[o2 + k]
            p3, p4, p5 = s[o3 + k], s[o4 + k], s[o5 + k]
            s[d0 + k] += f0 * a + h0 * b
            s[d1 + k] += f1 * a + h1 * b
            s[d2 + k] += f2 * a + h2 * b
            s[d3 + k] += f3 * a + h3 * b
            s[d4 + k] += f4 * a + h4 * b
            s[d5 + k] += f5 * a + h5 * b
            table[l, k] += gl * (f0 * p0 + f1 * p1 + f2 * p2 + f3 * p3 + f4 * p4 + f5 * p5)
            table[r, k] += gr * (h0 * p0 + h1 * p1 + h2 * p2 + h3 * p3 + h4 * p4 + h5 * p5)

    @inlined
    def one(s: Any, sums: Any, labels: Any, rate: Any, table: Any, gl: Any, l: int) -> None:
        f0 = f1 = f2 = f3 = f4 = f5 = np.float32(0)
        for k in range(w):
            a = table[l, k]
            f0 += a * s[o0 + k]
            f1 += a * s[o1 + k]
            f2 += a * s[o2 + k]
            f3 += a * s[o3 + k]
            f4 += a * s[o4 + k]
            f5 += a * s[o5 + k]
        sums[0], sums[1], sums[2], sums[3], sums[4], sums[5] = f0, f1, f2, f3, f4, f5
        _steps(sums, labels, rate)
        f0, f1, f2, f3, f4, f5 = sums[0], sums[1], sums[2], sums[3], sums[4], sums[5]
        for k in range(w):
            a = table[l, k]
            p0, p1, p2 = s[o0 + k], s[o1 + k], s[o2 + k]
            p3, p4, p5 = s[o3 + k], s[o4 + k], s[o5 + k]
            s[d0 + k] += f0 * a
            s[d1 + k] += f1 * a
            s[d2 + k] += f2 * a
            s[d3 + k] += f3 * a
            s[d4 + k] += f4 * a
            s[d5 + k] += f5 * a
            table[l, k] += gl * (f0 * p0 + f1 * p1 + f2 * p2 + f3 * p3 + f4 * p4 + f5 * p5)

    @inlined
    def take(s: Any, at: int, table: Any, row: int) -> None:
        for k in range(dims):
            s[at + k] = table[row, k]

    @inlined
    def give(s: Any, at: int, table: Any, row: int, gain: Any) -> None:
        for k in range(dims):
            table[row, k] += gain * s[at + k]

    @inlined
    def through(
        s: Any,
        sums: Any,
        labels: Any,
        rate: Any,
        table: Any,
        gains: Any,
        near: Any,
        held: int,
        is_told: Any,
    ) -> Any:
        loss, c = 0.0, 0
        while c + 1 < held:
            l, r = near[c], near[c + 1]
            two(s, sums, labels, rate, table, gains[l], gains[r], l, r)
            if is_told:
                loss += _loss(sums, labels, rate, 2)
            c += 2
        if c < held:
            one(s, sums, labels, rate, table, gains[near[c]], near[c])
            if is_told:
                loss += _loss(sums, labels, rate, 1)
        return loss

    @inlined
    def mean(x: Any, table: Any, near: Any, held: int) -> None:
        for k in range(dims):
            x[0, k] = 0
        for c in range(held):
            for k in range(dims):
                x[0, k] += table[near[c], k] / np.float32(held)
        for k in range(dims):
            x[1, k] = x[0, k]

    @inlined
    def spread(x: Any, table: Any, gains: Any, near: Any, held: int) -> None:
        for c in range(held):
            for k in range(dims):
                table[near[c], k] += gains[near[c]] * (x[0, k] - x[1, k])

    @njit(nogil=True, fastmath=True, error_model="numpy", cache=True)
    def descend(
        texts: Any, tables: Any, chances: Any, rule: Any, rate: Any, states: Any
    ) -> tuple[float, int]:
        inputs, outputs, input_gain, output_gain = tables
        keep, own, other, starts, nodes, codes = chances
        most = longest(chances, rule.negatives)
        length = texts.shape[1]
        kept, context = np.empty(length, np.int64), np.empty(min(2 * rule.window, length), np.int64)
        drawn, given = np.empty(most, np.int64), np.empty(most, np.float32)
        s, sums = np.zeros(2 * OUTPUTS * w, np.float32), np.zeros(_LANES, np.float32)
        labels, x = np.zeros(_LANES, np.float32), np.zeros((3, w), np.float32)
        only, gain = np.zeros(1, np.int64), np.ones(1, np.float32)
        loss, pairs, rate = 0.0, 0, np.float32(rate)
        for t in range(texts.shape[0]):
            text, at, state, number = texts[t], 0, states[t], 0
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
                    is_told = number % LOSS_EVERY == 0
                    number += 1
                    if cbow:
                        mean(x, inputs, context, held)
                    for g in range(0, length, OUTPUTS):
                        some = min(OUTPUTS, length - g)
                        for i in range(OUTPUTS):
                            label = given[g + i] if i < some else np.float32(DEAD)
                            labels[i] = labels[OUTPUTS + i] = label
                        for i in range(some):
                            take(s, i * w, outputs, drawn[g + i])
                        for k in range(d0, d5 + w):
                            s[k] = 0
                        if cbow:
                            loss += through(s, sums, labels, rate, x, gain, only, 1, is_told)
                        else:
                            loss += through(
                                s, sums, labels, rate, inputs, input_gain, context, held, is_told
                            )
                        for i in range(some):
                            row = drawn[g + i]
                            give(s, d0 + i * w, outputs, row, output_gain[row])
                    if cbow:
                        spread(x, inputs, input_gain, context, held)
                    if is_told:
                        pairs += 1 if cbow else held
        return loss, pairs

    return descend
