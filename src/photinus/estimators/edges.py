"""Edges on Spark: numbers their nodes; the driver sorts them in files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from photinus.core.errors import DataError
from photinus.core.parameters import Vector
from photinus.data.spark import stream_batches
from photinus.embeddings.edge_files import sorted_graph
from photinus.embeddings.walks import Graph
from photinus.embeddings.words import MappedWords, collect_vocabulary
from photinus.engine.spark.job import run_query
from photinus.estimators.sentences import merge_batches, number_words

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_LOOK = "look at where they are read"


def build_graph(
    edges: DataFrame, names_in_memory: int, *, is_directed: bool
) -> tuple[Sequence[str], Graph]:
    """Returns the nodes' names, those of most edges first, and the graph; its edges lie in files.

    Args:
        edges: texts `src` and `dst`, and a number `weight`.
        names_in_memory: more names than so many lie in a file, too.
        is_directed: edges have one direction.

    Raises:
        DataError: an edge is wrong, or there is none between two nodes.
    """
    spark = edges.sparkSession
    degree_rows = (
        edges.select(F.explode(F.array("src", "dst")).alias("word")).groupBy("word").count()
    )
    sorted_nodes = degree_rows.orderBy(F.desc(F.col("word").isNull()), F.desc("count"), "word")
    names, degrees = run_query(
        spark, lambda: collect_vocabulary(_names_and_degrees(sorted_nodes), names_in_memory)
    )
    if not len(names):
        raise DataError("the graph has no edges", do=_LOOK)
    if len(names) == 1:
        raise _no_edge()
    if isinstance(names, MappedWords):
        batches = stream_batches(_number_by_join(edges, number_words(degree_rows, degrees)))
    else:
        batches = stream_batches(edges, partial(_number_by_lookup, names))
    edge_arrays = _edge_arrays(batches, int(degrees.sum()) // 2)
    graph: Graph = run_query(
        spark, lambda: sorted_graph(len(names), edge_arrays, is_directed=is_directed)
    )
    return names, graph


def _no_edge() -> DataError:
    return DataError("the graph has no edge between two nodes", do=_LOOK)


def _names_and_degrees(sorted_nodes: DataFrame) -> Iterator[tuple[pa.Array, Vector]]:
    """Yields names and how many edges each has.

    Raises:
        DataError: the first one is null.
    """
    for batch in stream_batches(sorted_nodes):
        if batch.column(0).null_count:
            do = "filter such edges"
            raise DataError("an edge has no source or no target", got="null", do=do)
        yield batch.column(0), batch.column(1).to_numpy()


def _number_by_join(edges: DataFrame, nodes: DataFrame) -> DataFrame:
    """Returns edges as numbers of nodes, by Spark: no task holds all names."""
    for name, end in (("source", "src"), ("target", "dst")):
        numbers = nodes.select(F.col("word").alias(end), F.col("number").alias(name))
        edges = edges.join(numbers, end)
    return edges.select("source", "target", "weight")


def _number_by_lookup(
    names: Sequence[str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yields edges as numbers of nodes, without those of other nodes."""
    name_array = pa.array(names, pa.string())
    for batch in merge_batches(batches, len(names)):
        sources, targets = (
            pc.index_in(batch[column], value_set=name_array) for column in ("src", "dst")
        )
        numbered_edges = pa.RecordBatch.from_arrays(
            [sources, targets, batch["weight"]], ["source", "target", "weight"]
        )
        # a null weight stays: the driver names it
        yield numbered_edges.filter(pc.and_(pc.is_valid(sources), pc.is_valid(targets)))


def _edge_arrays(
    batches: Iterable[pa.RecordBatch], edge_count: int
) -> Iterator[tuple[Vector, Vector, Vector]]:
    """Yields sources, targets and weights [n] each.

    Args:
        batches: of numbered edges.
        edge_count: how many there must be.

    Raises:
        DataError: a weight is none, there are more or fewer edges, or none between two nodes.
    """
    edges_seen, are_all_loops = 0, True
    for batch in batches:
        weights = pc.fill_null(batch["weight"], np.nan).to_numpy(zero_copy_only=False)
        is_wrong = ~(weights > 0) | np.isinf(weights)
        if is_wrong.any():
            got = batch["weight"][int(np.argmax(is_wrong))].as_py()
            wrong = "an edge's weight must be a finite number above 0"
            raise DataError(wrong, got="null" if got is None else got)
        edges_seen += batch.num_rows
        sources, targets = batch["source"].to_numpy(), batch["target"].to_numpy()
        are_all_loops = are_all_loops and bool((sources == targets).all())
        yield sources, targets, weights
    if edges_seen != edge_count:
        got, do = f"{edge_count:,} and then {edges_seen:,} edges", "cache them, or save them first"
        raise DataError("the edges were others when they were read again", got=got, do=do)
    if are_all_loops:
        raise _no_edge()
