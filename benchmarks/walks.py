"""Walks over a large graph: memory and seconds of reading its edges and of walking.

    python benchmarks/walks.py [--nodes 1000000] [--edges 20000000] [--in-memory 0]
        [--weights] [--length 20]

Spark makes the edges, each between two nodes at random, and `NodeVectors.walks` walks over them,
two tasks at a time, one walk from each node. With --in-memory so many names of nodes are held in
memory at most, else as many as by default. Told are the seconds, and the peaks of the anonymous
memory (RssAnon) of the driver beyond what it held before, of the largest task, and of Java. Linux
only.
"""

import argparse
import tempfile
import time

from machine import begin
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from sharded_table import Watch

from photinus import NodeVectors, spark_session

TASKS = 2


def edges_of(spark, options):
    def node(salt):
        return F.pmod(F.xxhash64("id", F.lit(salt)), F.lit(options.nodes))

    frame = spark.range(0, options.edges, 1, 8 * TASKS)
    edges = frame.select(
        node(1).alias("src"), node(2).alias("dst"), (1 + F.col("id") % 7).alias("w")
    )
    edges.limit(10).mapInArrow(lambda batches: batches, edges.schema).collect()
    return edges


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=20_000_000)
    parser.add_argument("--in-memory", type=int, default=0)
    parser.add_argument("--weights", action="store_true")
    parser.add_argument("--length", type=int, default=20)
    options = parser.parse_args()
    spark = spark_session(TASKS, name="walks")
    edges = edges_of(spark, options)
    how = {"walksPerNode": 1, "walkLength": options.length, "numWorkers": TASKS}
    if options.in_memory:
        how["wordsInMemory"] = options.in_memory
    nodes = NodeVectors(weightCol="w" * options.weights, p=0.5, q=2.0, **how)
    with tempfile.TemporaryDirectory() as folder:
        watch = Watch(folder)
        watch.start()
        began = time.monotonic()
        walks = nodes.walks(edges)
        middle = time.monotonic()
        total = walks.agg(F.sum(F.size("words"))).first()[0]
        ended = time.monotonic()
        watch.over.set()
        watch.join()
    driver = (watch.driver - watch.before) / 1e6
    print(
        f"{options.edges:,} edges read in {middle - began:.0f} s, {total:,} nodes walked in "
        f"{ended - middle:.0f} s; driver {driver:.0f} MB, largest task "
        f"{watch.worker / 1e6:.0f} MB, Java {watch.java / 1e6:.0f} MB"
    )
    spark.stop()


if __name__ == "__main__":
    begin("--nodes", "200", "--edges", "2000")
    main()
