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
_ROWS = 1000
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
    for name, value, least in (("most_corrupt", most_corrupt, 0), ("part_bytes", part_bytes, 1)):
        if value < least:
            raise UsageError(f"{name} must be at least {least}", got=value)
    wikitext_reader()
    parts = parts_of(str(path), part_bytes)
    numbers = spark.range(0, len(parts), 1, len(parts))
    read = partial(_read, parts, most_corrupt)
    return numbers.mapInArrow(read, "words array<string>, corrupt bigint")


def _read(
    parts: list[DumpPart], most_corrupt: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            held, corrupt = list[list[str]](), 0
            for words in sentences(parts[number], most_corrupt):
                if words is None:
                    corrupt += 1
                else:
                    held.append(words)
                if len(held) == _ROWS:
                    yield _rows(held, 0)
                    held = []
            yield _rows([*held, []], corrupt)


def _rows(words: list[list[str]], corrupt: int) -> pa.RecordBatch:
    counts = [0] * (len(words) - 1) + [corrupt]
    columns = [pa.array(words, pa.list_(pa.string())), pa.array(counts, pa.int64())]
    return pa.RecordBatch.from_arrays(columns, ["words", "corrupt"])
