import threading

import pytest

from photinus.core.errors import LinkLostError
from photinus.testing.memory_link import MemoryListener
from photinus.transport.frames import Frame
from photinus.transport.heartbeat import HeartbeatSender


class Pulse:
    """Counts beats, and lets a test wait for them."""

    def __init__(self):
        self.count = 0
        self.changed = threading.Condition()

    def __call__(self, *_):
        with self.changed:
            self.count += 1
            self.changed.notify_all()

    def wait(self, count):
        with self.changed:
            assert self.changed.wait_for(lambda: self.count >= count, 10)


def test_a_beater_beats_until_it_is_closed():
    pulse, ended = Pulse(), Pulse()
    hub = MemoryListener(pulse, ended)
    with HeartbeatSender(hub.link, Frame("beat", slot=2), 0.001) as heartbeat:
        pulse.wait(3)
    heartbeat.close()
    assert not heartbeat._thread.is_alive()
    assert heartbeat.beats == pulse.count
    assert heartbeat.last_error is None
    assert ended.count == 1


def test_a_beater_stops_at_once_however_long_its_beat():
    pulse = Pulse()
    heartbeat = HeartbeatSender(MemoryListener(pulse, lambda peer: None).link, Frame("beat"), 3600)
    pulse.wait(1)
    heartbeat.close()
    assert not heartbeat._thread.is_alive()


def test_a_beater_makes_its_link_anew_and_remembers_why():
    pulse, failed, back = Pulse(), Pulse(), Pulse()
    hub = MemoryListener(pulse, lambda peer: None)
    links = []

    def make_link():
        if len(links) == 1:
            links.append(None)
            failed()
            raise LinkLostError("nobody")
        links.append(hub.link())
        if len(links) == 3:
            back()
        return links[-1]

    heartbeat = HeartbeatSender(make_link, Frame("beat"), 0.001)
    pulse.wait(1)
    links[0].cut()
    failed.wait(1)
    back.wait(1)
    pulse.wait(pulse.count + 1)
    heartbeat.close()
    assert len(links) == 3


def test_a_beater_tells_why_its_last_beat_failed():
    failed = Pulse()

    def make_link():
        failed()
        raise LinkLostError("nobody there")

    heartbeat = HeartbeatSender(make_link, Frame("beat"), 0.001)
    failed.wait(2)
    heartbeat.close()
    assert "nobody there" in str(heartbeat.last_error)


def test_a_process_that_stood_still_itself_counts_ten_beats_at_most(monkeypatch):
    silences, pulse = [], Pulse()
    clock = iter(range(0, 10_000, 1_000))
    monkeypatch.setattr("photinus.transport.heartbeat.time.monotonic", lambda: float(next(clock)))

    def note(seconds):
        silences.append(seconds)
        pulse()

    with HeartbeatSender(
        MemoryListener(lambda *_: None, lambda peer: None).link, Frame("beat"), 0.001, note
    ):
        pulse.wait(3)
    assert silences[:3] == pytest.approx([0.01, 0.02, 0.03])


@pytest.mark.parametrize("answers", [True, False])
def test_a_beater_tells_how_long_nothing_came_back(answers):
    silences, pulse = [], Pulse()

    def note(seconds):
        silences.append(seconds)
        pulse()

    def hear(peer, frame):
        if answers:
            peer.send(frame)

    with HeartbeatSender(MemoryListener(hear, lambda peer: None).link, Frame("beat"), 0.001, note):
        pulse.wait(5)
    assert silences == sorted(silences)
    assert (silences[-1] == 0) == answers
