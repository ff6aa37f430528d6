import gc
import weakref

import numpy as np
import pytest

from photinus.coordinator import server
from photinus.coordinator.callbacks import Callbacks
from photinus.coordinator.coordinator import Coordinator
from photinus.coordinator.server import Service
from photinus.core.clock import Clock, Steps
from photinus.models.logistic import LogisticConfig
from photinus.protocol.messages import Seat
from photinus.protocol.worker_session import WorkerSession
from photinus.strategies.base import Message, Turn
from photinus.strategies.recipes import averaging
from photinus.testing.memory_link import MemoryListener
from photinus.training.plan import Phase, TrainingPlan
from photinus.training.requests import Close, Exchange, Hello
from photinus.transport.frames import Frame

SIZE = 8  # numbers of a softmax regression of 3 features and 2 classes
PUSH = Turn("swap")


class Scene:
    """A service over links in memory, whose time stands still until it is told to continue."""

    def __init__(self, workers=2, phases=1):
        configs = [
            LogisticConfig(features=3, classes=2, epochs=1.0, name=f"p{n}") for n in range(phases)
        ]
        strategy = averaging(every=Steps(1), codec="fp32")
        plan = TrainingPlan(
            phases=tuple(Phase(config=s, strategy=strategy) for s in configs), workers=workers
        )
        self.now, self.events = 0.0, []
        self.coordinator = Coordinator(plan, Callbacks(emit=self.events.append))
        self.service = Service(self.coordinator, MemoryListener, now=lambda: self.now)

    def advance(self, seconds):
        self.now += seconds
        self.service.tick()

    def seated(self):
        """A worker in each slot, all granted."""
        players = [Player(self, slot) for slot in range(self.coordinator.leases.workers)]
        for player in players:
            player.hello()
        for player in players:
            assert player.understands().kind == "grant"
        return players

    def events_of(self, kind):
        return [e for e in self.events if type(e).__name__ == kind]


class Player:
    """A worker without a life: says what it is told to."""

    def __init__(self, scene, slot, attempt=""):
        self.link = scene.service.listener.link()
        about = {"attempt": attempt or f"first-{slot}", "host": "here", "pid": 7}
        self.session = WorkerSession(Seat(bytes(16), 1, 0, slot), about)
        self.sent = None

    def say(self, frame):
        self.sent = frame
        self.inbox = self.link.exchange(frame, 0)

    def hello(self):
        self.request = Hello(rows=8, has=0)
        self.say(self.session.frame(self.request, 0.0))

    def push(self, size=SIZE):
        message = Message("push", np.ones(size, np.float32), since=Clock(1, 8))
        self.request = Exchange(PUSH, message, position=8)
        self.say(self.session.frame(self.request, 0.0))

    def close(self):
        self.request = Close(position=8, parameters=None)
        self.say(self.session.frame(self.request, 0.0))

    def receive(self):
        frames, self.inbox = self.inbox + self.link.exchange(None, 0), []
        return frames

    def kinds(self):
        return [frame.kind for frame in self.receive()]

    def understands(self):
        [answer] = [f for f in self.receive() if self.session.answers(self.request, self.sent, f)]
        self.session.understood(answer, 0.0)
        return answer


@pytest.fixture
def make_scene(monkeypatch):
    """Makes scenes, and closes them."""
    monkeypatch.setattr(server, "_TICK_SECONDS", 3600.0)
    scenes = []

    def make(**fields):
        scenes.append(Scene(**fields))
        return scenes[-1]

    yield make
    for scene in scenes:
        scene.service.close()


def test_workers_are_granted_when_all_have_come(make_scene):
    scene = make_scene()
    first, second = Player(scene, 0), Player(scene, 1)
    first.hello()
    assert first.kinds() == []
    second.hello()
    assert (first.kinds(), second.kinds()) == (["grant"], ["grant"])
    [joined, _] = scene.events_of("WorkerJoined")
    assert (joined.host, joined.attempt, joined.pid) == ("here", "first-0", 7)


