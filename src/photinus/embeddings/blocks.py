"""Cuts sentences into rows of one length: numbers of words, -1 between sentences and at the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from photinus.core.parameters import Vector

if TYPE_CHECKING:
    import pyarrow as pa


SEPARATOR = -1
MOST_TOKENS = 1000
_FEWEST_TOKENS = 64
FEW_WORKERS = 8
"""Beyond so many the rounds of word vectors are shorter, and their gains smaller."""
_ROUND_WORDS_ALONE, _ROUND_WORDS_OF_FEW, _ROUND_WORDS_OF_MANY = 5_000_000, 1_600_000, 384_000
"""Words between two rounds: of one worker, of few workers together, and of many together."""
POWER = 0.75
"""Negatives are drawn in proportion to this power of their counts."""
_ROUND_BYTES, _MOST_ROUND_BYTES = 64 << 20, 256 << 20
_MAX_BYTES_FACTOR = 1.25
"""See `words_in_sharded_round`."""
_LEAST_ROUNDS = 10
"""In a pass over the text."""
_MIN_ROWS = 64
"""How many rows a worker should have at least."""
_FEWEST_PASSES, _MOST_PASSES = 5.0, 20.0
_ENOUGH_OCCURRENCES, _MOST_WORDS_READ = 1200, 120_000_000
"""See `usual_passes`."""


def tokens_in_block(words: int, workers: int) -> int:
    """Returns how long rows should be for so many words of text.

    Example:
        >>> tokens_in_block(10_000_000, 4), tokens_in_block(20_000, 4)
        (1000, 78)
    """
    return min(MOST_TOKENS, max(_FEWEST_TOKENS, words // (_MIN_ROWS * workers)))


def usual_passes(counts: Vector) -> float:
    """Returns how many passes over a text give its words good vectors: 5 of a long one, 20 at most.

    Words of a short text occur seldom. With so many passes a word is met 1,200 times on average,
    unless more than 120 million words were read for it.

    Args:
        counts: how often each word occurs [V].

    Example:
        >>> usual_passes(np.full(90_000, 240)), usual_passes(np.full(18_000, 80))
        (5.0, 15.0)
    """
    words = max(1.0, float(np.sum(counts)))
    passes = min(_MOST_PASSES, _ENOUGH_OCCURRENCES * len(counts) / words, _MOST_WORDS_READ / words)
    return max(_FEWEST_PASSES, passes)


def words_in_round(words: int, workers: int) -> int:
    """Returns how many words each worker should read between two rounds, of so many in all.

    There are ten rounds in a pass at least. Up to 8 workers together read 1.6 million, and more of
    them 384,000: with longer rounds they learnt less (docs/design-notes.md). One worker needs
    rounds for its progress and its checkpoints only.

    Example:
        >>> words_in_round(100_000_000, 8), words_in_round(100_000_000, 16)
        (200000, 24000)
    """
    total = _ROUND_WORDS_OF_FEW if workers <= FEW_WORKERS else _ROUND_WORDS_OF_MANY
    limit = _ROUND_WORDS_ALONE if workers == 1 else total // workers
    return min(limit, words // (workers * _LEAST_ROUNDS))


def words_in_sharded_round(max_words: int, counts: Vector, negatives: int, row_bytes: int) -> int:
    """Returns how many words a worker should read between two rounds of sharded tables.

    A worker holds some ten copies of the rows that a round reads: as they came, as they are now, in
    messages. So the round is shortened until these rows take 256 MB at most. It is shortened
    further, to 64 MB, as long as the messages for a word grow by a quarter at most. In a text that
    uses most rows once, short rounds send no more than long ones; where many words are frequent,
    their rows come and go in each round.

    Args:
        max_words: as many as with whole tables, at most.
        counts: how often each word occurs [V], in descending order.
        negatives: for each word; 0: hierarchical softmax.
        row_bytes: of a vector.

    Example:
        >>> words_in_sharded_round(200_000, np.full(10**6, 2), 5, row_bytes=400)
        106288
        >>> words_in_sharded_round(200_000, np.full(1000, 10**5), 5, row_bytes=400)
        200000
    """
    group_starts = np.flatnonzero(np.append(True, counts[1:] != counts[:-1]))  # of each count
    uses = counts[group_starts].astype(np.float64)
    group_sizes = np.diff(np.append(group_starts, len(counts))).astype(np.float64)
    words = float(max(1, max_words))
    min_cost = rows_read(words, uses, group_sizes, negatives) / words
    while True:
        rows, fewer_words = rows_read(words, uses, group_sizes, negatives), 0.9 * words
        cost = rows_read(fewer_words, uses, group_sizes, negatives) / fewer_words
        is_cheap = cost <= _MAX_BYTES_FACTOR * min_cost and rows * row_bytes > _ROUND_BYTES
        if not is_cheap and rows * row_bytes <= _MOST_ROUND_BYTES:
            return int(words)
        words = fewer_words


def rows_read(words: float, uses: Vector, group_sizes: Vector, negatives: int) -> float:
    """Returns how many rows of both tables so many words of text read, by expectation.

    Inputs: Σ 1 − exp(−n pᵥ). Outputs: Σ 1 − exp(−n (pᵥ + N qᵥ)). Word v makes up the share pᵥ of
    the text, and the share qᵥ of all negatives, in proportion to pᵥ to the power of ¾.

    Args:
        words: n.
        uses: how often words occur [c].
        group_sizes: how many words occur so often [c].
        negatives: N, for each word; 0: hierarchical softmax, whose outputs get an upper bound.

    Example:
        >>> round(rows_read(1000, np.ones(1), np.full(1, 10**6), 5))  # 1,000 inputs, 6,000 outputs
        6982
    """
    reads = words * uses / (uses @ group_sizes)
    inputs = float(group_sizes @ -np.expm1(-reads))
    if not negatives:
        return inputs + min(words * float(np.log2(group_sizes.sum())), float(group_sizes.sum()))
    weights = uses**POWER
    reads += words * negatives * weights / (weights @ group_sizes)
    return inputs + float(group_sizes @ -np.expm1(-reads))


def encoded(sentences: pa.Array, words: pa.Array) -> Vector:
    """Returns sentences as numbers of words [T] int32, -1 after each; other words are left out.

    Args:
        sentences: lists of texts.
        words: the vocabulary.
    """
    import pyarrow.compute as pc

    sentences = sentences.filter(sentences.is_valid())
    indices = pc.index_in(sentences.flatten(), value_set=words)
    numbers = np.asarray(indices.fill_null(SEPARATOR - 1)).astype(np.int32, copy=False)
    tokens = separated(numbers, np.asarray(pc.list_value_length(sentences)).astype(np.int64))
    known_words: Vector = tokens[tokens != SEPARATOR - 1]
    return known_words


def separated(numbers: Vector, lengths: Vector) -> Vector:
    """Returns numbers of words [T] int32, -1 after each sentence.

    Args:
        numbers: of all sentences, one after the other [n].
        lengths: of the sentences, together n.

    Example:
        >>> separated(np.array([5, 6, 7]), np.array([2, 0, 1])).tolist()
        [5, 6, -1, -1, 7, -1]
    """
    tokens = np.full(len(numbers) + len(lengths), SEPARATOR, np.int32)
    tokens[np.arange(len(numbers)) + np.repeat(np.arange(len(lengths)), lengths)] = numbers
    return tokens


def blocks(chunks: Iterator[Vector], length: int) -> Iterator[Vector]:
    """Yields rows [B, length] int32 from chunks of text; the last row is filled up with -1.

    Example:
        >>> [rows.tolist() for rows in blocks(iter([np.array([5, 6, -1]), np.array([7, -1])]), 4)]
        [[[5, 6, -1, 7]]]
    """
    buffer = np.zeros(0, np.int32)
    for chunk in chunks:
        buffer = np.concatenate([buffer, chunk.astype(np.int32, copy=False)])
        full_size = len(buffer) // length * length
        if full_size:
            yield buffer[:full_size].reshape(-1, length)
            buffer = buffer[full_size:]
    if (buffer >= 0).any():
        last = np.full(length, SEPARATOR, np.int32)
        last[: len(buffer)] = buffer
        yield last[None]
