"""NodeVectors on a real Spark: two communities, joined by a few edges."""

import itertools
import time

import numpy as np
import pyarrow as pa
import pytest

from photinus.core.errors import DataError, UsageError
from photinus.embeddings.words import MappedWords
from photinus.estimators.node_vectors import NodeVectors
from photinus.estimators.vector_models import NodeVectorsModel

pytestmark = pytest.mark.spark

SMALL = {"vectorSize": 16, "numWorkers": 2, "walkLength": 20, "walksPerNode": 30}


def edges_of_communities():
    rng = np.random.default_rng(0)
    within = [
        (side + a, side + b)
        for side in (0, 1000)
        for a, b in itertools.combinations(range(15), 2)
        if rng.random() < 0.5
    ]
    return [*within, (0, 1000), (7, 1003)]


@pytest.fixture(scope="module")
def edges(spark):
    return spark.createDataFrame(edges_of_communities(), "src bigint, dst bigint")


@pytest.fixture(scope="module")
def model(edges):
    return NodeVectors(epochs=2.0, **SMALL).fit(edges)


def test_nodes_of_one_community_are_near(model):
    nodes = [int(word) for word in model.vectors.words]
    neighbours_of_nodes = [model.most_similar([node], count=8) for node in nodes]
    same_community = [
        neighbour // 1000 == node // 1000
        for node, neighbours in zip(nodes, neighbours_of_nodes, strict=True)
        for neighbour, _ in neighbours
    ]
    assert np.mean(same_community) > 0.9  # by chance alone it is half
    assert len(model.vectors) == 30


def test_a_column_of_nodes_gets_their_vectors(model, spark):
    nodes = spark.createDataFrame([(3,), (77,)], "node bigint")
    known, unknown = [row.vector.toArray() for row in model.transform(nodes).collect()]
    np.testing.assert_allclose(known, model.vectors.vector("3"), rtol=1e-6)
    assert not unknown.any()


def test_a_saved_model_is_loaded_with_its_ids(model, tmp_path):
    model.write().save(f"{tmp_path}/model")
    loaded = NodeVectorsModel.load(f"{tmp_path}/model")
    assert loaded.most_similar([3], count=3) == model.most_similar([3], count=3)
    assert dict(loaded.findSynonyms(3, 2).dtypes)["node"] == "bigint"


def test_every_node_begins_its_walks_along_edges_whatever_the_partitions(edges):
    undirected_edges = {frozenset(edge) for edge in edges_of_communities()}
    runs = [NodeVectors(**SMALL, p=0.5, q=2.0).walks(edges).collect() for _ in range(2)]
    assert runs[0] == runs[1]
    walks = [[int(word) for word in row.words] for row in runs[0]]
    walks_per_node = np.unique([walk[0] for walk in walks], return_counts=True)[1]
    assert walks_per_node.tolist() == [30] * 30
    assert all(len(walk) == 20 for walk in walks)
    assert all(
        frozenset(step) in undirected_edges for walk in walks for step in itertools.pairwise(walk)
    )


@pytest.mark.parametrize("directed", [False, True])
def test_names_in_a_file_give_the_walks_and_the_model_of_names_in_memory(spark, directed):
    ends = edges_of_communities()
    rows = [(f"n{a}", f"n{b}", 1.0 + a % 3) for a, b in [*ends, *ends[:9], (7, 7)]]
    table = spark.createDataFrame(rows, "src string, dst string, w double").repartition(3)
    settings = {"weightCol": "w", "directed": directed, **SMALL}
    mapping, plain_estimator = (NodeVectors(wordsInMemory=n, **settings) for n in (1, 1000))
    assert mapping.walks(table).collect() == plain_estimator.walks(table).collect()
    mapped_vectors, plain_vectors = (
        nodes.fit(table).vectors for nodes in (mapping, plain_estimator)
    )
    assert isinstance(mapped_vectors.words, MappedWords)
    assert list(mapped_vectors.words) == list(plain_vectors.words)
    assert np.array_equal(mapped_vectors.counts, plain_vectors.counts)


