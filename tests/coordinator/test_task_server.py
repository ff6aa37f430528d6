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
        self.book = LedgerWriter(folder / "ledger.jsonl", bytes(16))
        self.path = folder / "ledger.jsonl"
        callbacks = Callbacks(emit=self.events.append, enter=self.book.enter)
        self.owner = TaskServer(WorkUnits(**{"count": 2, **units}), self.rule, callbacks)
        self.service = Service(self.owner, MemoryListener, now=lambda: self.now)

    def passes(self, seconds):
        self.now += seconds
        self.service.tick()

    def player(self, slot, attempt="first"):
        return Player(self, slot, attempt)

    def audited(self):
        self.service.close()
        self.book.close()
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

    def say(self, ask):
        self.ask, self.said = ask, self.session.frame(ask, 0.0)
        self.inbox = self.link.exchange(self.said, 0)
        return self

    def again(self):
        self.inbox = self.link.exchange(self.said, 0)
        return self

    def hello(self):
        return self.say(Hello(0, 0))

    def push(self, *numbers, position=1):
        made = packed(np.array(numbers, float))
        return self.say(Exchange(Turn("swap"), Message("push", made), position))

    def kinds(self):
        self.inbox += self.link.exchange(None, 0)
        return [frame.kind for frame in self.inbox]

    def takes(self):
        """Understands the answer; returns the state in it."""
        self.kinds()
        [heard] = [f for f in self.inbox if self.session.answers(self.ask, self.said, f)]
        told = self.session.understood(heard, 0.0)
        vector = told.heal.vector if hasattr(told, "heal") else told.messages[0].vector
        return None if vector is None else unpacked(vector)["total"].tolist()

    def dies(self):
        self.link.cut()
        self.scene.passes(RETURN_SECONDS)


@pytest.fixture
def scene(tmp_path):
    scenes = []

    def make(**fields):
        scenes.append(Scene(tmp_path, **fields))
        return scenes[-1]

    yield make
    for made in scenes:
        made.service.close()
        made.book.close()


def test_a_push_of_a_partition_is_applied_at_once_and_the_next_hello_sees_it(scene):
    play = scene()
    first, second = play.player(0).hello(), play.player(1)
    assert first.takes() == [0, 0]
    assert first.push(1, 2).takes() is None
    assert second.hello().takes() == [1, 2]
    second.push(10, 20)
    assert play.owner.is_over
    assert play.rule.total.tolist() == [11, 22]
    assert play.audited().applied == 2


def test_a_task_that_died_after_its_push_is_not_done_again(scene):
    play = scene()
    first = play.player(0).hello()
    first.takes()
    first.push(1, 2)
    first.dies()
    assert play.player(0, "second").hello().kinds() == ["done"]
    assert play.rule.total.tolist() == [1, 2]
    assert play.audited().acknowledged == 1


def test_a_task_that_died_before_its_push_is_done_again_and_counts_once(scene):
    play = scene()
    first = play.player(0).hello()
    first.takes()
    first.dies()
    second = play.player(0, "second").hello()
    assert second.takes() == [0, 0]
    second.push(1, 2)
    assert play.rule.total.tolist() == [1, 2]
    assert play.audited().leases == 2


def test_a_copy_of_a_push_is_answered_again_and_not_applied(scene):
    play = scene()
    first = play.player(0).hello()
    first.takes()
    assert first.push(1, 2).kinds() == ["agreed"]
    assert first.again().kinds() == ["agreed"]
    assert play.rule.total.tolist() == [1, 2]
    assert play.owner.leases.counts["duplicate"] == 1
    assert play.audited().duplicates == 1


def test_a_speculative_copy_stands_by_and_hears_that_all_is_done(scene):
    play = scene()
    first, copy = play.player(0).hello(), play.player(0, "copy").hello()
    assert copy.kinds() == ["busy"]
    first.takes()
    first.push(1, 2)
    assert copy.again().kinds() == ["done"]
    assert play.rule.total.tolist() == [1, 2]


