"""Merges the deltas of one round: uniform, by examples, or nova."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from photinus.core.clock import Clock
from photinus.core.errors import FrameError
from photinus.core.parameters import Vector
from photinus.strategies.codecs import Decoded

MERGES = ("uniform", "examples", "nova")

_BLOCK = 1 << 16


def coefficients(merge: str, works: Sequence[Clock]) -> list[float]:
    """Returns one coefficient a push; pushes without work get 0.

    uniform: 1/K · examples: nᵢ/Σn · nova: pᵢ·τ_eff/τᵢ with pᵢ = nᵢ/Σn and τ_eff = Σ pᵢτᵢ, so
    that a worker with many short steps does not pull the mean towards itself (FedNova: Wang et
    al., 2020). With equal work all three are 1/K.

    Args:
        merge: one of `MERGES`.
        works: the work in each push.

    Example:
        >>> coefficients("examples", [Clock(1, 10), Clock(3, 30)])
        [0.25, 0.75]
    """
    has_work = [work.steps > 0 and work.examples > 0 for work in works]
    count = sum(has_work)
    if count == 0:
        return [0.0] * len(works)
    if merge == "uniform":
        return [1.0 / count if b else 0.0 for b in has_work]
    total = sum(work.examples for work, b in zip(works, has_work, strict=True) if b)
    shares = [work.examples / total if b else 0.0 for work, b in zip(works, has_work, strict=True)]
    if merge == "examples":
        return shares
    effective = sum(p * work.steps for p, work in zip(shares, works, strict=True))
    return [
        p * effective / work.steps if b else 0.0
        for p, work, b in zip(shares, works, has_work, strict=True)
    ]


def combine(
    vectors: Sequence[Vector], weights: Sequence[float], out: Vector | None = None
) -> Vector:
    """Returns Σ cᵢ vᵢ, summed in the order given so that the bits repeat; vectors are [n].

    It stands in `out` [n], which is none of the vectors, or in a vector of its own.
    """
    combined = np.empty_like(vectors[0]) if out is None else out
    terms = [(v, v.dtype.type(c)) for v, c in zip(vectors, weights, strict=True) if c != 0.0]
    if not terms:
        combined[:] = 0
        return combined
    (first, weight), *others = terms
    scratch = np.empty(min(_BLOCK, len(combined)), combined.dtype)
    for start in range(0, len(combined), _BLOCK):  # a block of all vectors stays in the cache
        block = slice(start, start + _BLOCK)
        sums = np.multiply(first[block], weight, out=combined[block])
        for vector, factor in others:
            sums += np.multiply(vector[block], factor, out=scratch[: len(sums)])
    return combined


def combine_sent(
    pushes: Sequence[tuple[str, Vector]],
    weights: Sequence[float],
    out: Vector,
    *,
    should_measure_spread: bool,
) -> float | None:
    """Fills `out` [n] with Σ cᵢ vᵢ of vectors as they travel: each number is decoded once.

    The bits are those of `combine`; no vector stands decoded in memory.

    Args:
        pushes: codec and vector of each push.
        weights: as of `combine`.
        out: in whose precision all is summed.
        should_measure_spread: whether to find out how far apart the vectors are.

    Returns:
        √(Σ‖Δᵢ − Δ̄‖² / K), with Δ̄ the plain mean; None where it was not asked for.

    Raises:
        FrameError: a vector holds another count of numbers than `out`.

    Example:
        >>> out = np.empty(2, np.float32)
        >>> pushes = [("fp32", np.array(v, np.float32)) for v in ([1, 0], [-1, 0])]
        >>> combine_sent(pushes, [0.75, 0.25], out, should_measure_spread=True), out.tolist()
        (1.0, [0.5, 0.0])
    """
    vectors = [Decoded(codec, vector, out.dtype) for codec, vector in pushes]
    if any(len(vector) != len(out) for vector in vectors):
        raise FrameError(f"a push must hold {len(out)} numbers", got=[len(v) for v in vectors])
    weight, mean_of_squares, square_of_mean = 1 / len(vectors), 0.0, 0.0
    for start in range(0, len(out), _BLOCK):
        block = slice(start, start + _BLOCK)
        blocks = [vector[block] for vector in vectors]
        combine(blocks, weights, out[block])
        if should_measure_spread:
            mean = combine(blocks, [weight] * len(blocks))
            mean_of_squares += weight * sum(float(np.dot(values, values)) for values in blocks)
            square_of_mean += float(np.dot(mean, mean))
    return math.sqrt(max(0.0, mean_of_squares - square_of_mean)) if should_measure_spread else None