@pytest.mark.parametrize("directed", [False, True])
def test_weights_and_directions_reach_the_walks(spark, directed):
    rows = [("a", "b", 1.0), ("b", "a", 3.0), ("a", "c", 2.0)]
    table = spark.createDataFrame(rows, "src string, dst string, w double")
    nodes = NodeVectors(weightCol="w", directed=directed, walkLength=2, walksPerNode=3000,
                        numWorkers=1)  # fmt: skip
    walks = [tuple(row.words) for row in nodes.walks(table).collect()]
    second = [walk[1] for walk in walks if walk[0] == "a"]
    share = 1 / 3 if directed else 4 / 6  # in both directions a and b are joined by weight 4
    assert np.mean([word == "b" for word in second]) == pytest.approx(share, abs=0.05)
    assert any(walk == ("c",) for walk in walks) == directed


@pytest.mark.parametrize("in_memory", [1, 1000])
def test_edges_that_are_others_when_they_are_read_again_are_one_sentence(
    spark, in_memory, tmp_path
):
    class GrowingSource:
        """Names one more node each time that a task reads the edges."""

        def __call__(self, batches):
            for batch in batches:
                (tmp_path / f"{time.time_ns()}").touch()
                names = [f"n{len(list(tmp_path.iterdir()))}"] * batch.num_rows
                yield pa.RecordBatch.from_pydict({"src": names, "dst": ["a"] * batch.num_rows})

    edges = spark.range(0, 5, 1, 1).mapInArrow(GrowingSource(), "src string, dst string")
    with pytest.raises(DataError, match=r"others when they were read again; got 5 and then \d"):
        NodeVectors(numWorkers=1, wordsInMemory=in_memory).fit(edges)


@pytest.mark.parametrize(
    ("rows", "schema", "params", "said"),
    [
        ([(1, None)], "src int, dst int", {}, "an edge has no source or no target; got null"),
        ([], "src int, dst int", {}, "the graph has no edges"),
        ([(1, 1)], "src int, dst int", {}, "the graph has no edge between two nodes; look"),
        ([(1, 2)], "src int, to int", {}, "unknown column; got 'dst'"),
        ([(1, 2.5)], "src int, dst double", {}, "column dst holds no ids; got double"),
        ([(1, 2, "x")], "src int, dst int, w string", {"weightCol": "w"}, "no column of numbers w"),
        ([(1, 2, 0.0)], "src int, dst int, w double", {"weightCol": "w"}, "above 0; got 0.0"),
        ([(1, 2, None)], "src int, dst int, w double", {"weightCol": "w"}, "above 0; got null"),
        ([(1, 2, np.nan)], "src int, dst int, w double", {"weightCol": "w"}, "above 0; got nan"),
        ([(1, 1), (2, 2)], "src int, dst int", {}, "the graph has no edge between two nodes; look"),
        (
            [(1, 1), (2, 2)],
            "src int, dst int",
            {"wordsInMemory": 1},
            "the graph has no edge between two nodes; look",
        ),
        ([(1, 2)], "src int, dst int", {"q": 0.0}, "q must be above 0; got 0.0"),
        (
            [(1, 2)],
            "src int, dst int",
            {"dstCol": "src"},
            "srcCol and dstCol are one column",
        ),
        ([(1, 2)], "src int, dst int", {"wordsInMemory": -1}, "must be at least 0; got -1"),
        ([(1, 2)], "src int, dst int", {"walkLength": 1}, "walkLength must be above 1; got 1"),
    ],
)
def test_what_is_no_graph_is_one_sentence(spark, rows, schema, params, said):
    table = spark.createDataFrame(rows, schema)
    with pytest.raises((DataError, UsageError)) as caught:
        NodeVectors(numWorkers=1, **params).fit(table)
    assert said in str(caught.value)
    with pytest.raises(UsageError, match="the edges must be a DataFrame; got list"):
        NodeVectors().fit(rows)
