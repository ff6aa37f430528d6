"""Word vectors beside gensim on the same text: words per second, and accuracy with K workers.

    python benchmarks/word2vec.py TEXT [--words 2000000] [--dims 100 300] [--workers 1 2 4]
        [--epochs N] [--repeats 5] [--only speed|accuracy]
        [--subwords 3 6] [--round-words 200000] [--codecs fp32 bf16 int8 int4] [--mllib 1 2 4]
        [--negatives 5 0] [--sample 0.001 0] [--seeds 0] [--no-gensim] [--cbow]
        [--kernel numba|torch] [--together 0 2] [--neighbours]

TEXT holds a sentence a line, in lower case. Words per second are of one thread and its CPU's
seconds: best and median of interleaved repeats, also of the same words in sentences of 3 to 8. The
accuracy is that of processes of this machine, by gensim's questions-words.txt at a cut-off of
30,000 words, and WordSim-353 by Spearman. With --codecs the tables lie among the workers, and rows
travel in each of these. Told too are the seconds, and what all workers sent and got. Several
--negatives (0: hierarchical softmax), --sample (0: no word is thinned out) or --seeds are each
tried with each other. CPU seconds are those of all processes, with their start. With --mllib
Spark's own Word2Vec learns from the same sentences on so many partitions, with the same settings as
far as it has them: it has hierarchical softmax, and takes every word. Without --epochs
photinus has as many passes as its estimator, and the others have 5. With --cbow both learn CBOW;
of gensim the accuracy is told at its own rate of .025, too, and else at photinus's rate of .05.
With --together so many contexts of a centre take a step at once (`contextsPerStep`; 0: all).
With --kernel torch photinus learns by the steps of other devices, here on the processor. With
--neighbours an index of all words is measured, too: how many it finds of the ten words nearest to
each of 2,000.
"""

import argparse
import collections
import itertools
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from gensim.models import FastText, Word2Vec
from gensim.test.utils import datapath
from machine import begin, used

from photinus.core.clock import Steps
from photinus.core.errors import UsageError
from photinus.core.events import RoundClosed
from photinus.data.base import Batch
from photinus.embeddings.blocks import blocks, tokens_in_block, usual_passes, words_in_round
from photinus.embeddings.neighbours import NeighbourIndex, build_index, exact
from photinus.embeddings.subwords import Ngrams
from photinus.embeddings.vectors import WordVectors
from photinus.embeddings.word2vec import RowDescent, Word2VecConfig
from photinus.engine.base import ArrayData
from photinus.engine.local.engine import LocalEngine
from photinus.run.evaluate import LazyModel
from photinus.run.job import Job
from photinus.run.train import train_lazy
from photinus.strategies.codecs import CODECS
from photinus.strategies.outer import Sgd
from photinus.strategies.recipes import averaging

STEP_ROWS = 8


def read(path, most):
    """Returns sentences of words that occur five times, the words, and their counts."""
    sentences, total = [], 0
    for line in lines(path) if path else made_up():
        sentences.append(line.split())
        total += len(sentences[-1])
        if total >= most:
            break
    counts = collections.Counter(word for sentence in sentences for word in sentence)
    words = [w for w, n in sorted(counts.items(), key=lambda p: (-p[1], p[0])) if n >= 5]
    index = {word: number for number, word in enumerate(words)}
    known = [[word for word in sentence if word in index] for sentence in sentences]
    return known, index, np.array([counts[word] for word in words])


def lines(path):
    with Path(path).open() as file:
        yield from file


def made_up():
    rng = np.random.default_rng(0)
    for _ in range(2000):
        yield " ".join(f"w{int(n)}" for n in rng.zipf(1.3, 20) if n < 3000)


def rows_of(sentences, index, length):
    tokens = [n for s in sentences for n in (*(index[word] for word in s), -1)]
    return np.concatenate(list(blocks(iter([np.array(tokens, np.int32)]), length)))


