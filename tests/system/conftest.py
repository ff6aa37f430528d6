"""A small field to play on: softmax regression over some rows, in virtual time."""

import dataclasses
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import pytest

from photinus.coordinator.callbacks import Callbacks
from photinus.coordinator.coordinator import Coordinator
from photinus.core.clock import Steps
from photinus.core.parameters import fingerprint
from photinus.data.arrays import FeedOrder, PartitionFeed
from photinus.data.rows import Rows
from photinus.engine.simulation.cluster import SimulatedCluster
from photinus.engine.simulation.simulator import Simulation
from photinus.models.logistic import LogisticConfig
from photinus.strategies import peers as strategies
from photinus.strategies.outer import Nesterov
from photinus.strategies.recipes import (
    all_reduce,
    averaging,
    diloco,
    full_gradient,
    gossip,
    iterative_reduce,
    post_local,
    publish,
    streaming,
)
from photinus.training.plan import Phase, TrainingPlan, phases_of
from photinus.training.worker_loop import WorkerData

ROWS, WIDTH, CLASSES = 480, 6, 3
LR, BATCH = 0.2, 8


class Tape:
    """Events, ledger lines and cuts of one run; `assert_exact` is the ledger's promise."""

    def __init__(self):
        self.events, self.lines, self.snapshots = [], [], []
        self.hooks = {}

    def callbacks(self, **fields):
        return Callbacks(emit=self._emit, enter=self._enter, save=self.snapshots.append, **fields)

    def _emit(self, event):
        self.events.append(event)
        self.hooks.get(type(event).__name__, lambda e: None)(event)

    def _enter(self, op, frame, fields):
        self.lines.append((op, frame, fields))

    @staticmethod
    def examples(applied):
        """How many were applied; of fragments, which share them, by how far the cursors came."""
        cursors = {}
        for frame in applied.values():
            at = (frame.phase, frame.slot)
            cursors[at] = max(cursors.get(at, 0), frame.header["position"])
        if any("fragment" in frame.header for frame in applied.values()):
            return sum(cursors.values())
        return sum(frame.header.get("examples", 0) for frame in applied.values())

    @staticmethod
    def _phase(applied):
        return max((frame.phase for frame in applied.values()), default=0)

    def of(self, kind):
        return [e for e in self.events if type(e).__name__ == kind]

    def warnings(self):
        return [e.text for e in self.of("Warned")]

    def assert_exact(self):
        """Each number of a slot is used once, in order; cursors only go forwards in a phase."""
        applied, cursor, pushed, versions, known = {}, {}, {}, {}, set()
        for op, frame, details in self.lines:
            if op == "back":  # nobody knew the parameters any more: positions fall with them
                cursor.clear()
                phase = self._phase(applied)
                applied = {
                    number: f
                    for number, f in applied.items()
                    if f.phase < phase or versions[number] <= frame.header["version"]
                }
                continue
            number = (frame.slot, frame.sequence)
            if op == "ack":
                assert number in known, "acknowledged what is not applied"
            if op == "push":
                assert number not in pushed, "a number was taken twice"
                assert frame.sequence > pushed.get(frame.slot, -1), "numbers went backwards"
                pushed[number] = pushed[frame.slot] = frame.sequence
            if op == "apply":
                assert number in pushed, "applied what was never pushed"
                assert number not in applied, "applied twice"
                applied[number], versions[number] = frame, details["applied_in"]
                known.add(number)
                at = (frame.slot, frame.phase)
                is_shared = "fragment" in frame.header or not frame.header.get("examples", 0)
                least = cursor.get(at, -1) + (not is_shared)
                position = frame.header["position"]
                assert position >= least, "a cursor went backwards, or stood still"
                cursor[at] = position
        return applied


@dataclass
class Played:
    """A simulation and its tape."""

    simulation: Simulation
    tape: Tape
    result: object = None

    def run(self, until=float("inf")):
        self.result = self.simulation.run(until)
        return self

    @property
    def counts(self):
        return self.simulation.coordinator.leases.counts

    @property
    def vector(self):
        return self.result.vectors[-1]


SMALL = {
    "all_reduce": all_reduce(),
    "averaging": averaging(every=Steps(6)),
    "diloco": diloco(every=Steps(10), outer=Nesterov(0.7, 0.5)),
    "full_gradient": full_gradient(),
    "gossip": gossip(every=Steps(4), exact_every=3),
    "iterative_reduce": iterative_reduce(),
    "owners": averaging(every=Steps(6), owners=4),
    "publish": publish(every=Steps(4), exact_every=3),
    "post_local": post_local(every=Steps(10)),
    "streaming": streaming(every=Steps(12), outer=Nesterov(0.4, 0.6), delay=2),
}
"""Every recipe of rounds, one by several owners too, with rounds that fit the small field."""