def test_a_frozen_task_is_fenced_when_its_copy_took_the_seat(scene):
    play = scene()
    frozen = play.player(0).hello()
    frozen.takes()
    copy = play.player(0, "copy").hello()
    for _ in range(6):
        play.passes(LEASE_SECONDS / 5)
    assert copy.takes() == [0, 0]
    assert frozen.push(1, 2).kinds() == ["fenced"]
    copy.push(1, 2)
    assert play.rule.total.tolist() == [1, 2]
    assert play.audited().fenced == 1


def test_time_in_which_the_owner_heard_nobody_ends_no_lease(scene):
    play = scene()
    play.passes(0.1)
    first = play.player(0).hello()
    first.takes()
    play.passes(10 * LEASE_SECONDS)
    assert first.push(1, 2).kinds() == ["agreed"]


def test_a_round_together_waits_for_a_worker_that_is_started_again(scene):
    play = scene(together=True, rule=Sum(rounds=2))
    one, two = play.player(0).hello(), play.player(1).hello()
    assert one.takes() == two.takes() == [0, 0]
    one.push(1, 1)
    two.dies()
    assert play.rule.taken == []
    two = play.player(1, "second").hello()
    assert two.takes() == [0, 0]
    two.push(2, 2)
    assert one.takes() == two.takes() == [3, 3]
    one.push(10, 0, position=2)
    assert two.push(20, 0, position=2).takes() is None
    assert one.takes() is None
    assert play.owner.is_over
    assert play.rule.total.tolist() == [33, 3]
    assert play.audited().applied == 4


def test_a_worker_lost_after_its_push_is_in_the_round_and_its_heir_in_the_next(scene):
    play = scene(together=True, rule=Sum(rounds=2))
    one, two = play.player(0).hello(), play.player(1).hello()
    one.takes(), two.takes()
    one.push(1, 1)
    one.dies()
    heir = play.player(0, "heir").hello()
    assert heir.kinds() == ["busy"]
    two.push(2, 2)
    play.passes(0.1)
    assert heir.takes() == two.takes() == [3, 3]
    two.push(0, 1, position=2)
    heir.push(0, 1, position=2)
    assert play.rule.total.tolist() == [3, 5]
    assert play.audited().applied == 4


def test_numbers_that_are_not_finite_never_reach_the_rule(scene):
    play = scene()
    first = play.player(0).hello()
    first.takes()
    assert first.push(np.nan, 2).takes() is None
    assert play.rule.taken == []
    assert play.owner.refused == [0]
    [warned] = [e.text for e in play.events if type(e).__name__ == "Warned"]
    assert warned.startswith("gradient returned values that are not finite on partition 0")
    assert play.audited().missed == 1


def test_a_round_together_cannot_do_without_a_part(scene):
    play = scene(together=True, unit="worker", work="compute")
    first = play.player(0).hello()
    first.takes()
    assert first.push(np.inf, 2).kinds()[-1] == "stop"
    assert play.owner.failure == "compute returned values that are not finite on worker 0"


def test_what_the_rule_raises_ends_the_work_in_one_sentence(scene):
    class Broken(Sum):
        def take(self, results):
            raise ZeroDivisionError("no")

    play = scene(rule=Broken())
    first = play.player(1).hello()
    first.takes()
    first.push(1, 2)
    got = "descent failed on partition 1, update 1; got ZeroDivisionError: no"
    assert play.owner.failure == got
    assert isinstance(play.owner.cause, ZeroDivisionError)
    assert play.player(0).hello().kinds() == ["stop"]


def test_a_unit_that_fails_is_tried_again_so_often(scene):
    play = scene()
    for attempt in range(FAILURES):
        cause = f"ValueError: bad row {attempt}"
        note = {"error": "Traceback ...", "type": "ValueError", "cause": cause}
        player = play.player(0, f"try {attempt}").hello()
        player.takes()
        said = player.link.exchange(player.session.seat.frame("bye", note), 0)
        assert said[-1].kind == ("stop" if attempt == FAILURES - 1 else "fenced")
    wrong = f"gradient failed {FAILURES} times on partition 0; got ValueError: bad row 3"
    assert play.owner.failure == f"{wrong}\nTraceback ..."


