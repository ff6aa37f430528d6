"""DeepDist's AdaGrad example: vectors of the words of analogy questions (pip install gensim).

    python examples/deepdist_word2vec_adagrad.py [TEXT QUESTIONS]

Left out, the text is Python's own manual, and the questions are word2vec's, as gensim has them.
"""

import sys
import tempfile

import numpy as np
from deepdist_word2vec import manual
from gensim.models.word2vec import Word2Vec
from gensim.test.utils import datapath

from photinus import DeepDist, spark_session


def alpha_of(model):
    return max(model.min_alpha, model.alpha * (1.0 - 1.0 * model.word_count / model.total_words))


def gradient(model, data):
    syn0, syn1 = model.wv.vectors.copy(), model.syn1neg.copy()
    alpha = {"start_alpha": alpha_of(model), "end_alpha": alpha_of(model)}
    words, _ = model.train(list(data), total_words=model.total_words, epochs=1, **alpha)
    return {"syn0": model.wv.vectors - syn0, "syn1": model.syn1neg - syn1, "words": words}


def descent(model, update):
    alpha = alpha_of(model)
    syn0, syn1 = update["syn0"] / alpha, update["syn1"] / alpha
    model.ssyn0 += syn0 * syn0
    model.ssyn1 += syn1 * syn1
    model.wv.vectors += syn0 * (alpha / (1e-6 + np.sqrt(model.ssyn0)))
    model.syn1neg += syn1 * (alpha / (1e-6 + np.sqrt(model.ssyn1)))
    model.word_count += update["words"]
    model.version += 1


def main(spark=None, text=None, questions=None, partitions=4, epochs=2):
    with open(questions := questions or datapath("questions-words.txt")) as lines:
        model = Word2Vec([s.split() for s in lines], min_count=1, seed=1, workers=1)
    model.word_count, model.total_words, model.version = 0, int(1e9), 1
    model.ssyn0, model.ssyn1 = 0, 0  # AdaGrad: sums of squared gradients
    with tempfile.TemporaryDirectory() as folder, DeepDist(model) as dd:
        context = (spark or spark_session(2)).sparkContext
        lines = context.textFile(str(text or manual(folder)), partitions)
        corpus = lines.map(lambda s: s.split()).filter(lambda s: len(s) > 0).cache()
        for _ in range(epochs):
            dd.train(corpus, gradient, descent)
            dd.model.wv.fill_norms(force=True)
            print(f"v{dd.model.version} {dd.model.wv.evaluate_word_analogies(questions)[0]:.1%}")
    dd.model.wv.save_word2vec_format("model.bin", binary=True)
    print(dd.model.wv.most_similar(positive=["woman", "king"], negative=["man"]))
    return dd.model


if __name__ == "__main__":
    main(None, *sys.argv[1:])
