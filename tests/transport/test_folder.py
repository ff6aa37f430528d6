"""The folder transport: what a stranger puts there, a listener that dies, HDFS."""

import errno
import os
import socket
import threading
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from photinus.core.errors import AuthenticationError, LinkLostError, NotReadyError, UsageError
from photinus.testing import check_link
from photinus.transport import folder
from photinus.transport.credentials import Credentials
from photinus.transport.filesystems import LocalFilesystem, filesystem_of
from photinus.transport.folder import SCHEME, FolderLink, FolderListener
from photinus.transport.frames import Frame
from photinus.transport.seal import Seal

KEYS = Credentials.make(bytes(16))


@pytest.fixture
def echo(tmp_path):
    """A listener that sends everything back, and what it heard."""
    listener = FolderListener(str(tmp_path), KEYS, lambda p, f: p.send(f), lambda p: None)
    yield listener
    listener.close()


def link_to(listener, keys=KEYS):
    return FolderLink(listener.address, keys.worker(), connect_seconds=5.0)


def files_of(listener):
    root = Path(listener.address.removeprefix(SCHEME))
    return {file.relative_to(root).as_posix(): file for file in root.rglob("*") if file.is_file()}


def test_files_are_sealed_for_their_owner_alone_and_gone_once_read(echo, tmp_path):
    link = link_to(echo)
    vector = np.full(1000, 7.0, np.float32)
    [back] = link.exchange(Frame("push", arrays={"a": vector}), 10.0)
    assert (back.arrays["a"] == vector).all()
    [(name, sign)] = files_of(echo).items()
    assert name.startswith("signs/")
    assert sign.stat().st_mode & 0o777 == 0o600
    assert {d.stat().st_mode & 0o777 for d in sign.parents[:2]} == {0o700}
    link.close()
    echo.close()
    assert list(tmp_path.iterdir()) == []


def test_what_lies_in_the_folder_tells_nothing(tmp_path):
    place = filesystem_of(str(tmp_path))
    line = folder._FileQueue(place, Seal(KEYS.worker()), "up/link-")
    line.put(Frame("push", header={"secret": "plain words"}))
    [name] = place.names("up")
    assert b"plain words" not in (tmp_path / "up" / name).read_bytes()


@pytest.mark.parametrize("what", ["garbage", "moved", "empty"])
def test_a_strangers_file_is_never_heard(tmp_path, what):
    kinds, has_frame = [], threading.Event()

    def hear(peer, frame):
        kinds.append(frame.kind)
        has_frame.set()

    listener = FolderListener(str(tmp_path), KEYS, hear, lambda p: None)
    root = Path(listener.address.removeprefix(SCHEME))
    up = root / "up"
    up.mkdir(exist_ok=True)
    text = {"garbage": os.urandom(500), "empty": b""}
    text["moved"] = next(file for n, file in files_of(listener).items() if n.startswith("signs"))
    data = text[what] if isinstance(text[what], bytes) else text[what].read_bytes()
    aside = up / ".aside"
    aside.write_bytes(data)
    aside.rename(up / "0123456789abcdef-000000000000")
    link = link_to(listener)
    link.exchange(Frame("hello"), 0)
    assert has_frame.wait(10.0)
    assert kinds == ["hello"]
    assert listener.refused["foreign"] == 1
    link.close()
    listener.close()


def test_files_that_are_put_back_are_never_heard_again(tmp_path, monkeypatch):
    """Neither while their worker speaks nor after it left."""
    kinds, left, files, write = [], threading.Event(), {}, LocalFilesystem.put

    def keeping(self, name, data):
        files[name] = bytes(data)
        write(self, name, data)

    monkeypatch.setattr(LocalFilesystem, "put", keeping)
    listener = FolderListener(
        str(tmp_path), KEYS, lambda p, f: kinds.append(f.kind), lambda p: left.set()
    )
    place = filesystem_of(listener.address.removeprefix(SCHEME))

    def put_back():
        for name in [name for name in files if name.startswith("up/")]:
            write(place, name, files[name])

    with closing(listener), closing(link_to(listener)) as link:
        link.exchange(Frame("hello"), 0)
        link.exchange(Frame("push"), 0)
        put_back()
        link.exchange(Frame("note"), 0)
        link.close()
        assert left.wait(10.0)
        put_back()
        with closing(link_to(listener)) as second:
            second.exchange(Frame("beat"), 0)
        deadline = time.monotonic() + 10
        while "beat" not in kinds and time.monotonic() < deadline:
            threading.Event().wait(0.01)
        listener.close()  # looks once more
    assert kinds == ["hello", "push", "note", "beat"]


def test_a_worker_of_another_run_is_told_so(echo):
    credentials = Credentials.make(bytes(16))
    with pytest.raises(AuthenticationError, match="not sealed by this run"):
        link_to(echo, credentials)


