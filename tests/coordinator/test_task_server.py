"""Units over links in memory, in threads and in still time: each counts once."""

import threading

import numpy as np
import pytest

from photinus.coordinator.callbacks import Callbacks
from photinus.coordinator.leases import RETURN_SECONDS
from photinus.coordinator.server import Service
from photinus.coordinator.task_server import (
    FAILURES,
    TaskServer,
    UnitWork,
    WorkUnits,
    unit_requests,
)
from photinus.core.errors import LinkLostError, RunFailedError
from photinus.protocol.messages import Seat
from photinus.protocol.serialization import packed, unpacked
from photinus.protocol.worker_client import Worker
from photinus.protocol.worker_session import WorkerSession
from photinus.report.ledger import audit
from photinus.run.ledger_writer import LedgerWriter
from photinus.strategies.base import Message, Turn
from photinus.testing.memory_link import MemoryListener
from photinus.training.plan import LEASE_SECONDS
from photinus.training.requests import Exchange, Hello


class Sum:
    """Adds what comes; is done after so many rounds."""

    def __init__(self, rounds=1):
        self.total, self.taken, self.left = np.zeros(2), [], rounds

    def state(self, has):
        return packed({"total": self.total.copy()})

    def take(self, results):
        self.taken.append(len(results))
        for result in results:
            self.total += result
        self.left -= 1
        return self.left <= 0


class Scene:
    """An owner whose time stands still until it is told to continue, and its ledger."""

    def __init__(self, folder, rule=None, **units):
        self.now, self.events, self.rule = 0.0, [], rule or Sum()
        self.ledger = LedgerWriter(folder / "ledger.jsonl", bytes(16))
        self.path = folder / "ledger.jsonl"
        callbacks = Callbacks(emit=self.events.append, enter=self.ledger.enter)
        self.owner = TaskServer(WorkUnits(**{"count": 2, **units}), self.rule, callbacks)
        self.service = Service(self.owner, MemoryListener, now=lambda: self.now)

    def advance(self, seconds):
        self.now += seconds
        self.service.tick()

    def player(self, slot, attempt="first"):
        return Player(self, slot, attempt)

    def audited(self):
        self.service.close()
        self.ledger.close()
        result = audit(self.path)
        assert result.is_exact, result.offences
        return result


class Player:
    """A worker that says what it is told to."""

    def __init__(self, scene, slot, attempt):
        self.scene, self.slot = scene, slot
        self.link = scene.service.listener.link()
        self.session = WorkerSession(
            Seat(bytes(16), 1, 0, slot), {"attempt": attempt, "host": "here"}
        )

    def say(self, request):
        self.request, self.sent = request, self.session.frame(request, 0.0)
        self.inbox = self.link.exchange(self.sent, 0)
        return self

    def again(self):
        self.inbox = self.link.exchange(self.sent, 0)
        return self

    def hello(self):
        return self.say(Hello(0, 0))

    def push(self, *numbers, position=1):
        payload = packed(np.array(numbers, float))
        return self.say(Exchange(Turn("swap"), Message("push", payload), position))

    def kinds(self):
        self.inbox += self.link.exchange(None, 0)
        return [frame.kind for frame in self.inbox]

    def takes(self):
        """Understands the answer; returns the state in it."""
        self.kinds()
        [answer] = [
            frame for frame in self.inbox if self.session.answers(self.request, self.sent, frame)
        ]
        outcome = self.session.understood(answer, 0.0)
        vector = outcome.heal.vector if hasattr(outcome, "heal") else outcome.messages[0].vector
        return None if vector is None else unpacked(vector)["total"].tolist()

    def dies(self):
        self.link.cut()
        self.scene.advance(RETURN_SECONDS)


@pytest.fixture
def make_scene(tmp_path):
    scenes = []

    def make(**fields):
        scenes.append(Scene(tmp_path, **fields))
        return scenes[-1]

    yield make
    for scene in scenes:
        scene.service.close()
        scene.ledger.close()


def test_a_push_of_a_partition_is_applied_at_once_and_the_next_hello_sees_it(make_scene):
    scene = make_scene()
    first, second = scene.player(0).hello(), scene.player(1)
    assert first.takes() == [0, 0]
    assert first.push(1, 2).takes() is None
    assert second.hello().takes() == [1, 2]
    second.push(10, 20)
    assert scene.owner.is_over
    assert scene.rule.total.tolist() == [11, 22]
    assert scene.audited().applied == 2


def test_a_task_that_died_after_its_push_is_not_done_again(make_scene):
    scene = make_scene()
    first = scene.player(0).hello()
    first.takes()
    first.push(1, 2)
    first.dies()
    assert scene.player(0, "second").hello().kinds() == ["done"]
    assert scene.rule.total.tolist() == [1, 2]
    assert scene.audited().acknowledged == 1