@dataclass
class Field:
    """Makes programs, parts and simulations over the same rows."""

    features: np.ndarray = field(init=False)
    labels: np.ndarray = field(init=False)
    small = SMALL

    def __post_init__(self):
        rng = np.random.default_rng(0)
        self.features = rng.normal(size=(ROWS, WIDTH))
        logits = self.features @ rng.normal(size=(WIDTH, CLASSES))
        self.labels = (logits + 0.3 * rng.normal(size=(ROWS, CLASSES))).argmax(1)

    def rows(self, *index, dtype="float64"):
        chosen = index[0] if index else slice(None)
        return Rows.of(self.features[chosen].astype(dtype), self.labels[chosen])

    def parts(self, workers, shares=None, dtype="float64", bad=()):
        """Equal shares, or `shares` rows each; the slots in `bad` hold NaN."""
        if shares is None:
            picks = [np.arange(slot, ROWS, workers) for slot in range(workers)]
        else:
            picks = np.split(np.arange(sum(shares)) % ROWS, np.cumsum(shares)[:-1])
        parts = []
        for slot, pick in enumerate(picks):
            features = self.features[pick].astype(dtype)
            if slot in bad:
                features = features + np.nan
            rows = Rows.of(features, self.labels[pick])
            parts.append(WorkerData(len(rows), lambda order, rows=rows: PartitionFeed(rows, order)))
        return parts

    def config(self, name="logistic", **fields):
        usual = {"epochs": 2, "batch_size": BATCH, "lr": LR, "dtype": "float64"}
        return LogisticConfig(features=WIDTH, classes=CLASSES, name=name, **usual | fields)

    def plan(self, strategy, workers=4, configs=None, *, share="rows", is_split=False, **fields):
        """A phase a stage, or as in a job its start and rest; the batch is that of one worker."""
        configs = [
            dataclasses.replace(config, batch_size=config.batch_size * workers)
            for config in configs or [self.config(**fields)]
        ]
        phases = [Phase(config=s, strategy=strategy) for s in configs]
        if is_split:
            phases = [part for config in configs for part in phases_of(config, strategy, workers)]
        return TrainingPlan(phases=tuple(phases), workers=workers, share=share)

    def play(
        self,
        strategy,
        workers=4,
        *,
        cluster=None,
        parts=None,
        configs=None,
        callbacks=None,
        snapshot=None,
        **kw,
    ):
        """A simulation that has not run yet."""
        tape = Tape()
        plan = self.plan(strategy, workers, configs, **kw)
        coordinator = Coordinator(plan, tape.callbacks(**callbacks or {}), snapshot=snapshot)
        dtype = getattr(plan.phases[0].config, "dtype", "float32")
        parts = parts or self.parts(workers, dtype=dtype)
        simulation = Simulation(
            plan, parts, SimulatedCluster(**cluster or {}), coordinator=coordinator
        )
        return Played(simulation, tape)

    def plain(self, epochs=2, batch_size=BATCH, dtype="float64"):
        """Training without workers: the oracle of all identities."""
        config = self.config(epochs=epochs, batch_size=batch_size, dtype=dtype)
        model = config.build((), 0)
        inner = config.inner(model.parameters.layout)
        order = FeedOrder(batch_size=batch_size, epochs=epochs, phase="logistic")
        for batch in PartitionFeed(self.rows(dtype=dtype), order):
            inner.step(model.parameters.trained, model.learn(batch, 0)[0], 0.0)
        return model.parameters.trained

    def loss(self, vector):
        """Mean cross-entropy over all rows."""
        model = self.config(dtype=str(vector.dtype)).build((), 0)
        model.load(vector)
        sums = model.measure(next(iter(PartitionFeed(self.rows(), FeedOrder(batch_size=ROWS)))))
        return sums["loss"] / sums["examples"]


@pytest.fixture(scope="session")
def field():
    """The field; it keeps nothing between plays."""
    return Field()


@pytest.fixture
def agreed(monkeypatch):
    """(phase's run, version) -> what each worker held after it."""
    fingerprints, accept = defaultdict(list), strategies._Peer.accept

    def accepting(self, vector, incoming, state):
        state = accept(self, vector, incoming, state)
        if incoming.kind == "agreed":
            fingerprints[incoming.version].append(fingerprint(vector))
        return state

    monkeypatch.setattr(strategies._Peer, "accept", accepting)
    return fingerprints
