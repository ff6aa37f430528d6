"""Makes the tables of random draws from the counts of words."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from photinus.core.errors import DataError
from photinus.core.parameters import Vector
from photinus.embeddings.blocks import FEW_WORKERS, POWER
from photinus.embeddings.draws import DrawTables, Subwords, fill_alias_table

_CONTEXTS = 6.0
"""Words in a window of 5 to each side, shortened at random."""
_PULL, _PULL_OF_MANY = 0.0002, 0.0006
"""The share of the way to its aim that one step goes, with few workers and with more than
`FEW_WORKERS`: fitted, see docs/word2vec.md."""

_BLOCK = 1 << 16

NO_GRAMS = Subwords(np.zeros(1, np.int64), np.zeros(0, np.int64))


def draw_tables(
    counts: Vector,
    sample: float,
    negatives: int,
    grams: Subwords = NO_GRAMS,
    fill: Callable[..., None] | None = None,
) -> DrawTables:
    """Returns the draws of a vocabulary.

    Args:
        counts: how often each word occurs [V].
        sample: words above this share of all are left out at random; 0: never.
        negatives: words drawn for each centre; 0: hierarchical softmax.
        grams: of the words.
        fill: as of `alias_table`.

    Raises:
        DataError: the counts are missing.
    """
    if not counts.size or counts.min() < 1:
        do = "Word2Vec(...).fit counts the words itself"
        raise DataError("word vectors need the count of every word", got=f"{counts.size}", do=do)
    accept, alias = alias_table(counts**POWER, fill)
    starts, nodes, codes = huffman(counts) if negatives == 0 else _NO_PATHS
    return DrawTables(keep_shares(counts, sample), accept, alias, starts, nodes, codes, grams)


_NO_PATHS = (np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32))


def keep_shares(counts: Vector, sample: float) -> Vector:
    """Returns with which probability an occurrence of each word is kept: √(t/f) + t/f, [V] float32.

    Example:
        >>> [round(float(share), 3) for share in keep_shares(np.array([1000, 10]), 0.01)]
        [0.111, 1.0]
    """
    if sample <= 0:
        return np.ones(len(counts), np.float32)
    ratio = sample * counts.sum() / counts
    root = np.sqrt(ratio)
    root += ratio
    shares: Vector = np.minimum(1.0, root, out=root).astype(np.float32)
    return shares


def alias_table(weights: Vector, fill: Callable[..., None] | None = None) -> tuple[Vector, Vector]:
    """Returns a column for each weight: the probability of its own number, and the other one.

    A number is drawn in constant time: a column with equal chances, then one of its two numbers.

    Args:
        weights: above 0 [V] float64; they are overwritten.
        fill: a faster `fill_alias_table` than Python's.

    Reference:
        Vose, A linear algorithm for generating random numbers with a given distribution (1991).
    """
    shares = np.multiply(weights, len(weights) / weights.sum(), out=weights)
    small, large = (np.flatnonzero(mask).astype(np.int32) for mask in (shares < 1, shares >= 1))
    accept, alias = np.ones(len(shares), np.float32), np.arange(len(shares), dtype=np.int32)
    if fill is None:  # a view gives Python's numbers, faster than an array
        fill_alias_table(*(array.data for array in (shares, small, large, accept, alias)))  # type: ignore[arg-type]
    else:
        fill(shares, small, large, accept, alias)
    return accept, alias


def huffman(counts: Vector) -> tuple[Vector, Vector, Vector]:
    """Returns each word's path through the Huffman tree, from the root: starts, nodes, codes.

    Args:
        counts: how often each word occurs [V].

    Example:
        >>> starts, nodes, codes = huffman(np.array([5, 2, 1]))
        >>> np.diff(starts).tolist(), nodes.tolist(), codes.tolist()
        ([1, 2, 2], [1, 1, 0, 1, 0], [1.0, 0.0, 1.0, 0.0, 0.0])
    """
    words = len(counts)
    order = np.argsort(counts, kind="stable")
    leaves, inner = [(int(counts[w]), int(w)) for w in order], list[tuple[int, int]]()
    parent, branch = np.zeros(2 * words, np.int64), np.zeros(2 * words, np.float32)
    next_leaf = next_inner = 0
    for node in range(words - 1):
        child_counts = []
        for side in (0, 1):
            is_leaf = next_leaf < words and (
                next_inner == len(inner) or leaves[next_leaf][0] <= inner[next_inner][0]
            )
            count, child = leaves[next_leaf] if is_leaf else inner[next_inner]
            next_leaf, next_inner = next_leaf + is_leaf, next_inner + (not is_leaf)
            parent[child], branch[child] = words + node, side
            child_counts.append(count)
        inner.append((sum(child_counts), words + node))
    paths = [_path(word, parent, branch, words) for word in range(words)]
    starts = np.concatenate([[0], np.cumsum([len(path) for path in paths])])
    flat = [step for path in paths for step in path]
    nodes = np.array([node for node, _ in flat], np.int32)
    return starts.astype(np.int64), nodes, np.array([code for _, code in flat], np.float32)


def _path(word: int, parent: Vector, branch: Vector, words: int) -> list[tuple[int, float]]:
    steps, node, root = [], word, 2 * words - 2
    while node != root:
        steps.append((int(parent[node]) - words, float(branch[node])))
        node = int(parent[node])
    return steps[::-1]


def gains(
    counts: Vector,
    keep: Vector,
    workers: int,
    words: float,
    negatives: int,
    grams: Subwords = NO_GRAMS,
) -> tuple[Vector, Vector]:
    """Returns by what each row's steps are multiplied, so that the mean of K workers learns as one.

    A row that takes n steps between two rounds goes the share 1 − (1 − a)ⁿ of its way. One worker
    with the text of all would go 1 − (1 − a)ᴷⁿ. The gain is the quotient: K for a rare word, whose
    step the mean divides by K, and 1 for a frequent one, where the workers find the same.

    Args:
        counts: how often each word occurs [V].
        keep: with which probability an occurrence stays [V].
        workers: K.
        words: of text that a worker reads between two rounds.
        negatives: for each centre; 0: hierarchical softmax, of which all outputs are frequent.
        grams: of the words: a row of theirs moves with each of its words.

    Returns:
        The gains of the inputs up to the last one in use [V + b], and of the outputs [V].
    """
    total = counts.sum()

    def centres(block: slice) -> Vector:
        """Returns how often each of some words is a centre in a round."""
        centre_uses: Vector = np.multiply(counts[block], keep[block], dtype=np.float64)
        centre_uses /= total
        centre_uses *= words
        return centre_uses

    input_uses = centre_uses = centres(slice(None))
    all_centre_uses = centre_uses.sum()
    if len(grams.rows):
        input_uses = np.bincount(
            grams.rows, np.repeat(centre_uses, np.diff(grams.starts)), len(centre_uses)
        )
        input_uses[: len(centre_uses)] = centre_uses
        input_uses = np.maximum(input_uses, centre_uses.min())  # rows that are never used
    pull = _PULL if workers <= FEW_WORKERS else _PULL_OF_MANY
    input_gains = _gains_of(input_uses, pull, workers)
    del centre_uses, input_uses  # of millions of words little else is in memory
    if not negatives:
        return input_gains, _gains_of(np.full(len(counts), np.inf), pull, workers)
    output_uses = counts**POWER
    output_uses *= negatives * all_centre_uses / output_uses.sum()
    for start in range(0, len(output_uses), _BLOCK):
        output_uses[start : start + _BLOCK] += centres(slice(start, start + _BLOCK))
    return input_gains, _gains_of(output_uses, pull, workers)


def _gains_of(steps: Vector, pull: float, workers: int) -> Vector:
    """Returns the gains of rows that take so many steps between two rounds."""
    row_gains = np.empty(len(steps), np.float32)
    for start in range(0, len(steps), _BLOCK):
        block = steps[start : start + _BLOCK]
        one_worker = -np.expm1(-pull * _CONTEXTS * block)
        row_gains[start : start + _BLOCK] = (
            -np.expm1(-pull * _CONTEXTS * workers * block) / one_worker
        )
    return row_gains
