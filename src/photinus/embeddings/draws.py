"""What word2vec draws at random: words left out, windows, negatives; in plain Python.

The numba kernel compiles these functions, and the plain reference calls them: both learn from the
same pairs and the same negatives. Numbers are whole and below 2⁶³ in either.

Reference: Mikolov et al., Distributed representations of words and phrases (2013).
"""

from __future__ import annotations

from typing import NamedTuple

from photinus.core.parameters import Vector

IGNORED = -1.0
"""The label of an output that takes no part: a negative that is the word itself."""
_MASK = (1 << 48) - 1
_UNIT = 2.0**-24


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
    accept: Vector
    """Alias sampling: with which probability a column gives its own word [V] float32."""
    alias: Vector
    """The word that it gives else [V] int32."""
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


def sample_sentence(
    tokens: Vector, position: int, keep: Vector, state: int, kept_words: Vector
) -> tuple[int, int, int]:
    """Writes those words of a sentence that stay; returns their count, its end and the state.

    Args:
        tokens: numbers of words [T], below 0 between sentences.
        position: where it begins.
        keep: with which probability a word stays [V].
        state: of the generator.
        kept_words: filled in [T].
    """
    count = 0
    while position < len(tokens) and tokens[position] >= 0:
        word = tokens[position]
        position += 1
        if keep[word] < 1.0:
            state = advance(state)
            if (state >> 24) * _UNIT >= keep[word]:
                continue
        kept_words[count] = word
        count += 1
    return count, position, state


def draw_window(max_size: int, state: int) -> tuple[int, int]:
    """Returns how many words to each side are the context, 1 to `max_size`, and the state."""
    state = advance(state)
    return 1 + (state >> 16) % max_size, state


def fill_context(position: int, radius: int, words: Vector, count: int, context: Vector) -> int:
    """Writes the words to both sides of a position to `context`; returns how many they are."""
    size = 0
    for neighbour in range(max(0, position - radius), min(count, position + radius + 1)):
        if neighbour != position:
            context[size] = words[neighbour]
            size += 1
    return size


def add_input_rows(word: int, grams: Subwords, members: Vector, count: int) -> int:
    """Writes the rows of a word's input to `members`; returns how many are then in it.

    Args:
        word: its number, and that of its own row.
        grams: as of `DrawTables`.
        members: filled in.
        count: how many are in it.
    """
    members[count] = word
    count += 1
    if len(grams.starts) > 1:
        for index in range(grams.starts[word], grams.starts[word + 1]):
            members[count] = grams.rows[index]
            count += 1
    return count


def max_input_rows(grams: Subwords) -> int:
    """Returns how many rows the input of a word has at most."""
    most_grams = 0
    for word in range(len(grams.starts) - 1):
        most_grams = max(most_grams, grams.starts[word + 1] - grams.starts[word])
    return 1 + most_grams


def max_outputs(chances: DrawTables, negatives: int) -> int:
    """Returns how many outputs a centre has at most."""
    count = 1 + negatives
    for word in range(len(chances.starts) - 1):
        count = max(count, chances.starts[word + 1] - chances.starts[word])
    return count


def draw_negatives(
    centre: int, accept: Vector, alias: Vector, state: int, outputs: Vector, labels: Vector
) -> int:
    """Fills in the centre with label 1 and drawn words with label 0; returns the state.

    Args:
        centre: number of a word.
        accept: of alias sampling [V], as of `DrawTables`.
        alias: likewise.
        state: of the generator.
        outputs: filled in [1 + negatives].
        labels: likewise.
    """
    outputs[0], labels[0] = centre, 1.0
    for index in range(1, len(outputs)):
        state = advance(state)
        word = ((state >> 16) * len(accept)) >> 32
        state = advance(state)
        if (state >> 24) * _UNIT >= accept[word]:
            word = alias[word]
        outputs[index] = word
        labels[index] = IGNORED if word == centre else 0.0
    return state


def huffman_path(
    centre: int, starts: Vector, nodes: Vector, codes: Vector, outputs: Vector, labels: Vector
) -> int:
    """Fills in the inner nodes on the way to a word, label 1 - code; returns how many they are."""
    first, last = starts[centre], starts[centre + 1]
    for index in range(first, last):
        outputs[index - first], labels[index - first] = nodes[index], 1.0 - codes[index]
    length: int = last - first
    return length


def fill_alias_table(
    rest: Vector, small: Vector, large: Vector, accept: Vector, alias: Vector
) -> None:
    """Fills each column below 1 up by the number of one above it.

    Args:
        rest: what is left of each number's share [V]; it is written to.
        small: the numbers below 1, as a stack; likewise.
        large: the others, as a stack.
        accept: the probability of a column's own number [V]: the result.
        alias: the other one [V]: likewise.
    """
    small_size, large_size = len(small), len(large)
    while small_size and large_size:
        low, high = small[small_size - 1], large[large_size - 1]
        accept[low], alias[low] = rest[low], high
        rest[high] -= 1.0 - rest[low]
        if rest[high] < 1.0:
            small[small_size - 1] = high
            large_size -= 1
        else:
            small_size -= 1
