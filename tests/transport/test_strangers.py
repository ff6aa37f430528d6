"""A thousand bad connections and ten thousand spoiled frames: no answer, no memory, no harm."""

import gc
import os
import random
import socket
import threading
import tracemalloc
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest

from photinus.core.errors import FrameError
from photinus.transport.credentials import Credentials
from photinus.transport.frames import Decoder, Frame, encode_frame
from photinus.transport.tcp_link import TcpLink, parse_address
from photinus.transport.tcp_listener import TcpListener
from photinus.transport.wire import Limits

RUN = bytes(range(16))
CONNECTIONS, FRAMES, MOST_BYTES = 1_000, 10_000, 10 << 20


def resident_bytes():
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def garbage(chance):
    """What scanners, other protocols, older programs and attackers say first."""
    kinds = (
        lambda: b"",
        lambda: b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        lambda: chance.randbytes(chance.randrange(1, 3_000)),
        lambda: b"\x16\x03\x01" + chance.randbytes(400),
        lambda: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + chance.randbytes(505),
        lambda: b"\x80\x04\x95" + chance.randbytes(300),
        lambda: b"PHOT" + b"\xff" * 40,
        lambda: b"\xff" * 30_000,
    )
    return chance.choice(kinds)()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read as on Linux")
def test_a_thousand_bad_connections_get_no_answer_and_cost_a_worker_nothing(ear):
    credentials, chance = Credentials.make(RUN), random.Random(3)
    limits = Limits(handshake_seconds=2.0, report_seconds=60.0)
    listener = TcpListener("127.0.0.1", credentials, ear.hear, ear.gone, limits, ear.refuse)
    where, longest = parse_address(listener.address), 0
    with closing(TcpLink(listener.address, credentials.worker())) as link:
        question = Frame("fetch", RUN, arrays={"a": np.arange(1000.0)})
        link.exchange(question, 10)
        before = resident_bytes()
        for number in range(CONNECTIONS):
            with socket.create_connection(where, 10) as stranger:
                try:
                    stranger.sendall(garbage(chance))
                    stranger.shutdown(socket.SHUT_WR)
                    answer = b"".join(iter(lambda s=stranger: s.recv(65536), b""))
                except OSError:
                    answer = b""
                longest = max(longest, len(answer))
                assert RUN not in answer
            if number % 100 == 0:
                [reply] = link.exchange(question, 10)
                assert reply.arrays["a"].tobytes() == question.arrays["a"].tobytes()
        ear.until(lambda: sum(listener.refused.values()) == CONNECTIONS)
        assert resident_bytes() - before < MOST_BYTES
    listener.close()
    assert longest < 3_000, "an alert, or TLS's own greeting, and nothing of ours"
    assert {frame.kind for _, frame in ear.frames} == {"fetch"}
    assert len(ear.reports) == 1, "told once a minute at most"


class Tap:
    """A way to a listener that keeps what goes to it."""

    def __init__(self, listener):
        self.recorded, self.where = bytearray(), parse_address(listener.address)
        self.entry = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.entry.getsockname()[1]}"
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self):
        with self.entry, self.entry.accept()[0] as inner, self._dial() as outer:
            back = threading.Thread(target=self._pump, args=(outer, inner, bytearray()))
            back.start()
            self._pump(inner, outer, self.recorded)
            back.join(10)

    def _dial(self):
        return socket.create_connection(self.where, 10)

    @staticmethod
    def _pump(source, target, record):
        with suppress(OSError):
            while data := source.recv(65536):
                record.extend(data)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def say_again(self):
        with self._dial() as sock, suppress(OSError):
            sock.sendall(self.recorded)
            while sock.recv(65536):
                pass


def test_what_was_recorded_on_the_wire_and_is_said_again_is_never_heard(ear):
    """A session's keys are new every time: bytes of an older one are no greeting of a worker."""
    credentials = Credentials.make(RUN)
    listener = TcpListener("127.0.0.1", credentials, ear.hear, ear.gone, None, ear.refuse)
    with closing(listener):
        tap, question = Tap(listener), Frame("fetch", RUN, arrays={"a": np.arange(9.0)})
        with closing(TcpLink(tap.address, credentials.worker())) as link:
            link.exchange(question, 10)
        tap.thread.join(10)
        assert len(tap.recorded) > 1_000
        for _ in range(3):
            tap.say_again()
        ear.until(lambda: sum(listener.refused.values()) == 3)
        assert [frame.kind for _, frame in ear.frames] == ["fetch"]
        with closing(TcpLink(listener.address, credentials.worker())) as link:
            assert [frame.kind for frame in link.exchange(question, 10)] == ["fetch"]


def spoiled(chance, whole):
    """A frame with bits flipped, bytes cut out or put in, or numbers blown up."""
    data = bytearray(whole)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(data))
        kind = chance.randrange(4)
        if kind == 0:
            data[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del data[at : at + chance.randrange(1, 40)]
        elif kind == 2:
            data[at:at] = chance.randbytes(chance.randrange(1, 40))
        else:
            data[at : at + 8] = b"\xff" * 8
        data = data or bytearray(b"x")
    return bytes(data)


def test_ten_thousand_spoiled_frames_are_refused_or_whole_and_hold_no_memory():
    chance, refused = random.Random(4), 0
    frame = Frame(
        "push",
        RUN,
        slot=1,
        header={"a": 1.5},
        arrays={"a": np.arange(64.0), "b": np.zeros(3, "i8")},
    )
    whole = b"".join(encode_frame(frame))
    tracemalloc.start()
    try:
        for _ in range(FRAMES):
            decoder = Decoder()
            try:
                for decoded in decoder.feed(spoiled(chance, whole)):
                    assert isinstance(decoded, Frame)
            except FrameError:
                refused += 1
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MOST_BYTES
    assert refused > FRAMES // 2
