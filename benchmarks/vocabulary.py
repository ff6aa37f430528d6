"""A vocabulary in the driver's memory and in a file: memory and seconds of counting and encoding.

    python benchmarks/vocabulary.py [--words 11000000] [--in-memory 0]

Sentences of ten words are made by Spark, two tasks at a time; each word is there twice. They are
counted, and encoded as numbers of words, as `Word2Vec.fit` does before it trains. With --in-memory
such a vocabulary or a smaller one lies in memory, else in a file. Told are the seconds, and the
peaks of the anonymous memory (RssAnon) of the driver beyond what it held before, of the largest
task, and of Java. Linux only.
"""

import argparse
import tempfile
import time

from machine import begin
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from sharded_table import Watch

from photinus import spark_session
from photinus.estimators.sentences import counted, rows_of

TASKS, SENTENCE, LENGTH = 2, 10, 1000


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--words", type=int, default=11_000_000)
    parser.add_argument("--in-memory", type=int, default=0)
    asked = parser.parse_args()
    spark = spark_session(TASKS, name="vocabulary")
    made = spark.range(0, 2 * asked.words // SENTENCE, 1, 8 * TASKS)
    numbers = F.sequence(F.col("id") * SENTENCE, F.col("id") * SENTENCE + SENTENCE - 1)
    words = F.transform(numbers, lambda n: F.concat(F.lit("item"), n % asked.words))
    sentences = made.select(words.alias("words"))
    sentences.limit(10).mapInArrow(lambda batches: batches, sentences.schema).collect()
    with tempfile.TemporaryDirectory() as folder:
        watch = Watch(folder)
        watch.start()
        began = time.monotonic()
        vocabulary = counted(sentences, 1, 0, asked.in_memory)
        middle = time.monotonic()
        rows = rows_of(sentences, vocabulary, LENGTH)
        total = rows.agg(F.sum(F.length("tokens"))).first()[0]
        ended = time.monotonic()
        watch.over.set()
        watch.join()
    assert total >= 4 * 2 * asked.words
    where = "a file" if vocabulary.numbered is not None else "memory"
    print(
        f"{len(vocabulary.words):,} words in {where}: counted in {middle - began:.0f} s, encoded "
        f"in {ended - middle:.0f} s; driver {(watch.driver - watch.before) / 1e6:.0f} MB, largest "
        f"task {watch.worker / 1e6:.0f} MB, Java {watch.java / 1e6:.0f} MB"
    )
    spark.stop()


if __name__ == "__main__":
    begin("--words", "1000")
    main()
