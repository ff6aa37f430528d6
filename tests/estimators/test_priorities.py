"""A fit that is more urgent gets slots that another fit holds, for its first queries, too."""

import threading

import numpy as np
import pytest

from photinus import TorchClassifier
from photinus.core.events import RoundClosed

pytestmark = pytest.mark.spark


class Begun:
    """Tells when a run has closed a round."""

    def __init__(self):
        self.event = threading.Event()

    def __call__(self, event):
        if isinstance(event, RoundClosed):
            self.event.set()


@pytest.mark.slow
def test_an_urgent_fit_begins_and_ends_while_another_fit_holds_all_slots(spark):
    chance, ended = np.random.default_rng(0), []
    rows = [(chance.random(4).tolist(), n % 2) for n in range(200)]
    table = spark.createDataFrame(rows, "features array<double>, label int").cache()
    begun = Begun()

    def fit(name, *callbacks, **fields):
        shape = {"in_features": 4, "out_features": 2}
        estimator = TorchClassifier(module="torch.nn:Linear", moduleArgs=shape, **fields)
        estimator.callbacks, estimator.verbose = callbacks, False
        estimator.fit(table)
        ended.append(name)

    long = {"numWorkers": 4, "epochs": 2000.0, "batchSize": 20}
    first = threading.Thread(target=fit, args=("first", begun), kwargs=long)
    first.start()
    assert begun.event.wait(120)
    fit("urgent", numWorkers=2, epochs=1.0, priority=1)
    first.join(200)
    assert ended == ["urgent", "first"]