def test_a_unit_that_fails_twice_in_the_same_way_is_not_tried_again(scene):
    play, said = scene(), []
    note = {
        "error": "Traceback ...",
        "type": "ValueError",
        "cause": "ValueError: bad row (m.py, 3)",
    }
    for slot, attempt in ((0, "a"), (1, "b"), (0, "c")):
        player = play.player(slot, attempt).hello()
        player.takes()
        said += player.link.exchange(player.session.seat.frame("bye", note), 0)[-1:]
    assert [frame.kind for frame in said] == ["fenced", "fenced", "stop"]
    wrong = (
        "gradient failed twice in the same way on partition 0; got ValueError: bad row (m.py, 3)"
    )
    assert play.owner.failure == f"{wrong}\nTraceback ..."


def test_an_error_of_ours_is_not_tried_again(scene):
    play = scene()
    player = play.player(0).hello()
    player.takes()
    note = {"error": "what gradient returns must be ...", "type": "UsageError", "cause": ""}
    assert player.link.exchange(player.session.seat.frame("bye", note), 0)[-1].kind == "stop"
    assert play.owner.failure_kind == "UsageError"


def test_a_unit_that_was_not_there_before_ends_the_work(scene):
    play = scene()
    assert play.player(7).hello().kinds() == ["stop"]
    assert "partition 7 came, and there were 2" in play.owner.failure


def lived(play, slot, work, attempt="", **fields):
    """One worker's life over a link in memory."""
    worker = Worker(
        unit_requests(UnitWork(work), can_repeat=fields.pop("can_repeat", True)),
        play.service.listener.link,
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
    chance, lock = np.random.default_rng(0), threading.Lock()

    def twice_or_once(frame):
        with lock:
            return int(frame.kind == "push" and chance.random() < 0.5) + 1

    play = Scene(tmp_path, count=6, together=together, rule=Sum(rounds=4))
    play.service.listener.up = twice_or_once

    def work(parcel):
        return packed(np.array([1.0, unpacked(parcel)["total"][0]]))

    threads = [threading.Thread(target=lived, args=(play, n, work)) for n in range(6)]
    for thread in threads:
        thread.start()
    assert play.service.wait(20)
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert play.rule.total[0] == (24 if together else 6)
    assert play.owner.leases.counts["applied"] == (24 if together else 6)
    assert play.owner.leases.counts["duplicate"] > 0
    assert play.audited().pushed > play.owner.leases.counts["applied"]


def test_a_life_that_cannot_repeat_ends_when_its_seat_is_lost(scene):
    play = scene(count=1)

    def work(parcel):
        play.owner.leases.vacate(play.owner.leases.seats[0])
        return packed(np.ones(2))

    with pytest.raises(Exception, match="slot 0 lost lease 1"):
        lived(play, 0, work, can_repeat=False)
    assert play.rule.taken == []


def test_a_life_is_told_why_the_work_was_stopped(scene):
    play = scene()
    play.service.stop("enough")
    with pytest.raises(RunFailedError, match=r"^enough$"):
        lived(play, 0, lambda parcel: parcel)


def test_a_life_without_an_owner_ends(scene):
    play = scene()
    play.service.close()
    with pytest.raises(LinkLostError):
        lived(play, 0, lambda parcel: parcel)


def test_a_unit_whose_state_takes_longer_than_a_lease_to_travel_keeps_its_seat(scene):
    here = scene(count=1)
    player, beats = here.player(0), here.service.listener.link()
    player.hello()
    beat = Seat(bytes(16), 1, 0, 0).frame("beat", {"attempt": "first"})
    for _ in range(60):
        here.passes(LEASE_SECONDS - 1)
        beats.exchange(beat, 0)
    assert player.takes() == [0.0, 0.0]
    player.push(1.0, 2.0)
    assert player.kinds() == ["agreed"]
    assert here.owner.leases.seats[0].lease == 1
    assert here.rule.total.tolist() == [1.0, 2.0]
