"""Sentences on Spark: reads, counts and encodes them; the driver sees only the vocabulary."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql import types as T  # noqa: N812 - as everybody calls it

from photinus.core.errors import DataError, UsageError, reason_of
from photinus.core.parameters import Vector
from photinus.core.settings import unknown_column
from photinus.data.spark import quoted, stream_batches
from photinus.embeddings.blocks import blocks, encoded, separated
from photinus.embeddings.words import MappedWords, collect_vocabulary
from photinus.engine.spark.job import run_query
from photinus.engine.spark.session import spark_session

_WORDS_COLUMN, _TOKENS_COLUMN = "words", "tokens"
_REPLACEMENT = "\ufffd"
"""What Spark reads in place of bytes that are not UTF-8."""
_DAMAGED_LINE = "\ufffd in this line"
"""Stands for a whole such line; no word of a text holds a space."""
_LOOKUP_VALUES = 1 << 20
_MAX_DAMAGED_LINES = 100
"""So many such lines are left out of any text, and of a long one a line for 1,000 words."""
_SPACE = r"(?U)[\s\x1c-\x1f]+"
"""What Python's `split` takes for spaces."""


def sentences_of(
    dataset: Any,  # noqa: ANN401 - what a user may give
    column: str,
    workers: int,
    terms: tuple[str, str] = ("sentences", "words"),
) -> DataFrame:
    """Returns sentences as one column of texts, `words array<string>`.

    Args:
        dataset: a DataFrame; an RDD of texts or of lists; the path of text files or of a folder of
            them, compressed or not: a line is a sentence.
        column: of a DataFrame: text, which is split at spaces, or arrays of texts or whole numbers.
        workers: so many tasks at the same time, where a session must be started.
        terms: what sequences and their parts are called in an error.

    Raises:
        UsageError: there is no such column, or it holds something else.
    """
    if isinstance(dataset, (str, Path)):
        return _lines_of(spark_session(max(1, workers)), str(dataset))
    if hasattr(dataset, "mapPartitions") and not hasattr(dataset, "schema"):
        spark = spark_session(max(1, workers))
        first_rows: Any = run_query(spark, partial(dataset.take, 1))
        if first_rows and not isinstance(first_rows[0], (str, list, tuple, np.ndarray)):
            do = f"map it to lists of {terms[1]}, or to texts with spaces between them"
            got = type(first_rows[0]).__name__
            raise UsageError(f"the RDD holds no {terms[0]}", got=got, do=do)
        lists = dataset.map(lambda s: (s.split() if isinstance(s, str) else [str(w) for w in s],))
        return spark.createDataFrame(lists, f"{_WORDS_COLUMN} array<string>")
    if not hasattr(dataset, "sparkSession"):
        do = "hand over a DataFrame, an RDD, or the path of text files"
        raise UsageError(f"these are no {terms[0]}", got=type(dataset).__name__, do=do)
    sentences: DataFrame = dataset.select(words_of(dataset, column).alias(_WORDS_COLUMN))
    return sentences


def _lines_of(spark: SparkSession, path: str) -> DataFrame:
    """Returns the lines of text files as `words`; one that is not UTF-8 as `_DAMAGED_LINE`."""
    try:
        text = spark.read.text(path, recursiveFileLookup=True)
        words = words_of(text, "value")
    except AnalysisException as error:
        do = "name text files, or a folder of them, that all executors see"
        got = str(error).partition("\n")[0]
        raise UsageError("the text cannot be read", got=got, do=do) from error
    # `rlike` decodes the bytes, as `contains` does not
    is_damaged = F.col("value").rlike(_REPLACEMENT)
    sentence = F.when(is_damaged, F.array(F.lit(_DAMAGED_LINE))).otherwise(words)
    return text.select(sentence.alias(_WORDS_COLUMN))