def gensims(sentences, index, counts, dims, epochs, ngrams=None, **more):
    kind = Word2Vec
    if ngrams is not None:
        sizes = {"min_n": ngrams.shortest, "max_n": ngrams.longest, "bucket": ngrams.buckets}
        kind, more = FastText, more | sizes
    settings = {"negative": 5, "window": 5, "sample": 1e-3, "min_count": 1, "workers": 1, "seed": 1}
    model = kind(vector_size=dims, **{"sg": 1, **settings, **more})
    model.build_vocab_from_freq(dict(zip(index, counts.tolist(), strict=True)))
    began = time.process_time()
    model.train(sentences, total_examples=len(sentences), epochs=epochs)
    seconds = time.process_time() - began
    return seconds, np.stack([model.wv[word] for word in index])


def mllibs(sentences, index, dims, epochs, partitions):
    """Returns the seconds that MLlib takes on so many partitions and tasks, and its vectors."""
    import pandas as pd
    from pyspark.ml.feature import Word2Vec as MLlibs

    from photinus.engine.spark.session import spark_session

    spark = spark_session(partitions, name="word2vec")
    lines = pd.DataFrame({"text": [" ".join(sentence) for sentence in sentences if sentence]})
    frame = spark.createDataFrame(lines).selectExpr("split(text, ' ') words")
    settings = {"vectorSize": dims, "maxIter": epochs, "minCount": 1, "windowSize": 5, "seed": 1}
    settings |= {"stepSize": 0.025, "numPartitions": partitions, "inputCol": "words"}
    began = time.monotonic()
    model = MLlibs(**settings).fit(frame)
    seconds = time.monotonic() - began
    vectors = np.zeros((len(index), dims), np.float32)
    for row in model.getVectors().collect():
        vectors[index[row.word]] = row.vector.toArray()
    spark.stop()
    return seconds, vectors


def ours(rows, index, counts, dims, ngrams=None, *, cbow=False):
    config = Word2VecConfig(words=len(counts), dims=dims, cbow=cbow)
    if ngrams is not None:
        grams = ngrams.of(list(index), first=len(index))
        config = replace(config, buckets=ngrams.buckets, grams=len(grams.rows))
    model, inner = config.build((), 1), config.inner(None)
    assert isinstance(inner, RowDescent)
    model.parameters.view("counts")[:] = counts
    if ngrams is not None:
        model.parameters.view("gram_starts")[:], model.parameters.view("gram_rows")[:] = grams
    inner.descend(model, Batch(rows[:1], None), 0, 0.0)  # compiled, and its draws prepared
    began = time.process_time()
    for start in range(0, len(rows), STEP_ROWS):
        inner.descend(model, Batch(rows[start : start + STEP_ROWS], None), start, 0.0)
    return time.process_time() - began


