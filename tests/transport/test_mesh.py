"""Links from worker to worker: nobody waits, what is lost is told, keys decide who may listen."""

import dataclasses
import threading

import numpy as np
import pytest

from photinus.core.errors import AuthenticationError, LinkLostError
from photinus.testing.memory_link import MemoryListener
from photinus.transport import mesh as room
from photinus.transport.credentials import Credentials
from photinus.transport.frames import Frame
from photinus.transport.mesh import Mesh, is_same
from photinus.transport.tcp_link import TcpLink
from photinus.transport.tcp_listener import TcpListener

RUN = bytes(16)


class Net:
    """Meshes in memory, by name."""

    def __init__(self):
        self.hubs = {}

    def mesh(self, name):
        def listen(hear, gone):
            self.hubs[name] = MemoryListener(hear, gone)
            self.hubs[name].address = name
            return self.hubs[name]

        return Mesh(listen, self.connect)

    def connect(self, name):
        if name not in self.hubs:
            raise LinkLostError("nobody is there")
        return self.hubs[name].link()


@pytest.fixture
def net():
    return Net()


def taken(mesh, count):
    frames = []
    while len(frames) < count:
        more = mesh.take(10.0)
        assert more, f"{len(frames)} of {count} came"
        frames += more
    return frames


def test_frames_reach_whom_they_are_for_in_order(net):
    a, b, c = (net.mesh(name) for name in "abc")
    for n in range(5):
        a.send("b", Frame("publish", sequence=n))
    c.send("b", Frame("part", slot=3))
    frames = taken(b, 6)
    assert [f.sequence for f in frames if f.kind == "publish"] == list(range(5))
    assert c.take(0.0) == []
    for mesh in (a, b, c):
        mesh.close()


def test_what_cannot_be_sent_is_lost_and_told_once(net):
    a = net.mesh("a")
    a.send("nowhere", Frame("publish"))
    while not a.lost:
        a.take(0.01)
    assert a.broken() == ["nowhere"]
    assert a.broken() == []
    net.mesh("nowhere")
    a.send("nowhere", Frame("part"))
    a.close()


def slow_line(net):
    """Two meshes whose line waits, with a first publication under way, until the event is set."""
    gate, started = threading.Event(), threading.Event()
    b, direct = net.mesh("b"), net.connect

    def slow(name):
        started.set()
        gate.wait(10)
        return direct(name)

    net.connect = slow
    a = net.mesh("a")
    a.send("b", Frame("publish", sequence=0))
    assert started.wait(10)
    return a, b, gate


def test_publications_to_a_slow_line_push_the_oldest_out_and_pieces_never(net):
    a, b, gate = slow_line(net)
    for n in range(1, 30):
        a.send("b", Frame("publish", sequence=n))
    a.send("b", Frame("part"))
    assert a.lost == 13
    gate.set()
    frames = taken(b, 18)
    assert [f.sequence for f in frames[:-1]] == [0, *range(14, 30)]
    assert frames[-1].kind == "part"
    a.close()
    b.close()


def test_a_piece_that_waits_already_is_not_sent_twice(net):
    gate, started = threading.Event(), threading.Event()
    b = net.mesh("b")
    direct = net.connect

    def slow(name):
        started.set()
        gate.wait(10)
        return direct(name)

    net.connect = slow
    a = net.mesh("a")
    piece = Frame("part", header={"version": 3, "slots": [0, 1]})
    a.send("b", piece)
    assert started.wait(10)
    pieces = [
        dataclasses.replace(piece, **fields)
        for fields in (
            {"header": {"version": 4, "slots": [0, 1]}},
            {"header": {"version": 3, "slots": [0]}},
            {"kind": "whole"},
            {"lease": 2},
        )
    ]
    for frame in [piece, *pieces, *pieces, piece]:
        a.send("b", frame)
    a.send("b", Frame("publish", sequence=1))
    a.send("b", Frame("publish", sequence=2))
    gate.set()
    received = [(f.kind, f.header.get("version", 0), f.lease) for f in taken(b, 7)]
    assert received == [
        (f.kind, f.header.get("version", 0), f.lease) for f in [piece, *pieces]
    ] + 2 * [("publish", 0, 0)]
    assert b.take(0.0) == []
    a.close()
    b.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [("version", 4), ("slots", [0, 2]), ("leases", [1, 2]), ("restores", True), ("reading", 2)],
)
def test_pieces_of_two_meetings_and_answers_to_two_questions_are_not_the_same(name, value):
    header = {"version": 3, "slots": [0, 1], "leases": [1, 1], "restores": False, "reading": 1}
    one = Frame("part", header=header)
    assert is_same(one, Frame("part", header=dict(header)))
    assert not is_same(one, Frame("part", header={**header, name: value}))


