"""The articles of a Wikipedia dump as sentences, read by the tasks of Spark in parallel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from photinus.core.errors import UsageError
from photinus.data.wikipedia import DumpPart, parts_of, sentences, wikitext_reader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PART_BYTES = 32 << 20
_BATCH_SENTENCES = 1000
"""How many sentences are passed to Spark together."""


def wikipedia_sentences(
    spark: SparkSession, path: str, *, most_corrupt: int = 100, part_bytes: int = _PART_BYTES
) -> DataFrame:
    """Returns the sentences of a dump's articles; the tasks read a part of the file each.

    Of a multistream dump, and of one that is not compressed, each part is a task's. A dump of one
    stream is read by one task.

    Args:
        spark: the session.
        path: of a file .xml or .xml.bz2 that the executors see, or an address that fsspec opens.
        most_corrupt: so many pages that are no XML are left out, in each part; more end the query.
        part_bytes: of the file, in a part.

    Returns:
        `words`, the words of a sentence in lower case, and `corrupt`: how many pages of a part
        were left out, in its last row, whose words are empty; 0 in all others.

    Raises:
        UsageError: there is no such file, or an argument is wrong.
        NotReadyError: mwparserfromhell is missing, or the address cannot be opened.

    Example:
        >>> sentences = wikipedia_sentences(spark, "enwiki.xml.bz2")  # doctest: +SKIP
        >>> sentences.agg({"corrupt": "sum"}).show()  # doctest: +SKIP
    """
    for name, value, minimum in (("most_corrupt", most_corrupt, 0), ("part_bytes", part_bytes, 1)):
        if value < minimum:
            raise UsageError(f"{name} must be at least {minimum}", got=value)
    wikitext_reader()
    parts = parts_of(str(path), part_bytes)
    part_numbers = spark.range(0, len(parts), 1, len(parts))
    read_parts = partial(_read_parts, parts, most_corrupt)
    return part_numbers.mapInArrow(read_parts, "words array<string>, corrupt bigint")


def _read_parts(
    parts: list[DumpPart], most_corrupt: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            pending, corrupt = list[list[str]](), 0
            for words in sentences(parts[number], most_corrupt):
                if words is None:
                    corrupt += 1
                else:
                    pending.append(words)
                if len(pending) == _BATCH_SENTENCES:
                    yield _sentence_batch(pending, 0)
                    pending = []
            yield _sentence_batch([*pending, []], corrupt)


def _sentence_batch(words: list[list[str]], corrupt: int) -> pa.RecordBatch:
    corrupt_counts = [0] * (len(words) - 1) + [corrupt]
    columns = [pa.array(words, pa.list_(pa.string())), pa.array(corrupt_counts, pa.int64())]
    return pa.RecordBatch.from_arrays(columns, ["words", "corrupt"])