def words_of(dataset: DataFrame, column: str) -> Column:
    """Returns a column's sentences as arrays of texts, without nulls and empty ones.

    Args:
        dataset: a DataFrame.
        column: text, which is split at spaces, or arrays of texts or whole numbers.

    Raises:
        UsageError: there is no such column, or it holds something else.
    """
    data_type, values = column_type(dataset, column), quoted(column)
    element_type = data_type.elementType if isinstance(data_type, T.ArrayType) else None
    if isinstance(data_type, T.StringType):
        words = F.split(values, _SPACE)
    elif isinstance(element_type, (T.StringType, T.IntegralType)):
        words = values.cast("array<string>")
    else:
        do = "name a column of text, or of arrays of texts or whole numbers"
        raise UsageError(f"column {column} holds no sentences", got=data_type.simpleString(), do=do)
    return F.filter(words, lambda word: word.isNotNull() & (word != ""))


def baskets_of(dataset: DataFrame, column: str) -> Column:
    """Returns a column's baskets as arrays of texts, without nulls and empty ones.

    Raises:
        UsageError: there is no such column, or it holds something else. A text is no basket: what
            is between its items, only the user knows.
    """
    data_type = column_type(dataset, column)
    if not isinstance(data_type, T.ArrayType):
        do = f'F.split("{column}", ",") makes arrays of texts, F.collect_list of rows'
        raise UsageError(f"column {column} holds no baskets", got=data_type.simpleString(), do=do)
    if not isinstance(data_type.elementType, (T.StringType, T.IntegralType)):
        do = f'F.col("{column}").cast("array<string>") makes texts of ids'
        raise UsageError(f"column {column} holds no baskets", got=data_type.simpleString(), do=do)
    return words_of(dataset, column)


def id_of(dataset: DataFrame, column: str) -> Column:
    """Returns a column of ids, texts or whole numbers, as texts.

    Raises:
        UsageError: there is no such column, or it holds something else.
    """
    data_type = column_type(dataset, column)
    if not isinstance(data_type, (T.StringType, T.IntegralType)):
        do = "name a column of texts or whole numbers"
        raise UsageError(f"column {column} holds no ids", got=data_type.simpleString(), do=do)
    return quoted(column).cast("string")


def column_type(dataset: DataFrame, column: str) -> T.DataType:
    """Returns what a column holds.

    Raises:
        UsageError: there is no such column.
    """
    if column not in dataset.columns:
        raise unknown_column(column, dataset.columns)
    return dataset.schema[column].dataType


def words_in(source: Any) -> list[str]:  # noqa: ANN401 - what a user may give
    """Returns a list of words, or those of a file of analogy questions, also in lower case.

    Raises:
        UsageError: it is neither, or the file cannot be read.
    """
    if isinstance(source, (str, Path)):
        try:
            lines = Path(source).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            wrong, do = "the vocabulary's file cannot be read", "name a list of words, or a file"
            raise UsageError(wrong, got=reason_of(error), do=do) from error
        words = [word for line in lines if not line.startswith(":") for word in line.split()]
        if not words:
            do = "name a list of words, or a file"
            raise UsageError("the vocabulary's file holds no words", got=str(source), do=do)
        return sorted({form for word in words for form in (word, word.lower())})
    if not isinstance(source, (list, tuple)) or not all(isinstance(word, str) for word in source):
        do = "such as ['king', 'queen'], or the path of a file of questions"
        raise UsageError("a vocabulary is a list of words", got=repr(source)[:100], do=do)
    return sorted(set(source))


class Vocabulary(NamedTuple):
    """The words that have a vector, the most frequent one first."""

    words: Sequence[str]
    counts: Vector
    """[V]."""
    numbered: DataFrame | None
    """Where the words lie in a file: Spark's own rows of them, `word` and `number`."""