def test_two_pages_that_are_asked_for_are_not_the_same():
    first, next_ = (Frame("fetch", arrays={"start": np.array([row])}) for row in (0, 8))
    assert is_same(first, first)
    assert not is_same(first, next_)


def test_a_line_rests_between_tries_and_closes_at_once(net, monkeypatch):
    tried, rests = threading.Event(), []

    def backoff(tries, who, most):
        rests.append(tries)
        if tries == 3:
            tried.set()
            return 1e6
        return 0.0

    monkeypatch.setattr(room, "backoff", backoff)
    a = net.mesh("a")
    for n in range(6):
        a.send("nowhere", Frame("part", header={"version": n}))
    assert tried.wait(10)
    a.close()
    assert rests == [0, 1, 2, 3]
    assert a.lost == 0, "a closed line is no longer counted"


def test_a_link_that_is_made_while_its_line_closes_is_closed(net):
    net.mesh("b")
    is_dialled, may_answer, links = threading.Event(), threading.Event(), []

    def connect(name):
        is_dialled.set()
        assert may_answer.wait(10)
        links.append(net.connect(name))
        return links[0]

    a = Mesh(MemoryListener, connect)
    a.send("b", Frame("part"))
    assert is_dialled.wait(10)
    closing = threading.Thread(target=a.close)
    closing.start()
    may_answer.set()
    closing.join(10)
    with pytest.raises(LinkLostError):
        links[0].exchange(Frame("part"), 0.0)


def test_lines_to_those_who_left_end(net):
    a, b = net.mesh("a"), net.mesh("b")
    a.send("b", Frame("publish"))
    taken(b, 1)
    a.keep(["c"])
    a.send("b", Frame("publish", sequence=2))
    assert taken(b, 1)[0].sequence == 2
    a.close()
    b.close()


def tls(key):
    def listen(hear, gone):
        return TcpListener("127.0.0.1", key, hear, gone)

    return Mesh(listen, lambda address: TcpLink(address, key, connect_seconds=2.0))


@pytest.mark.parametrize("kind", ["make", "none"])
def test_workers_speak_over_sockets_with_keys_of_one_run(kind):
    credentials = getattr(Credentials, kind)(RUN)
    a, b = (tls(credentials.worker(is_peer=True)) for _ in range(2))
    a.send(b.address, Frame("publish", slot=1))
    b.send(a.address, Frame("whole", slot=2))
    assert taken(b, 1)[0].slot == 1
    assert taken(a, 1)[0].slot == 2
    a.close()
    b.close()


def test_a_worker_whose_key_was_not_made_to_listen_is_no_listener():
    credentials = Credentials.make(RUN)
    mesh = tls(credentials.worker())
    with pytest.raises(AuthenticationError):
        TcpLink(mesh.address, credentials.worker(is_peer=True), connect_seconds=2.0)
    mesh.close()


def test_a_frame_that_comes_in_is_told_while_it_gets_on(net, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(room.time, "monotonic", lambda: now[0])
    a, b = net.mesh("a"), net.mesh("b")
    b.send("a", Frame("publish", slot=1))
    taken(a, 1)
    assert a.arriving() == set()
    [peer] = net.hubs["a"].peers()
    peer.arriving = Frame("part", slot=1)
    peer.bytes_received += 10
    assert a.arriving() == {1}
    now[0] = 4.0
    assert a.arriving() == {1}, "its bytes moved less than five seconds ago"
    now[0] = 6.0
    assert a.arriving() == set(), "it stands still"
    peer.bytes_received += 10
    assert a.arriving() == {1}
    a.close()
    b.close()


def test_publications_to_a_slow_line_are_bounded_by_their_bytes(net, monkeypatch):
    monkeypatch.setattr(room, "_MOST_WAITING_BYTES", 100)
    a, b, gate = slow_line(net)
    for n in range(1, 6):
        a.send("b", Frame("publish", sequence=n, arrays={"a": np.zeros(10)}))
    gate.set()
    assert [f.sequence for f in taken(b, 3)] == [0, 4, 5]
    assert a.lost == 3
    a.close()
    b.close()
