"""NodeVectors for Spark ML: vectors of a graph's nodes from walks that the executors make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.ml.param import TypeConverters
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql import types as T  # noqa: N812 - as everybody calls it

from photinus.core.errors import UsageError
from photinus.core.parameters import Vector
from photinus.core.seeds import generator
from photinus.data.spark import quoted
from photinus.embeddings.vectors import WordVectors
from photinus.embeddings.walks import END, Bias, Graph, walks
from photinus.embeddings.words import MappedWords
from photinus.engine.spark.engine import free_slots
from photinus.estimators.edges import build_graph
from photinus.estimators.param_table import RUN_ROWS, ParamRow
from photinus.estimators.params import keyword_params, with_params
from photinus.estimators.sentences import id_of
from photinus.estimators.vector_models import (
    NODE_ROWS,
    NodeVectorsModel,
    id_type,
    send,
    send_arrays,
)
from photinus.estimators.word2vec import COUNTED_ROWS, TRAINING_ROWS, VectorEstimator
from photinus.strategies.custom import CustomStrategy
from photinus.strategies.spec import StrategySpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MAX_GROUP_SIZE = 4096
"""How many walks take their steps together, at most."""
_GROUPS_PER_WORKER = 4
"""Groups of walks for each worker, at least."""

_to_string, _to_int = TypeConverters.toString, TypeConverters.toInt
_to_float = TypeConverters.toFloat
_WALK_ROWS = (
    ParamRow(
        name="srcCol", meaning="the column of an edge's source", convert=_to_string, default="src"
    ),
    ParamRow(
        name="dstCol", meaning="the column of an edge's target", convert=_to_string, default="dst"
    ),
    ParamRow(
        name="weightCol",
        meaning="the column of an edge's weight, above 0; '': each weighs 1",
        convert=_to_string,
        default="",
    ),
    ParamRow(
        name="directed",
        meaning="an edge leads from its source to its target only",
        convert=TypeConverters.toBoolean,
        default=False,
    ),
    ParamRow(
        name="p",
        meaning="return parameter: above 1 a walk seldom goes back to the node that it came from",
        convert=_to_float,
        default=1.0,
    ),
    ParamRow(
        name="q",
        meaning="in-out parameter: above 1 a walk stays near its start",
        convert=_to_float,
        default=1.0,
    ),
    ParamRow(name="walkLength", meaning="nodes of a walk, at most", convert=_to_int, default=80),
    ParamRow(
        name="walksPerNode", meaning="walks that begin at a node", convert=_to_int, default=10
    ),
)
_NODE_TRAINING_ROWS = tuple(
    replace(row, meaning="passes over the walks")
    if row.name == "epochs"
    else replace(row, meaning=row.meaning.replace("words", "nodes").replace("sentences", "walks"))
    for row in TRAINING_ROWS
)
_NAME_ROWS = tuple(
    replace(row, meaning="the driver holds so many nodes' names in memory; more lie in a file")
    for row in COUNTED_ROWS
    if row.name == "wordsInMemory"
)
_ROWS = (*_WALK_ROWS, *NODE_ROWS, *_NAME_ROWS, *_NODE_TRAINING_ROWS, *RUN_ROWS)
_LOWER_BOUNDS = {"p": 0.0, "q": 0.0, "walkLength": 1, "walksPerNode": 0}
"""Each must be above it."""


@with_params(_ROWS)
class NodeVectors(VectorEstimator):
    """Learns a vector for each node of a graph: node2vec. `fit` takes a DataFrame of edges.

    The executors walk over the graph, and the walks are the sentences that `Word2Vec` learns from.
    The graph lies in a file, which every executor gets and maps: 8 bytes an edge, 16 with weights,
    and twice as much where it is not directed.

    Example:
        >>> nodes = NodeVectors(srcCol="from", dstCol="to", p=0.5, q=2.0)
        >>> nodes.getWalkLength(), nodes.getWindowSize()
        (80, 10)
        >>> model = nodes.fit(edges)  # doctest: +SKIP
        >>> model.most_similar([1017], count=3)  # doctest: +SKIP

    Reference: Grover and Leskovec, node2vec: scalable feature learning for networks (2016).
    """

    _param_rows = _ROWS
    _config_defaults = {  # noqa: RUF012
        "window": 10,
        "contexts_per_step": 2,
        "sample": 0.0,
        "epochs": 1.0,
    }
    _reads_twice = False

    @keyword_params
    def __init__(
        self,
        *,
        srcCol: str = "src",
        dstCol: str = "dst",
        weightCol: str = "",
        directed: bool = False,
        p: float = 1.0,
        q: float = 1.0,
        walkLength: int = 80,
        walksPerNode: int = 10,
        wordsInMemory: int = 2_000_000,
        inputCol: str = "node",
        outputCol: str = "vector",
        vectorSize: int = 100,
        windowSize: int = 10,
        negatives: int = 5,
        cbow: bool = False,
        contextsPerStep: int = 2,
        sample: float = 0.0,
        learningRate: float | None = None,
        epochs: float = 1.0,
        table: str = "whole",
        kernel: str = "numba",
        strategy: str | Mapping[str, Any] | StrategySpec | CustomStrategy | None = None,
        numWorkers: int = 0,
        shuffle: str | bool = "auto",
        numThreads: int = 1,
        device: str | Sequence[str] = "cpu",
        bandwidth: float | None = None,
        cpuShare: float | None = None,
        memory: int | None = None,
        priority: int = 0,
        weight: float | None = None,
        jobsFolder: str = "",
        deadlineSeconds: float | None = None,
        seed: int = 0,
        security: str = "tls",
        runDir: str = "",
        checkpointSeconds: float = 60.0,
        leaseSeconds: float | None = None,
    ) -> None:
        super().__init__()

    def fit(self, dataset: Any, params: Any = None) -> Any:  # noqa: ANN401 - as Spark's own
        """Returns the trained model.

        Args:
            dataset: a DataFrame of edges.
            params: Params that hold for this call only.

        Raises:
            UsageError: a column or a Param is wrong, or it is no DataFrame.
            DataError: an edge has no source, no target or a wrong weight; or there are none.
            NotReadyError: the cluster lacks slots, or numba is missing.
        """
        if not hasattr(dataset, "sparkSession"):
            do = f"hand over a DataFrame with the columns {self.getOrDefault('srcCol')} and " + (
                self.getOrDefault("dstCol")
            )
            raise UsageError("the edges must be a DataFrame", got=type(dataset).__name__, do=do)
        return super().fit(dataset, params)

    def walks(self, edges: DataFrame) -> DataFrame:
        """Returns the walks that `fit` learns from, a row each: `words array<string>`.

        Args:
            edges: as `fit` takes them.

        Raises:
            UsageError: a column or a Param is wrong.
            DataError: an edge has no source, no target or a wrong weight; or there are none.
        """
        for name, bound in _LOWER_BOUNDS.items():
            if not self.getOrDefault(name) > bound:
                got = self.getOrDefault(name)
                raise UsageError(f"{name} must be above {bound:g}", got=got)
        source, target = self.getOrDefault("srcCol"), self.getOrDefault("dstCol")
        if source == target:
            raise UsageError("srcCol and dstCol are one column", got=source, do="name two")
        end_columns = [id_of(edges, name) for name in (source, target)]
        weight = self._weight(edges)
        edge_rows = edges.select(
            end_columns[0].alias("src"), end_columns[1].alias("dst"), weight.alias("weight")
        )
        names, graph = build_graph(
            edge_rows, self._words_in_memory, is_directed=self.getOrDefault("directed")
        )
        seed, spark = self.getOrDefault("seed"), edges.sparkSession
        starts = len(names) * self.getOrDefault("walksPerNode")
        workers = self.getOrDefault("numWorkers") or free_slots(spark)
        group_size = min(_MAX_GROUP_SIZE, -(-starts // (_GROUPS_PER_WORKER * workers)))
        bias = Bias(1 / self.getOrDefault("p"), 1 / self.getOrDefault("q"))
        walk_groups = partial(
            _walk_groups,
            _send_graph(spark, names, graph, generator(seed, "starts").permutation(len(names))),
            (self.getOrDefault("walksPerNode"), self.getOrDefault("walkLength"), group_size),
            bias,
            seed,
        )
        groups = spark.range(0, -(-starts // group_size), 1, workers)
        return groups.mapInArrow(walk_groups, "words array<string>")

    def _weight(self, edges: DataFrame) -> Any:  # noqa: ANN401 - a Column
        name = self.getOrDefault("weightCol")
        if not name:
            return F.lit(1.0)
        if name not in edges.columns or not isinstance(edges.schema[name].dataType, T.NumericType):
            got = edges.schema[name].dataType.simpleString() if name in edges.columns else "none"
            raise UsageError(f"there is no column of numbers {name}", got=got, do="set weightCol")
        return quoted(name).cast("double")

    def _sentences(self, dataset: DataFrame) -> DataFrame:
        return self.walks(dataset)

    def _make_model(self, dataset: DataFrame, vectors: WordVectors) -> NodeVectorsModel:
        id_types = {
            id_type(dataset.schema[self.getOrDefault(column)].dataType)
            for column in ("srcCol", "dstCol")
        }
        return NodeVectorsModel(vectors)._set(
            idType=id_types.pop() if len(id_types) == 1 else "string"
        )

    def _vocabulary_limits(self) -> tuple[int, int, int]:
        return 1, 0, self._words_in_memory


def _send_graph(
    spark: SparkSession, names: Sequence[str], graph: Graph, order: Vector
) -> Callable[[], tuple[pa.Array, Graph, Vector]]:
    """Returns what loads in a task: nodes' names, the graph, the order in which walks begin."""
    arrays = {"starts": graph.starts, "keys": graph.keys, "order": order}
    if len(graph.sums):
        arrays["sums"] = graph.sums
    load_names = None
    if isinstance(names, MappedWords):
        arrays |= {"letters": names.letters, "ends": names.ends}
    else:
        load_names = send(spark, names)
    load_arrays = send_arrays(spark, arrays)

    def load() -> tuple[pa.Array, Graph, Vector]:
        loaded = load_arrays()
        graph = Graph(loaded["starts"], loaded["keys"], loaded.get("sums", np.zeros(0)))
        if load_names is None:
            return MappedWords(loaded["letters"], loaded["ends"]).texts, graph, loaded["order"]
        return pa.array(load_names(), pa.string()), graph, loaded["order"]

    return load


