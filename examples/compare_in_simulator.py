"""Every recipe on the same problem, in virtual time: what it costs, and what it reaches.

Eight workers, one of them four times slower, on links of 10 MB/s.
"""

import numpy as np

import photinus as ph
from photinus.core.parameters import Vector
from photinus.data.rows import Rows
from photinus.engine.base import part_of
from photinus.engine.simulation.simulator import Simulation
from photinus.strategies.recipes import RECIPES
from photinus.training.plan import Phase, TrainingPlan

WORKERS, FEATURES, CLASSES = 8, 100, 10
WORLD = ph.World(step_seconds=(*(0.01,) * 7, 0.04), latency_seconds=0.002, bytes_per_second=10e6)


def problem(rows: int) -> ph.ArrayData:
    """Labels that a linear rule gives, with a tenth of them wrong."""
    chance = np.random.default_rng(0)
    features = chance.standard_normal((rows, FEATURES)).astype(np.float32)
    labels = (features @ chance.standard_normal((FEATURES, CLASSES))).argmax(axis=1)
    wrong = chance.random(rows) < 0.1
    labels[wrong] = chance.integers(0, CLASSES, wrong.sum())
    return ph.ArrayData(features, labels)


def loss(vector: Vector, data: ph.ArrayData) -> float:
    """The mean cross-entropy."""
    weights = vector.reshape(FEATURES + 1, CLASSES)
    scores = data.features @ weights[:-1] + weights[-1]
    most = scores.max(axis=1, keepdims=True)
    logs = scores - most - np.log(np.exp(scores - most).sum(axis=1, keepdims=True))
    return -float(logs[np.arange(len(logs)), data.labels].mean())


def main(rows=16_000, epochs=5.0):
    data, table = problem(rows), {}
    print(f"{'recipe':<18}{'seconds':>9}{'MB':>9}{'loss':>9}")
    for name, recipe in RECIPES.items():
        stage = ph.LogisticStage(
            features=FEATURES, classes=CLASSES, epochs=epochs, batch_size=32 * WORKERS
        )
        phase = Phase(stage=stage, agreement=recipe.build())
        program = TrainingPlan(phases=(phase,), workers=WORKERS)
        dealt = [Rows.of(*data.part(program, slot)) for slot in range(WORKERS)]
        simulation = Simulation(program, [part_of(part, program) for part in dealt], WORLD)
        result = simulation.run()
        table[name] = simulation.now, simulation.bytes / 1e6, loss(result.vectors[-1], data)
        print(f"{name:<18}{table[name][0]:>9.2f}{table[name][1]:>9.2f}{table[name][2]:>9.3f}")
    return table


if __name__ == "__main__":
    main()
