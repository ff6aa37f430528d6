"""Sentences on Spark: reads, counts and encodes them; the driver sees only the vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql import types as T  # noqa: N812 - as everybody calls it

from photinus.core.errors import DataError, UsageError, reason_of
from photinus.core.parameters import Vector
from photinus.core.settings import unknown_column
from photinus.embeddings.blocks import blocks, encoded
from photinus.engine.spark.job import queried
from photinus.engine.spark.session import spark_session

_COLUMN, _ROWS = "words", "tokens"


def sentences_of(dataset: Any, column: str, workers: int) -> DataFrame:  # noqa: ANN401
    """Returns sentences as one column of texts, `words array<string>`.

    Args:
        dataset: a DataFrame; an RDD of texts or of lists; the path of text files or of a folder of
            them, compressed or not: a line is a sentence.
        column: of a DataFrame: text, which is split at spaces, or arrays of texts or whole numbers.
        workers: so many tasks at the same time, where a session must be started.

    Raises:
        UsageError: there is no such column, or it holds something else.
    """
    if isinstance(dataset, (str, Path)):
        text = spark_session(max(1, workers)).read.text(str(dataset), recursiveFileLookup=True)
        return sentences_of(text, "value", workers)
    if hasattr(dataset, "mapPartitions") and not hasattr(dataset, "schema"):
        lists = dataset.map(lambda s: (s.split() if isinstance(s, str) else [str(w) for w in s],))
        return spark_session(max(1, workers)).createDataFrame(lists, f"{_COLUMN} array<string>")
    if not hasattr(dataset, "sparkSession"):
        do = "hand over a DataFrame, an RDD, or the path of text files"
        raise UsageError("these are no sentences", got=type(dataset).__name__, do=do)
    made: DataFrame = dataset.select(words_of(dataset, column).alias(_COLUMN))
    return made


def words_of(dataset: DataFrame, column: str) -> Column:
    """Returns a column's sentences as arrays of texts, without nulls and empty ones.

    Args:
        dataset: a DataFrame.
        column: text, which is split at spaces, or arrays of texts or whole numbers.

    Raises:
        UsageError: there is no such column, or it holds something else.
    """
    kind, asked = kind_of(dataset, column), F.col(f"`{column}`")
    inner = kind.elementType if isinstance(kind, T.ArrayType) else None
    if isinstance(kind, T.StringType):
        words = F.split(F.trim(asked), r"\s+")
    elif isinstance(inner, (T.StringType, T.IntegralType)):
        words = asked.cast("array<string>")
    else:
        do = "name a column of text, or of arrays of texts or whole numbers"
        raise UsageError(f"column {column} holds no sentences", got=kind.simpleString(), do=do)
    return F.filter(words, lambda word: word.isNotNull() & (word != ""))


def id_of(dataset: DataFrame, column: str) -> Column:
    """Returns a column of ids, texts or whole numbers, as texts.

    Raises:
        UsageError: there is no such column, or it holds something else.
    """
    kind = kind_of(dataset, column)
    if not isinstance(kind, (T.StringType, T.IntegralType)):
        do = "name a column of texts or whole numbers"
        raise UsageError(f"column {column} holds no ids", got=kind.simpleString(), do=do)
    return F.col(f"`{column}`").cast("string")


def kind_of(dataset: DataFrame, column: str) -> T.DataType:
    """Returns what a column holds.

    Raises:
        UsageError: there is no such column.
    """
    if column not in dataset.columns:
        raise unknown_column(column, dataset.columns)
    return dataset.schema[column].dataType


def words_in(given: Any) -> list[str]:  # noqa: ANN401 - what a user may give
    """Returns a list of words, or those of a file of analogy questions, also in lower case.

    Raises:
        UsageError: it is neither, or the file cannot be read.
    """
    if isinstance(given, (str, Path)):
        try:
            lines = Path(given).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            wrong, do = "the vocabulary's file cannot be read", "name a list of words, or a file"
            raise UsageError(wrong, got=reason_of(error), do=do) from error
        words = [word for line in lines if not line.startswith(":") for word in line.split()]
        return sorted({form for word in words for form in (word, word.lower())})
    if not isinstance(given, (list, tuple)) or not all(isinstance(word, str) for word in given):
        do = "such as ['king', 'queen'], or the path of a file of questions"
        raise UsageError("a vocabulary is a list of words", got=repr(given)[:100], do=do)
    return sorted(set(given))


def counted(
    sentences: DataFrame, min_count: int, most: int, only: Sequence[str] = ()
) -> tuple[list[str], Vector]:
    """Returns the vocabulary, the most frequent word first, and its counts [V].

    Args:
        sentences: as of `sentences_of`.
        min_count: rarer words are left out.
        most: so many words at most; 0 for no limit.
        only: no other words; none: all.

    Raises:
        DataError: fewer than two words are left.
    """
    spark = sentences.sparkSession
    words = sentences.select(F.explode(_COLUMN).alias("word")).groupBy("word").count()
    if only:
        asked = spark.createDataFrame([(word,) for word in only], "word string")
        words = words.join(F.broadcast(asked), "word", "left_semi")
    frequent = words.where(F.col("count") >= min_count).orderBy(F.desc("count"), "word")
    rows: Any = queried(spark, (frequent.limit(most) if most else frequent).collect)
    if len(rows) < 2:
        first: Any = queried(spark, words.agg(F.count("*"), F.max("count")).first)
        got = f"{first[0]} different words, the most frequent {first[1] or 0} times"
        do = "set minCount lower, or look at inputCol" + (" and vocabulary" if only else "")
        raise DataError(f"fewer than two words occur {min_count} times", got=got, do=do)
    return [row["word"] for row in rows], np.array([row["count"] for row in rows], np.int64)


def rows_of(sentences: DataFrame, words: list[str], length: int) -> DataFrame:
    """Returns the sentences as rows of `length` numbers of words, as bytes in a column `tokens`.

    Args:
        sentences: as of `sentences_of`.
        words: the vocabulary.
        length: numbers in a row.
    """
    return sentences.mapInArrow(partial(_encode, words, length), f"{_ROWS} binary")


def _encode(
    words: list[str], length: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    known = pa.array(words, pa.string())
    pieces = (encoded(batch.column(0), known) for batch in batches)
    for rows in blocks(pieces, length):
        data = np.ascontiguousarray(rows, "<i4")
        ends = np.arange(len(rows) + 1, dtype=np.int32) * np.int32(4 * length)
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
        column = pa.Array.from_buffers(pa.binary(), len(rows), buffers)
        yield pa.RecordBatch.from_arrays([column], [_ROWS])