def counted(
    sentences: DataFrame,
    min_count: int,
    max_words: int,
    words_in_memory: int,
    allowed_words: Sequence[str] = (),
    parts: str = "words",
) -> Vocabulary:
    """Returns the vocabulary of some sentences.

    Args:
        sentences: as of `sentences_of`.
        min_count: rarer words are left out.
        max_words: so many words at most; 0 for no limit.
        words_in_memory: more words than so many lie in a file.
        allowed_words: no other words; none: all.
        parts: what a message calls the words.

    Raises:
        DataError: fewer than two words are left, or too many lines are not UTF-8.
    """
    spark = sentences.sparkSession
    word_counts = sentences.select(F.explode(_WORDS_COLUMN).alias("word")).groupBy("word").count()
    if allowed_words:
        allowed_rows = spark.createDataFrame(
            [(word,) for word in (*allowed_words, _DAMAGED_LINE)], "word string"
        )
        word_counts = word_counts.join(F.broadcast(allowed_rows), "word", "left_semi")
    is_damaged = F.col("word") == _DAMAGED_LINE
    frequent = word_counts.where((F.col("count") >= min_count) | is_damaged)
    sorted_words = frequent.orderBy(F.desc(is_damaged), F.desc("count"), "word")
    damaged = list[int]()
    limited = sorted_words.limit(max_words + 1) if max_words else sorted_words
    batches = _without_damaged_lines(limited, max_words or sys.maxsize, damaged)
    vocabulary, counts = run_query(spark, lambda: collect_vocabulary(batches, words_in_memory))
    _check_damaged_lines(sum(damaged), int(counts.sum()))
    if len(vocabulary) < 2:
        totals = word_counts.where(~is_damaged).agg(F.count("*"), F.max("count"))
        row: Any = run_query(spark, totals.first)
        got = f"{row[0]} different {parts}, the most frequent {row[1] or 0} times"
        lower = "set minCount lower, or " if min_count > 1 else ""
        do = f"{lower}look at inputCol" + (" and vocabulary" if allowed_words else "")
        times = f"{min_count} times" if min_count > 1 else "at all"
        raise DataError(f"fewer than two {parts} occur {times}", got=got, do=do)
    is_large = isinstance(vocabulary, MappedWords)
    rows = number_words(word_counts.where(~is_damaged), counts) if is_large else None
    return Vocabulary(vocabulary, counts, rows)


def _without_damaged_lines(
    sorted_words: DataFrame, max_words: int, damaged: list[int]
) -> Iterator[tuple[pa.Array, Vector]]:
    """Yields at most so many words and their counts.

    Args:
        sorted_words: words and counts; the first row may be `_DAMAGED_LINE`.
        max_words: how many.
        damaged: gets the count of such lines, if there are any.
    """
    total = 0
    for batch in stream_batches(sorted_words):
        words, counts = batch.column(0), batch.column(1).to_numpy()
        if not total and len(words) and words[0].as_py() == _DAMAGED_LINE:
            damaged.append(int(counts[0]))
            words, counts = words.slice(1), counts[1:]
        yield words.slice(0, max_words - total), counts[: max_words - total]
        total = min(max_words, total + len(words))


def number_words(words: DataFrame, counts: Vector) -> DataFrame:
    """Returns words with their places in the vocabulary, which follow from count and alphabet.

    Args:
        words: `word` and `count` of all.
        counts: of the vocabulary, in its order [V].
    """
    first_numbers = np.flatnonzero(np.append(True, counts[1:] != counts[:-1]))  # of each count
    table = pd.DataFrame({"count": counts[first_numbers], "first": first_numbers})
    firsts = words.sparkSession.createDataFrame(table, "count long, first long")
    place_in_count = F.row_number().over(Window.partitionBy("count").orderBy("word"))
    number = (F.col("first") + place_in_count - 1).cast("int").alias("number")
    numbered_words = words.join(F.broadcast(firsts), "count").select("word", number)
    return numbered_words.where(F.col("number") < len(counts))


