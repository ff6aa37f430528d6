import shutil
import threading
import uuid

import numpy as np
import pytest

from photinus.core.errors import LinkLostError
from photinus.testing import check_link, links
from photinus.testing.links import CHECKS
from photinus.testing.memory_link import MemoryListener
from photinus.transport.credentials import Credentials
from photinus.transport.folder import FolderLink, FolderListener
from photinus.transport.frames import Frame
from photinus.transport.link import Link
from photinus.transport.tcp_link import TcpLink
from photinus.transport.tcp_listener import TcpListener

TLS = Credentials.make(bytes(16))
WORKER = TLS.worker()
CLEAR = Credentials.none(bytes(16))
SHM = f"/dev/shm/photinus-test-{uuid.uuid4().hex}"


@pytest.fixture(autouse=True, scope="module")
def _leaves_nothing():
    yield
    shutil.rmtree(SHM, ignore_errors=True)


def make_memory(hear, gone):
    hub = MemoryListener(hear, gone)
    return hub, hub.link


def make_plain(hear, gone):
    listener = TcpListener("127.0.0.1", CLEAR, hear, gone)
    return listener, lambda: TcpLink(listener.address, CLEAR.worker())


def make_tls(hear, gone):
    listener = TcpListener("127.0.0.1", TLS, hear, gone)
    return listener, lambda: TcpLink(listener.address, WORKER)


def make_folder(hear, gone):
    listener = FolderListener(f"{SHM}/{uuid.uuid4().hex}", TLS, hear, gone)
    return listener, lambda: FolderLink(listener.address, WORKER)


def make_remote(hear, gone):
    listener = FolderListener("memory://runs", TLS, hear, gone)
    return listener, lambda: FolderLink(listener.address, WORKER)


MAKERS = [make_memory, make_plain, make_tls, make_folder, make_remote]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_every_transport_keeps_the_contract(make, check):
    check(make)


def test_the_whole_contract_is_one_call():
    check_link(make_memory)


class Numb(Link):
    def exchange(self, frame, seconds):
        return []

    def close(self):
        pass


@pytest.mark.parametrize("check", CHECKS[:3], ids=lambda check: check.__name__)
def test_a_link_that_breaks_the_contract_is_named(check, monkeypatch):
    monkeypatch.setattr(links, "_PATIENCE_SECONDS", 0.01)
    hub = MemoryListener(lambda peer, frame: None, lambda peer: None)
    with pytest.raises(AssertionError, match="a link must keep its contract"):
        check(lambda hear, gone: (hub, Numb))


@pytest.mark.parametrize("make", MAKERS)
def test_twenty_megabytes_travel_there_and_back(make):
    listener, connect = make(lambda peer, frame: peer.send(frame), lambda peer: None)
    worker = connect()
    big = np.random.default_rng(1).standard_normal(5_000_000, np.float32)
    frames = worker.exchange(Frame("push", arrays={"a": big}), 20.0)
    [reply] = frames or worker.exchange(None, 20.0)
    np.testing.assert_array_equal(reply.arrays["a"], big)
    listener.close()
    worker.close()


@pytest.mark.parametrize("make", MAKERS)
def test_a_link_closed_by_another_thread_ends_its_wait(make):
    listener, connect = make(lambda peer, frame: None, lambda peer: None)
    worker = connect()
    worker.exchange(Frame("hello"), 0)
    closer = threading.Timer(0.02, worker.close)
    closer.start()
    with pytest.raises(LinkLostError):
        worker.exchange(None, 20.0)
    closer.join()
    listener.close()


def test_a_frame_lost_or_doubled_is_a_fault_that_a_test_can_ask_for():
    kinds, ended = [], []
    hub = MemoryListener(
        lambda peer, frame: kinds.append(frame.kind) or peer.send(frame), ended.append
    )
    worker = hub.link()
    hub.up = lambda frame: {"push": 0, "beat": 2}.get(frame.kind, 1)
    hub.down = lambda frame: 0 if frame.kind == "hello" else 1
    back = [f.kind for kind in ("hello", "push", "beat") for f in worker.exchange(Frame(kind), 0)]
    assert kinds == ["hello", "beat", "beat"]
    assert back == ["beat", "beat"]
    worker.cut()
    with pytest.raises(LinkLostError):
        worker.exchange(Frame("push"), 0)
    assert ended == [worker.peer]
    hub.close()
    with pytest.raises(LinkLostError):
        hub.link()
