"""Rows a second, and processor time a row: `transform` beside bare torch, in turns in one run.

python benchmarks/inference.py [rows] [tables read one after the other]

Images of 784 numbers as arrays and as bytes go through a 784-500-500-2000-10 network, texts of
4 to 128 tokens through a small transformer. One plain loop of torch is measured twice, with one
thread: "bare torch" has its rows in memory, and reads nothing; "by hand" is a `mapInArrow` that
reads the same rows from Arrow, loops over them so, and returns nothing but the predictions. Of
texts, those of similar length share a batch. "table alone" is what Spark takes to read the table
without Python. "Daft" is the same loop in a class of Daft's, over rows in its memory, where it is
installed (`pip install daft`).
"""

import os
import sys
import time
from functools import partial, reduce
from importlib.util import find_spec

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from machine import begin, used
from pyspark.ml.functions import predict_batch_udf
from pyspark.sql import DataFrame
from pyspark.sql.functions import sum as total
from pyspark.sql.types import ArrayType, FloatType
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from photinus.core.settings import to_dict
from photinus.engine.spark.engine import frame_of
from photinus.engine.spark.session import spark_session
from photinus.estimators.dbn import DBNClassificationModel
from photinus.estimators.module import TorchClassificationModel
from photinus.estimators.network import Network
from photinus.models.dbn import DBN
from photinus.models.mlp import MLP, Dense
from photinus.models.module import ModuleConfig

TASKS = 2
TRIES = 3
BATCH = 512
ROWS = 10_000
"""That Daft hands over at once, as Spark does with Arrow."""
WORDS = 10_000


class Reader(nn.Module):
    """A transformer of two layers over tokens, and the mean of its places."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(WORDS, 128)
        layers = [nn.TransformerEncoderLayer(128, 4, 512, batch_first=True) for _ in range(2)]
        self.layers, self.head = nn.ModuleList(layers), nn.Linear(128, 2)

    def forward(self, tokens, mask):
        """Returns two numbers a row, [B, 2]."""
        x = self.table(tokens)  # [B, T, 128]
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=~mask)
        weights = mask[..., None]  # [B, T, 1]
        return self.head((x * weights).sum(1) / weights.sum(1))


def of_images():
    dbn = DBN(precision="mkl")
    network = MLP(Dense(sizes=(dbn.inputs, *dbn.hidden, dbn.classes)))
    network.randomize(1)
    tensors = {name: t.numpy() for name, t in network.module().state_dict().items()}
    return Network(
        kind="dbn",
        settings=to_dict(dbn),
        tensors=tensors,
        shape=(784,),
        classes=10,
        scale=1 / 255,
    )


def of_texts():
    torch.manual_seed(0)
    return Network(
        kind="module",
        settings=to_dict(ModuleConfig(module="inference:Reader")),
        tensors={name: t.numpy() for name, t in Reader().state_dict().items()},
        shape=(1,),
        classes=2,
        inputs={"columns": {"tokens": "ids"}, "encoders": {}, "collate": ""},
    )


def bare_images(module, pixels):
    """The plain loop: returns the classes of images [n, 784]."""
    classes = []
    with torch.inference_mode():
        for start in range(0, len(pixels), BATCH):
            x = torch.from_numpy(pixels[start : start + BATCH])
            classes.append(module(x.float() / 255).argmax(1))
    return torch.cat(classes).numpy()


def bare_texts(module, rows):
    """The plain loop, over rows that are sorted by length."""
    order = np.argsort([len(row) for row in rows], kind="stable")
    classes = np.empty(len(rows), np.int64)
    with torch.inference_mode():
        for start in range(0, len(order), BATCH):
            some = order[start : start + BATCH]
            tokens = pad_sequence([torch.from_numpy(rows[i]) for i in some], batch_first=True)
            classes[some] = module(tokens, tokens > 0).argmax(1)
    return classes


def numbers_of(column):
    return np.array(column.flatten()).reshape(len(column), -1)


def bytes_of(column):
    return np.array(np.frombuffer(b"".join(column.to_pylist()), np.uint8)).reshape(len(column), -1)


def tokens_of(column):
    return np.split(np.array(column.flatten()), np.cumsum(column.value_lengths())[:-1])


def by_hand(network, read, loop, frame):
    """The plain loop in a task of Spark, over the rows of each Arrow batch."""
    weights, meta = network.weights(), network.meta()

    def score(batches):
        torch.set_num_threads(1)
        module = Network.of(meta, weights).module()
        for batch in batches:
            classes = loop(module, read(batch.column(0)))
            yield pa.RecordBatch.from_arrays([pa.array(classes.astype(float))], ["z"])

    return lambda: frame.mapInArrow(score, "z double").agg(total("z")).collect()


def by_daft(network, read, loop, column, times):
    """The plain loop in a class of Daft's; {} where it is not installed."""
    if find_spec("daft") is None:
        print("  (Daft is not installed)")
        return {}
    import daft

    weights, meta = network.weights(), network.meta()

    @daft.cls(max_concurrency=TASKS)
    class Scorer:
        def __init__(self):
            torch.set_num_threads(1)
            self.module = Network.of(meta, weights).module()

        @daft.method.batch(return_dtype=daft.DataType.float64(), batch_size=ROWS)
        def score(self, values):
            rows = pa.chunked_array([values.to_arrow()]).combine_chunks()
            return pa.array(loop(self.module, read(rows)).astype(float))

    parts = np.array_split(np.arange(len(column)), TASKS)
    tables = [pa.table({"x": column.take(pa.array(part))}) for part in parts]
    frame = daft.from_arrow(tables * times)
    scored = frame.select(Scorer().score(frame["x"]).alias("z"))
    return {"  Daft": lambda: scored.sum("z").to_pydict()}


