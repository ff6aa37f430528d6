"""Signatures by the user's own key: what nobody else can make, and what holds without a home."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from photinus.checkpoint import signatures
from photinus.checkpoint.signatures import check_code, is_signed, signature_of
from photinus.core.errors import UsageError

PLAIN = {"module": "mine:net", "epochs": 2.0}


@pytest.fixture
def state(tmp_path, monkeypatch):
    """A state folder without a key, and no other place for one."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "no folder").touch()
    monkeypatch.setattr(signatures, "_SHARED", tmp_path / "no folder")
    return tmp_path / "state" / "photinus"


def test_what_was_signed_is_known_again_and_nothing_else(state):
    signature = signature_of("model", PLAIN)
    assert is_signed("model", dict(reversed(PLAIN.items())), signature)
    assert not is_signed("model", PLAIN | {"module": "evil:net"}, signature)
    assert not is_signed("job", PLAIN, signature), "of another kind of folder"
    for wrong in ("", "0" * 64, "ü" * 64, None, 7, ["x"]):
        assert not is_signed("model", PLAIN, wrong)


def test_the_key_is_its_owners_alone_and_stays(state):
    first = signature_of("model", PLAIN)
    assert [p.name for p in state.iterdir()] == ["signing.key"], "nothing half made is left"
    assert (state.stat().st_mode & 0o777, (state / "signing.key").stat().st_mode & 0o777) == (
        0o700,
        0o600,
    )
    assert signature_of("model", PLAIN) == first


def test_of_many_who_make_the_first_key_at_once_all_use_the_same(state):
    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(lambda _: signature_of("model", PLAIN), range(32)))) == 1


def test_another_users_signature_is_not_ones_own(state, tmp_path, monkeypatch):
    signature = signature_of("model", PLAIN)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    assert not is_signed("model", PLAIN, signature)
    assert signature_of("model", PLAIN) != signature


@pytest.mark.parametrize(
    "spoiled", ["key read by others", "folder open to others", "link", "short"]
)
def test_a_key_that_others_could_have_put_there_is_no_key(state, spoiled, tmp_path):
    signature = signature_of("model", PLAIN)
    if spoiled == "key read by others":
        (state / "signing.key").chmod(0o640)
    elif spoiled == "folder open to others":
        state.chmod(0o770)
    elif spoiled == "short":
        (state / "signing.key").write_bytes(b"short")
    else:
        (state / "signing.key").rename(tmp_path / "elsewhere")
        (state / "signing.key").symlink_to(tmp_path / "elsewhere")
    assert not is_signed("model", PLAIN, signature)
    assert signature_of("model", PLAIN) == "", "nothing is signed with it, and nobody is disturbed"


def test_a_read_only_home_is_no_obstacle(tmp_path, monkeypatch):
    (tmp_path / "shared").mkdir()
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/dev/null")
    monkeypatch.setattr(signatures, "_SHARED", tmp_path / "shared")
    assert is_signed("model", PLAIN, signature_of("model", PLAIN))
    assert [p.name for p in (tmp_path / "shared").iterdir()] == [f"photinus-{os.geteuid()}"]


def test_a_home_of_somebody_else_is_left_alone(tmp_path, monkeypatch):
    (tmp_path / "home").mkdir()
    (tmp_path / "shared").mkdir()
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(signatures, "_SHARED", tmp_path / "shared")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert signature_of("model", PLAIN) == "", (
        "what lies in the shared folder is not 12345's either"
    )
    assert list((tmp_path / "home").iterdir()) == []


def test_without_any_place_for_a_key_nothing_is_signed(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    monkeypatch.setattr(signatures, "_SHARED", tmp_path / "none")
    (tmp_path / "none").write_text("a file")
    assert signature_of("model", PLAIN) == ""


def test_code_from_elsewhere_needs_the_users_word(monkeypatch):
    with pytest.raises(UsageError) as refused:
        check_code(PLAIN, "the model in net")
    assert str(refused.value) == (
        "the model in net names code, and no run of yours on this machine made it; got mine:net; "
        "if you trust who made it (or it is your own, from another machine): --trust-code, "
        "trust_code=True or PHOTINUS_TRUST_CODE=1"
    )
    check_code({"module": "photinus.models.cnn:tutorial"}, "the model in net")
    check_code(PLAIN, "the model in net", True)
    check_code(PLAIN, "the model in net", {"mine:net"})
    with pytest.raises(UsageError, match="got mine:net"):
        check_code(PLAIN, "the model in net", {"mine:other"})
    monkeypatch.setenv("PHOTINUS_TRUST_CODE", "0")
    with pytest.raises(UsageError, match="got mine:net"):
        check_code(PLAIN, "the model in net")
    monkeypatch.setenv("PHOTINUS_TRUST_CODE", "1")
    check_code(PLAIN, "the model in net")