def test_a_standby_is_busy_until_the_seat_is_free(make_scene):
    scene = make_scene()
    first, _ = scene.seated()
    standby = Player(scene, 0, attempt="second")
    standby.hello()
    assert standby.kinds() == ["busy"]
    assert first.kinds() == []
    first.link.cut()
    scene.advance(0.9)
    assert standby.kinds() == []
    scene.advance(0.2)
    grant = standby.understands()
    assert (grant.kind, grant.lease) == ("grant", 2)
    assert [e.lease for e in scene.events_of("WorkerLost")] == [1]


def test_a_lease_ends_five_seconds_after_the_last_sign_of_life(make_scene):
    scene = make_scene()
    first, _ = scene.seated()
    beat_link = scene.service.listener.link()
    for _ in range(3):
        scene.advance(4.9)
        beat_link.exchange(first.session.seat.frame("beat"), 0)
    assert 0 not in [e.slot for e in scene.events_of("WorkerLost")]
    scene.advance(5.1)
    assert 0 in [e.slot for e in scene.events_of("WorkerLost")]


def test_a_sign_of_life_is_answered_where_the_transport_shows_none_of_the_listeners(make_scene):
    scene = make_scene()
    first, _ = scene.seated()
    beat_link, beat = scene.service.listener.link(), first.session.seat.frame("beat")
    assert [frame.kind for frame in beat_link.exchange(beat, 0)] == ["beat"]
    beat_link.peer.is_signed = True
    assert beat_link.exchange(beat, 0) == []
    assert first.kinds() == []


def test_a_cut_link_that_comes_back_keeps_the_lease(make_scene):
    scene = make_scene()
    first, second = scene.seated()
    first.link.cut()
    first.link = scene.service.listener.link()
    first.push()
    scene.advance(2.0)
    second.push()
    assert first.understands().kind == second.understands().kind == "agreed"
    assert not scene.events_of("WorkerLost")


def test_nothing_of_a_connection_that_ended_is_kept_once_its_slot_has_another(make_scene):
    """A connection over TCP has 256 KiB of its own: each lost worker would cost that."""
    scene = make_scene()
    first, _ = scene.seated()
    ended = weakref.ref(first.link.peer)
    first.link.cut()
    scene.advance(2.0)
    again = Player(scene, 0, attempt="second")
    again.hello()
    assert again.understands().kind == "grant"
    del first
    gc.collect()
    assert ended() is None


def test_the_same_push_over_a_new_link_is_applied_once(make_scene):
    scene = make_scene()
    first, second = scene.seated()
    first.push()
    first.link.cut()
    first.link = scene.service.listener.link()
    first.say(first.sent)
    second.push()
    first.understands(), second.understands()
    first.say(first.sent)
    assert first.kinds() == ["agreed"], "a copy is answered again"
    assert scene.coordinator.leases.counts["applied"] == 2
    assert scene.coordinator.leases.counts["duplicate"] == 2


def test_a_zombie_is_fenced_on_its_own_line(make_scene):
    scene = make_scene()
    zombie, _ = scene.seated()
    standby = Player(scene, 0, attempt="second")
    standby.hello()
    scene.advance(5.1)
    assert standby.kinds() == ["busy", "grant"]
    zombie.push()
    assert zombie.kinds() == ["fenced"]
    assert standby.kinds() == []


def test_who_left_before_the_start_is_seated_when_it_comes_back(make_scene):
    scene = make_scene()
    first, second = Player(scene, 0), Player(scene, 1)
    first.hello()
    first.link.close()
    second.hello()
    assert second.kinds() == ["grant"]
    first.link = scene.service.listener.link()
    first.say(first.sent)
    assert first.kinds() == ["grant"]


def test_the_next_phase_is_granted_to_who_sits_there_not_to_who_waits(make_scene):
    scene = make_scene(phases=2)
    first, second = scene.seated()
    standby = Player(scene, 0, attempt="second")
    standby.hello()
    for player in (first, second):
        player.close()
    assert first.understands().phase == second.understands().phase == 1
    assert standby.kinds() == ["busy"]


