"""Word2Vec on a real Spark: two topics of words, two workers."""

import logging
import os

import numpy as np
import pytest
from gensim.models import KeyedVectors

from photinus.checkpoint.mapped import is_mapped
from photinus.core.clock import Epochs, Examples, Seconds, Steps
from photinus.core.errors import DataError, UsageError
from photinus.embeddings.vectors import WordVectors
from photinus.estimators.item2vec import Item2Vec
from photinus.estimators.node_vectors import NodeVectors
from photinus.estimators.sentences import counted, rows_of, sentences_of
from photinus.estimators.word2vec import Word2Vec, Word2VecModel
from photinus.strategies.outer import RowAdagrad
from photinus.strategies.recipes import averaging, downpour

pytestmark = pytest.mark.spark

MANY = 2_000_000
"""As many words as are held in memory where nothing is set."""
TOPICS = [[f"{name}{n}" for n in range(12)] for name in ("sea", "sky")]
SMALL = {"vectorSize": 20, "minCount": 2, "epochs": 12.0, "numWorkers": 2, "sample": 0.0}


def lines(count=900):
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(TOPICS[n % 2], 8)) for n in range(count)]


@pytest.fixture(scope="module")
def sentences(spark):
    return spark.createDataFrame([(line,) for line in lines()], "text string").repartition(3)


@pytest.fixture(scope="module")
def estimator():
    return Word2Vec(learningRate=0.05, **SMALL)


@pytest.fixture(scope="module")
def model(estimator, sentences):
    return estimator.fit(sentences)


def is_of_one_topic(model):
    return all(word[:3] == "sea" for word, _ in model.most_similar(["sea1"], count=5))


def test_words_of_one_topic_are_near(model):
    assert is_of_one_topic(model)
    assert len(model.vectors) == 24
    assert model.vectors.counts.sum() == 900 * 8
    assert model.summary.history[-1]["loss"] < model.summary.history[0]["loss"]


def test_with_n_grams_words_have_a_vector_that_no_sentence_held(sentences, spark, tmp_path):
    trained = Word2Vec(learningRate=0.05, subwords=(3, 5), buckets=300, **SMALL).fit(sentences)
    assert is_of_one_topic(trained)
    assert all(word[:3] == "sky" for word, _ in trained.most_similar(["sky77"], count=5))
    trained.write().save(f"{tmp_path}/model")
    loaded = Word2VecModel.load(f"{tmp_path}/model")
    assert np.array_equal(loaded.vectors.vector("sky77"), trained.vectors.vector("sky77"))
    table = spark.createDataFrame([("sea1 sky77",), (None,)], "text string")
    for word_model in (trained, loaded):
        rows = [row.vector.toArray() for row in word_model.transform(table).collect()]
        expected = (trained.vectors.vector("sea1") + trained.vectors.vector("sky77")) / 2
        np.testing.assert_allclose(rows[0], expected, rtol=1e-5)
        assert not rows[1].any()


def test_a_table_among_the_workers_learns_the_topics_too(sentences, tmp_path, monkeypatch):
    trained = Word2Vec(learningRate=0.05, table="sharded", **SMALL).fit(sentences)
    assert is_of_one_topic(trained)
    assert trained.vectors.counts.sum() == 900 * 8
    assert_the_same_from_a_file(trained, sentences, tmp_path, monkeypatch)


def assert_the_same_from_a_file(trained, sentences, folder, monkeypatch):
    """What a model does with vectors in a file is what it does with the same in memory."""
    vectors = trained.vectors
    assert is_mapped(vectors.vectors)
    in_memory = Word2VecModel(WordVectors(vectors.words, np.array(vectors.vectors), vectors.counts))
    one, other = (
        [row.vector.toArray() for row in word_model.transform(sentences).orderBy("text").collect()]
        for word_model in (trained, in_memory)
    )
    assert np.array_equal(one, other)
    one, other = (
        word_model.withSynonyms(word_model.getVectors(), 4, exact=True).orderBy("word").collect()
        for word_model in (trained, in_memory)
    )
    assert [row.synonyms for row in one] == [row.synonyms for row in other]
    monkeypatch.setattr("photinus.estimators.vector_models._PART_SIZE", 7 * 20)  # in four parts
    trained.write().save(f"{folder}/model")
    trained.write().overwrite().save(f"{folder}/model")
    loaded = Word2VecModel.load(f"{folder}/model").vectors
    assert list(loaded.words) == list(vectors.words)
    assert np.array_equal(loaded.vectors, vectors.vectors)


