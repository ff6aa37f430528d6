"""The neighbours of all rows of a DataFrame, as a column."""

import sys

import numpy as np
import pytest
from pyspark.errors import PySparkException
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql.types import StructField, StructType

from photinus.core.errors import UsageError
from photinus.embeddings.vectors import WordVectors
from photinus.estimators import vector_models
from photinus.estimators.vector_models import Item2VecModel, NodeVectorsModel, Word2VecModel

pytestmark = pytest.mark.spark

V = 300


@pytest.fixture(scope="module")
def vectors():
    rng = np.random.default_rng(0)
    return WordVectors([str(n) for n in range(V)], rng.standard_normal((V, 12)).astype("f4"))


@pytest.mark.parametrize("exact", [False, True])
def test_every_row_gets_its_neighbours_as_find_synonyms_tells_them(spark, vectors, exact):
    model = Item2VecModel(vectors)._set(idType="bigint")
    table = spark.createDataFrame([(n,) for n in [*range(60), 1000, None]], "item bigint")
    with_neighbours = model.withSynonyms(table.repartition(3), 5, exact=exact)
    assert (
        dict(with_neighbours.dtypes)["synonyms"] == "array<struct<item:bigint,similarity:double>>"
    )
    rows = {row["item"]: row.synonyms for row in with_neighbours.collect()}
    assert rows[1000] is None
    assert rows[None] is None
    common = 0
    for item in range(60):
        expected = dict(model.most_similar([item], count=5))
        assert item not in [neighbour["item"] for neighbour in rows[item]]
        common += len({neighbour["item"] for neighbour in rows[item]} & set(expected))
        for neighbour in rows[item]:
            if neighbour["item"] in expected:
                assert neighbour.similarity == pytest.approx(expected[neighbour["item"]], abs=1e-5)
    assert common == 300 if exact else common >= 0.95 * 300


def test_a_join_on_the_neighbours_is_a_join_of_rows(spark, vectors):
    table = spark.createDataFrame([("7",), ("8",)], "word string")
    with_neighbours = Word2VecModel(vectors).withSynonyms(table, 3, outputCol="near", exact=True)
    pairs = with_neighbours.selectExpr("word as asked", "inline(near)")
    assert pairs.columns == ["asked", "word", "similarity"]
    assert pairs.count() == 6


def test_columns_are_read_and_made_by_their_literal_names(spark, vectors):
    odd, vector = "my. `word", f"array({', '.join(['0.5'] * 12)})"
    table = spark.createDataFrame([("7",)], "word string").withColumnRenamed("word", odd)
    model = Word2VecModel(vectors)
    near = model.withSynonyms(table, 3, column=odd, outputCol="ne.ar`", exact=True)
    assert len(near.first()["ne.ar`"]) == 3
    points = table.selectExpr(f"{vector} AS `po``int.`")
    assert len(model.withSynonyms(points, 2, column="po`int.", exact=True).first().synonyms) == 2
    sentences = table.withColumnRenamed(odd, "te`xt.")
    row = model.copy({model.inputCol: "te`xt."}).transform(sentences).first()
    assert np.allclose(row["vector"].toArray(), vectors.vector("7"))


def test_vectors_may_be_asked_for_too(spark, vectors):
    rows = [(Vectors.dense(3.0 * vectors.vector("5")),)]
    table = spark.createDataFrame(rows, ["point"])
    row = Word2VecModel(vectors).withSynonyms(table, 2, column="point", exact=True).first()
    assert row.synonyms[0].word == "5"
    assert row.synonyms[0].similarity == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("kind", ["array<double>", "vector"])
def test_a_vector_of_zeros_has_no_neighbours(spark, vectors, exact, kind):
    points = [3.0 * vectors.vector("5").astype(float), np.zeros(12), None]
    make, schema = (
        (Vectors.dense, StructType([StructField("point", VectorUDT())]))
        if kind == "vector"
        else (np.ndarray.tolist, "point array<double>")
    )
    rows = [(None if point is None else make(point),) for point in points]
    table = spark.createDataFrame(rows, schema).coalesce(1)
    results = Word2VecModel(vectors).withSynonyms(table, 2, column="point", exact=exact).collect()
    assert [row.synonyms is None for row in results] == [False, True, True]
    assert results[0].synonyms[0].word == "5"


@pytest.mark.parametrize("exact", [False, True])
def test_a_word_whose_vector_is_zeros_has_no_neighbours(spark, vectors, exact):
    numbers = vectors.vectors.copy()
    numbers[7] = 0
    table = spark.createDataFrame([("7",), ("8",)], "word string").coalesce(1)
    model = Word2VecModel(WordVectors(vectors.words, numbers))
    results = model.withSynonyms(table, 3, exact=exact).collect()
    assert [row.synonyms is None for row in results] == [True, False]


@pytest.mark.parametrize("wrong", [[1.0, 2.0], [], [float("nan")] * 12, [None] * 12])
@pytest.mark.parametrize("exact", [False, True])
def test_a_vector_of_another_length_ends_the_query_in_one_sentence(spark, vectors, wrong, exact):
    table = spark.createDataFrame([(wrong,)], "point array<double>")
    with_neighbours = Word2VecModel(vectors).withSynonyms(table, 2, column="point", exact=exact)
    message = "column point must hold vectors of 12 finite numbers, or nulls; ask with vectors of"
    with pytest.raises(PySparkException, match=message) as caught:
        with_neighbours.collect()
    assert "Traceback" not in str(caught.value)


def test_words_and_vectors_are_sent_to_a_session_once(spark, vectors, monkeypatch):
    calls, send = [], vector_models.send
    monkeypatch.setattr(vector_models, "send", lambda *args: calls.append(args) or send(*args))
    model = Word2VecModel(vectors)
    table = spark.createDataFrame([("7",), ("8",)], "word string")
    for _ in range(3):
        assert model.withSynonyms(table, 3).count() == 2
        assert model.copy().withSynonyms(table, 3).count() == 2
    assert len(calls) == 3, "words, vectors, index"


@pytest.mark.parametrize("kind", [Word2VecModel, Item2VecModel, NodeVectorsModel])
def test_a_model_is_saved_loaded_copied_and_explained_without_an_index(
    spark, vectors, kind, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "usearch.index", None)  # to import it is an error
    model = kind(vectors)
    model.write().overwrite().save(f"{tmp_path}/model")
    loaded = kind.load(f"{tmp_path}/model")
    for copied in (loaded, model.copy(), loaded.copy()):
        assert "outputCol" in copied.explainParams()
        assert copied.most_similar(["5"], count=1) == model.most_similar(["5"], count=1)


def test_what_cannot_be_asked_is_one_sentence(spark, vectors):
    model = Word2VecModel(vectors)
    with pytest.raises(UsageError, match="unknown column; got 'word'; known: id"):
        model.withSynonyms(spark.range(2), 3)
    with pytest.raises(UsageError, match="num must be at least 1; got 0"):
        model.withSynonyms(spark.range(2), 0, column="id")