def cut(sentences):
    """Returns the same words in sentences of 3 to 8."""
    words, rng = [word for sentence in sentences for word in sentence], np.random.default_rng(0)
    ends = np.cumsum(rng.integers(3, 9, len(words) // 3 + 1))
    return [
        words[end - length : end]
        for end, length in zip(ends, np.diff(ends, prepend=0), strict=True)
    ]


def speed(text, dims, options, ngrams=None):
    sentences, index, counts = text
    cbow, how = options.cbow, {"sg": 0, "alpha": 0.05} if options.cbow else {}
    words = sum(map(len, sentences))
    rows, rates = rows_of(sentences, index, 1000), []
    short = rows_of(cut(sentences), index, 1000)
    for _ in range(options.repeats):
        theirs, _ = gensims(sentences, index, counts, dims, 1, ngrams, **how)
        mine = (ours(some, index, counts, dims, ngrams, cbow=cbow) for some in (rows, short))
        seconds = theirs, *mine
        rates.append([words / one for one in seconds])
    sides = [np.array(side) for side in zip(*rates, strict=True)]
    print(
        f"{dims} dims, {words} words, {ngrams or 'no n-grams'}{', CBOW' * cbow}: "
        "words a CPU second, best, median:",
        end=" ",
    )
    names = "gensim", "photinus", "photinus in short sentences"
    summaries = (
        f"{n} {s.max():,.0f} {np.median(s):,.0f}" for n, s in zip(names, sides, strict=True)
    )
    print("; ".join(summaries))
    for name, ratios in (
        ("photinus : gensim", sides[1] / sides[0]),
        ("short : long", sides[2] / sides[1]),
    ):
        print(
            f"    {name} {np.median(ratios):.2f} ({ratios.min():.2f} to {ratios.max():.2f})",
            flush=True,
        )


def trained(text, options, workers, *, is_plain=False, codec="", seed=0, **settings):
    """Returns the inputs, and what it took in words; with a codec of a sharded table.

    Args:
        text: sentences, words and counts.
        options: what the command asks for.
        workers: so many processes.
        is_plain: the mean without gains.
        codec: of rows; empty: whole tables.
        seed: of the job.
        settings: of the config.
    """
    sentences, index, counts = text
    words = int(counts.sum())
    length = tokens_in_block(words, workers)
    each = options.round_words or words_in_round(words, workers)
    steps = max(1, round(each / STEP_ROWS / length))
    config = Word2VecConfig(
        words=len(index),
        dims=options.dims[0],
        epochs=options.epochs or usual_passes(counts),
        batch_size=STEP_ROWS * workers,
        workers=workers,
        round_words=0.0 if is_plain else float(steps * STEP_ROWS * length),
        **settings,
    )
    strategy = averaging(every=Steps(steps), outer=Sgd(), merge="uniform", gradients_until=0.0)
    if codec:
        strategy = replace(strategy, codec=codec, owners=workers, rows=options.dims[0])
    job = Job(model=config, workers=workers, engine="local", strategy=strategy, seed=seed)
    draft = LazyModel(job)
    draft.model().parameters.view("counts")[:] = counts
    events, began, spent = [], time.monotonic(), used()
    with tempfile.TemporaryDirectory() as folder:
        rows = ArrayData(rows_of(sentences, index, length))
        outcome = train_lazy(
            draft, rows, folder=f"{folder}/run", engine=LocalEngine(), callbacks=[events.append]
        )
        inputs = outcome.trained.model().parameters.view("inputs").copy()
    rounds = [e for e in events if isinstance(e, RoundClosed)]
    up, down = (sum(getattr(e, f"bytes_{way}") for e in rounds) / 1e6 for way in ("up", "down"))
    took = f"{time.monotonic() - began:.0f} s, {used() - spent:.0f} CPU s"
    took += f", {sum(e.rounds for e in rounds):,} rounds"
    return inputs, f"{took}, {up:,.0f} MB sent, {down:,.0f} MB got"


def report(name, index, vectors, *, is_searched=False):
    embeddings = WordVectors(list(index), vectors)
    lines = []
    for ask in (
        lambda: embeddings.analogies(datapath("questions-words.txt")).total,
        lambda: embeddings.similarity(datapath("wordsim353.tsv")),
    ):
        try:
            lines.append(str(ask()))
        except UsageError as error:
            lines.append(str(error))
    print(f"{name}: {'; '.join(lines)}", flush=True)
    if is_searched:
        neighbours(vectors)


def neighbours(vectors, searches=2000):
    """Prints how many of the ten nearest rows an index finds, and how long both searches take."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    aims = vectors[np.random.default_rng(0).permutation(len(vectors))[:searches]]
    marks = [time.process_time()]
    index = NeighbourIndex(build_index(vectors))
    marks.append(time.process_time())
    near, _ = index.nearest(aims, 10)
    marks.append(time.process_time())
    right, _ = exact(unit, aims, 10)
    marks.append(time.process_time())
    recall = np.mean([len({*a} & {*b}) for a, b in zip(near, right, strict=True)]) / 10
    took, by_index, by_all = np.diff(marks)
    print(
        f"    an index of {len(vectors):,} words: recall@10 {recall:.4f}, made in {took:.0f} CPU s;"
        f" {1000 * by_index / searches:.2f} CPU ms a search, {1000 * by_all / searches:.2f} exact",
        flush=True,
    )


def accuracy(options, text):
    """Prints how well each learns."""
    sentences, index, counts = text
    ways, passes = {"gensim": {}}, options.epochs or 5
    if options.cbow:
        ways = {f"gensim, CBOW, rate {rate}": {"sg": 0, "alpha": rate} for rate in (0.025, 0.05)}
    for name, how in ways.items() if options.gensim else ():
        vectors = gensims(sentences, index, counts, options.dims[0], round(passes), **how)
        report(f"{name}, {vectors[0]:.0f} CPU s", index, vectors[1])
    for partitions in options.mllib:
        seconds, vectors = mllibs(sentences, index, options.dims[0], round(passes), partitions)
        report(f"MLlib, {partitions} partitions, {seconds:.0f} s", index, vectors)
    tried = itertools.product(
        options.workers, options.negatives, options.sample, options.seeds, options.together
    )
    for workers, negatives, sample, seed, together in tried:
        settings = {"negatives": negatives, "sample": sample, "seed": seed, "cbow": options.cbow}
        settings |= {"kernel": options.kernel, "contexts_per_step": together}
        name = f"{workers} workers, negatives {negatives}, sample {sample:g}, seed {seed}"
        name += f", {options.epochs or usual_passes(counts):.3g} passes"
        name += f", {together} contexts" if together else ""
        for codec in options.codecs:
            vectors, took = trained(text, options, workers, codec=codec, **settings)
            report(f"{name}, sharded, {codec}, {took}", index, vectors)
        if options.codecs:
            continue
        vectors, took = trained(text, options, workers, **settings)
        report(f"{name}, {took}", index, vectors, is_searched=options.neighbours)
        if options.plain and workers > 1:
            vectors, took = trained(text, options, workers, is_plain=True, **settings)
            report(f"{name}, the plain mean, {took}", index, vectors)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("text", nargs="?")
    parser.add_argument("--words", type=int, default=2_000_000)
    parser.add_argument("--dims", type=int, nargs="+", default=[100, 300])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--epochs", type=float, help="left out: photinus's usual, 5 of others")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=["speed", "accuracy"])
    parser.add_argument("--subwords", type=int, nargs=2, help="lengths of n-grams: speed only")
    parser.add_argument("--round-words", type=int, help="of a worker; left out, the estimator's")
    parser.add_argument("--codecs", nargs="+", default=[], choices=list(CODECS))
    parser.add_argument("--mllib", type=int, nargs="+", default=[], help="partitions")
    parser.add_argument("--negatives", type=int, nargs="+", default=[5], help="accuracy only")
    parser.add_argument("--sample", type=float, nargs="+", default=[1e-3], help="accuracy only")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--gensim", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--neighbours", action="store_true", help="recall of an index")
    parser.add_argument("--cbow", action="store_true", help="in place of skip-gram")
    parser.add_argument(
        "--kernel", default="numba", choices=["numba", "torch"], help="accuracy only"
    )
    parser.add_argument("--together", type=int, nargs="+", default=[0], help="accuracy only")
    parser.add_argument("--plain", action="store_true", help="the mean without gains, too")
    options = parser.parse_args()
    text = read(options.text, options.words)
    ngrams = Ngrams(*options.subwords, 200_000) if options.subwords else None
    if options.only != "accuracy":
        for dims in options.dims:
            speed(text, dims, options, ngrams)
    if options.only == "speed":
        return
    accuracy(options, text)


if __name__ == "__main__":
    begin("--dims", "20", "--workers", "1", "2", "--epochs", "1", "--repeats", "1")
    main()
