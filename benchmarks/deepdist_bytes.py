"""What DeepDist sends of a model with many words: the rows that moved, beside the whole model.

    python benchmarks/deepdist_bytes.py [TEXT] [--dims 300] [--words 1000 10000 100000]
        [--partitions 12]

The functions are those of examples/deepdist_word2vec.py, with gensim's own vocabulary of all words
of the text that are there five times. Two tasks run at a time on local Spark. Each of --words is
the size of a partition; one pass goes over so many partitions. Printed for each size are the
model's bytes, and per update the bytes that were sent and received, as shares of the model's. Left
out, the text is made up.
"""

import argparse
import itertools
import sys
import tempfile
from collections import Counter
from pathlib import Path

from machine import begin
from streamed_words import made_up, questions_of_gensim, words_of

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import deepdist_word2vec as program
from gensim.models.word2vec import Word2Vec as Gensims

from photinus import DeepDist, spark_session

TASKS, LEAST, SENTENCE = 2, 5, 25


def sentences_of(text, words):
    """Yields sentences of the text's words, until so many words have been read."""
    with Path(text).open() as lines:
        read = itertools.islice(itertools.chain.from_iterable(map(str.split, lines)), words)
        while sentence := list(itertools.islice(read, SENTENCE)):
            yield sentence


def started(text, dims):
    """Returns gensim's model with all frequent words of the text."""
    with Path(text).open() as lines:
        counts = Counter(itertools.chain.from_iterable(map(str.split, lines)))
    model = Gensims(vector_size=dims, min_count=LEAST, seed=1, workers=1)
    model.build_vocab_from_freq(counts)
    return model


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("text", nargs="?")
    parser.add_argument("--dims", type=int, default=300)
    parser.add_argument("--words", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--partitions", type=int, default=12)
    options = parser.parse_args()
    spark = spark_session(TASKS, name="deepdist_bytes")
    spark.sparkContext.addPyFile(program.__file__)
    with tempfile.TemporaryDirectory() as folder:
        known = words_of(questions_of_gensim())
        text = options.text or made_up(Path(folder) / "text.txt", known)
        for words in options.words:
            sentences = list(sentences_of(text, words * options.partitions))
            corpus = spark.sparkContext.parallelize(sentences, options.partitions)
            model = started(text, options.dims)
            whole = model.wv.vectors.nbytes + model.syn1neg.nbytes
            with DeepDist(model) as dd:
                result = dd.train(corpus, program.gradient, program.descent)
            sent, received = (
                f"{size / result.updates / whole:.1%}"
                for size in (result.bytes_sent, result.bytes_received)
            )
            print(
                f"{words:,} words a partition, a model of {len(model.wv):,} words and "
                f"{whole / 1e6:.0f} MB: sent {sent}, received {received} of it an update, "
                f"{result.updates} updates in {result.seconds:.0f} s",
                flush=True,
            )
    spark.stop()


if __name__ == "__main__":
    begin("--dims", "20", "--words", "100", "--partitions", "4")
    main()
