"""Item2Vec on a real Spark: baskets of two kinds of goods."""

import random

import numpy as np
import pytest

from photinus.core.errors import CheckpointError, DataError, UsageError
from photinus.embeddings.vectors import WordVectors
from photinus.estimators.item2vec import Item2Vec
from photinus.estimators.vector_models import Item2VecModel, Word2VecModel

pytestmark = pytest.mark.spark

SMALL = {"vectorSize": 16, "minCount": 2, "epochs": 8.0, "numWorkers": 1, "learningRate": 0.05}


@pytest.fixture(scope="module")
def baskets(spark):
    """Item 100 + n and 200 + n never share a basket."""
    rng = np.random.default_rng(0)
    rows = [(100 * (1 + n % 2) + rng.choice(12, 6, replace=False),) for n in range(600)]
    return spark.createDataFrame([(row.tolist(),) for (row,) in rows], "items array<bigint>")


@pytest.fixture(scope="module")
def model(baskets):
    return Item2Vec(**SMALL).fit(baskets)


def test_items_of_one_kind_are_near_and_keep_their_type(model):
    neighbours = model.most_similar([101], count=6)
    assert {item // 100 for item, _ in neighbours} == {1}
    rows = model.findSynonyms(201, 4)
    assert dict(rows.dtypes) == {"item": "bigint", "similarity": "double"}
    assert {row.item // 100 for row in rows.collect()} == {2}
    assert dict(model.getVectors().dtypes)["item"] == "bigint"


def test_a_basket_becomes_the_mean_of_its_items(model, spark):
    table = spark.createDataFrame([([101, 205, 999],), ([],)], "items array<bigint>")
    rows = [row.vector.toArray() for row in model.transform(table).collect()]
    expected = (model.vectors.vector("101") + model.vectors.vector("205")) / 2
    np.testing.assert_allclose(rows[0], expected, rtol=1e-6)
    assert not rows[1].any()


def test_a_saved_model_is_loaded_with_its_ids(model, tmp_path):
    model.write().save(f"{tmp_path}/model")
    loaded = Item2VecModel.load(f"{tmp_path}/model")
    assert list(loaded.vectors.words) == list(model.vectors.words)
    np.testing.assert_array_equal(loaded.vectors.vectors, model.vectors.vectors)
    assert loaded.most_similar([101], count=3) == model.most_similar([101], count=3)
    with pytest.raises(CheckpointError, match="holds no Word2VecModel"):
        Word2VecModel.load(f"{tmp_path}/model")


@pytest.mark.parametrize("kind", ["bigint", "string"])
def test_the_order_of_a_basket_and_what_is_in_it_twice_decide_nothing(spark, kind):
    rng = random.Random(0)
    ascending = [sorted(rng.sample(range(50), 9)) for _ in range(20)]
    shuffled = [rng.sample(items + items[:3], 12) for items in ascending]
    sentences = [
        Item2Vec()
        ._sentences(
            spark.createDataFrame(
                [(basket,) for basket in lists], "items array<bigint>"
            ).selectExpr(f"cast(items as array<{kind}>) items")
        )
        .collect()
        for lists in (ascending, shuffled)
    ]
    assert sentences[0] == sentences[1]
    assert [sorted(map(int, row.words)) for row in sentences[0]] == ascending
    places = [row.words.index(str(min(map(int, row.words)))) for row in sentences[0]]
    assert len(set(places)) > 3  # ascending no more


def test_with_no_window_every_pair_of_a_basket_is_learnt_from():
    from photinus.embeddings import reference
    from photinus.embeddings.vocabulary import draw_tables

    job = Item2Vec()._job(np.full(40, 25), 1)
    rule = reference.Rule(job.model.window, 1, False)
    basket = np.append(np.arange(40, dtype=np.int32), -1)
    examples = reference.centres(basket, draw_tables(np.ones(40), job.model.sample, 1), rule, 7)
    assert [len(context) for context, _, _ in examples] == [39] * 40
    assert Item2Vec(windowSize=3)._job(np.full(40, 25), 1).model.window == 3


def test_a_text_is_no_basket_and_is_told_how_to_become_one(spark, model):
    table = spark.createDataFrame([("SKU 1,SKU 2",)] * 9, "items string")
    message = r'column items holds no baskets; got string; F\.split\("items", ","\) makes arrays'
    for ask in (lambda: Item2Vec(**SMALL).fit(table), lambda: model.transform(table)):
        with pytest.raises(UsageError, match=message):
            ask()


def test_one_item_in_all_is_called_an_item(spark):
    table = spark.createDataFrame([([7, 7],)] * 9, "items array<bigint>")
    with pytest.raises(DataError, match="fewer than two items occur at all; got 1 different items"):
        Item2Vec(**SMALL | {"minCount": 1}).fit(table)


def test_baskets_of_one_item_each_are_refused_before_training(spark):
    table = spark.createDataFrame([([n % 3],) for n in range(30)], "items array<bigint>")
    with pytest.raises(DataError, match="no basket has two items: there is no pair to learn from"):
        Item2Vec(**SMALL).fit(table)


def test_an_item_without_a_vector_is_called_so_and_told_where_the_others_are(model):
    message = r"the item has no vector; got '7'; `getVectors\(\)` has all that have one"
    for ask in (lambda: model.findSynonyms(7, 3), lambda: model.most_similar([101], [7])):
        with pytest.raises(UsageError, match=message):
            ask()
    assert callable(model.getVectors)


def test_a_vector_that_transform_added_has_neighbours(model, spark):
    row = model.transform(spark.createDataFrame([([101],)], "items array<bigint>")).first()
    for query in (row.vector, row.vector.toArray().tolist()):
        assert model.findSynonyms(query, 1).first().item == 101


def test_one_item_without_a_list_is_told_the_form(model):
    with pytest.raises(UsageError, match=r"takes lists of words; got 101; most_similar\(\["):
        model.most_similar(101)


def test_ids_of_another_type_are_told_how_to_become_texts(spark):
    table = spark.sql("SELECT array(1.0BD, 2.0BD) AS items")
    message = (
        r'column items holds no baskets; got array.*; F\.col\("items"\)\.cast\("array<string>"\)'
    )
    with pytest.raises(UsageError, match=message):
        Item2Vec(numWorkers=1).fit(table)


def test_what_holds_no_baskets_is_one_sentence(spark):
    message = "^these are no baskets; got list; hand over a DataFrame"
    with pytest.raises(UsageError, match=message):
        Item2Vec(numWorkers=1).fit([["a", "b"]])
    numbers = spark.sparkContext.parallelize([5, 6], 1)
    with pytest.raises(UsageError, match=r"^the RDD holds no baskets; got int; map it to lists of"):
        Item2Vec(numWorkers=1).fit(numbers)
    with pytest.raises(UsageError, match="unknown column; got 'items'; known: id"):
        Item2Vec(numWorkers=1).fit(spark.range(3))


def test_vectors_without_counts_keep_their_order_in_a_saved_model(spark, tmp_path):
    words = ["the", "of", "and", "a"]
    path = str(tmp_path / "model")
    Word2VecModel(WordVectors(words, np.eye(4, dtype=np.float32))).save(path)
    loaded = Word2VecModel.load(path)
    assert list(loaded.vectors.words) == words
    np.testing.assert_array_equal(loaded.vectors.vectors, np.eye(4))
