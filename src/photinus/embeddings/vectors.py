"""Trained vectors: neighbours, analogies, similarity, and the files of word2vec."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from photinus.checkpoint.mapped import MappedFile, ScratchFolder, is_mapped, write_arrays
from photinus.core.errors import DataError, UsageError, reason_of
from photinus.core.parameters import Vector
from photinus.embeddings.neighbours import NeighbourIndex, build_index
from photinus.embeddings.subwords import Ngrams, SubwordVectors
from photinus.embeddings.words import MappedWords

_CHUNK = 512
"""Questions that are answered by one matrix product."""
_BLOCK = 1 << 22
"""How many numbers of a file of vectors are read at once."""


@dataclass(frozen=True, slots=True)
class Section:
    """How many questions of a section were answered correctly."""

    name: str
    right: int
    covered: int
    """Questions of which all four words have a vector."""
    questions: int

    @property
    def share(self) -> float:
        """Of the covered questions, how many were answered right."""
        return self.right / self.covered if self.covered else 0.0

    def __str__(self) -> str:
        coverage = f"{self.right} of {self.covered} covered of {self.questions}"
        return f"{self.name}: {100 * self.share:.1f} % right, {coverage}"


@dataclass(frozen=True, slots=True)
class Analogies:
    """The answers to analogy questions; printed with what is covered, and the cut-off."""

    sections: tuple[Section, ...]
    cutoff: int
    """Only so many of the most frequent words were known."""

    @property
    def total(self) -> Section:
        """All sections together."""
        sums = [
            sum(getattr(section, name) for section in self.sections)
            for name in ("right", "covered", "questions")
        ]
        return Section("all", *sums)

    @property
    def share(self) -> float:
        """Of the covered questions, how many were answered right."""
        return self.total.share

    def __str__(self) -> str:
        lines = map(str, (*self.sections, self.total))
        return "\n".join([*lines, f"cut-off: the {self.cutoff} most frequent words"])


@dataclass(frozen=True, slots=True)
class Similarity:
    """How the vectors' similarities of pairs agree with people's ratings."""

    spearman: float
    """Rank correlation, -1 to 1."""
    covered: int
    """Pairs of which both words have a vector."""
    pairs: int
    cutoff: int
    """Only so many of the most frequent words were known."""

    def __str__(self) -> str:
        coverage = f"{self.covered} covered of {self.pairs} pairs"
        cutoff = f"cut-off: the {self.cutoff} most frequent words"
        return f"Spearman {self.spearman:.3f} on {coverage}; {cutoff}"


@dataclass(frozen=True, eq=False)
class WordVectors:
    """A vector for each word, the most frequent word first.

    Args:
        words: V different texts.
        vectors: [V, D] float32; they may lie in a file, and are then never in memory as a whole.

    Raises:
        UsageError: there is not one vector for each word.

    Example:
        >>> corners = np.array([[1, 0], [0.9, 0.1], [0, 1]], np.float32)
        >>> vectors = WordVectors(["cat", "dog", "stone"], corners)
        >>> [word for word, _ in vectors.most_similar(["cat"], count=1)]
        ['dog']
    """

    words: Sequence[str]
    vectors: Vector
    counts: Vector | None = field(default=None)
    """How often each word occurs [V], where that is known."""
    subwords: SubwordVectors | None = field(default=None)
    """What gives other words a vector; None: they have none."""

    def __post_init__(self) -> None:
        shape: tuple[int, ...] = getattr(self.vectors, "shape", ())
        if len(shape) != 2 or shape[0] != len(self.words):
            wrong = "WordVectors takes an array with a row of numbers for each word"
            got = f"shape {shape}" if shape else type(self.vectors).__name__
            raise UsageError(wrong, got=f"{len(self.words)} words, and {got}")

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Word -> its row."""
        if isinstance(self.words, MappedWords):
            return self.words.rows
        return {word: row for row, word in enumerate(self.words)}

    @cached_property
    def lengths(self) -> Vector:
        """The length of each vector [V]."""
        lengths = np.empty(len(self), np.float32)
        for rows in self._blocks():
            lengths[rows] = np.linalg.norm(self.vectors[rows], axis=1)
        return np.maximum(lengths, np.float32(1e-12))

    @cached_property
    def unit(self) -> Vector:
        """The vectors, each of length 1 [V, D]; in a file, where they lie in one."""
        shape, allocate = self.vectors.shape, np.empty
        unit: Vector = (ScratchFolder().array if is_mapped(self.vectors) else allocate)(
            shape, "float32"
        )
        for rows in self._blocks():
            unit[rows] = self._unit(rows)
        return unit

    def _blocks(self) -> Iterator[slice]:
        rows = max(1, _BLOCK // max(1, self.vectors.shape[1]))
        return (slice(start, start + rows) for start in range(0, len(self), rows))

    def _unit(self, rows: slice | Vector | int) -> Vector:
        """Returns some vectors, each of length 1 [..., D]."""
        unit: Vector = self.vectors[rows] / self.lengths[rows, ..., None]
        return unit

    def __len__(self) -> int:
        return len(self.words)

    def vector(self, word: str) -> Vector:
        """Returns a word's vector [D]; where it was trained with n-grams, of any word.

        Raises:
            UsageError: it has none.
        """
        has_grams = self.subwords is not None and self.subwords.ngrams.of([word]).rows.size
        if self.subwords is not None and has_grams and word not in self.index:
            vector: Vector = self.subwords.vectors([word])[0]
            return vector
        row: Vector = self.vectors[self._row(word)]
        return row

    def _to_vector(self, item: Any) -> Vector:  # noqa: ANN401 - what a user may give
        """Returns numbers that a user gave as a vector [D].

        Raises:
            UsageError: they are no vector. NumPy would repeat a single number, such as an id.
        """
        dims = self.vectors.shape[1]
        try:
            vector = np.asarray(item, np.float32)
        except (TypeError, ValueError):
            vector = np.zeros(0, np.float32)
        if vector.shape != (dims,) or not np.isfinite(vector).all():
            wrong = f"this is neither a word nor a vector of {dims} finite numbers"
            do = f'an id is a text here: "{item!s}"' if np.isscalar(item) else ""
            raise UsageError(wrong, got=repr(item)[:100], do=do)
        return vector

    def _row(self, word: str) -> int:
        if word not in self.index:
            do = "it may be rarer than minCount; look at `words`"
            raise UsageError("the word has no vector", got=repr(word), do=do)
        return self.index[word]

    def most_similar(
        self,
        positive: Sequence[str | Vector],
        negative: Sequence[str | Vector] = (),
        *,
        count: int = 10,
        approximate: bool = False,
    ) -> list[tuple[str, float]]:
        """Returns the words nearest to Σ positive − Σ negative, with their cosines.

        Args:
            positive: words, or vectors [D].
            negative: likewise.
            count: how many to return; the words asked for are not among them.
            approximate: searches an index, which the first such call makes, in the place of
                comparing with all words: one word in twenty may be missing. For many questions.

        Raises:
            UsageError: a word has no vector, one is neither a text nor a vector, `count` is below
                1, nothing is asked for, or the sum is zero.
            NotReadyError: an index needs usearch, which is missing.
        """
        is_single = any(isinstance(x, str) or not np.iterable(x) for x in (positive, negative))
        if is_single or not [*positive, *negative]:
            do = 'most_similar(["king", "woman"], ["man"])'
            raise UsageError("most_similar takes lists of words", got=repr(positive), do=do)
        _check_positive("count", count)
        query, query_rows = np.zeros(self.vectors.shape[1], np.float32), list[int]()
        for sign, items in ((1.0, positive), (-1.0, negative)):
            for item in items:
                vector = self.vector(item) if isinstance(item, str) else self._to_vector(item)
                query += np.float32(sign) * vector / max(float(np.linalg.norm(vector)), 1e-12)
                if isinstance(item, str) and item in self.index:
                    query_rows.append(self.index[item])
        if not query.any():
            wrong = "the vectors add up to zero, and nothing is near to that"
            raise UsageError(wrong, got=repr((positive, negative))[:100], do="ask for other words")
        if approximate:
            return self._search_index(query, query_rows, count)
        cosines = self.vectors @ (query / max(float(np.linalg.norm(query)), 1e-12))  # [V]
        cosines /= self.lengths
        cosines[query_rows] = -np.inf
        limit = min(count, len(cosines) - len(set(query_rows)))
        best = np.argpartition(-cosines, limit - 1)[:limit] if limit else np.zeros(0, np.int64)
        return [(self.words[row], float(cosines[row])) for row in best[np.argsort(-cosines[best])]]

    @cached_property
    def _hnsw(self) -> NeighbourIndex:
        return NeighbourIndex(build_index(self.vectors))

    def _search_index(
        self, query: Vector, query_rows: list[int], count: int
    ) -> list[tuple[str, float]]:
        """Returns the words nearest to a query [D] by the index, without the query's own."""
        candidates = min(count + len(set(query_rows)), len(self))
        rows, cosines = (batch[0].tolist() for batch in self._hnsw.nearest(query[None], candidates))
        neighbours = [
            (self.words[r], c) for r, c in zip(rows, cosines, strict=True) if r not in query_rows
        ]
        return neighbours[:count]

    def plane(self, words: Sequence[str]) -> Vector:
        """Returns the words' places on the two axes along which they differ most [n, 2].

        (U − ū) V₂: the rows of U are the vectors, each of length 1, and V₂ are the first two right
        singular vectors of U − ū.

        Args:
            words: n of them, at least three.

        Raises:
            UsageError: there are fewer, or one has no vector.

        Reference:
            Pearson, On lines and planes of closest fit to systems of points in space (1901).
        """
        if isinstance(words, str) or not np.iterable(words) or len(set(words)) < 3:
            do = 'name them, as ["king", "queen", "man"]'
            raise UsageError("a map takes at least three words", got=repr(words), do=do)
        rows = np.stack([self.vector(word) for word in words])
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        rows -= rows.mean(axis=0)
        axes = np.linalg.svd(rows, full_matrices=False)[2][:2]
        coordinates: Vector = rows @ axes.T
        # the sign of an axis means nothing: the first word lies to the right and above
        return coordinates * np.where(coordinates[0] < 0, np.float32(-1), np.float32(1))

    def analogies(self, questions: Path | str, *, cutoff: int = 30_000) -> Analogies:
        """Answers questions "a is to b as c is to d": d is the nearest to b − a + c.

        Args:
            questions: a file as word2vec's questions-words.txt: four words a line, `: name` before
                each section. Upper and lower case are the same. A line whose first word is `#` or
                `//` is a comment.
            cutoff: only so many of the most frequent words are known.

        Raises:
            UsageError: no question is covered, a line is none, or `cutoff` is below 1.
        """
        _check_positive("cutoff", cutoff)
        known: dict[str, int] = {}
        for row, word in enumerate(self.words[:cutoff]):
            known.setdefault(word.lower(), row)
        questions_by_section = _read_questions(questions)
        sections = tuple(
            self._answer_section(name, lines, known) for name, lines in questions_by_section.items()
        )
        result = Analogies(sections, min(cutoff, len(self)))
        if not result.total.covered:
            wrong = "no question has four words with vectors"
            got = f"{result.total.questions} questions, cut-off {result.cutoff}"
            raise UsageError(wrong, got=got, do="train on more text, or name other questions")
        return result

    def _answer_section(self, name: str, lines: list[list[str]], known: dict[str, int]) -> Section:
        rows = [[known[w] for w in line] for line in lines if all(w in known for w in line)]
        right, unit = 0, self._unit(slice(max(known.values(), default=0) + 1))
        for start in range(0, len(rows), _CHUNK):
            a, b, c, d = np.array(rows[start : start + _CHUNK]).T
            similarities = (unit[b] - unit[a] + unit[c]) @ unit.T  # [Q, V]
            for others in (a, b, c):
                similarities[np.arange(len(a)), others] = -np.inf
            right += int((similarities.argmax(axis=1) == d).sum())
        return Section(name, right, len(rows), len(lines))

    def similarity(self, pairs: Path | str, *, cutoff: int = 300_000) -> Similarity:
        """Compares the cosines of pairs of words with people's ratings, by Spearman's correlation.

        Args:
            pairs: a file as WordSim-353 or SimLex-999: two words a line, and later in it a number,
                between tabs or commas. Upper and lower case are the same.
            cutoff: only so many of the most frequent words are known.

        Raises:
            UsageError: a line holds no pair, fewer than two pairs have vectors, all of these
                have one rating or one cosine, or `cutoff` is below 1.
        """
        _check_positive("cutoff", cutoff)
        rated_pairs = _read_pairs(pairs)
        ranked_words = list(enumerate(self.words[:cutoff]))
        known = {word.lower(): row for row, word in reversed(ranked_words)}
        covered = [(known[a], known[b], x) for a, b, x in rated_pairs if a in known and b in known]
        limit = min(cutoff, len(self))
        if len(covered) < 2:
            wrong = "at least two pairs must have vectors"
            got = f"{len(covered)} of {len(rated_pairs)}, cut-off {limit}"
            raise UsageError(wrong, got=got, do="train on more text, or name another file")
        a, b = (np.array([pair[column] for pair in covered]) for column in (0, 1))
        cosines = (self._unit(a) * self._unit(b)).sum(axis=1)
        ratings = np.array([x for _, _, x in covered])
        for name, values in (("ratings", ratings), ("cosines", cosines)):
            if (values == values[0]).all():
                wrong = f"the {name} of all pairs with vectors are equal: they have no correlation"
                got = f"{values[0]:g} for each of {len(values)}"
                raise UsageError(wrong, got=got, do="name a file with more pairs")
        ranks = [_ranks(cosines), _ranks(ratings)]
        return Similarity(
            float(np.corrcoef(np.stack(ranks))[0, 1]),
            len(covered),
            len(rated_pairs),
            limit,
        )

    def save(self, path: Path | str) -> None:
        """Writes the vectors in a format of the file's ending.

        Args:
            path: `.txt`: word2vec's text; `.bin`: its binary form; `.safetensors`: the tensor
                "vectors", with the words in its metadata, or in the tensors "letters" and "ends"
                where they lie in a file. Only the latter keeps the vectors of n-grams, as the
                tensor "subwords".

        Raises:
            UsageError: the ending is another, a word holds a space, or the file cannot be written.
        """
        try:
            self._write(Path(path))
        except OSError as error:
            do = "name a file in a folder that is there"
            wrong = f"{path} cannot be written"
            raise UsageError(wrong, got=reason_of(error), do=do) from error

    def _write(self, target: Path) -> None:
        if target.suffix == ".safetensors":
            target.unlink(missing_ok=True)
            arrays = {"vectors": self.vectors}
            metadata = dict[str, str]()
            if isinstance(self.words, MappedWords):
                arrays |= {"letters": self.words.letters, "ends": self.words.ends}
            else:
                metadata["words_json"] = json.dumps(list(self.words), ensure_ascii=False)
            if self.subwords is not None:
                ngrams, arrays["subwords"] = self.subwords.ngrams, self.subwords.rows
                metadata["subwords"] = f"{ngrams.shortest} {ngrams.longest}"
            write_arrays(target, arrays, metadata=metadata)
            return
        if target.suffix not in (".txt", ".bin"):
            do = "name .txt, .bin or .safetensors"
            raise UsageError("vectors have no format of this ending", got=target.name, do=do)
        wrong_word = next((word for word in self.words if not word or len(word.split()) != 1), None)
        if wrong_word is not None:
            do = "save as .safetensors"
            raise UsageError(
                "word2vec's files hold no word with a space", got=repr(wrong_word), do=do
            )
        rows = np.ascontiguousarray(self.vectors, "<f4")
        with target.open("wb") as file:
            file.write(f"{len(self)} {rows.shape[1]}\n".encode())
            for word, row in zip(self.words, rows, strict=True):
                if target.suffix == ".bin":
                    file.write(word.encode() + b" " + row.tobytes() + b"\n")
                else:
                    file.write(f"{word} {' '.join(repr(float(x)) for x in row)}\n".encode())

    @staticmethod
    def load(path: Path | str) -> WordVectors:
        """Reads what `save` wrote, or word2vec, gensim and GloVe; safetensors stay in their file.

        Raises:
            DataError: the file is cut or of another format.
            UsageError: it is missing.
        """
        source = Path(path)
        if not source.is_file():
            raise UsageError("there are no vectors", got=str(source), do="name a file of vectors")
        try:
            if source.suffix == ".safetensors":
                return _load_mapped(MappedFile(source))
            data = source.read_bytes()
            return _parse_binary(data) if source.suffix == ".bin" else _parse_text(data.decode())
        except DataError:
            raise
        except Exception as error:
            got = f"{type(error).__name__}: {error}"
            raise DataError(f"{source} holds no word vectors, or is cut", got=got) from error


def _check_positive(name: str, value: Any) -> None:  # noqa: ANN401 - what a user may give
    if not isinstance(value, int | np.integer) or value < 1:
        raise UsageError(f"{name} must be a whole number of at least 1", got=repr(value))


def _load_mapped(file: MappedFile) -> WordVectors:
    metadata, vectors = file.metadata, file["vectors"]
    words: Sequence[str]
    if "ends" in file:
        words = MappedWords(file["letters"], file["ends"])
    elif "words_json" in metadata:
        words = json.loads(metadata["words_json"])
    else:  # in older files the words are lines
        words = metadata["words"].split("\n")
    if len(words) != len(vectors):
        got = f"{len(words)} words, {len(vectors)} vectors"
        raise DataError("the file of vectors is damaged", got=got)
    if "subwords" not in file.metadata:
        return WordVectors(words, vectors)
    shortest, longest = map(int, file.metadata["subwords"].split())
    rows = file["subwords"]
    subwords = SubwordVectors(Ngrams(shortest, longest, len(rows)), rows)
    return WordVectors(words, vectors, subwords=subwords)


def _parse_binary(data: bytes) -> WordVectors:
    header, _, rest = data.partition(b"\n")
    count, dims = map(int, header.split())
    words, vectors, offset = [], np.empty((count, dims), np.float32), 0
    for row in range(count):
        end = rest.index(b" ", offset)
        words.append(rest[offset:end].lstrip(b"\n").decode())
        vectors[row] = np.frombuffer(rest, "<f4", dims, end + 1)
        offset = end + 1 + 4 * dims
    if rest[offset:].strip():  # as where the file is text
        raise ValueError(f"more bytes than {count} words and vectors")
    return WordVectors(words, _finite(vectors))


def _finite(vectors: Vector) -> Vector:
    if not np.isfinite(vectors).all():
        raise ValueError("a number that is not finite")
    return vectors


def _parse_text(data: str) -> WordVectors:
    lines = data.removesuffix("\n").split("\n")  # words may hold other line breaks
    header = lines[0].split()
    if len(header) == 2 and all(map(str.isdecimal, header)):
        lines.pop(0)
        count, dims = map(int, header)
    else:  # GloVe's files have no header
        count, dims = len(lines), len(header) - 1
    if dims < 1:
        raise ValueError("a line without numbers")  # the caller names the file
    if len(lines) != count:
        raise DataError("the file of vectors is cut", got=f"{len(lines)} of {count} lines")
    rows = [line.removesuffix(" ").split(" ") for line in lines]
    wrong_row = next((row for row in rows if len(row) != dims + 1), None)
    if wrong_row is not None:
        wrong = f"a line of the file is not one word and {dims} numbers"
        raise DataError(wrong, got=" ".join(wrong_row)[:80], do="look at that line")
    vectors = np.array([row[1:] for row in rows], np.float32).reshape(count, dims)
    return WordVectors([row[0] for row in rows], _finite(vectors))


def _lines(path: Path | str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read", got=reason_of(error)) from error


def _read_questions(path: Path | str) -> dict[str, list[list[str]]]:
    sections: dict[str, list[list[str]]] = {}
    name = "questions"
    for line in _lines(path):
        words = line.lower().split()
        if not words or words[0] in ("#", "//"):
            continue
        if line.startswith(":"):
            name = line[1:].strip()
        elif len(words) == 4:
            sections.setdefault(name, []).append(words)
        else:
            do = "four words a line, and lines with a name after a colon"
            raise UsageError(f"a line of {path} is no question", got=repr(line[:80]), do=do)
    return sections


def _read_pairs(path: Path | str) -> list[tuple[str, str, float]]:
    """Returns pairs of words in lower case, each with people's rating."""
    lines = [line for line in _lines(path) if line.strip() and not line.startswith("#")]
    pairs = []
    for number, line in enumerate(lines):
        fields = line.lower().split("\t" if "\t" in line else ",")
        a, b, *rest = (*map(str.strip, fields), "")
        # SimLex-999 has the kind first
        ratings = [float(text) for text in rest if _is_number(text)]
        if ratings:
            pairs.append((a, b, ratings[0]))
        elif number:  # the first line may name the columns
            do = "two words and a number a line, between tabs or commas"
            raise UsageError(f"a line of {path} holds no pair", got=repr(line[:80]), do=do)
    return pairs


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _ranks(values: Iterable[float] | Vector) -> Vector:
    """Returns ranks [n]; equal values share their mean rank."""
    _, group, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: Vector = (ends - (counts - 1) / 2)[group]
    return ranks