def test_a_task_that_died_before_its_push_is_done_again_and_counts_once(make_scene):
    scene = make_scene()
    first = scene.player(0).hello()
    first.takes()
    first.dies()
    second = scene.player(0, "second").hello()
    assert second.takes() == [0, 0]
    second.push(1, 2)
    assert scene.rule.total.tolist() == [1, 2]
    assert scene.audited().leases == 2


def test_a_copy_of_a_push_is_answered_again_and_not_applied(make_scene):
    scene = make_scene()
    first = scene.player(0).hello()
    first.takes()
    assert first.push(1, 2).kinds() == ["agreed"]
    assert first.again().kinds() == ["agreed"]
    assert scene.rule.total.tolist() == [1, 2]
    assert scene.owner.leases.counts["duplicate"] == 1
    assert scene.audited().duplicates == 1


def test_a_speculative_copy_stands_by_and_hears_that_all_is_done(make_scene):
    scene = make_scene()
    first, copy = scene.player(0).hello(), scene.player(0, "copy").hello()
    assert copy.kinds() == ["busy"]
    first.takes()
    first.push(1, 2)
    assert copy.again().kinds() == ["done"]
    assert scene.rule.total.tolist() == [1, 2]


def test_a_frozen_task_is_fenced_when_its_copy_took_the_seat(make_scene):
    scene = make_scene()
    frozen = scene.player(0).hello()
    frozen.takes()
    copy = scene.player(0, "copy").hello()
    for _ in range(6):
        scene.advance(LEASE_SECONDS / 5)
    assert copy.takes() == [0, 0]
    assert frozen.push(1, 2).kinds() == ["fenced"]
    copy.push(1, 2)
    assert scene.rule.total.tolist() == [1, 2]
    assert scene.audited().fenced == 1


def test_time_in_which_the_owner_heard_nobody_ends_no_lease(make_scene):
    scene = make_scene()
    scene.advance(0.1)
    first = scene.player(0).hello()
    first.takes()
    scene.advance(10 * LEASE_SECONDS)
    assert first.push(1, 2).kinds() == ["agreed"]


def test_a_round_together_waits_for_a_worker_that_is_started_again(make_scene):
    scene = make_scene(together=True, rule=Sum(rounds=2))
    one, two = scene.player(0).hello(), scene.player(1).hello()
    assert one.takes() == two.takes() == [0, 0]
    one.push(1, 1)
    two.dies()
    assert scene.rule.taken == []
    two = scene.player(1, "second").hello()
    assert two.takes() == [0, 0]
    two.push(2, 2)
    assert one.takes() == two.takes() == [3, 3]
    one.push(10, 0, position=2)
    assert two.push(20, 0, position=2).takes() is None
    assert one.takes() is None
    assert scene.owner.is_over
    assert scene.rule.total.tolist() == [33, 3]
    assert scene.audited().applied == 4


def test_a_worker_lost_after_its_push_is_in_the_round_and_its_heir_in_the_next(make_scene):
    scene = make_scene(together=True, rule=Sum(rounds=2))
    one, two = scene.player(0).hello(), scene.player(1).hello()
    one.takes(), two.takes()
    one.push(1, 1)
    one.dies()
    heir = scene.player(0, "heir").hello()
    assert heir.kinds() == ["busy"]
    two.push(2, 2)
    scene.advance(0.1)
    assert heir.takes() == two.takes() == [3, 3]
    two.push(0, 1, position=2)
    heir.push(0, 1, position=2)
    assert scene.rule.total.tolist() == [3, 5]
    assert scene.audited().applied == 4


def test_numbers_that_are_not_finite_never_reach_the_rule(make_scene):
    scene = make_scene()
    first = scene.player(0).hello()
    first.takes()
    assert first.push(np.nan, 2).takes() is None
    assert scene.rule.taken == []
    assert scene.owner.refused == [0]
    [warning] = [e.text for e in scene.events if type(e).__name__ == "Warned"]
    assert warning.startswith("gradient returned values that are not finite on partition 0")
    assert scene.audited().missed == 1


def test_a_round_together_cannot_do_without_a_part(make_scene):
    scene = make_scene(together=True, unit="worker", work="compute")
    first = scene.player(0).hello()
    first.takes()
    assert first.push(np.inf, 2).kinds()[-1] == "stop"
    assert scene.owner.failure == "compute returned values that are not finite on worker 0"


def test_what_the_rule_raises_ends_the_work_in_one_sentence(make_scene):
    class Broken(Sum):
        def take(self, results):
            raise ZeroDivisionError("no")

    scene = make_scene(rule=Broken())
    first = scene.player(1).hello()
    first.takes()
    first.push(1, 2)
    expected = "descent failed on partition 1, update 1; got ZeroDivisionError: no"
    assert scene.owner.failure == expected
    assert isinstance(scene.owner.cause, ZeroDivisionError)
    assert scene.player(0).hello().kinds() == ["stop"]