def _walk_groups(
    load: Callable[[], tuple[pa.Array, Graph, Vector]],
    sizes: tuple[int, int, int],
    bias: Bias,
    seed: int,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Yields the walks of groups by their numbers, which alone decide what is drawn.

    Args:
        load: as of `_send_graph`.
        sizes: walks that begin at a node, nodes of a walk, walks of a group.
        bias: of the steps.
        seed: of all that is drawn.
        batches: of groups' numbers.
    """
    texts, graph, order = load()
    walks_per_node, length, group_size = sizes
    for batch in batches:
        for group in batch.column(0).to_pylist():
            first_walk = group * group_size
            numbers = np.arange(
                first_walk, min(first_walk + group_size, walks_per_node * graph.nodes)
            )
            paths = walks(
                graph, order[numbers % graph.nodes], length, bias, generator(seed, "walk", group)
            )
            yield _rows_of_walks(paths, texts)


def _rows_of_walks(paths: Vector, names: pa.Array) -> pa.RecordBatch:
    offsets = np.concatenate([[0], np.cumsum((paths != END).sum(axis=1))]).astype(np.int32)
    words = names.take(pa.array(paths[paths != END])).cast(pa.string())
    column = pa.ListArray.from_arrays(pa.array(offsets), words)
    return pa.RecordBatch.from_arrays([column], ["words"])