def measure(rows, ways):
    """Prints each way's best rows a second, least processor time a row, and bare torch's to that.

    The last column is that of the loop by hand. The ways take turns; the first turn, which loads
    what is needed, is left out.
    """
    seconds, cpu = {name: [] for name in ways}, {name: [] for name in ways}
    for turn in range(TRIES + 1):
        for name, run in ways.items():
            began, before = time.perf_counter(), used()
            run()
            if turn:
                seconds[name].append(time.perf_counter() - began)
                cpu[name].append(used() - before)
    bare, hand, *_ = (min(each) for each in cpu.values())
    for name in ways:
        speed, work = min(seconds[name]), max(min(cpu[name]), 1e-9)
        each = f"{rows / speed:10,.0f} rows/s {1e6 * work / rows:8.1f} µs"
        print(f"{name:26}{each} {bare / work:6.2f} {hand / work:6.2f}", flush=True)


def plain_udf(network):
    """What a user would write with predict_batch_udf alone: float arrays in, arrays out."""
    weights = network.weights()
    meta = network.meta()

    def make():
        torch.set_num_threads(1)
        outputs = Network.of({**meta, "scale": None}, weights).outputs()
        return outputs

    kind = ArrayType(FloatType())
    return predict_batch_udf(make, return_type=kind, batch_size=1024, input_tensor_shapes=[[784]])


def table_of(frame, times):
    """A table in Spark's memory, read several times over, as one that is larger would be."""
    frame = frame.cache()
    frame.count()
    return reduce(DataFrame.union, [frame] * times).coalesce(TASKS)


def repeated(run, times):
    return lambda: [run() for _ in range(times)]


def scored(model, frame):
    return lambda: model.transform(frame).agg(total("prediction")).collect()


def plain(score, frame):
    scores = frame.select(score("features").alias("z"))
    return lambda: scores.selectExpr("sum(z[0])").collect()


def read(frame, size):
    return lambda: frame.selectExpr(f"{size} AS n").agg(total("n")).collect()


def images(spark, rows, times):
    network = of_images()
    model, module = DBNClassificationModel(network), network.module()
    pixels = np.random.default_rng(0).integers(0, 256, (rows, 784), np.uint8)
    score = plain_udf(network)
    kinds = ("arrays", pixels.astype(np.float32), numbers_of), ("bytes", pixels, bytes_of)
    for name, features, read_of in kinds:
        parts = [(part, None) for part in np.array_split(features, TASKS)]
        frame = table_of(frame_of(spark, parts), times)
        ways = {
            f"{name}: bare torch": repeated(partial(bare_images, module, features), times),
            "  by hand": by_hand(network, read_of, bare_images, frame),
            "  transform": scored(model, frame),
            "  table alone": read(frame, "size(features)" if name == "arrays" else "len(features)"),
        }
        if name == "arrays":
            ways["  predict_batch_udf"] = plain(score, frame)
        column = pa.array(list(features) if name == "arrays" else [r.tobytes() for r in features])
        ways |= by_daft(network, read_of, bare_images, column, times)
        measure(rows * times, ways)
        spark.catalog.clearCache()


def texts(spark, rows, times):
    network = of_texts()
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(2.9, 0.6, rows), 4, 128).astype(int)
    ids = [rng.integers(1, WORDS, length) for length in lengths]
    frame = spark.createDataFrame(pd.DataFrame({"ids": ids}), "ids array<long>").repartition(TASKS)
    frame = table_of(frame, times)
    model = TorchClassificationModel(network)
    ways = {
        "text: bare torch": partial(bare_texts, network.module(), ids * times),
        "  by hand": by_hand(network, tokens_of, bare_texts, frame),
        "  transform": scored(model, frame),
        "  table alone": read(frame, "size(ids)"),
    }
    ways |= by_daft(network, tokens_of, bare_texts, pa.array(ids), times)
    measure(rows * times, ways)


def main():
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    times = int(sys.argv[2]) if len(sys.argv) > 2 else 8
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))  # for Spark's workers
    torch.set_num_threads(1)
    spark = spark_session(TASKS)
    print(f"{TASKS} tasks{'CPU a row':>49}   bare   hand")
    texts(spark, rows // 16, times)
    images(spark, rows, times)
    spark.stop()


if __name__ == "__main__":
    begin("2048", "1")
    main()
