"""Rows a second through a trained 784-500-500-2000-10 network: transform, and the plain ways.

python benchmarks/inference.py [rows]
"""

import sys
import time

import numpy as np
import torch
from machine import begin
from pyspark.ml.functions import predict_batch_udf
from pyspark.sql.functions import sum as total
from pyspark.sql.types import ArrayType, FloatType

from photinus.core.settings import to_dict
from photinus.engine.spark.engine import frame_of
from photinus.engine.spark.session import spark_session
from photinus.estimators.dbn import DBNClassificationModel
from photinus.estimators.network import Network
from photinus.models.dbn import DBN
from photinus.models.mlp import MLP, Dense

TASKS = 2
TRIES = 3


def trained() -> Network:
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


def best(rows, run):
    """Rows a second of the best try; the first, which loads torch in the workers, is left out."""
    seconds = []
    for _ in range(TRIES + 1):
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return rows / min(seconds[1:])


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


def main():
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 60_000
    network = trained()
    pixels = np.random.default_rng(0).integers(0, 256, (rows, 784), np.uint8)
    torch.set_num_threads(TASKS)
    outputs = network.outputs()
    parts = np.array_split(pixels, rows // 1024)
    speed = best(rows, lambda: [outputs(part) for part in parts])
    print(f"torch alone, {TASKS} threads     {speed:10,.0f} rows/s")
    spark = spark_session(TASKS)
    model = DBNClassificationModel(network)
    for name, features in (("bytes", pixels), ("arrays", pixels.astype(np.float32))):
        parts = [(part, None) for part in np.array_split(features, TASKS)]
        frame = frame_of(spark, parts).cache()
        frame.count()
        speed = best(rows, lambda f=frame: model.transform(f).agg(total("prediction")).collect())
        print(f"transform, {name:<13}{speed:10,.0f} rows/s")
    score = plain_udf(network)
    speed = best(
        rows,
        lambda: frame.select(score("features").alias("z")).selectExpr("sum(z[0])").collect(),
    )
    print(f"predict_batch_udf, arrays {speed:8,.0f} rows/s")
    spark.stop()


if __name__ == "__main__":
    begin("2048")
    main()
