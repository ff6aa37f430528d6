"""Every recipe on the same problem, in virtual time: what it costs, and what it reaches.

Eight workers, one of them four times slower, on links of 10 MB/s.
"""

import tempfile

import numpy as np

import photinus as ph

WORKERS, FEATURES, CLASSES = 8, 100, 10
WORLD = ph.SimulatedCluster(
    step_seconds=(*(0.01,) * 7, 0.04), latency_seconds=0.002, bytes_per_second=10e6
)
BY_GRADIENTS = (ph.all_reduce, ph.full_gradient, ph.post_local)
APART = (
    *(ph.averaging, ph.diloco, ph.downpour, ph.elastic, ph.gossip),
    *(ph.iterative_reduce, ph.publish, ph.streaming),
)


def problem(rows: int) -> ph.ArrayData:
    """Labels that a linear rule gives, with a tenth of them wrong."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((rows, FEATURES)).astype(np.float32)
    labels = (features @ rng.standard_normal((FEATURES, CLASSES))).argmax(axis=1)
    wrong = rng.random(rows) < 0.1
    labels[wrong] = rng.integers(0, CLASSES, wrong.sum())
    return ph.ArrayData(features, labels)


def main(rows=16_000, epochs=5.0):
    data, table = problem(rows), {}
    test = ph.TestRows(data.features, data.labels)
    model = ph.LogisticConfig(
        features=FEATURES, classes=CLASSES, epochs=epochs, batch_size=32 * WORKERS
    )
    print(f"{'recipe':<18}{'seconds':>9}{'MB':>9}{'loss':>9}")
    strategies = [recipe() for recipe in BY_GRADIENTS]
    strategies += [recipe(gradients_until=0) for recipe in APART]  # as published: no common start
    for strategy in strategies:
        name, engine = strategy.recipe, ph.SimulatedEngine(WORLD)
        job = ph.Job(model=model, workers=WORKERS, strategy=strategy)
        with tempfile.TemporaryDirectory() as folder:
            outcome = ph.train(job, data, test=test, folder=f"{folder}/run", engine=engine)
        table[name] = engine.seconds, engine.bytes / 1e6, outcome.metrics["loss"]
        print(f"{name:<18}{table[name][0]:>9.2f}{table[name][1]:>9.2f}{table[name][2]:>9.3f}")
    return table


if __name__ == "__main__":
    main()
