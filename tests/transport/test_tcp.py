import errno
import socket
import ssl
import threading
import time
from contextlib import suppress

import numpy as np
import pytest

from photinus.core.errors import (
    AuthenticationError,
    FrameError,
    LinkLostError,
    NotReadyError,
    UsageError,
)
from photinus.transport.credentials import Credentials, WorkerKey
from photinus.transport.frames import Frame, encode_frame
from photinus.transport.rate_limit import RateLimit
from photinus.transport.tcp_link import TcpLink, local_host, parse_address
from photinus.transport.tcp_listener import TcpListener
from photinus.transport.wire import Limits

RUN = bytes(range(16))
TLS = Credentials.make(RUN)
OTHER = Credentials.make(RUN)
CLEAR = Credentials.none(RUN)
QUICK = {"handshake_seconds": 0.2, "stall_seconds": 0.3}


@pytest.fixture
def listen(ear):
    """Opens listeners, and ends them."""
    opened = []

    def open_(credentials=TLS, host="127.0.0.1", **limits):
        limits = Limits(**({"report_seconds": 1e-9} | limits))
        opened.append(TcpListener(host, credentials, ear.hear, ear.gone, limits, ear.refuse))
        return opened[-1]

    yield open_
    for listener in opened:
        listener.close()
        assert listener.connections == 0


def dial(listener, source=""):
    where = parse_address(listener.address)
    return socket.create_connection(where, 10, (source, 0) if source else None)


def until_dropped(sock):
    """Reads until the other side ends, and returns what it said."""
    received = b""
    try:
        while data := sock.recv(65536):
            received += data
    except ConnectionResetError:
        pass
    sock.close()
    return received


def until(holds):
    """Looks again and again: what a thread of the listener counts is told to nobody."""
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        threading.Event().wait(0.001)


def assert_still_serves(listener, credentials=TLS):
    worker = TcpLink(listener.address, credentials.worker(), connect_seconds=5)
    [frame] = worker.exchange(Frame("fetch", RUN, slot=3), 10)
    assert frame.slot == 3
    worker.close()


KEY, FOREIGN = TLS.worker(), OTHER.worker()
MIXED = WorkerKey(RUN, KEY.authority, FOREIGN.certificate, FOREIGN.secret, FOREIGN.password)


@pytest.mark.parametrize("wrong", [FOREIGN, MIXED], ids=["foreign", "not known to the server"])
def test_a_wrong_key_is_an_error_within_five_seconds(listen, ear, wrong):
    listener = listen()
    start = time.monotonic()
    with pytest.raises(AuthenticationError) as refused:
        TcpLink(listener.address, wrong)
    message = str(refused.value)
    assert message.startswith("the two sides hold keys of different runs; got ")
    assert message.endswith("; give each worker a key of this very run")
    assert time.monotonic() - start < 5
    ear.until(lambda: listener.refused == {"foreign": 1})
    assert_still_serves(listener)


@pytest.mark.parametrize("secure", [True, False])
def test_a_worker_of_another_run_is_told_so(listen, secure, ear):
    ours = Credentials.make(RUN) if secure else CLEAR
    listener = listen(ours)
    key = ours.worker()
    stray = WorkerKey(bytes(16), key.authority, key.certificate, key.secret, key.password)
    with pytest.raises(AuthenticationError, match="another run"):
        TcpLink(listener.address, stray)
    ear.until(lambda: listener.refused == {"run": 1})
    assert_still_serves(listener, ours)


def test_two_sides_that_disagree_on_security_are_told_so_or_part(listen):
    with pytest.raises((AuthenticationError, LinkLostError)):
        TcpLink(listen(TLS).address, CLEAR.worker(), connect_seconds=0.1)
    with pytest.raises((AuthenticationError, LinkLostError)):
        TcpLink(listen(CLEAR).address, TLS.worker(), connect_seconds=0.1)


def test_a_client_without_a_certificate_is_refused(listen, ear):
    listener = listen()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=TLS.worker().authority.decode())
    with context.wrap_socket(dial(listener)) as sock, pytest.raises(ssl.SSLError, match="REQUIRED"):
        sock.recv(1)
    assert_still_serves(listener)
    ear.until(lambda: listener.refused == {"foreign": 1})


