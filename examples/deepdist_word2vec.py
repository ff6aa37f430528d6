"""DeepDist's first example: gensim's word2vec on the partitions of an RDD (pip install gensim).

    python examples/deepdist_word2vec.py [FILE [adagrad]]

FILE holds text; left out, Python's own manual, as it comes with every Python, is read.
"""

import re
import sys
import tempfile
from pathlib import Path
from pydoc_data.topics import topics

from gensim.models.word2vec import Word2Vec

from photinus import Adagrad, DeepDist, Stepper, spark_session

adagrad = Stepper(Adagrad(lr=0.025))


def gradient(model, sentences):  # executes on workers
    syn0, syn1 = model.wv.vectors.copy(), model.syn1neg.copy()  # previous weights
    sentences = list(sentences)
    model.train(sentences, total_examples=len(sentences), epochs=1)
    return {"syn0": model.wv.vectors - syn0, "syn1": model.syn1neg - syn1}


def descent(model, update):  # executes on the server, one at a time
    model.wv.vectors += update["syn0"]
    model.syn1neg += update["syn1"]


def adagrad_descent(model, update):
    model.wv.vectors += adagrad.step("syn0", update["syn0"] / model.alpha)
    model.syn1neg += adagrad.step("syn1", update["syn1"] / model.alpha)


def manual(folder):
    lines = (line for text in topics.values() for line in re.split(r"[.:;]\s", text))
    words = (re.findall("[a-z_]{2,}", line.lower()) for line in lines)
    path = Path(folder) / "manual.txt"
    path.write_text("\n".join(" ".join(line) for line in words if len(line) > 3))
    return path


def main(spark=None, path=None, descend=descent, partitions=4, epochs=5):
    spark = spark or spark_session(2)
    with tempfile.TemporaryDirectory() as folder:
        text = str(path or manual(folder))
        corpus = spark.sparkContext.textFile(text, partitions).map(lambda s: s.split()).cache()
        with DeepDist(Word2Vec(corpus.collect(), seed=1, workers=1)) as dd:
            counted = dd.train(corpus, gradient, descend, epochs=epochs)
    word = "list" if "list" in dd.model.wv else dd.model.wv.index_to_key[0]
    print(counted, word, dd.model.wv.most_similar(word), sep="\n")
    return dd.model, counted


if __name__ == "__main__":
    main(path=next(iter(sys.argv[1:]), None), descend=adagrad_descent if sys.argv[2:] else descent)