@pytest.mark.parametrize(
    ("parts", "wrong"),
    [
        ({"vectorSize": 0}, "^vectorSize must be a whole number of at least 8; got 0"),
        ({"learningRate": -1.0}, "^learningRate"),
        ({"epochs": 0.0}, "^epochs must be a number above 0; got 0.0"),
        ({"vocabulary": []}, "^vocabulary holds no words; leave it out to learn all words"),
        ({"subwords": [3]}, "subwords must be two lengths of n-grams"),
        ({"subwords": (5, 4)}, "subwords must be two lengths, the shorter first; got 5, 4"),
        ({"table": "split"}, 'table must be "whole" or "sharded"'),
        ({"table": "sharded", "strategy": "publish"}, "leaves the whole table with every worker"),
        ({"table": "sharded", "strategy": "diloco"}, "nesterov steps layers beside sharded tables"),
    ],
)
def test_a_wrong_table_is_one_sentence(sentences, parts, wrong):
    with pytest.raises(UsageError, match=wrong):
        Word2Vec(**{**SMALL, **parts}).fit(sentences)


def test_a_strategy_may_name_as_many_owners_as_there_will_be_workers(sentences):
    strategy = averaging(
        every=Steps(4),
        outer=RowAdagrad(),
        merge="uniform",
        gradients_until=0.0,
        owners=64,
        rows=20,
    )
    with pytest.raises(UsageError, match="64 workers need 64 slots"):  # not other owners
        Word2Vec(**{**SMALL, "numWorkers": 64, "strategy": strategy}).fit(sentences)


TOKENS, WORKERS = 8_000_000, 4  # rows of 1,000 words: a worker reads 8,000 in a step


def test_rounds_of_sharded_tables_are_short_where_most_rows_are_read_once():
    counts = np.full(3_000_000, 2)
    jobs = {table: Word2Vec(table=table)._job(counts, 2) for table in ("whole", "sharded")}
    assert jobs["whole"].strategy.every == Steps(38)
    assert jobs["sharded"].strategy.every == Steps(4)
    assert jobs["sharded"].model.round_words == 4 * 8 * 1000  # the gains follow from it


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("strategy", [downpour(), averaging(every=Steps(3))], ids=str)
@pytest.mark.usefixtures("spark")
def test_a_strategy_of_sharded_tables_has_the_owners_and_rows_of_the_default(strategy, workers):
    counts = np.full(3_000, 2)
    default = Word2Vec(table="sharded")._job(counts, workers).strategy
    made = Word2Vec(table="sharded", strategy=strategy)._job(counts, workers).strategy
    assert made.is_sharded
    assert made.recipe == strategy.recipe
    assert made.every == (Steps(3) if strategy.recipe == "averaging" else default.every)
    for name in ("owners", "rows", "codec", "outer", "gradients_until"):
        assert getattr(made, name) == getattr(default, name), name


