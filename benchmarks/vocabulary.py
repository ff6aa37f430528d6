"""Word vectors of very many words: memory and seconds of counting, encoding and training.

    python benchmarks/vocabulary.py [--words 11000000] [--in-memory 0] [--dims 0] [--round-steps 0]

Sentences of ten words are made by Spark, two tasks at a time; each word is there twice. They are
counted, and encoded as numbers of words, as `Word2Vec.fit` does before it trains. With --in-memory
such a vocabulary or a smaller one lies in memory, else in a file. With --dims `Word2Vec.fit` itself
runs, on sharded tables, for one pass with two workers; --round-steps sets the steps of a round in
place of the default. Told are the seconds, and the peaks of the anonymous memory (RssAnon) of the
driver beyond what it held before, of the largest task, and of Java. Linux only.
"""

import argparse
import tempfile
import time

from machine import begin
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from sharded_table import Watch

from photinus import Sgd, Steps, Word2Vec, averaging, spark_session
from photinus.estimators.sentences import counted, rows_of

TASKS, SENTENCE, LENGTH = 2, 10, 1000


def sentences_of(spark, words):
    frame = spark.range(0, 2 * words // SENTENCE, 1, 8 * TASKS)
    numbers = F.sequence(F.col("id") * SENTENCE, F.col("id") * SENTENCE + SENTENCE - 1)
    texts = F.transform(numbers, lambda n: F.concat(F.lit("item"), n % words))
    sentences = frame.select(texts.alias("words"))
    sentences.limit(10).mapInArrow(lambda batches: batches, sentences.schema).collect()
    return sentences


def encode(sentences, options):
    """Counts and encodes; returns what that took."""
    began = time.monotonic()
    vocabulary = counted(sentences, 1, 0, options.in_memory)
    middle = time.monotonic()
    rows = rows_of(sentences, vocabulary, LENGTH)
    total = rows.agg(F.sum(F.length("tokens"))).first()[0]
    assert total >= 4 * 2 * len(vocabulary.words)
    where = "memory" if vocabulary.numbered is None else "a file"
    seconds = f"counted in {middle - began:.0f} s, encoded in {time.monotonic() - middle:.0f} s"
    return f"{len(vocabulary.words):,} words in {where}: {seconds}"


def train(sentences, options):
    """Trains on sharded tables; returns what that took."""
    how = {"numWorkers": TASKS, "vectorSize": options.dims, "epochs": 1.0, "minCount": 1}
    if options.round_steps:
        how["strategy"] = averaging(
            every=Steps(options.round_steps),
            outer=Sgd(),
            merge="uniform",
            gradients_until=0.0,
            codec="fp32",
            owners=TASKS,
            rows=options.dims,
        )
    word2vec = Word2Vec(inputCol="words", table="sharded", wordsInMemory=options.in_memory, **how)
    began = time.monotonic()
    model = word2vec.fit(sentences)
    rounds = model.summary.history[-1]["round"]
    seconds = time.monotonic() - began
    return f"{len(model.vectors):,} words, {rounds} rounds, fit in {seconds:.0f} s"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--words", type=int, default=11_000_000)
    parser.add_argument("--in-memory", type=int, default=0)
    parser.add_argument("--dims", type=int, default=0)
    parser.add_argument("--round-steps", type=int, default=0)
    options = parser.parse_args()
    spark = spark_session(TASKS, name="vocabulary")
    sentences = sentences_of(spark, options.words)
    with tempfile.TemporaryDirectory() as folder:
        watch = Watch(folder)
        watch.start()
        summary = (train if options.dims else encode)(sentences, options)
        watch.over.set()
        watch.join()
    driver = (watch.driver - watch.before) / 1e6
    print(
        f"{summary}; driver {driver:.0f} MB, largest task {watch.worker / 1e6:.0f} MB, "
        f"Java {watch.java / 1e6:.0f} MB"
    )
    spark.stop()


if __name__ == "__main__":
    begin("--words", "1000")
    main()
