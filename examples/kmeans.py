"""k-means on Spark by rounds: one function on every worker's rows, two in the driver.

Lloyd (1982): each round assigns every row to its nearest centre, and moves each centre to the mean
of its rows.
"""

import numpy as np

from photinus import iterate, spark_session


def compute(state, rows):  # on every worker: sums [k, d], counts [k], squared distances
    centres, x = state["centres"], rows.features
    squares = (x**2).sum(1)[:, None] - 2 * x @ centres.T + (centres**2).sum(1)  # [n, k]
    nearest = squares.argmin(1)
    members = np.eye(len(centres))[nearest]  # [n, k]
    return members.T @ x, members.sum(0), squares.min(1).sum()


def combine(parts):
    return [sum(part) for part in zip(*parts, strict=True)]


def update(state, total):
    sums, counts, inertia = total
    filled = np.maximum(counts, 1)[:, None]
    centres = np.where(counts[:, None] > 0, sums / filled, state["centres"])
    is_done = bool(np.allclose(centres, state["centres"], atol=1e-6))
    return {"centres": centres, "inertia": float(inertia)}, is_done


def blobs(rows, clusters, seed=0):
    rng = np.random.default_rng(seed)
    centres = rng.normal(scale=5, size=(clusters, 2))
    return centres[rng.integers(0, clusters, rows)] + rng.normal(size=(rows, 2))


def main(spark=None, rows=4_000, clusters=5, partitions=2):
    spark = spark or spark_session(partitions)
    points = blobs(rows, clusters).astype(np.float32)
    df = spark.createDataFrame([(row.tolist(),) for row in points], "features array<float>")
    start = {"centres": points[:clusters].astype(float), "inertia": 0.0}
    found = iterate(df.repartition(partitions), compute, combine, update, start=start)
    print(f"{found.rounds} rounds, inertia {found.state['inertia']:.1f}")
    return points, found


if __name__ == "__main__":
    main()