def test_older_tls_is_refused(listen):
    listener = listen()
    context = TLS.worker().client_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    sock = dial(listener)
    with pytest.raises(ssl.SSLError):
        context.wrap_socket(sock)
    sock.close()
    assert_still_serves(listener)


def test_a_worker_cannot_pose_as_the_server(listen, ear):
    worker = TLS.worker()
    false = Credentials(RUN, worker, TLS.worker)
    listener = TcpListener("127.0.0.1", false, ear.hear, ear.gone)
    with pytest.raises(AuthenticationError, match="purpose"):
        TcpLink(listener.address, TLS.worker())
    listener.close()


def test_a_server_key_cannot_pose_as_a_worker(listen):
    listener = listen()
    with pytest.raises(AuthenticationError):
        TcpLink(listener.address, TLS._server)
    assert_still_serves(listener)


@pytest.mark.parametrize("credentials", [TLS, CLEAR], ids=["tls", "none"])
@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x80\x04\x95" + b"\0" * 500,
        b"\x16\x03\x01" + b"\xff" * 500,
        b"PHOT\x02" + RUN,
        b"\xff" * 100_000,
    ],
    ids=["http", "pickle", "tls", "version", "flood"],
)
def test_garbage_is_refused_counted_and_harms_nobody(listen, credentials, garbage, ear):
    listener = listen(credentials)
    for _ in range(3):
        sock = dial(listener)
        try:
            sock.sendall(garbage)
            answer = until_dropped(sock)
            assert answer == b"" if credentials is CLEAR else RUN not in answer
        except (BrokenPipeError, ConnectionResetError):
            sock.close()
    assert_still_serves(listener, credentials)
    ear.until(lambda: sum(listener.refused.values()) == 3)
    assert ear.reports[0].total() == 1


def test_a_silent_stranger_is_dropped_in_time(listen, ear):
    listener = listen(**QUICK)
    start = time.monotonic()
    assert until_dropped(dial(listener)) == b""
    assert time.monotonic() - start < 3
    ear.until(lambda: listener.refused == {"silent": 1})


def test_at_most_so_many_connect_at_once(listen, ear):
    listener = listen(CLEAR, max_connections=2)
    links = [TcpLink(listener.address, CLEAR.worker()) for _ in range(2)]
    with pytest.raises(LinkLostError, match="no process of this run answers"):
        TcpLink(listener.address, CLEAR.worker(), connect_seconds=0.01)
    ear.until(lambda: listener.refused["full"] >= 1)
    links.pop().close()
    ear.until(lambda: ear.lost)
    TcpLink(listener.address, CLEAR.worker(), connect_seconds=5).close()
    links.pop().close()


def test_strangers_cannot_take_all_threads(listen, ear):
    listener = listen(CLEAR, max_strangers=1)
    first = dial(listener)
    second = dial(listener)
    assert until_dropped(first) == b"", "the oldest gives its place"
    ear.until(lambda: listener.refused == {"full": 1})
    second.close()


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x02\x00\x01"], ids=["silent", "begun"])
def test_a_worker_gets_in_while_strangers_hold_every_place(listen, ear, said):
    """Its places are all held by who has only begun, and more come while it greets."""
    listener = listen(TLS, max_strangers=128)
    strangers = [dial(listener) for _ in range(128)]
    for sock in strangers:
        sock.sendall(said)
    began = time.monotonic()
    assert_still_serves(listener)
    assert time.monotonic() - began < 4.5, "before the strangers' five seconds were over"
    for sock in strangers:
        sock.close()


def test_who_was_let_in_before_gives_its_place_last(listen, ear):
    """A host that strangers do not share is safe even while it greets."""
    listener = listen(CLEAR, max_strangers=2)
    TcpLink(listener.address, CLEAR.worker()).close()
    ear.until(lambda: ear.lost)
    other = [dial(listener, source="127.0.0.2") for _ in range(2)]
    worker = dial(listener)  # in the place of one of them
    ear.until(lambda: listener.refused == {"full": 1})
    more = [dial(listener, source="127.0.0.2") for _ in range(3)]
    ear.until(lambda: listener.refused == {"full": 4})
    worker.sendall(b"PHOT\x01" + RUN)
    assert worker.recv(6) == b"PHOT\x01\x00"
    for sock in (*other, *more, worker):
        sock.close()


