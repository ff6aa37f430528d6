"""Vectors of given words from a text that fits no memory: what each process takes, and seconds.

    python benchmarks/streamed_words.py [TEXT] [--gigabytes 0.01] [--dims 900] [--workers 2]
        [--questions FILE]

A folder of hard links to TEXT holds so many gigabytes, and takes no room on the disk. Left out, the
text is made up. A line is a sentence. The words are those of gensim's questions-words.txt: Spark
leaves out all others, and keeps what is left on disk, so that the text is read once. The workers of
a local session learn from it in one epoch. `peak` is the most memory that a process ever had
resident (`VmHWM`: shared libraries and mapped files count, too): of the driver's Python, of Java,
which is driver and executor in one, and of the largest Python process below it. Linux only.
"""

import argparse
import importlib.util
import os
import tempfile
import time
from pathlib import Path

import numpy as np
from machine import Sampler, begin, descendants
from memory import peak_of
from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from photinus import Word2Vec, spark_session
from photinus.estimators.sentences import words_in

MADE_UP_LINES = 20_000


class Peaks(Sampler):
    """Looks at the peaks of this process and of all that it started."""

    def __init__(self):
        super().__init__(self._looks, 0.2)
        self.driver = self.java = self.worker = 0

    def _looks(self):
        self.driver = peak_of(os.getpid())
        for process in descendants():
            if name_of(process) == "java":
                self.java = max(self.java, peak_of(process))
            else:
                self.worker = max(self.worker, peak_of(process))


def name_of(process):
    try:
        return Path(f"/proc/{process}/comm").read_text().strip()
    except OSError:  # it has ended
        return ""


def questions_of_gensim():
    """Returns gensim's file, without importing gensim: the driver's memory is measured."""
    spec = importlib.util.find_spec("gensim")
    return str(Path(spec.origin).parent / "test/test_data/questions-words.txt")


def words_of(questions):
    return sorted({word.lower() for word in words_in(questions)})


def sentences_of(lines, words):
    """Returns the lines of a text as arrays `words` of these words alone, two at least."""
    known = F.filter(F.split("value", " "), lambda word: word.isin(words))
    return lines.select(known.alias("words")).where(F.size("words") > 1)


def made_up(path, words):
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, len(words), (MADE_UP_LINES, 10))
    path.write_text("\n".join(" ".join(words[n] for n in line) for line in drawn) + "\n")
    return path


def linked(text, folder, size):
    """Makes so many links to a text as have a size; returns how many, and their bytes."""
    folder.mkdir()
    links = max(1, round(size / text.stat().st_size))
    for number in range(links):
        os.link(text, folder / f"{number:05}.txt")
    return links, links * text.stat().st_size


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("text", nargs="?")
    parser.add_argument("--gigabytes", type=float, default=0.01)
    parser.add_argument("--dims", type=int, default=900)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--questions", default=questions_of_gensim())
    options = parser.parse_args()
    words = words_of(options.questions)
    beside = Path(options.text).resolve().parent if options.text else None  # links need one disk
    with tempfile.TemporaryDirectory(dir=beside) as place:
        folder = Path(place)
        text = Path(options.text) if options.text else made_up(folder / "text.txt", words)
        links, size = linked(text, folder / "links", options.gigabytes * 1e9)
        print(f"{links} times {text.name}: {size / 1e9:,.2f} GB; {len(words)} words", flush=True)
        with Peaks() as peaks:
            spark = spark_session(options.workers, name="streamed_words")
            lines = spark.read.text(str(folder / "links"))
            sentences = sentences_of(lines, words).persist(StorageLevel.DISK_ONLY)
            word2vec = Word2Vec(
                inputCol="words",
                vectorSize=options.dims,
                epochs=1.0,
                numWorkers=options.workers,
                runDir=str(folder / "run"),
            )
            began = time.monotonic()
            sentences.count()
            read = time.monotonic() - began
            model = word2vec.fit(sentences)
            seconds = time.monotonic() - began
            spark.stop()
    summary = f"{seconds:,.0f} s, {read:,.0f} s of them to read the text; "
    summary += f"{int(model.vectors.counts.sum()):,} words of the vocabulary in it; peak of "
    summary += f"the driver {peaks.driver / 1e6:,.0f} MB, of Java {peaks.java / 1e6:,.0f} MB, "
    print(f"{summary}of the largest worker {peaks.worker / 1e6:,.0f} MB")
    print(model.analogies(options.questions).total)


if __name__ == "__main__":
    begin("--dims", "20")
    main()
