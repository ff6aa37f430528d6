"""DeepDist's two programs of word vectors over time, beside the native `Word2Vec`.

    python benchmarks/deepdist_words.py [TEXT] [--dims 900] [--passes 5] [--partitions 16]
        [--questions FILE] [--ways plain adagrad native] [--sample 0.001 0] [--rates 0.025] [--cbow]
        [--draw PICTURE.svg]

The functions are those of examples/deepdist_word2vec.py (`plain`) and of
examples/deepdist_word2vec_adagrad.py: gensim computes a partition's update, and the driver applies
it as it comes, two tasks at a time on local Spark. The words are those of gensim's
questions-words.txt, and all others are taken out of the text before. Left out, the text is made up.
Printed are the seconds of training so far, without those of the questions, and the share of the
questions that is right, after each pass; of `native` at the end of runs of so many passes, as its
rate falls over a whole run, with each --sample (0: no word is thinned out; gensim's models here
have the counts of the questions, by which hardly a word is) and each rate; gensim's models here are
CBOW, as `native` is with --cbow. The picture has the same curves for
each section of the questions.
"""

import argparse
import itertools
import sys
import tempfile
import time
from pathlib import Path

from machine import begin
from pictures import grid
from streamed_words import made_up, questions_of_gensim, sentences_of, words_of

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import deepdist_word2vec as plain
import deepdist_word2vec_adagrad as adagrad
from gensim.models.word2vec import Word2Vec as Gensims

from photinus import DeepDist, Word2Vec, spark_session
from photinus.embeddings.vectors import WordVectors
from photinus.report.chart import Chart, Series

TASKS = 2


def started(options, is_adagrad):
    """Returns gensim's model as the examples start it."""
    with Path(options.questions).open() as lines:
        sentences = [line.lower().split() for line in lines]
    model = Gensims(sentences, vector_size=options.dims, min_count=1, seed=1, workers=1)
    if is_adagrad:
        model.word_count, model.total_words, model.version = 0, int(1e9), 1
        model.ssyn0, model.ssyn1 = 0, 0
    return model


def report(way, number, seconds, vectors, options):
    answered = vectors.analogies(options.questions)
    print(f"{way}, {number} passes, {seconds:.0f} s: {answered.total}", flush=True)
    for section in (answered.total, *answered.sections):
        ways = options.found.setdefault(section.name, {})
        ways.setdefault(way, []).append((number, 100 * section.share))


def draw(target, sections):
    """Draws how each section of the questions fared, in the order of the file."""
    charts = [
        Chart(
            title=name,
            subtitle="% right",
            x_label="passes",
            series=[Series(way, points) for way, points in ways.items()],
        )
        for name, ways in sections.items()
    ]
    Path(target).write_text(grid(charts))


def deepdist(corpus, options, way):
    program, seconds = (adagrad if way == "adagrad" else plain), 0.0
    with DeepDist(started(options, way == "adagrad")) as dd:
        for number in range(1, options.passes + 1):
            began = time.monotonic()
            dd.train(corpus, program.gradient, program.descent)
            seconds += time.monotonic() - began
            keyed = dd.model.wv
            vectors = WordVectors(list(keyed.index_to_key), keyed.vectors.copy())
            report(way, number, seconds, vectors, options)


def native(sentences, options, sample, rate):
    number, way = 1, f"native, sample {sample:g}"
    if options.cbow or len(options.rates) > 1:
        way += f", rate {rate:g}" + ", CBOW" * options.cbow
    while number <= options.passes:
        settings = {"vectorSize": options.dims, "numWorkers": TASKS, "sample": sample}
        settings |= {"learningRate": rate, "cbow": options.cbow}
        began = time.monotonic()
        estimator = Word2Vec(inputCol="words", minCount=1, epochs=float(number), **settings)
        vectors = estimator.fit(sentences).vectors
        report(way, number, time.monotonic() - began, vectors, options)
        number *= 2


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("text", nargs="?")
    parser.add_argument("--dims", type=int, default=900)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--partitions", type=int, default=16)
    parser.add_argument("--questions", default=questions_of_gensim())
    ways = ["plain", "adagrad", "native"]
    parser.add_argument("--ways", nargs="+", choices=ways, default=ways)
    parser.add_argument("--sample", type=float, nargs="+", default=[1e-3, 0.0], help="native only")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.025], help="native only")
    parser.add_argument("--cbow", action="store_true", help="native only: in place of skip-gram")
    parser.add_argument("--draw", help="a picture of the sections over the passes")
    options = parser.parse_args()
    options.found = {}
    words = words_of(options.questions)
    spark = spark_session(TASKS, name="deepdist_words")
    for program in (plain, adagrad):
        spark.sparkContext.addPyFile(program.__file__)
    with tempfile.TemporaryDirectory() as folder:
        text = options.text or str(made_up(Path(folder) / "text.txt", words))
        sentences = (
            sentences_of(spark.read.text(text), words).repartition(options.partitions).cache()
        )
        corpus = sentences.rdd.map(lambda row: list(row.words)).cache()
        print(f"{corpus.map(len).sum():,} words in {corpus.count():,} sentences", flush=True)
        for way in options.ways:
            if way == "native":
                for sample, rate in itertools.product(options.sample, options.rates):
                    native(sentences, options, sample, rate)
            else:
                deepdist(corpus, options, way)
    spark.stop()
    if options.draw:
        draw(options.draw, options.found)


if __name__ == "__main__":
    begin("--dims", "20", "--passes", "1", "--partitions", "2")
    main()