def test_a_worker_that_sees_another_folder_is_told_so(tmp_path):
    with pytest.raises(LinkLostError, match="every worker sees the same folder"):
        FolderLink(f"{SCHEME}{tmp_path}/none", KEYS.worker(), connect_seconds=0.01)


def test_a_folder_that_cannot_be_written_to_is_one_sentence():
    words = r"^the folder /proc/.* cannot be written to; got [A-Z][a-z ]+; name a folder that the"
    with pytest.raises(LinkLostError, match=words):
        FolderListener("/proc/photinus", KEYS, lambda p, f: None, lambda p: None)


def test_an_address_where_nobody_listens_is_told_at_once():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))  # taken, and never listened on
        address = f"hdfs://127.0.0.1:{sock.getsockname()[1]}/x"
        began = time.monotonic()
        with pytest.raises(NotReadyError, match=f"nothing answers at {address}.*; got .*; check"):
            FolderListener(address, KEYS, lambda p, f: None, lambda p: None)
        assert time.monotonic() - began < 5


def test_an_address_with_a_port_that_is_none_is_one_sentence():
    with pytest.raises(UsageError, match=r"hdfs://host:name/x is no address; got .*; write it as"):
        filesystem_of("hdfs://host:name/x")


def test_an_address_that_nothing_opens_is_one_sentence():
    with pytest.raises(NotReadyError, match="nosuch://x cannot be opened"):
        filesystem_of("nosuch://x")


def test_a_listener_that_died_is_noticed_by_its_sign(echo, monkeypatch):
    link = link_to(echo)
    with monkeypatch.context() as patch:
        patch.setattr(folder, "_LOST_SECONDS", -1.0)
        with pytest.raises(LinkLostError, match="the other side ended"):
            link.exchange(None, 20.0)
    with pytest.raises(LinkLostError, match="no process of this run signs"):
        FolderLink(echo.address, KEYS.worker(), connect_seconds=0.0)
    echo._write_sign()
    link_to(echo).close()


def test_who_saw_a_driver_die_early_finds_the_next_one_at_once(echo, tmp_path, monkeypatch):
    link = link_to(echo)
    with monkeypatch.context() as patch:
        patch.setattr(folder, "_LOST_SECONDS", -1.0)
        with pytest.raises(LinkLostError, match="the other side ended"):
            link.exchange(None, 20.0)
    echo.close()
    again = FolderListener(str(tmp_path), KEYS, lambda p, f: None, lambda p: None)
    FolderLink(again.address, KEYS.worker(), connect_seconds=0.0).close()
    again.close()


def test_a_line_has_a_bounded_number_of_files(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "_MOST_UNREAD", 3)
    root = tmp_path / KEYS.run.hex()
    place = filesystem_of(str(root))
    place.make()
    seal = Seal(KEYS.worker())
    place.put("signs/000000000000", seal.close("signs/000000000000", b""))
    link = FolderLink(SCHEME + str(root), KEYS.worker())
    for _ in range(3):
        link.exchange(Frame("beat"), 0)
    monkeypatch.setattr(folder, "_LOST_SECONDS", 0.05)
    with pytest.raises(LinkLostError, match="nobody reads"):
        link.exchange(Frame("beat"), 0)
    assert len(place.names("up")) == 3


def test_what_a_dead_driver_left_is_cleared_by_the_next(tmp_path):
    old = tmp_path / KEYS.run.hex() / "up"
    old.mkdir(parents=True)
    (old / "0123-000000000000").write_bytes(b"old")
    listener = FolderListener(str(tmp_path), KEYS, lambda p, f: None, lambda p: None)
    assert all(name.startswith("signs/") for name in files_of(listener))
    listener.close()


@pytest.mark.slow
def test_hdfs_keeps_the_contract(hdfs):
    address, _ = hdfs

    def make(hear, gone):
        listener = FolderListener(f"{address}/photinus-test", KEYS, hear, gone)
        return listener, lambda: link_to(listener)

    check_link(make)


def test_a_folder_that_cannot_be_read_for_a_moment_ends_no_listener(echo, tmp_path, monkeypatch):
    names, is_stale, was_stale = os.listdir, threading.Event(), threading.Event()

    def listdir(path):
        if is_stale.is_set():
            was_stale.set()
            raise OSError(errno.ESTALE, "Stale file handle")
        return names(path)

    monkeypatch.setattr("photinus.transport.filesystems.os.listdir", listdir)
    is_stale.set()
    with pytest.raises(LinkLostError, match="cannot be read; got Stale file handle"):
        LocalFilesystem(tmp_path).names("up")
    was_stale.clear()
    assert was_stale.wait(10), "the listener looks"
    is_stale.clear()
    with closing(link_to(echo)) as link:
        assert link.exchange(Frame("push"), 10.0)[0].kind == "push"
