"""Rare positives in a table: tokens of any length, numbers beside them, and a weight for each row.

One payment in fifty is a fraud. Its words and its amount tell it together; neither does alone.
"""

import numpy as np
import torch
from pyspark.sql.functions import expr
from torch import nn

import photinus as ph


class Payments(nn.Module):
    """The mean of the words' vectors, and two numbers beside it."""

    def __init__(self, words=100):
        super().__init__()
        self.table = nn.Embedding(words, 8)
        self.layers = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, words, numbers, mask):
        own = mask[..., None]  # [B, T, 1]: which words are no padding
        mean = (self.table(words) * own).sum(1) / own.sum(1).clamp(min=1)  # [B, D]
        return self.layers(torch.cat([mean, numbers], 1))


def payments(rows, seed):
    """Yields (words, amount, hour, fraud): word 7 in a large payment is a fraud."""
    rng = np.random.default_rng(seed)
    for _ in range(rows):
        words = rng.integers(8, 100, rng.integers(2, 12)).tolist()
        amount, hour = rng.random(), rng.random()
        if has_word := rng.random() < 0.1:
            words[rng.integers(len(words))] = 7
        yield words, amount, hour, int(has_word and amount > 0.8)


def main(spark, rows=20_000, epochs=6.0):
    columns = "words array<int>, amount double, hour double, fraud int"
    train, test = (spark.createDataFrame(payments(n, n), columns) for n in (rows, rows // 4))
    spark.sparkContext.addPyFile(__file__)
    classifier = ph.TorchClassifier(
        module="several_inputs:Payments",
        inputs={"words": "words", "numbers": ["amount", "hour"]},
        labelCol="fraud",
        weightCol="weight",
        learningRate=0.02,
        epochs=epochs,
        numWorkers=2,
    )
    model = classifier.fit(train.withColumn("weight", expr("1 + 9 * fraud")))
    found = model.transform(test).where("fraud = 1").selectExpr("avg(prediction)").first()[0]
    print(f"{found:.0%} of the frauds are found; {model.evaluate(test.drop('weight'))}")
    return found


if __name__ == "__main__":
    main(ph.spark_session(2))