def _check_damaged_lines(lines: int, words: int) -> None:
    """Warns of lines that are left out.

    Raises:
        DataError: they are too many.
    """
    if lines > max(_MAX_DAMAGED_LINES, words / 1000):
        got = f"{lines} damaged lines beside {words} words"
        do = "convert the text to UTF-8, or keep other files out of its folder"
        raise DataError("too many lines are not UTF-8", got=got, do=do)
    if lines:
        logging.getLogger("photinus").warning("%d lines are not UTF-8 and are left out", lines)


def rows_of(sentences: DataFrame, vocabulary: Vocabulary, length: int) -> DataFrame:
    """Returns the sentences as rows of `length` numbers of words, as bytes in a column `tokens`.

    A vocabulary that lies in a file is joined to the words of the sentences: no task holds it.

    Args:
        sentences: as of `sentences_of`.
        vocabulary: of them.
        length: numbers in a row.
    """
    if vocabulary.numbered is None:
        encode: Any = partial(_encode, vocabulary.words, length)
        return sentences.mapInArrow(encode, f"{_TOKENS_COLUMN} binary")
    # in a select of its own: beside `posexplode` each word would have another number
    sentences = sentences.select(F.monotonically_increasing_id().alias("sentence"), _WORDS_COLUMN)
    words = sentences.select("sentence", F.posexplode(_WORDS_COLUMN).alias("place", "word"))
    pairs = F.array_sort(F.collect_list(F.struct("place", "number"))).alias("pairs")
    numbered_sentences = words.join(vocabulary.numbered, "word").groupBy("sentence").agg(pairs)
    # the same order in every attempt of a task
    numbers = numbered_sentences.sortWithinPartitions("sentence").select(F.col("pairs.number"))
    return numbers.mapInArrow(partial(_rows_of_lists, length), f"{_TOKENS_COLUMN} binary")


def _encode(
    words: Sequence[str], length: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    word_array = pa.array(words, pa.string())
    pieces = (encoded(batch.column(0), word_array) for batch in merge_batches(batches, len(words)))
    return _row_batches(pieces, length)


def merge_batches(batches: Iterable[pa.RecordBatch], known_count: int) -> Iterator[pa.RecordBatch]:
    """Yields larger batches, whose values are to be looked up among so many known ones.

    For each batch Arrow makes a hash table of the known ones. So all but the last batch have at
    least as many values in their first column as are known, or a million.
    """
    pending, values, min_values = list[pa.RecordBatch](), 0, min(known_count, _LOOKUP_VALUES)
    for batch in batches:
        pending.append(batch)
        column = batch.column(0)
        values += len(column.flatten() if isinstance(column, pa.ListArray) else column)
        if values >= min_values:
            yield pa.concat_batches(pending)
            pending, values = [], 0
    if pending:
        yield pa.concat_batches(pending)


def _rows_of_lists(length: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    lists = (batch.column(0) for batch in batches)
    pieces = (
        separated(np.asarray(list_array.flatten()), np.asarray(pc.list_value_length(list_array)))
        for list_array in lists
    )
    return _row_batches(pieces, length)


def rows_with_pairs(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields the first row of `rows_of` in which two words are in one sentence."""
    for batch in batches:
        for place, row in enumerate(batch.column(0)):
            is_word = np.frombuffer(row.as_buffer(), "<i4") >= 0
            if (is_word[1:] & is_word[:-1]).any():
                yield batch.slice(place, 1)
                return


def _row_batches(pieces: Iterator[Vector], length: int) -> Iterator[pa.RecordBatch]:
    """Yields pieces of text as rows of bytes."""
    for rows in blocks(pieces, length):
        data = np.ascontiguousarray(rows, "<i4")
        offsets = np.arange(len(rows) + 1, dtype=np.int32) * np.int32(4 * length)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        column = pa.Array.from_buffers(pa.binary(), len(rows), buffers)
        yield pa.RecordBatch.from_arrays([column], [_TOKENS_COLUMN])
