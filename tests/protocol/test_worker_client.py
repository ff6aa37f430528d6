import itertools
import threading

import numpy as np
import pytest

from photinus.coordinator.callbacks import Callbacks
from photinus.coordinator.coordinator import Coordinator
from photinus.coordinator.server import Service
from photinus.core.clock import Steps
from photinus.core.errors import LinkLostError, RunFailedError
from photinus.data.arrays import PartitionFeed
from photinus.data.rows import Rows
from photinus.models.logistic import LogisticConfig
from photinus.protocol import worker_client as room
from photinus.protocol.messages import Seat
from photinus.protocol.worker_client import Worker
from photinus.strategies.recipes import averaging, downpour
from photinus.testing.memory_link import MemoryLink, MemoryListener
from photinus.training.plan import Phase, TrainingPlan
from photinus.training.worker_loop import WorkerData, live

WORKERS = 2


def plan(strategy, phases=2):
    configs = [
        LogisticConfig(features=3, classes=2, epochs=4, batch_size=4, name=f"p{n}", dtype="float64")
        for n in range(phases)
    ]
    return TrainingPlan(
        phases=tuple(Phase(config=s, strategy=strategy) for s in configs), workers=2
    )


def part(slot):
    rng = np.random.default_rng(slot)
    rows = Rows.of(rng.normal(size=(16, 3)), rng.integers(0, 2, 16))
    return WorkerData(len(rows), lambda order: PartitionFeed(rows, order))


class Team:
    """Workers in threads of this process, and the service that they meet at."""

    def __init__(self, strategy=averaging(every=Steps(2), codec="fp32")):  # noqa: B008 - frozen
        self.events, self.links, self.errors, self.notes = [], [], [], []
        self.workers = []
        self.plan, self.applied = plan(strategy), []
        callbacks = Callbacks(emit=self.events.append, enter=self._enter)
        self.coordinator = Coordinator(self.plan, callbacks)
        self.service = Service(self.coordinator, self._listen)
        self.threads = [threading.Thread(target=self._live, args=(n,)) for n in range(WORKERS)]

    def _enter(self, op, frame, fields):
        if op == "apply":
            self.applied.append(
                (frame.slot, frame.sequence, frame.phase, frame.header.get("examples", 0))
            )

    def _listen(self, hear, gone):
        self.hub = MemoryListener(hear, gone)
        return self.hub

    def run(self):
        for thread in self.threads:
            thread.start()
        for thread in self.threads:
            thread.join(60)
        self.service.close()
        return self

    def _live(self, slot):
        def connect():
            link = self.hub.link()
            self.links.append(link)
            return link

        worker = Worker(
            live(self.plan, slot, part(slot)),
            connect,
            Seat(bytes(16), 1, 0, slot),
            about={"attempt": f"only-{slot}", "host": "here"},
            notes=lambda: [self.notes.pop()] if self.notes else [],
        )
        self.workers.append(worker)
        try:
            worker.run()
        except Exception as error:
            self.errors.append(error)
        finally:
            worker.close()

    def of(self, kind):
        return [e for e in self.events if type(e).__name__ == kind]


@pytest.fixture(scope="module")
def undisturbed():
    return Team().run()


def test_workers_train_to_the_end_of_all_phases(undisturbed):
    assert undisturbed.errors == []
    assert [e.name for e in undisturbed.of("PhaseEnded")] == ["p0", "p1"]
    assert undisturbed.coordinator.result is not None


CUT_AT = {"push": (5, 12), "agreed": (5, 12), "ack": (5, 12), "close": (1, 4)}


class Cut:
    """Ends all links at some frames of a kind, which are lost or arrive."""

    def __init__(self, team, kind, copies):
        self.team, self.kind, self.copies, self.numbers = team, kind, copies, itertools.count(1)

    def __call__(self, frame):
        if frame.kind != self.kind or next(self.numbers) not in CUT_AT[self.kind]:
            return 1
        for link in list(self.team.links):
            link.inbox.put(None)
        return self.copies


@pytest.mark.parametrize("copies", [0, 1])
@pytest.mark.parametrize(("way", "kind"), [("up", "push"), ("down", "agreed"), ("up", "close")])
def test_a_cut_link_changes_no_bit(undisturbed, way, kind, copies):
    team = Team()
    setattr(team.hub, way, Cut(team, kind, copies))
    team.run()
    assert team.errors == []
    assert len(team.links) > WORKERS, "nothing was cut"
    for ours, theirs in zip(
        team.coordinator.result.vectors, undisturbed.coordinator.result.vectors, strict=True
    ):
        assert np.array_equal(ours, theirs)
    counts, plain = team.coordinator.leases.counts, undisturbed.coordinator.leases.counts
    assert counts["applied"] == plain["applied"]