@pytest.mark.parametrize("credentials", [TLS, CLEAR], ids=["tls", "none"])
def test_a_known_worker_that_sends_no_frames_is_cut_and_told_once(listen, ear, credentials):
    listener = listen(credentials)
    worker = TcpLink(listener.address, credentials.worker())
    worker.exchange(Frame("fetch", RUN), 10)
    worker._wire.send([b"x" * 100], 1)
    with pytest.raises(LinkLostError):
        worker.exchange(None, 10)
    ear.until(lambda: ear.lost)
    assert [frame.kind for _, frame in ear.frames] == ["fetch"]
    assert len(ear.lost) == 1
    ear.until(lambda: listener.refused == {"frame": 1})
    worker.close()
    assert_still_serves(listener, credentials)


def test_a_vector_above_the_cap_is_refused(listen, ear):
    listener = listen(max_vector_bytes=1000)
    worker = TcpLink(listener.address, TLS.worker())
    worker.exchange(Frame("push", RUN, arrays={"a": np.zeros(250, "f4")}), 0)
    with pytest.raises(LinkLostError):
        worker.exchange(Frame("push", RUN, arrays={"a": np.zeros(251, "f4")}), 10)
    ear.until(lambda: ear.lost)
    assert len(ear.frames) == 1
    ear.until(lambda: listener.refused == {"frame": 1})
    worker.close()


def test_frames_of_another_run_are_dropped_and_counted(listen, ear):
    listener = listen()
    worker = TcpLink(listener.address, TLS.worker())
    worker.exchange(Frame("push", bytes(16)), 0)
    worker.exchange(Frame("fetch", RUN), 10)
    assert [frame.kind for _, frame in ear.frames] == ["fetch"]
    ear.until(lambda: listener.refused == {"run": 1})
    worker.close()


def test_a_frame_that_may_not_travel_leaves_the_link_whole(listen):
    worker = TcpLink(listen().address, TLS.worker())
    with pytest.raises(FrameError):
        worker.exchange(Frame("evil", RUN), 0)
    assert worker.exchange(Frame("fetch", RUN), 10)
    worker.close()


def test_a_peer_that_takes_nothing_is_cut_and_blocks_nobody(listen, ear):
    listener = listen(CLEAR, **QUICK)
    worker = TcpLink(listener.address, CLEAR.worker())
    worker.exchange(Frame("hello", RUN), 0)
    ear.until(lambda: ear.frames)
    start = time.monotonic()
    for _ in range(20):
        ear.frames[0][0].send(Frame("agreed", RUN, arrays={"a": np.zeros(1_000_000, "f4")}))
    assert time.monotonic() - start < 2
    ear.until(lambda: ear.lost)
    ear.frames[0][0].send(Frame("agreed", RUN))
    worker.close()


def test_a_queue_above_its_cap_cuts_the_peer(listen, ear):
    listener = listen(CLEAR, max_queued_bytes=1000)
    worker = TcpLink(listener.address, CLEAR.worker())
    worker.exchange(Frame("hello", RUN), 0)
    ear.until(lambda: ear.frames)
    ear.frames[0][0].send(Frame("agreed", RUN, arrays={"a": np.zeros(1000)}))
    ear.until(lambda: ear.lost)
    worker.close()


def test_both_directions_may_be_full_at_once(listen):
    worker = TcpLink(listen().address, TLS.worker())
    big = np.arange(3_000_000, dtype="f4")
    frames = [
        f for _ in range(3) for f in worker.exchange(Frame("fetch", RUN, arrays={"a": big}), 0)
    ]
    while len(frames) < 3:
        frames += worker.exchange(None, 10)
    for frame in frames:
        np.testing.assert_array_equal(frame.arrays["a"], big)
    worker.close()


