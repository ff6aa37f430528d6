"""The n-grams of words, in buckets as fastText's: rare and unseen words get vectors from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from photinus.core.errors import UsageError
from photinus.core.parameters import Vector
from photinus.embeddings.draws import Subwords

_BASIS, _PRIME = np.uint32(2166136261), np.uint32(16777619)
_BLOCK_NUMBERS = 1 << 22
"""How many numbers are gathered at once."""


@dataclass(frozen=True, slots=True)
class Ngrams:
    """Which n-grams a word has, between `<` and `>`.

    Example:
        >>> np.diff(Ngrams(3, 3, 1000).of(["cat", "a"]).starts).tolist()  # <ca, cat, at>; <a>
        [3, 1]

    Reference: Bojanowski et al., Enriching word vectors with subword information (2017).
    """

    shortest: int
    """Characters of an n-gram, at least."""
    longest: int
    """At most."""
    buckets: int
    """B, rows that all n-grams share by their hash."""

    def __post_init__(self) -> None:
        if not 1 <= self.shortest <= self.longest:
            got = f"{self.shortest}, {self.longest}"
            do = "name the shortest and the longest, as subwords=(3, 6)"
            raise UsageError("subwords must be two lengths, the shorter first", got=got, do=do)
        if self.buckets < 1:
            raise UsageError("buckets must be at least 1", got=self.buckets)

    def of(self, words: Sequence[str], first: int = 0) -> Subwords:
        """Returns the rows of some words' n-grams, in the order in which they begin.

        The hash is FNV-1a of 32 bits over signed bytes of UTF-8, as fastText's.

        Args:
            words: texts.
            first: the row of the first bucket.
        """
        encoded = [f"<{word}>".encode() for word in words]
        data = np.frombuffer(b"".join(encoded), np.uint8)
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        ends = np.repeat(np.cumsum(lengths), lengths)  # of each byte's word
        starts = ends - np.repeat(lengths, lengths)
        is_first = np.append((data & 0xC0) != 0x80, True)  # of a character
        signed = data.view(np.int8).astype(np.int32).view(np.uint32)
        begins = np.flatnonzero(is_first[:-1])
        hashes, length, offset = np.full(len(begins), _BASIS), np.zeros(len(begins), np.int64), 0
        complete: list[tuple[Vector, Vector]] = []
        while len(begins):
            current = begins + offset  # the last byte of each n-gram so far
            hashes, length, offset = (
                (hashes ^ signed[current]) * _PRIME,
                length + is_first[current],
                offset + 1,
            )
            is_edge = (length == 1) & ((begins == starts[begins]) | (current + 1 == ends[begins]))
            is_whole = is_first[current + 1] & (length >= self.shortest) & ~is_edge
            complete.append((begins[is_whole], hashes[is_whole]))
            is_continued = (current + 1 < ends[begins]) & (
                (length < self.longest) | ~is_first[current + 1]
            )
            begins, hashes, length = (
                begins[is_continued],
                hashes[is_continued],
                length[is_continued],
            )
        positions, rows = (
            np.concatenate([match[column] for match in complete]) for column in (0, 1)
        )
        order = np.argsort(positions, kind="stable")
        counts = np.bincount(
            np.repeat(np.arange(len(words)), lengths)[positions], minlength=len(words)
        )
        rows = rows[order].astype(np.int64) % self.buckets + first
        return Subwords(np.concatenate([[0], np.cumsum(counts)]), rows)


def compose_vectors(inputs: Vector, grams: Subwords) -> Vector:
    """Returns words' vectors [V, D]: each the mean of its own row and those of its n-grams.

    Args:
        inputs: [V + B, D] float32.
        grams: of the V words.
    """
    counts = np.diff(grams.starts)
    vectors = np.array(inputs[: len(counts)])
    block = max(1, _BLOCK_NUMBERS // (inputs.shape[1] * max(1, int(counts.max(initial=0)))))
    for start in range(0, len(vectors), block):
        block_words = slice(start, start + block)
        first, last = grams.starts[start], grams.starts[min(start + block, len(vectors))]
        vector_of_gram = np.repeat(np.arange(len(vectors[block_words])), counts[block_words])
        np.add.at(vectors[block_words], vector_of_gram, inputs[grams.rows[first:last]])
        vectors[block_words] /= (counts[block_words, None] + 1).astype(np.float32)
    return vectors


@dataclass(frozen=True, eq=False)
class SubwordVectors:
    """The trained rows of n-grams: they give words a vector that are not in the vocabulary.

    Args:
        ngrams: which n-grams a word has.
        rows: a vector for each bucket [B, D] float32.
    """

    ngrams: Ngrams
    rows: Vector

    def vectors(self, words: Sequence[str]) -> Vector:
        """Returns the mean of each word's n-grams [n, D]; zeros where it has none."""
        vectors = np.zeros((len(words), self.rows.shape[1]), np.float32)
        for index, word in enumerate(words):
            rows = self.ngrams.of([word]).rows
            if len(rows):
                vectors[index] = self.rows[rows].mean(axis=0)
        return vectors
