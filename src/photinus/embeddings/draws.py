"""What word2vec draws at random: words left out, windows, negatives; in plain Python.

The numba kernel compiles these functions, and the plain reference calls them: both learn from the
same pairs and the same negatives. Numbers are whole and below 2⁶³ in either.

Reference: Mikolov et al., Distributed representations of words and phrases (2013).
"""

from __future__ import annotations

from typing import NamedTuple

from photinus.core.parameters import Vector

DEAD = -1.0
"""The label of an output that takes no part: a negative that is the word itself."""
_MASK = (1 << 48) - 1
_SHARE = 2.0**-24


class Subwords(NamedTuple):
    """Further rows of the inputs: a word's vector is the mean of its own row and of these."""

    starts: Vector
    """Where those of a word begin [V + 1]; else [1]."""
    rows: Vector
    """Of all words [n]."""


class DrawTables(NamedTuple):
    """All that the draws depend on, of a vocabulary of V words."""

    keep: Vector
    """With which probability an occurrence stays [V] float32."""
    own: Vector
    """Alias sampling: the probability of the column's own word [V] float32."""
    other: Vector
    """The column's other word [V] int32."""
    starts: Vector
    """Where a word's path through the Huffman tree begins in `nodes` [V + 1]; else [1]."""
    nodes: Vector
    """Inner nodes of all paths [n] int32; empty with negative sampling."""
    codes: Vector
    """Which way each path turns at them, 0 or 1 [n] float32."""
    grams: Subwords
    """The rows of each word's n-grams."""


def advance(state: int) -> int:
    """Returns the next state, of 48 bits: that of drand48."""
    return (state * 25214903917 + 11) & _MASK


def sentence(
    tokens: Vector, at: int, keep: Vector, state: int, kept: Vector
) -> tuple[int, int, int]:
    """Writes the words of a sentence that stay to `kept`; returns their count, its end, the state.

    Args:
        tokens: numbers of words [T], below 0 between sentences.
        at: where it begins.
        keep: with which probability a word stays [V].
        state: of the generator.
        kept: room [T].
    """
    count = 0
    while at < len(tokens) and tokens[at] >= 0:
        word = tokens[at]
        at += 1
        if keep[word] < 1.0:
            state = advance(state)
            if (state >> 24) * _SHARE >= keep[word]:
                continue
        kept[count] = word
        count += 1
    return count, at, state


def window(most: int, state: int) -> tuple[int, int]:
    """Returns how many words to each side are a centre's context, 1 to `most`, and the state."""
    state = advance(state)
    return 1 + (state >> 16) % most, state


def around(place: int, side: int, kept: Vector, count: int, context: Vector) -> int:
    """Writes the words to both sides of a place to `context`; returns how many they are."""
    held = 0
    for near in range(max(0, place - side), min(count, place + side + 1)):
        if near != place:
            context[held] = kept[near]
            held += 1
    return held


def parts(word: int, grams: Subwords, members: Vector, held: int) -> int:
    """Writes the rows of a word's input to `members`; returns how many are then in it.

    Args:
        word: its number, and that of its own row.
        grams: as of `DrawTables`.
        members: room.
        held: how many are in it.
    """
    members[held] = word
    held += 1
    if len(grams.starts) > 1:
        for at in range(grams.starts[word], grams.starts[word + 1]):
            members[held] = grams.rows[at]
            held += 1
    return held


def most_parts(grams: Subwords) -> int:
    """Returns how many rows the input of a word has at most."""
    most = 0
    for word in range(len(grams.starts) - 1):
        most = max(most, grams.starts[word + 1] - grams.starts[word])
    return 1 + most


def longest(chances: DrawTables, negative: int) -> int:
    """Returns how many outputs a centre has at most."""
    most = 1 + negative
    for word in range(len(chances.starts) - 1):
        most = max(most, chances.starts[word + 1] - chances.starts[word])
    return most


def negatives(
    centre: int, own: Vector, other: Vector, state: int, outputs: Vector, labels: Vector
) -> int:
    """Fills in the centre with label 1 and drawn words with label 0; returns the state.

    Args:
        centre: number of a word.
        own: of alias sampling [V], as of `DrawTables`.
        other: likewise.
        state: of the generator.
        outputs: room for 1 + negatives numbers.
        labels: likewise.
    """
    outputs[0], labels[0] = centre, 1.0
    for at in range(1, len(outputs)):
        state = advance(state)
        word = ((state >> 16) * len(own)) >> 32
        state = advance(state)
        if (state >> 24) * _SHARE >= own[word]:
            word = other[word]
        outputs[at] = word
        labels[at] = DEAD if word == centre else 0.0
    return state


def path(
    centre: int, starts: Vector, nodes: Vector, codes: Vector, outputs: Vector, labels: Vector
) -> int:
    """Fills in the inner nodes on the way to a word, label 1 - code; returns how many they are."""
    first, last = starts[centre], starts[centre + 1]
    for at in range(first, last):
        outputs[at - first], labels[at - first] = nodes[at], 1.0 - codes[at]
    length: int = last - first
    return length


def paired(rest: Vector, small: Vector, large: Vector, own: Vector, other: Vector) -> None:
    """Fills each column below 1 up by the number of one above it.

    Args:
        rest: what is left of each number's share [V]; it is written to.
        small: the numbers below 1, as a stack; likewise.
        large: the others, as a stack.
        own: the probability of a column's own number [V]: the result.
        other: the other one [V]: likewise.
    """
    lows, highs = len(small), len(large)
    while lows and highs:
        low, high = small[lows - 1], large[highs - 1]
        own[low], other[low] = rest[low], high
        rest[high] -= 1.0 - rest[low]
        if rest[high] < 1.0:
            small[lows - 1] = high
            highs -= 1
        else:
            lows -= 1