def test_sixty_four_links_at_once(listen, ear):
    listener = listen()
    key = TLS.worker()
    answers = {}

    def work(slot):
        worker = TcpLink(listener.address, key)
        [frame] = worker.exchange(
            Frame("fetch", RUN, slot=slot, arrays={"a": np.full(99, slot)}), 20
        )
        answers[slot] = frame.arrays["a"][0]
        worker.close()

    threads = [threading.Thread(target=work, args=(slot,)) for slot in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {slot: slot for slot in range(64)}
    ear.until(lambda: len(ear.lost) == 64)
    assert listener.refused == {}


def test_a_worker_waits_for_a_listener_that_comes_late(ear):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with pytest.raises(LinkLostError, match=r"no process of this run answers.*ConnectionRefused"):
        TcpLink(address, TLS.worker(), connect_seconds=0.1)


def test_ipv6_serves_too(listen):
    try:
        listener = listen(host="::1")
    except NotReadyError:
        pytest.skip("no IPv6 here")
    assert listener.address.startswith("[::1]:")
    assert_still_serves(listener)


def test_a_link_knows_where_a_peer_may_listen(listen):
    worker = TcpLink(listen().address, TLS.worker())
    assert worker.local_host == "127.0.0.1"
    worker.close()


def test_a_host_of_another_machine_is_refused(ear):
    with pytest.raises(NotReadyError, match=r"192\.0\.2\.1"):
        TcpListener("192.0.2.1", TLS, ear.hear, ear.gone)


@pytest.mark.parametrize("address", ["", "host", "host:", ":7", "host:x", "host:70000"])
def test_an_address_is_host_and_port(address):
    with pytest.raises(UsageError, match="host:port"):
        parse_address(address)


def test_a_listener_closed_from_its_own_ear_ends():
    ended = threading.Event()
    listener = TcpListener(
        "127.0.0.1", CLEAR, lambda peer, frame: listener.close(), lambda peer: ended.set()
    )
    worker = TcpLink(listener.address, CLEAR.worker())
    with suppress(LinkLostError):  # where the end is quicker than the look for answers
        worker.exchange(Frame("stop", RUN), 0)
    assert ended.wait(10)
    worker.close()
    listener.close()


def test_refusals_are_told_at_most_once_a_minute(ear):
    listener = TcpListener(
        "127.0.0.1", CLEAR, ear.hear, ear.gone, Limits(max_strangers=1), ear.refuse
    )
    strangers = [dial(listener) for _ in range(4)]
    for sock in strangers[:3]:
        assert until_dropped(sock) == b""
    strangers[3].close()
    listener.close()
    assert ear.reports == [{"full": 1}]
    assert listener.refused["full"] == 3


@pytest.mark.parametrize("credentials", [TLS, CLEAR], ids=["tls", "clear"])
def test_how_fast_vectors_come_in_is_known_once_one_came(listen, ear, credentials):
    listener = listen(credentials)
    key = credentials.worker()
    link = TcpLink(listener.address, key)
    link.exchange(Frame("note", RUN), 0)
    ear.until(lambda: len(ear.frames) == 1)
    (peer, _) = ear.frames[0]
    assert peer.bytes_per_second == 0
    began = time.monotonic()
    link.exchange(Frame("push", RUN, arrays={"a": np.ones(1 << 20, "f4")}), 0)
    link.exchange(Frame("note", RUN), 0)
    ear.until(lambda: len(ear.frames) == 3)
    assert peer.bytes_per_second >= (4 << 20) / (time.monotonic() - began)
    link.close()


def test_this_machine_is_seen_by_itself_on_the_loopback_and_no_way_is_an_error():
    assert local_host("127.0.0.1") == "127.0.0.1"
    with pytest.raises(LinkLostError, match="there is no network route from here to"):
        local_host("no such host.invalid")


def test_how_far_a_frame_has_come_is_seen_before_it_is_whole(listen, ear):
    """Of both sides: its head, and the bytes that moved."""
    listener = listen(CLEAR)
    sock = dial(listener)
    sock.sendall(b"PHOT\x01" + RUN)
    assert sock.recv(6) == b"PHOT\x01\x00"
    data = b"".join(encode_frame(Frame("push", RUN, slot=7, arrays={"a": np.zeros(50_000)})))
    sock.sendall(data[:200_000])
    until(lambda: [p for p in listener.peers() if p.bytes_received >= 200_000])
    [peer] = listener.peers()
    until(lambda: peer.arriving is not None)
    assert (peer.arriving.kind, peer.arriving.slot) == ("push", 7)
    assert ear.frames == []
    sock.sendall(data[200_000:])
    ear.until(lambda: ear.frames)
    until(lambda: peer.arriving is None)
    sock.close()


def test_a_frame_waits_until_the_system_has_taken_it(listen, ear):
    """The other side takes nothing: what is sent is seen as waiting, and its bytes as moved."""
    listener = listen(CLEAR)
    link = TcpLink(listener.address, CLEAR.worker())
    link.exchange(Frame("push", RUN), 0)
    ear.until(lambda: ear.frames)
    peer, large = ear.frames[0][0], Frame("grant", RUN, arrays={"a": np.zeros(8 << 20)})
    before = peer.bytes_sent
    peer.send(large)
    assert large in peer.waiting
    until(lambda: peer.bytes_sent > before)
    assert large in peer.waiting
    received = link.bytes_received
    frames = []
    while not frames:
        frames = link.exchange(None, 1.0)
    assert link.bytes_received - received > 64 << 20
    until(lambda: large not in peer.waiting)
    link.close()


def connected(listen, ear, keys):
    """Returns a worker's link, and the listener's side of it."""
    link = TcpLink(listen(keys).address, keys.worker())
    link.exchange(Frame("push", RUN), 0)
    ear.until(lambda: ear.frames)
    return link, ear.frames[0][0]


@pytest.mark.parametrize("keys", [TLS, CLEAR], ids=["tls", "clear"])
def test_a_small_frame_is_sent_without_a_wait(listen, ear, keys):
    """From the thread that sends it: nothing is left for the one that writes."""
    link, peer = connected(listen, ear, keys)
    before = peer.bytes_sent
    peer.send(Frame("agreed", RUN, arrays={"a": np.arange(9_610, dtype="f4")}))
    assert peer.bytes_sent > before + 38_440
    assert not peer.waiting
    [frame] = link.exchange(None, 10)
    np.testing.assert_array_equal(frame.arrays["a"], np.arange(9_610))
    link.close()


def test_a_small_frame_that_cannot_be_sent_ends_the_connection(listen, ear, monkeypatch):
    """The system may refuse it for a reason that the reader does not see."""
    link, peer = connected(listen, ear, CLEAR)

    class Full:
        """A socket for which the system has no memory."""

        def __init__(self, sock):
            self._sock = sock

        def __getattr__(self, name):
            return getattr(self._sock, name)

        def sendmsg(self, _):
            raise OSError(errno.ENOBUFS, "No buffer space available")

    monkeypatch.setattr(peer._wire, "_sock", Full(peer._wire._sock))
    peer.send(Frame("agreed", RUN))
    ear.until(lambda: ear.lost)
    with pytest.raises(LinkLostError):
        link.exchange(None, 10)
    link.close()


@pytest.mark.parametrize("keys", [TLS, CLEAR], ids=["tls", "clear"])
def test_frames_keep_their_order_when_the_system_takes_only_some_at_once(listen, ear, keys):
    """A worker reads nothing meanwhile: small and large frames wait behind a part of one."""
    link, peer = connected(listen, ear, keys)
    sizes, count = (10, 9_610, 9_610, 100_000), 0
    while len(peer.waiting) < 20:
        numbers = np.full(sizes[count % 4], count, "f4")
        peer.send(Frame("agreed", RUN, sequence=count, arrays={"a": numbers}))
        count += 1
    frames = []
    while len(frames) < count:
        frames += link.exchange(None, 10)
    assert [f.sequence for f in frames] == list(range(count))
    for frame in frames:
        assert (frame.arrays["a"] == frame.sequence).all()
        assert frame.arrays["a"].size == sizes[frame.sequence % 4]
    until(lambda: not peer.waiting)
    link.close()


def test_a_worker_sees_that_a_long_frame_comes_in(listen, ear):
    """Whoever watches its link sees the bytes move before the frame is whole."""
    rate_limit = RateLimit(2e6)
    listener = listen(CLEAR, rate_limit=rate_limit)
    link = TcpLink(listener.address, CLEAR.worker())
    link.exchange(Frame("push", RUN), 0)
    ear.until(lambda: ear.frames)
    ear.frames[0][0].send(Frame("grant", RUN, arrays={"a": np.zeros(100_000)}))
    counts, frames = set(), []
    while not frames:
        frames = link.exchange(None, 0.02)
        counts.add(link.bytes_received)
    assert len(counts) > 5
    link.close()
