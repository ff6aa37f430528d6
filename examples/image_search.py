"""Image search: an autoencoder learns from images without labels; like images have like codes."""

import numpy as np
from pyspark.sql.functions import expr
from torch import nn

import photinus as ph

SIDE, KINDS = 16, 4


class Coder(nn.Module):
    """A deep autoencoder: 256 pixels to 8 numbers and back; without a label it learns its input."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8)
        )
        self.decoder = nn.Sequential(
            nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 256)
        )

    def forward(self, x):
        return self.decoder(self.encoder(x))  # [B, 256]


def images(rows, seed):
    """Yields a number, the kind, and the pixels of a bar, a cross, a frame or a disc."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:SIDE, :SIDE]
    for n in range(rows):
        kind, (top, left), size = n % KINDS, rng.integers(5, 11, 2), rng.integers(3, 6)
        down, across = abs(y - top), abs(x - left)
        shape = (
            (down <= 1) & (across <= size),
            ((down <= 1) | (across <= 1)) & (np.maximum(down, across) <= size),
            np.maximum(down, across) == size,
            down**2 + across**2 <= size**2,
        )[kind]
        pixels = shape + rng.normal(0, 0.1, shape.shape)
        yield n, kind, pixels.reshape(-1).tolist()


def main(spark, rows=4_000, epochs=20.0):
    table = spark.createDataFrame(images(rows, 1), "id int, kind int, features array<float>")
    asked = spark.createDataFrame(images(100, 2), table.schema)
    spark.sparkContext.addPyFile(__file__)
    model = ph.TorchEstimator(module="image_search:Coder", labelCol="", epochs=epochs).fit(table)
    codes, wanted = (model.withLayer(df, "encoder", "code") for df in (table, asked))
    pairs = codes.crossJoin(wanted.selectExpr("id AS asked", "kind AS due", "code AS near"))
    far = "aggregate(zip_with(code, near, (a, b) -> (a - b) * (a - b)), 0D, (s, d) -> s + d)"
    found = pairs.groupBy("asked", "due").agg(expr(f"min_by(kind, {far})").alias("kind"))
    share = found.selectExpr("avg(int(kind = due))").first()[0]
    print(f"{share:.0%} of the nearest images are of the kind that was asked for")
    return share


if __name__ == "__main__":
    main(ph.spark_session(2))