def test_the_end_reaches_who_sits_and_who_waits(make_scene):
    scene = make_scene()
    first, second = scene.seated()
    standby = Player(scene, 0, attempt="second")
    standby.hello()
    for player in (first, second):
        player.close()
    assert [p.kinds()[-1] for p in (first, second, standby)] == ["done"] * 3
    assert scene.service.wait(0)


def test_a_stop_reaches_who_sits_who_waits_and_who_comes_late(make_scene):
    scene = make_scene()
    first, second = scene.seated()
    standby = Player(scene, 1, attempt="second")
    standby.hello()
    first.push()
    scene.service.stop("the user has seen enough")
    late = Player(scene, 0, attempt="third")
    late.hello()
    for player in (first, second, standby, late):
        stop = player.receive()[-1]
        assert (stop.kind, stop.header["reason"]) == ("stop", "the user has seen enough")


def test_a_standby_that_leaves_is_not_granted_the_seat(make_scene):
    scene = make_scene()
    first, _ = scene.seated()
    standby = Player(scene, 0, attempt="second")
    standby.hello()
    standby.link.close()
    first.link.cut()
    scene.advance(1.1)
    third = Player(scene, 0, attempt="third")
    third.hello()
    assert third.kinds()[-1] == "grant"


def test_a_dead_process_loses_its_seat_at_once_and_takes_none_by_what_it_had_said(make_scene):
    """Its connection need not close: on the transport of a folder none does."""
    scene = make_scene()
    first, _ = scene.seated()
    standby = Player(scene, 0, attempt="second")
    standby.hello()
    scene.service.died(0, "second")
    scene.service.died(0, "first-0")
    scene.advance(0.1)
    assert [(e.slot, e.reason) for e in scene.events_of("WorkerLost")] == [(0, "its process ended")]
    first.hello()
    assert first.kinds() == [], "it was read late"
    third = Player(scene, 0, attempt="third")
    third.hello()
    assert third.kinds()[-1] == "grant"
    assert third.link is not standby.link
    assert standby.kinds() == ["busy"]


@pytest.mark.parametrize("size", [1, SIZE - 1, SIZE + 1])
def test_a_vector_of_a_wrong_size_ends_the_run_in_words(make_scene, size):
    scene = make_scene()
    first, second = scene.seated()
    first.push()
    second.push(size=size)
    assert scene.service.wait(0)
    reason = second.receive()[-1].header["reason"]
    assert reason == scene.coordinator.failure
    assert "a push of worker 1: a push must hold 8 numbers" in reason
    assert first.receive()[-1].kind == "stop"


def test_an_error_in_the_passing_of_time_ends_the_run_too(make_scene, monkeypatch):
    scene = make_scene()
    first, _ = scene.seated()

    def broken(now):
        raise ZeroDivisionError("nobody expects this")

    monkeypatch.setattr(scene.coordinator, "tick", broken)
    scene.service.tick()
    assert "ZeroDivisionError: nobody expects this" in first.receive()[-1].header["reason"]
    assert scene.service.wait(0)


def test_a_garbled_frame_after_the_end_changes_nothing(make_scene):
    scene = make_scene()
    first, second = scene.seated()
    first.close(), second.close()
    link = scene.service.listener.link()
    link.exchange(Frame("hello", term=1), 0)
    assert scene.coordinator.failure == ""
    assert scene.coordinator.result is not None


def test_a_hello_without_its_fields_ends_the_run_in_words(make_scene):
    scene = make_scene()
    link = scene.service.listener.link()
    link.exchange(Frame("hello", term=1), 0)
    assert "a hello of worker 0: a hello must hold attempt" in scene.coordinator.failure
    assert scene.coordinator.failure_kind == "FrameError"


@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt()])
def test_what_a_callback_raises_and_is_no_error_ends_the_run_too(make_scene, raised):
    def leaves(event):
        raise raised

    scene = make_scene()
    object.__setattr__(scene.coordinator.callbacks, "emit", leaves)
    player = Player(scene, 0)
    player.hello()
    Player(scene, 1).hello()
    assert scene.service.wait(0)
    assert scene.service.interrupt is raised
    assert type(raised).__name__ in scene.coordinator.failure
    assert "stop" in player.kinds()


