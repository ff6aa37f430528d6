"""A torch module of one's own, trained where the rows of a DataFrame are.

The workers import the module by its name, so its file must be on their path: `addPyFile` sends it.
"""

import numpy as np
import pandas as pd
from torch import nn

import photinus as ph


class Net(nn.Module):
    """Two classes from two numbers; any module that maps features [B, ...] to scores will do."""

    def __init__(self, hidden=32):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, hidden), nn.ReLU(), nn.Linear(hidden, 2))

    def forward(self, features):
        return self.layers(features)


def rings(rows, seed):
    """Points within a ring and outside of it."""
    points = np.random.default_rng(seed).uniform(-1, 1, (rows, 2)).astype(np.float32)
    return points, (np.linalg.norm(points, axis=1) > 0.75).astype(np.int64)


def main(spark, rows=20_000, epochs=10.0, folder=""):
    points, inside = rings(rows, seed=1)
    table = pd.DataFrame({"x": points[:, 0], "y": points[:, 1], "inside": inside})
    frame = spark.createDataFrame(table)
    spark.sparkContext.addPyFile(__file__)
    job = ph.Job(
        name="rings",
        model=ph.ModuleConfig(
            module="own_module:Net", arguments={"hidden": 32}, epochs=epochs, batch_size=64
        ),
        data=ph.Source(name="given", features=("x", "y"), label="inside"),
        strategy=ph.averaging(every=ph.Steps(20)),
        workers=2,
    )
    outcome = ph.train(job, frame, test=rings(2_000, seed=2), folder=folder)
    print(f"error {outcome.metrics['error']:.2%}")
    return outcome, outcome.model()


if __name__ == "__main__":
    main(ph.spark_session(2))
