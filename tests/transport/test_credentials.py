import copy
import ssl
import tempfile
from datetime import datetime, timedelta

import pytest

from photinus.core.errors import AuthenticationError, UsageError
from photinus.transport import credentials as room
from photinus.transport.credentials import Credentials, WorkerKey


def test_a_worker_key_is_small_and_its_repr_hides_the_secret():
    credentials = Credentials.make(b"r" * 16)
    key = credentials.worker()
    fields = {name: getattr(key, name) for name in WorkerKey.__slots__}
    assert all(isinstance(value, bytes) for value in fields.values())
    assert sum(map(len, fields.values())) < 4096
    assert copy.copy(key) == key
    for text in (repr(key), repr(credentials)):
        assert "PRIVATE" not in text
        assert str(key.password) not in text
    assert key.security == credentials.security == "tls"


def test_each_worker_has_a_key_of_its_own():
    credentials = Credentials.make(b"r" * 16)
    assert credentials.worker().secret != credentials.worker().secret


@pytest.mark.parametrize("system", ["linux", "another"])
def test_no_file_is_left_and_the_key_lies_on_disk_only_locked(monkeypatch, tmp_path, system):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    key = Credentials.make(b"r" * 16).worker()
    monkeypatch.setattr(room.sys, "platform", system)
    assert key.client_context() is not None
    assert list(tmp_path.iterdir()) == []
    assert b"ENCRYPTED" in key.secret


def shake_hands(server, client):
    """Both sides of TLS in memory, until the worker's certificate is taken."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [server.wrap_bio(there, back, server_side=True), client.wrap_bio(back, there)]
    for side in (*sides, *sides, *sides):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return sides[0].getpeercert(binary_form=True)


@pytest.mark.parametrize("days", [-400, 0, 400])
def test_a_key_holds_whatever_the_time_of_day_is(monkeypatch, days):
    """A clock may be set during a run, or be wrong on the machine of a worker."""

    class Off(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(days=days)

    monkeypatch.setattr(room, "datetime", Off)
    ours, theirs = Credentials.make(b"r" * 16), Credentials.make(b"r" * 16)
    assert shake_hands(ours.server_context(), ours.worker().client_context())
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(ours.server_context(), theirs.worker().client_context())


def test_without_security_there_are_no_keys():
    credentials = Credentials.none(b"r" * 16)
    assert credentials.security == credentials.worker().security == "none"
    assert credentials.server_context() is credentials.worker().client_context() is None


@pytest.mark.parametrize("make", [Credentials.make, Credentials.none])
@pytest.mark.parametrize("run", [b"short", "r" * 16])
def test_a_run_is_named_by_sixteen_bytes(make, run):
    with pytest.raises(UsageError, match="16 bytes"):
        make(run)


def test_a_damaged_key_is_an_error():
    key = Credentials.make(b"r" * 16).worker()
    for damaged in (
        WorkerKey(key.run, b"junk", key.certificate, key.secret, key.password),
        WorkerKey(key.run, key.authority, key.certificate, key.secret, b"wrong"),
    ):
        with pytest.raises(AuthenticationError, match="damaged"):
            damaged.client_context()
