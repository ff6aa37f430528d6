import copy
import tempfile

import pytest

from photinus.core.errors import AuthenticationError, UsageError
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


def test_no_file_is_left_and_the_key_lies_on_disk_only_locked(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    key = Credentials.make(b"r" * 16).worker()
    assert key.client_context() is not None
    assert list(tmp_path.iterdir()) == []
    assert b"ENCRYPTED" in key.secret


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
