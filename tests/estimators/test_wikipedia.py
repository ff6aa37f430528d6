"""A Wikipedia dump is read by several tasks, and word vectors are learnt from it."""

import bz2
import logging

import numpy as np
import pytest

from photinus.core.errors import DataError, UsageError
from photinus.estimators.wikipedia import wikipedia_sentences
from photinus.estimators.word2vec import Word2Vec

pytestmark = pytest.mark.spark

TOPICS = [["sea", "ship", "wave", "sail", "port"], ["sky", "bird", "wing", "nest", "cloud"]]


def dump(path, *, wrong=0):
    """A multistream dump of articles on one of two topics, some of them no XML."""
    rng = np.random.default_rng(0)
    pages = []
    for n in range(300):
        text = " ".join(rng.choice(TOPICS[n % 2], 12)).capitalize()
        end = "</revise>" if n < wrong else "</revision>"
        pages.append(f"<page><ns>0</ns><revision><text>'''{text}'''.</text>{end}</page>\n")
    tens = ["".join(pages[at : at + 10]) for at in range(0, 300, 10)]
    rows = ["<mediawiki>\n", *tens, "</mediawiki>\n"]
    path.write_bytes(b"".join(bz2.compress(row.encode()) for row in rows))
    return str(path)


def test_several_tasks_read_every_sentence_once(spark, tmp_path):
    path = dump(tmp_path / "wiki.xml.bz2", wrong=3)
    sentences = wikipedia_sentences(spark, path, part_bytes=1500)
    assert sentences.rdd.getNumPartitions() > 3
    rows = sentences.collect()
    assert sum(len(row.words) == 12 for row in rows) == 297
    assert sum(row.corrupt for row in rows) == 3


def test_vectors_are_learnt_from_a_dump_and_corrupt_pages_are_told(spark, tmp_path, caplog):
    path = dump(tmp_path / "wiki.xml.bz2", wrong=2)
    with caplog.at_level(logging.WARNING, "photinus"):
        model = Word2Vec(
            vectorSize=16, epochs=10.0, numWorkers=1, sample=0.0, learningRate=0.05
        ).fit(path)
    assert f"2 corrupt pages of {path} were left out" in caplog.text
    assert model.vectors.counts.sum() == 298 * 12
    assert {word for word, _ in model.most_similar(["sea"], count=4)} == set(TOPICS[0][1:])


def test_a_cut_dump_ends_the_fit_in_one_sentence(spark, tmp_path):
    path = dump(tmp_path / "wiki.xml.bz2")
    data = (tmp_path / "wiki.xml.bz2").read_bytes()
    (tmp_path / "wiki.xml.bz2").write_bytes(data[:-40])
    with pytest.raises(DataError) as caught:
        Word2Vec(numWorkers=1).fit(path)
    assert f"{path} is cut" in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match="most_corrupt must be at least 0; got -1"):
        wikipedia_sentences(spark, path, most_corrupt=-1)
