"""A vocabulary of any size: few words as a list, more of them in a file that is mapped."""

from __future__ import annotations

import tempfile
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, BinaryIO, overload

import numpy as np
from numpy.typing import DTypeLike

from photinus.core.parameters import Vector

if TYPE_CHECKING:
    import pyarrow as pa

_BLOCK = 1 << 16
"""How many words become texts of Python's at once."""


class MappedWords(Sequence[str]):
    """Different texts, of which none is in memory before it is asked for.

    Args:
        letters: of all texts, one after the other, in UTF-8 [n] uint8; they may lie in a file.
        ends: where each text ends, after a 0 [V + 1] int64.
        order: their rows by the alphabet [V]; found when first needed where it is left out.

    Example:
        >>> words = MappedWords(np.frombuffer(b"catdog", np.uint8), np.array([0, 3, 6]))
        >>> words[1], list(words), words.rows["dog"]
        ('dog', ['cat', 'dog'], 1)
    """

    def __init__(self, letters: Vector, ends: Vector, order: Vector | None = None) -> None:
        self.letters, self.ends, self._order = letters, ends, order

    def __len__(self) -> int:
        return len(self.ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if not isinstance(index, slice):
            text: str = self.texts[range(len(self))[index]].as_py()
            return text
        start, stop, step = index.indices(len(self))
        if step != 1:
            return [self[row] for row in range(start, stop, step)]
        texts: list[str] = self.texts.slice(start, max(0, stop - start)).to_pylist()
        return texts

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), _BLOCK):
            yield from self[start : start + _BLOCK]

    @cached_property
    def rows(self) -> Mapping[str, int]:
        """Word -> its row."""
        return _RowsByWord(self)

    @cached_property
    def order(self) -> Vector:
        """Their rows by the alphabet [V]."""
        import pyarrow.compute as pc

        return pc.sort_indices(self.texts).to_numpy() if self._order is None else self._order

    @cached_property
    def texts(self) -> pa.LargeStringArray:
        """All of them, as Arrow reads them where they lie."""
        import pyarrow as pa

        buffers = pa.py_buffer(self.ends), pa.py_buffer(self.letters)
        return pa.LargeStringArray.from_buffers(len(self), *buffers)

    def __reduce__(self) -> tuple[type, tuple[Vector, Vector]]:
        return MappedWords, (np.asarray(self.letters), np.asarray(self.ends))


class _RowsByWord(Mapping[str, int]):
    """Finds words in their order by the alphabet, by bisection."""

    def __init__(self, words: MappedWords) -> None:
        self._words, self._order = words, words.order

    def __getitem__(self, word: str) -> int:
        position = bisect_left(self._order, word, key=self._word)
        if position < len(self) and self._word(self._order[position]) == word:
            return int(self._order[position])
        raise KeyError(word)

    def _word(self, row: Any) -> str:  # noqa: ANN401 - a whole number of numpy's
        return self._words[int(row)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._words)

    def __len__(self) -> int:
        return len(self._words)


def row_finder(words: Sequence[str]) -> Callable[[Sequence[str]], Vector]:
    """Returns what finds the rows [n] of some words, -1 for others and for None."""
    if isinstance(words, MappedWords):
        rows = words.rows
        return lambda queries: np.array(
            [rows.get(word, -1) if isinstance(word, str) else -1 for word in queries], np.int64
        )
    import pandas as pd

    index = pd.Index(words)
    return lambda queries: index.get_indexer(queries)


def collect_vocabulary(
    batches: Iterable[tuple[pa.Array, Vector]], max_in_memory: int
) -> tuple[Sequence[str], Vector]:
    """Returns words and their counts [V], as they come.

    Args:
        batches: of different words as texts of Arrow, and their counts.
        max_in_memory: more words than so many lie in files without a name, and their counts, too.
    """
    pending: list[tuple[pa.Array, Vector]] = []
    files, total = None, 0
    for words, counts in batches:
        pending.append((words, counts))
        total += len(words)
        if total > max_in_memory:
            files = files or _VocabularyFiles()
            for batch in pending:
                files.write(*batch)
            pending.clear()
    if files is not None:
        return files.close()
    texts = [text for words, _ in pending for text in words.to_pylist()]
    return texts, np.concatenate([np.zeros(0, np.int64), *(counts for _, counts in pending)])


class _VocabularyFiles:
    """Holds letters, ends and counts in files of the temporary folder."""

    def __init__(self) -> None:
        self._letters, self._ends, self._counts = (open_unnamed() for _ in range(3))
        self._ends.write(np.zeros(1, np.int64).tobytes())
        self._end = 0

    def write(self, words: pa.Array, counts: Vector) -> None:
        import pyarrow as pa

        texts = words.cast(pa.large_string())
        _, ends, letters = texts.buffers()
        offsets = np.frombuffer(ends, np.int64)[texts.offset : texts.offset + len(texts) + 1]
        self._letters.write(memoryview(letters)[offsets[0] : offsets[-1]])
        self._ends.write((offsets[1:] - offsets[0] + self._end).tobytes())
        self._counts.write(counts.astype(np.int64).tobytes())
        self._end += int(offsets[-1] - offsets[0])

    def close(self) -> tuple[MappedWords, Vector]:
        letters, ends, counts = (
            map_file(file, kind)
            for file, kind in ((self._letters, "u1"), (self._ends, "i8"), (self._counts, "i8"))
        )
        return MappedWords(letters, ends), counts


def open_unnamed() -> BinaryIO:
    """Returns a file of the temporary folder that ends with the process."""
    return tempfile.TemporaryFile()


def map_file(file: BinaryIO, kind: DTypeLike) -> Vector:
    """Closes a file, and returns its numbers [n], which stay there.

    Args:
        file: as of `open_unnamed`; not empty.
        kind: of the numbers, as numpy names it.
    """
    with file:
        file.flush()
        return np.memmap(file, kind, "r")
