"""A strategy of one's own, tried in the simulator: post-local SGD (Lin et al., 2018).

The workers agree after every step at first, and every 16 steps later.
"""

import tempfile

import numpy as np

import photinus as ph
from photinus.testing import check_strategy


class PostLocal:
    """When a worker is lost: as in `averaging`, whose rounds these are."""

    site = "parameters"
    first, later = ph.Averaging(every=ph.Steps(1)), ph.Averaging(every=ph.Steps(16))

    def init(self, vector):
        return self.first.init(vector)

    def due(self, clock, state):
        return (self.first if clock.steps < 100 else self.later).due(clock, state)

    def offer(self, turn, vector, clock, state):
        return self.first.offer(turn, vector, clock, state)

    def accept(self, vector, incoming, state):
        return self.first.accept(vector, incoming, state)


class PostLocalSgd:
    """Both halves: the workers' above, and an owner that there is already."""

    is_deterministic = True
    worker, owner = PostLocal, ph.Rounds


def main(rows=4_000, epochs=5.0):
    check_strategy(PostLocalSgd())
    rng = np.random.default_rng(0)
    features = rng.standard_normal((rows, 20)).astype(np.float32)
    labels = (features @ rng.standard_normal((20, 3))).argmax(axis=1)
    config = ph.LogisticConfig(features=20, classes=3, epochs=epochs, batch_size=128)
    own = ph.CustomStrategy("own_strategy:PostLocalSgd")  # by its name, as every worker imports it
    job = ph.Job(model=config, workers=4, strategy=own, engine="simulate")
    with tempfile.TemporaryDirectory() as folder:
        test = ph.TestRows(features, labels)
        outcome = ph.train(job, ph.ArrayData(features, labels), test=test, folder=f"{folder}/run")
    print(f"error {outcome.metrics['error']:.2%}")
    return outcome.metrics["error"]


if __name__ == "__main__":
    main()