def test_a_unit_that_fails_is_tried_again_so_often(make_scene):
    scene = make_scene()
    for attempt in range(FAILURES):
        cause = f"ValueError: bad row {attempt}"
        note = {"error": "Traceback ...", "type": "ValueError", "cause": cause}
        player = scene.player(0, f"try {attempt}").hello()
        player.takes()
        replies = player.link.exchange(player.session.seat.frame("bye", note), 0)
        assert replies[-1].kind == ("stop" if attempt == FAILURES - 1 else "fenced")
    expected = f"gradient failed {FAILURES} times on partition 0; got ValueError: bad row 3"
    assert scene.owner.failure == f"{expected}\nTraceback ..."


def test_a_unit_that_fails_twice_in_the_same_way_is_not_tried_again(make_scene):
    scene, replies = make_scene(), []
    note = {
        "error": "Traceback ...",
        "type": "ValueError",
        "cause": "ValueError: bad row (m.py, 3)",
    }
    for slot, attempt in ((0, "a"), (1, "b"), (0, "c")):
        player = scene.player(slot, attempt).hello()
        player.takes()
        replies += player.link.exchange(player.session.seat.frame("bye", note), 0)[-1:]
    assert [frame.kind for frame in replies] == ["fenced", "fenced", "stop"]
    expected = (
        "gradient failed twice in the same way on partition 0; got ValueError: bad row (m.py, 3)"
    )
    assert scene.owner.failure == f"{expected}\nTraceback ..."


def test_an_error_of_ours_is_not_tried_again(make_scene):
    scene = make_scene()
    player = scene.player(0).hello()
    player.takes()
    note = {"error": "what gradient returns must be ...", "type": "UsageError", "cause": ""}
    assert player.link.exchange(player.session.seat.frame("bye", note), 0)[-1].kind == "stop"
    assert scene.owner.failure_kind == "UsageError"


def test_a_unit_that_was_not_there_before_ends_the_work(make_scene):
    scene = make_scene()
    assert scene.player(7).hello().kinds() == ["stop"]
    assert "partition 7 came, and there were 2" in scene.owner.failure


def run_worker(scene, slot, work, attempt="", **fields):
    """One worker's life over a link in memory."""
    worker = Worker(
        unit_requests(UnitWork(work), can_repeat=fields.pop("can_repeat", True)),
        scene.service.listener.link,
        Seat(bytes(16), 1, 0, slot),
        about={"attempt": attempt or f"first-{slot}"},
        **fields,
    )
    try:
        worker.run()
    finally:
        worker.close()


@pytest.mark.parametrize("together", [False, True])
def test_lives_in_threads_do_every_unit_once_though_frames_are_lost_and_doubled(tmp_path, together):
    rng, lock = np.random.default_rng(0), threading.Lock()

    def twice_or_once(frame):
        with lock:
            return int(frame.kind == "push" and rng.random() < 0.5) + 1

    scene = Scene(tmp_path, count=6, together=together, rule=Sum(rounds=4))
    scene.service.listener.up = twice_or_once

    def work(data):
        return packed(np.array([1.0, unpacked(data)["total"][0]]))

    threads = [threading.Thread(target=run_worker, args=(scene, n, work)) for n in range(6)]
    for thread in threads:
        thread.start()
    assert scene.service.wait(20)
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert scene.rule.total[0] == (24 if together else 6)
    assert scene.owner.leases.counts["applied"] == (24 if together else 6)
    assert scene.owner.leases.counts["duplicate"] > 0
    assert scene.audited().pushed > scene.owner.leases.counts["applied"]


def test_a_life_that_cannot_repeat_ends_when_its_seat_is_lost(make_scene):
    scene = make_scene(count=1)

    def work(data):
        scene.owner.leases.vacate(scene.owner.leases[0])
        return packed(np.ones(2))

    with pytest.raises(Exception, match="slot 0 lost lease 1"):
        run_worker(scene, 0, work, can_repeat=False)
    assert scene.rule.taken == []


def test_a_life_is_told_why_the_work_was_stopped(make_scene):
    scene = make_scene()
    scene.service.stop("enough")
    with pytest.raises(RunFailedError, match=r"^enough$"):
        run_worker(scene, 0, lambda data: data)


def test_a_life_without_an_owner_ends(make_scene):
    scene = make_scene()
    scene.service.close()
    with pytest.raises(LinkLostError):
        run_worker(scene, 0, lambda data: data)


def test_a_unit_whose_state_takes_longer_than_a_lease_to_travel_keeps_its_seat(make_scene):
    scene = make_scene(count=1)
    player, beat_link = scene.player(0), scene.service.listener.link()
    player.hello()
    beat = Seat(bytes(16), 1, 0, 0).frame("beat", {"attempt": "first"})
    for _ in range(60):
        scene.advance(LEASE_SECONDS - 1)
        beat_link.exchange(beat, 0)
    assert player.takes() == [0.0, 0.0]
    player.push(1.0, 2.0)
    assert player.kinds() == ["agreed"]
    assert scene.owner.leases[0].lease == 1
    assert scene.rule.total.tolist() == [1.0, 2.0]