@pytest.mark.parametrize("copies", [0, 1])
@pytest.mark.parametrize("kind", ["push", "ack", "close", "agreed"])
def test_what_was_under_way_on_a_cut_link_is_said_again_and_counts_once(kind, copies):
    team = Team(downpour(every=Steps(1), fetch=Steps(4)))
    setattr(team.hub, "up" if kind in ("push", "close") else "down", Cut(team, kind, copies))
    team.run()
    assert team.errors == []
    assert team.coordinator.result is not None
    assert len(team.links) > WORKERS, "nothing was cut"
    numbers = [line[:2] for line in team.applied]
    assert len(numbers) == len(set(numbers)) == team.coordinator.leases.counts["applied"]
    for phase in (0, 1):
        assert sum(n for *_, at, n in team.applied if at == phase) >= 4 * 2 * 16


def test_a_stopped_run_reaches_a_worker_at_work():
    team = Team()
    stopper = threading.Event()  # the service is locked while it hears: a stop comes from outside
    team.hub.up = lambda frame: (frame.sequence == 7 and stopper.set()) or 1
    outside = threading.Thread(target=lambda: stopper.wait(30) and team.service.stop("enough"))
    outside.start()
    team.run()
    outside.join(30)
    assert [str(e) for e in team.errors] in (["enough"] * WORKERS, ["enough"])
    assert all(isinstance(e, RunFailedError) for e in team.errors)


def test_a_worker_that_finds_nobody_any_more_says_so():
    team = Team()
    team.hub.up = lambda frame: team.hub.close() or 0 if frame.kind == "push" else 1
    team.run()
    assert [type(e) for e in team.errors] == [LinkLostError] * WORKERS


def test_a_worker_that_leaves_a_silent_coordinator_makes_no_link_again():
    """It waits for an answer that does not come, on a line that nobody closes."""
    team = Team()
    pushed = threading.Semaphore(0)
    team.hub.down = lambda frame: 0 if frame.kind == "agreed" else 1
    team.hub.up = lambda frame: pushed.release() or 1 if frame.kind == "push" else 1

    def leave():
        for _ in range(WORKERS):
            assert pushed.acquire(timeout=30)
        for worker in team.workers:
            worker.leave()

    outside = threading.Thread(target=leave)
    outside.start()
    team.run()
    outside.join(30)
    assert [type(e) for e in team.errors] == [LinkLostError] * WORKERS
    assert "the coordinator says nothing any more" in str(team.errors[0])
    assert len(team.links) == WORKERS


def test_log_lines_ride_along():
    team = Team()
    team.notes.append({"level": "WARNING", "text": "a slow disk"})
    team.run()
    assert [e.text for e in team.of("Log")] == ["a slow disk"]


class Trickle(MemoryLink):
    """A link on which bytes of a frame come in for a while, before it is whole."""

    def exchange(self, frame, seconds):
        if frame is not None and frame.kind == "hello":
            self.hellos = getattr(self, "hellos", 0) + 1
        self.bytes_received += 1 if getattr(self, "trickles", False) else 0
        return super().exchange(frame, seconds)


def test_what_comes_in_is_not_asked_for_again(monkeypatch):
    """A hello is said again only while nothing moves."""
    now, hellos = [0.0], {}
    for trickles in (True, False):
        hub = MemoryListener(lambda peer, frame: None, lambda peer: None)
        link = Trickle(hub, "trickle")
        link.trickles = trickles
        monkeypatch.setattr(room.time, "monotonic", lambda: now[0])
        worker = Worker(
            live(plan(averaging()), 0, part(0)),
            lambda link=link: link,
            Seat(bytes(16), 1, 0, 0),
            about={"attempt": "only", "host": "here"},
        )
        looks = itertools.count()

        def receive(*_, link=link, worker=worker, looks=looks):
            now[0] += 1.0
            if next(looks) == 60:
                raise RunFailedError("enough")
            return link.exchange(None, 0.0)

        monkeypatch.setattr(worker, "_receive", receive)
        with pytest.raises(RunFailedError, match="enough"):
            worker.run()
        hellos[trickles] = link.hellos
    assert hellos[True] == 1
    assert hellos[False] > 2


def test_a_coordinator_whose_long_frame_comes_in_is_not_silent(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(room.time, "monotonic", lambda: now[0])
    hub = MemoryListener(lambda peer, frame: None, lambda peer: None)
    link = hub.link()
    worker = Worker(iter(()), lambda: link, Seat(bytes(16)), about={})
    now[0] = 100.0
    assert worker.silent_for(28.0) == 28.0
    link.bytes_received += 1
    assert worker.silent_for(28.0) == 0.0
    now[0] = 110.0
    assert worker.silent_for(28.0) == 10.0
