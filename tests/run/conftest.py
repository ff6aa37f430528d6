"""A job that trains in milliseconds, in virtual time, and looks at what it left."""

import numpy as np
import pytest

from photinus.core.clock import Steps
from photinus.core.events import RoundClosed
from photinus.data.checks import RowChecks
from photinus.engine.base import ArrayData
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.models.logistic import LogisticConfig
from photinus.report.journal import read
from photinus.run.data import TestRows
from photinus.run.job import Job, Source
from photinus.strategies.recipes import averaging


class Small:
    """Three classes of points in six dimensions."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.labels = rng.integers(0, 3, 240)
        noise = rng.normal(size=(240, 6))
        self.features = (noise + 3 * np.tile(np.eye(3)[self.labels], 2)).astype("f4")
        self.test = TestRows(self.features[:60], self.labels[:60])

    def data(self, features=None, labels=None):
        features = self.features if features is None else features
        labels = self.labels if labels is None else labels
        return ArrayData(features, labels, checks=RowChecks(classes=3))

    def job(self, **fields):
        model = LogisticConfig(features=6, classes=3, epochs=4, batch_size=8, dtype="float64")
        defaults = {
            "model": model,
            "data": Source(name="given"),
            "strategy": averaging(every=Steps(3), codec="fp32"),
            "workers": 3,
            "engine": "simulate",
        }
        return Job(**defaults | fields)


@pytest.fixture(scope="session")
def small():
    return Small()


@pytest.fixture
def events():
    """Returns the events in a run's journal, all or of one kind."""

    def read_events(folder, kind=""):
        journalled = [stamped.event for stamped in read(folder / "events.jsonl")]
        return [e for e in journalled if not kind or type(e).__name__ == kind]

    return read_events


class Breaking(SimulatedEngine):
    """Ends at the n-th round, as Ctrl-C would end it."""

    def __init__(self, version):
        super().__init__()
        self.version = version

    def run(self, assignment):
        emit = assignment.emit

        def emit_then_break(event):
            emit(event)
            if isinstance(event, RoundClosed) and event.version == self.version:
                raise KeyboardInterrupt

        object.__setattr__(assignment, "emit", emit_then_break)
        return super().run(assignment)


@pytest.fixture
def breaking():
    return Breaking