@pytest.mark.parametrize(
    ("strategy", "read"),
    [
        (None, 200_000.0),
        (averaging(every=Steps(3)), 24_000.0),
        (averaging(every=Steps(3) | Seconds(2.0)), 24_000.0),
        (averaging(every=Examples(16)), 16_000.0),
        (averaging(every=Epochs(0.01)), 20_000.0),
        (averaging(every=Steps(9) | Examples(16)), 16_000.0),
        (averaging(every=Seconds(2.0)), 200_000.0),
        ("averaging", 8_000.0 * 50),
        ({"recipe": "averaging", "every": {"steps": 7}}, 56_000.0),
        ('{"recipe": "publish", "every": {"steps": 5}}', 40_000.0),
    ],
    ids=str,
)
@pytest.mark.usefixtures("spark")
def test_gains_are_for_the_rounds_that_the_strategy_has(strategy, read):
    parts = {} if strategy is None else {"strategy": strategy}
    job = Word2Vec(epochs=5.0, **parts)._job(np.full(1000, TOKENS // 1000), WORKERS)
    assert job.model.round_words == read


@pytest.mark.usefixtures("spark")
def test_gains_are_for_shorter_rounds_where_a_recipe_shortens_them():
    job = Word2Vec(epochs=1.0, strategy="averaging")._job(np.full(1000, TOKENS // 1000), WORKERS)
    assert job.model.round_words == 250 // 10 * 8_000.0  # ten rounds in 250 steps


@pytest.mark.parametrize(
    ("cls", "settings", "passes"),
    [
        (Word2Vec, {}, 15.0),
        (Item2Vec, {}, 15.0),
        (Word2Vec, {"epochs": 2.0}, 2.0),
        (NodeVectors, {}, 1.0),  # its walks begin at each node as often as is set
    ],
)
@pytest.mark.usefixtures("spark")
def test_where_words_occur_seldom_more_passes_are_usual(cls, settings, passes):
    assert cls(**settings)._job(np.full(1000, 80), WORKERS).model.epochs == passes


def test_synonyms_are_rows_as_of_mllib(model):
    synonyms = model.findSynonyms("sky3", 4)
    assert synonyms.columns == ["word", "similarity"]
    assert [row.word[:3] for row in synonyms.collect()] == ["sky"] * 4


def test_the_params_of_an_estimator_are_those_of_its_model(estimator, model, sentences):
    assert model.transform(sentences, {estimator.outputCol: "mean"}).columns == ["text", "mean"]


def test_a_sentence_becomes_the_mean_of_its_words(model, spark):
    table = spark.createDataFrame([("sea1 sky2 unknown",), ("unknown",), (None,)], "text string")
    rows = [row.vector.toArray() for row in model.transform(table).collect()]
    expected = (model.vectors.vector("sea1") + model.vectors.vector("sky2")) / 2
    np.testing.assert_allclose(rows[0], expected, rtol=1e-6)
    assert not rows[1].any()
    assert not rows[2].any()


def test_a_saved_model_is_loaded_with_the_same_vectors(model, tmp_path):
    path = f"{tmp_path}/model"
    model.write().save(path)
    loaded = Word2VecModel.load(path)
    assert list(loaded.vectors.words) == list(model.vectors.words)
    np.testing.assert_array_equal(loaded.vectors.vectors, model.vectors.vectors)
    assert loaded.getInputCol() == "text"


def test_arrays_of_whole_numbers_are_sentences_too(spark):
    table = spark.createDataFrame(
        [([n % 2, 2 + n % 2] * 3,) for n in range(400)], "basket array<int>"
    )
    trained = Word2Vec(inputCol="basket", learningRate=0.05, **SMALL).fit(table)
    assert trained.most_similar(["0"], count=1)[0][0] == "2"


def test_text_files_and_rdds_are_sentences(spark, tmp_path):
    folder = tmp_path / "texts" / "more"
    folder.mkdir(parents=True)
    (folder / "a.txt").write_text("\n".join(lines()))
    few = {**SMALL, "epochs": 1.0}
    from_files = Word2Vec(**few).fit(str(tmp_path / "texts"))
    assert from_files.vectors.counts.sum() == 900 * 8
    from_rdd = Word2Vec(**few).fit(
        spark.sparkContext.parallelize([line.split() for line in lines()], 2)
    )
    assert sorted(from_rdd.vectors.words) == sorted(from_files.vectors.words)


def test_all_spaces_of_unicode_part_words_in_tables_as_in_rdds(spark):
    text = "".join(f"a{space}b{space}" for space in map(chr, range(0x3001)) if space.isspace())
    from_table = sentences_of(spark.createDataFrame([(text,)], "text string"), "text", 1)
    from_rdd = sentences_of(spark.sparkContext.parallelize([text], 1), "", 1)
    assert from_table.first().words == from_rdd.first().words == text.split()


@pytest.mark.parametrize("in_memory", [MANY, 1])
def test_lines_that_are_not_utf_8_are_counted_and_left_out(spark, tmp_path, caplog, in_memory):
    damaged = [f"sea1 k\xf6nig {n}".encode("latin-1") for n in range(100)]
    whole = [line.encode() for line in lines()]
    (tmp_path / "a.txt").write_bytes(b"\n".join([*damaged, *whole]))
    frame = sentences_of(tmp_path, "", 1)
    with caplog.at_level(logging.WARNING, "photinus"):
        vocabulary = counted(frame, 2, 0, in_memory)
    words, counts, _ = vocabulary
    assert "100 lines are not UTF-8" in caplog.text
    few, _, _ = counted(frame, 2, 5, in_memory)
    assert list(few) == words[:5]
    tokens = tokens_of(rows_of(frame, vocabulary, 8))
    assert counts.sum() == (tokens >= 0).sum() == 900 * 8
    (tmp_path / "b.txt").write_bytes(damaged[0])
    with pytest.raises(DataError, match=r"not UTF-8; got 101 damaged lines beside \d+ words"):
        counted(sentences_of(tmp_path, "", 1), 2, 0, MANY, words[:3])


def test_the_sign_for_a_damaged_letter_is_a_word_in_a_table_of_ones_own(spark):
    table = spark.createDataFrame([("\ufffd sea",)] * 200, "text string")
    words, counts, _ = counted(sentences_of(table, "text", 1), 2, 0, MANY)
    assert (sorted(words), counts.tolist()) == (["sea", "\ufffd"], [200, 200])


@pytest.mark.parametrize(
    ("sentences", "said"),
    [
        (lambda sc: "/no/such/folder", r"the text cannot be read; got .*PATH_NOT_FOUND.*name"),
        (lambda sc: sc.parallelize([b"king queen"]), "the RDD holds no sentences; got bytes"),
        (lambda sc: sc.parallelize([5, 6]), "the RDD holds no sentences; got int"),
        (lambda sc: sc.parallelize([], 1), "fewer than two words occur 2 times"),
    ],
)
def test_no_text_is_one_sentence(spark, sentences, said):
    with pytest.raises((DataError, UsageError), match=said):
        Word2Vec(**SMALL).fit(sentences(spark.sparkContext))


def tokens_of(rows):
    return np.concatenate([np.frombuffer(row.tokens, "<i4") for row in rows.collect()])


@pytest.mark.parametrize("in_memory", [MANY, 1])
def test_no_word_is_lost_and_none_is_doubled_on_the_way_to_rows(sentences, in_memory):
    frame = sentences_of(sentences, "text", 1)
    vocabulary = counted(frame, 2, 0, in_memory)
    rows = rows_of(frame, vocabulary, 64)
    tokens = tokens_of(rows)
    assert np.bincount(tokens[tokens >= 0]).tolist() == vocabulary.counts.tolist()
    assert all(len(row.tokens) == 256 for row in rows.collect())


@pytest.mark.parametrize(("least", "most"), [(1, 0), (2, 0), (1, 7)])
def test_a_vocabulary_in_a_file_gives_the_words_counts_and_sentences_of_one_in_memory(
    spark, least, most
):
    # words of equal counts, letters of several bytes, a null, an empty sentence, rare words
    rng = np.random.default_rng(1)
    words = [*"abcdefg", "\u00e4", "\u4e2d", "\U0001f600", "zz"]
    texts = [[*rng.choice(words, 5).tolist(), "a", f"rare{n}"] for n in range(60)]
    table = spark.createDataFrame([*((t,) for t in texts), (None,), ([],)], "text array<string>")
    frame = sentences_of(table.repartition(3), "text", 1)
    plain, mapped = (counted(frame, least, most, n) for n in (MANY, 1))
    assert is_mapped(mapped.words.letters)
    assert list(mapped.words) == plain.words
    assert np.array_equal(mapped.counts, plain.counts)
    one, other = (
        sentences_in(tokens_of(rows_of(frame, vocabulary, 6))) for vocabulary in (plain, mapped)
    )
    assert len(one) == 60
    assert one == other


def sentences_in(tokens):
    """The sentences of a text, sorted, as numbers of words."""
    parts = (part[part >= 0].tolist() for part in np.split(tokens, np.flatnonzero(tokens < 0)))
    return sorted(filter(None, parts))


def test_a_model_with_its_words_in_a_file_learns_the_topics_and_is_saved_and_loaded(
    sentences, spark, tmp_path
):
    trained = Word2Vec(learningRate=0.05, wordsInMemory=1, **SMALL).fit(sentences)
    assert is_of_one_topic(trained)
    assert trained.vectors.counts.sum() == 900 * 8
    assert is_mapped(trained.vectors.words.letters)
    trained.write().save(f"{tmp_path}/model")
    loaded = Word2VecModel.load(f"{tmp_path}/model").vectors
    assert list(loaded.words) == list(trained.vectors.words)
    for name in ("v.safetensors", "v.txt", "v.bin"):
        trained.vectors.save(tmp_path / name)
        loaded = WordVectors.load(tmp_path / name)
        assert list(loaded.words) == list(trained.vectors.words)
        assert loaded.most_similar(["sea1"]) == trained.vectors.most_similar(["sea1"])
    plain = Word2VecModel(WordVectors(list(loaded.words), trained.vectors.vectors))
    table = spark.createDataFrame([("sea1 unknown",), ("sky2",), (None,)], "text string")
    one, other = (
        [row.vector.toArray() for row in word_model.transform(table).collect()]
        for word_model in (trained, plain)
    )
    assert np.array_equal(one, other)
    queries = spark.createDataFrame([("sea1",), ("unknown",), (None,)], "word string")
    one, other = (
        word_model.withSynonyms(queries, 3, exact=True).collect() for word_model in (trained, plain)
    )
    assert one == other


@pytest.mark.parametrize("table", ["whole", "sharded"])
def test_on_a_device_the_topics_are_learnt_with_the_bits_of_its_steps_on_the_processor(
    sentences, table
):
    settings = {**SMALL, "epochs": 6.0, "learningRate": 0.05, "table": table}
    trained = Word2Vec(device="stand-in", **settings).fit(sentences)
    assert is_of_one_topic(trained)
    plain = Word2Vec(kernel="torch", **settings).fit(sentences)
    assert np.array_equal(trained.vectors.vectors, plain.vectors.vectors)


def test_a_vocabulary_may_be_cut(sentences):
    words, counts, _ = counted(sentences_of(sentences, "text", 1), 1, 5, MANY)
    assert len(words) == 5
    assert (np.diff(counts) <= 0).all()


@pytest.mark.parametrize(
    ("row", "kind", "said"),
    [
        ("", "string", "fewer than two words occur 5 times; got 0 different words"),
        ("one", "string", "fewer than two words occur 5 times; got 1 different words"),
        ("a b c", "string", "fewer than two words occur 5 times; got 3 different words"),
        (bytearray(b"x"), "binary", "column text holds no sentences; got binary"),
        (1.5, "double", "column text holds no sentences; got double"),
    ],
)
def test_what_holds_no_sentences_is_one_sentence(spark, row, kind, said):
    table = spark.createDataFrame([(row,)], f"text {kind}")
    with pytest.raises((DataError, UsageError)) as caught:
        Word2Vec(numWorkers=1).fit(table)
    assert said in str(caught.value)


def test_one_word_is_not_advised_to_be_counted_from_below_1(spark):
    table = spark.createDataFrame([("one",)] * 3, "text string")
    said = (
        "fewer than two words occur at all; got 1 different words, the most frequent 3 times; look"
    )
    with pytest.raises(DataError, match=said):
        Word2Vec(numWorkers=1, minCount=1).fit(table)


def test_sentences_of_one_word_each_are_refused_before_training(spark):
    table = spark.createDataFrame([("ab"[n % 2],) for n in range(30)], "text string")
    with pytest.raises(DataError, match="no sentence has two words: there is no pair to learn"):
        Word2Vec(numWorkers=1).fit(table)


def test_sentences_of_one_frequent_word_each_are_refused_before_training(spark):
    texts = [f"{'ab'[n % 2]} rare{n}" for n in range(30)]
    table = spark.createDataFrame([(text,) for text in texts], "text string")
    message = (
        "no sentence has two words with a vector: there is no pair to learn from; set minCount"
    )
    with pytest.raises(DataError, match=message):
        Word2Vec(numWorkers=1).fit(table)
    texts.append("b rare a")  # the rare word between them is left out
    table = spark.createDataFrame([(text,) for text in texts], "text string")
    assert len(Word2Vec(numWorkers=1, epochs=1.0).fit(table).vectors) == 2


@pytest.mark.parametrize("most", [-1, 1])
def test_a_vocabulary_of_one_word_or_fewer_is_refused_by_its_param(sentences, most):
    with pytest.raises(UsageError, match=f"maxVocabulary must be 0 or at least 2; got {most}"):
        Word2Vec(maxVocabulary=most, numWorkers=1).fit(sentences)


def test_a_column_that_is_missing_is_named(sentences):
    with pytest.raises(UsageError, match="unknown column; got 'words'; known: text"):
        Word2Vec(inputCol="words", numWorkers=1).fit(sentences)


def test_gensim_reads_what_is_saved_and_the_other_way_round(model, tmp_path):
    for ending in ("txt", "bin"):
        path = tmp_path / f"words.{ending}"
        model.vectors.save(path)
        keyed_vectors = KeyedVectors.load_word2vec_format(str(path), binary=ending == "bin")
        np.testing.assert_array_equal(keyed_vectors["sea1"], model.vectors.vector("sea1"))
        neighbours = [word for word, _ in model.most_similar(["sea1", "sea2"], ["sky1"], count=6)]
        assert neighbours == [
            w for w, _ in keyed_vectors.most_similar(["sea1", "sea2"], ["sky1"], topn=6)
        ]
        keyed_vectors.save_word2vec_format(str(path), binary=ending == "bin")
        loaded = WordVectors.load(path)
        np.testing.assert_array_equal(loaded.vectors, model.vectors.vectors)


def test_only_the_words_of_a_vocabulary_have_vectors(sentences, tmp_path):
    from_list = Word2Vec(vocabulary=["sea1", "sea2", "sky1", "nowhere"], **SMALL | {"epochs": 1.0})
    assert sorted(from_list.fit(sentences).vectors.words) == ["sea1", "sea2", "sky1"]
    questions = tmp_path / "questions.txt"
    questions.write_text(": topics\nSea1 SEA2 sky3 sky4\n: more\nsea1 sea5 sky3 sky7\n")
    from_questions = Word2Vec(vocabulary=str(questions), **SMALL | {"epochs": 1.0})
    words = from_questions.fit(sentences).vectors.words
    assert sorted(words) == ["sea1", "sea2", "sea5", "sky3", "sky4", "sky7"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("no/such/file", "the vocabulary's file cannot be read; got .*No such file"),
        (os.devnull, "the vocabulary's file holds no words; got /dev/null"),
        ([1, 2], r"a vocabulary is a list of words; got \[1, 2\]; such as"),
    ],
)
def test_a_wrong_vocabulary_is_refused_when_it_is_set(given, said):
    with pytest.raises(UsageError, match=said):
        Word2Vec(vocabulary=given)


@pytest.mark.parametrize("given", [3, "3, 6", [3, "x"]])
def test_subwords_that_are_no_list_of_whole_numbers_are_refused_when_they_are_set(given):
    message = "subwords must be two lengths of n-grams; got .*; name the shortest and the longest"
    with pytest.raises(UsageError, match=message):
        Word2Vec(subwords=given)


def test_a_vocabulary_that_the_text_lacks_is_named(sentences):
    with pytest.raises(DataError, match=r"fewer than two words occur 2 times.*and vocabulary"):
        Word2Vec(vocabulary=["left", "right"], **SMALL).fit(sentences)
