"""A strategy of one's own, tried in the simulator: post-local SGD (Lin et al., 2018).

The workers agree after every step at first, and every 16 steps later.
"""

import numpy as np

import photinus as ph
from photinus.engine.base import Assignment
from photinus.nodes.program import Phase, Program
from photinus.strategies.rounds import Averaging, Rounds


class PostLocal:
    """When a worker is lost: as in `averaging`, whose rounds these are."""

    site = "parameters"
    first, later = Averaging(every=ph.Steps(1)), Averaging(every=ph.Steps(16))

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
    strategy, policy = PostLocal, Rounds


def main(rows=4_000, epochs=5.0):
    ph.check_strategy(PostLocalSgd())
    chance = np.random.default_rng(0)
    features = chance.standard_normal((rows, 20)).astype(np.float32)
    labels = (features @ chance.standard_normal((20, 3))).argmax(axis=1)
    stage = ph.LogisticStage(features=20, classes=3, epochs=epochs)
    program = Program(phases=(Phase(stage=stage, agreement=PostLocalSgd()),), workers=4)
    engine = ph.SimulatedEngine(ph.World(step_seconds=0.01))
    data = ph.ArrayData(features, labels)
    result = engine.run(Assignment(program=program, data=data, run=bytes(16)))
    weights = result.vectors[-1].reshape(21, 3)  # [features + bias, classes]
    error = np.mean((features @ weights[:20] + weights[20]).argmax(axis=1) != labels)
    print(f"error {error:.2%}")
    return error


if __name__ == "__main__":
    main()