def test_a_failing_worker_is_told_to_stop_and_its_error_is_kept(make_scene):
    scene = make_scene()
    link = scene.service.listener.link()
    bye = Frame("bye", term=1, slot=1, header={"error": "row 3 is wrong", "type": "DataError"})
    [answer] = link.exchange(bye, 0)
    assert answer.kind == "stop"
    assert scene.coordinator.failure == "row 3 is wrong"
    assert scene.coordinator.failure_kind == "DataError"


def test_a_zombies_error_is_nobodys(make_scene):
    scene = make_scene()
    first, _ = scene.seated()
    old = first.session.seat.frame("bye", {"error": "of old"})
    first.link.cut()
    scene.advance(1.1)
    Player(scene, 0, attempt="second").link.exchange(old, 0)
    assert scene.coordinator.failure == ""


def test_log_lines_become_events(make_scene):
    scene = make_scene()
    first, _ = scene.seated()
    first.say(first.session.seat.frame("note", {"level": "WARNING", "text": "slow disk"}))
    [log] = scene.events_of("Log")
    assert (log.slot, log.level, log.text) == (0, "WARNING", "slow disk")


def test_workers_are_reported_about_once_a_second(make_scene):
    scene = make_scene()
    players = scene.seated()
    for _ in range(3):
        for player in players:
            player.push()
        for player in players:
            player.understands()
        scene.advance(0.4)
    first, second = scene.events_of("WorkerReport")
    assert (first.slot, second.slot) == (0, 1)
    assert first.bytes_sent > 3 * 4 * SIZE
    scene.advance(5.0)
    assert len(scene.events_of("WorkerReport")) == 2, "nothing new, nothing told"


def test_bytes_of_a_push_that_is_not_whole_yet_keep_a_lease_and_a_place_in_the_round(make_scene):
    """The beats' link is broken; the push takes longer than a lease and than a round's patience."""
    scene = make_scene()
    first, second = scene.seated()
    scene.coordinator.owner._durations = [0.1] * 3  # so that 5 s are late
    second.push()
    first.link.peer.arriving = first.session.seat.frame("push")
    beat_link = scene.service.listener.link()
    for _ in range(40):
        first.link.peer.bytes_received += 1000
        beat_link.exchange(second.session.seat.frame("beat"), 0)
        scene.advance(1.0)
    assert scene.events_of("WorkerLost") == []
    assert second.kinds() == [], "the round waits for what is on its way"
    first.link.peer.arriving = None
    first.push()
    assert first.understands().kind == "agreed"
    assert second.understands().kind == "agreed"


def test_a_push_that_stands_still_keeps_neither(make_scene):
    scene = make_scene()
    first, second = scene.seated()
    beat_link = scene.service.listener.link()
    first.link.peer.arriving = first.session.seat.frame("push")
    first.link.peer.bytes_received += 1000
    scene.advance(1.0)
    for _ in range(5):
        beat_link.exchange(second.session.seat.frame("beat"), 0)
        scene.advance(1.0)
    assert [e.slot for e in scene.events_of("WorkerLost")] == [0]


def test_signs_of_life_that_waited_while_the_coordinator_was_busy_count(make_scene):
    """Nobody takes the lock while a large round is merged; what came meanwhile came."""
    scene = make_scene()
    first, second = scene.seated()
    beat_links = [scene.service.listener.link() for _ in range(2)]
    for link, player in zip(beat_links, (first, second), strict=True):
        link.exchange(player.session.seat.frame("beat"), 0)
    beat_links[0].peer.bytes_received += 60  # a beat that no thread could hand on yet
    scene.advance(60.0)
    assert [e.slot for e in scene.events_of("WorkerLost")] == [1]


def test_a_grant_that_waits_to_be_sent_is_not_sent_again(make_scene):
    scene = make_scene(workers=1)
    player = Player(scene, 0)
    player.hello()
    [grant] = player.receive()
    copies = []
    for is_waiting in (True, False):
        player.link.peer.waiting = (
            {scene.coordinator.leases[0].last_answer} if is_waiting else set()
        )
        player.say(player.sent)
        copies.append(player.kinds())
    assert grant.kind == "grant"
    assert copies == [[], ["grant"]]
