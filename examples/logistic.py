"""Logistic regression on Spark by Newton's method: one function on every worker's rows.

Minimises Σ log(1 + exp(−yᵢ·wᵀxᵢ)) + ‖w‖²/(2C) over the weights w and an intercept that is free.
Each round needs the gradient and the Hessian of all rows: sums of what the workers have.
"""

import numpy as np

from photinus import iterate, spark_session

C = 1.0


def with_ones(features):  # [n, d] -> [n, d + 1]
    return np.hstack([features, np.ones((len(features), 1))])


def compute(w, rows):  # on every worker: gradient [d + 1], Hessian [d + 1, d + 1]
    x = with_ones(rows.features.astype(float))
    p = 1 / (1 + np.exp(-x @ w))
    return x.T @ (p - rows.labels), (x.T * (p * (1 - p))) @ x


def combine(parts):
    return [sum(part) for part in zip(*parts, strict=True)]


def update(w, total):
    penalty = np.append(np.ones(len(w) - 1), 0) / C
    gradient, hessian = total[0] + penalty * w, total[1] + np.diag(penalty)
    step = np.linalg.solve(hessian, gradient)
    return w - step, bool(np.abs(step).max() < 1e-8)


def flowers(rows, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, rows)
    features = rng.normal(size=(rows, 4)) + labels[:, None] * [1.0, 0.5, 0.0, -0.5]
    return features.astype(np.float32), labels


def main(spark=None, rows=2_000, partitions=2):
    spark = spark or spark_session(partitions)
    features, labels = flowers(rows)
    table = [(x.tolist(), int(y)) for x, y in zip(features, labels, strict=True)]
    df = spark.createDataFrame(table, "features array<float>, label int").repartition(partitions)
    start = np.zeros(features.shape[1] + 1)
    found = iterate(df, compute, combine, update, start=start, label="label")
    print(f"{found.rounds} rounds, weights {np.round(found.state, 3).tolist()}")
    return features, labels, found


if __name__ == "__main__":
    main()
