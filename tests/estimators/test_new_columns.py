"""New columns of a model replace no column: on a real Spark."""

import numpy as np
import pytest

from photinus.core.errors import UsageError
from photinus.core.settings import to_dict
from photinus.embeddings.vectors import WordVectors
from photinus.estimators.module import TorchClassificationModel
from photinus.estimators.network import Network
from photinus.estimators.vector_models import Word2VecModel
from photinus.models.module import ModuleConfig

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def model():
    linear = {"in_features": 2, "out_features": 3}
    config = ModuleConfig(module="torch.nn:Linear", arguments=linear)
    tensors = config.build((), 1).parameters.tensors()
    settings = to_dict(config)
    network = Network(kind="module", settings=settings, tensors=tensors, shape=(2,), classes=3)
    return TorchClassificationModel(network)


@pytest.fixture(scope="module")
def table(spark):
    return spark.createDataFrame(
        [([1.0, 2.0], 0, "sea")], "features array<float>, Label int, text string"
    )


@pytest.mark.parametrize("column", ["Label", "label", "features"])
def test_an_output_over_a_column_of_the_table_is_refused(model, table, column):
    message = f"^column {column} exists already; drop it, or set predictionCol$"
    with pytest.raises(UsageError, match=message):
        model.transform(table, {model.predictionCol: column})


def test_a_table_that_was_scored_is_scored_again_under_other_names_only(model, table):
    scored = model.transform(table)
    message = "^column rawPrediction exists already; drop it, or set rawPredictionCol$"
    with pytest.raises(UsageError, match=message):
        model.transform(scored)
    params = {model.rawPredictionCol: "", model.probabilityCol: "", model.predictionCol: "again"}
    assert model.transform(scored, params).where("again = prediction").count() == 1


def test_two_outputs_of_one_name_are_refused(model, table):
    message = "^probabilityCol and predictionCol name the same column; got x; set predictionCol to"
    with pytest.raises(UsageError, match=message):
        model.transform(table, {model.probabilityCol: "x", model.predictionCol: "x"})


def test_where_spark_tells_capitals_apart_so_do_new_columns(model, table):
    conf = table.sparkSession.conf
    conf.set("spark.sql.caseSensitive", "true")
    try:
        scored = model.transform(table, {model.predictionCol: "label"})
        assert {"label", "Label"} < set(scored.columns)
    finally:
        conf.unset("spark.sql.caseSensitive")


def test_a_layer_replaces_no_column(model, table):
    message = "^column features exists already; drop it, or set outputCol$"
    with pytest.raises(UsageError, match=message):
        model.withLayer(table, "", "features")


def test_vectors_replace_no_column(table):
    vectors = WordVectors(["sea", "sky"], np.eye(2, dtype=np.float32))
    message = "^column text exists already; drop it, or set outputCol$"
    words = Word2VecModel(vectors)
    with pytest.raises(UsageError, match=message):
        words.transform(table, {words.outputCol: "text"})
    with pytest.raises(UsageError, match=message):
        words.withSynonyms(table, 1, column="text", outputCol="text", exact=True)


@pytest.mark.parametrize("given", [[["sea"]], "texts/", np.eye(2)])
def test_what_is_no_dataframe_is_not_transformed(model, given):
    words = Word2VecModel(WordVectors(["sea", "sky"], np.eye(2, dtype=np.float32)))
    message = (
        f"the rows must be a Spark DataFrame; got {type(given).__name__}; spark.createDataFrame"
    )
    for ask in (
        lambda: model.transform(given),
        lambda: model.withLayer(given, "", "layer"),
        lambda: words.transform(given),
        lambda: words.withSynonyms(given, 1, exact=True),
    ):
        with pytest.raises(UsageError, match=message):
            ask()
