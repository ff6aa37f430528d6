"""Word vectors of texts that lie on a real HDFS, which the executors read themselves."""

import bz2
import gzip

import numpy as np
import pytest

from photinus.core.addresses import filesystem
from photinus.core.errors import UsageError
from photinus.estimators.vector_models import Word2VecModel
from photinus.estimators.word2vec import Word2Vec

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

WORDS = {"vectorSize": 8, "minCount": 1, "epochs": 1.0, "numWorkers": 2}
LINES = [f"the sea is {word}" for word in ("blue", "green", "grey")] * 40
PAGE = "<page><title>P</title><ns>0</ns><id>1</id><revision><text>{}.</text></revision></page>\n"


def write_file(address, content):
    system, path = filesystem(address)
    system.makedirs(path.rpartition("/")[0], exist_ok=True)
    system.pipe_file(path, content)


def test_plain_and_compressed_text_in_folders_is_read_line_by_line(spark, hdfs):
    folder = f"{hdfs[0]}/texts"
    write_file(f"{folder}/a.txt", "\n".join(LINES[:50]).encode())
    write_file(f"{folder}/more/b.txt.gz", gzip.compress("\n".join(LINES[50:]).encode()))
    model = Word2Vec(**WORDS).fit(folder)
    counts = dict(zip(model.vectors.words, model.vectors.counts.tolist(), strict=True))
    assert counts == {"the": 120, "sea": 120, "is": 120, "blue": 40, "green": 40, "grey": 40}


def test_a_dump_is_read_in_parts(spark, hdfs):
    pytest.importorskip("mwparserfromhell", reason="photinus[wikipedia] is not installed")
    pages = "".join(PAGE.format(line) for line in LINES)
    dump = f"<mediawiki>\n{pages}</mediawiki>\n".encode()
    write_file(f"{hdfs[0]}/dump.xml.bz2", bz2.compress(dump))
    counts = Word2Vec(**WORDS).fit(f"{hdfs[0]}/dump.xml.bz2").vectors.counts
    assert sorted(counts.tolist()) == [40, 40, 40, 120, 120, 120]


def test_a_missing_folder_is_one_sentence(spark, hdfs):
    with pytest.raises(UsageError, match=r"the text cannot be read; got .*nobody"):
        Word2Vec(**WORDS).fit(f"{hdfs[0]}/user/nobody")


def test_a_model_is_saved_there_and_loaded(spark, hdfs):
    model = Word2Vec(**WORDS).fit(spark.sparkContext.parallelize(LINES, 2))
    model.write().save(f"{hdfs[0]}/model")
    loaded = Word2VecModel.load(f"{hdfs[0]}/model").vectors
    assert list(loaded.words) == list(model.vectors.words)
    np.testing.assert_array_equal(loaded.vectors, model.vectors.vectors)
