"""Signs folders with a key of this user, and checks who made a folder.

A folder may name code, and code that is named is imported and called. So a run signs what it
saves with a key of its user, which is never stored with a run nor sent anywhere: no other user can
make a folder that passes for one of this user's runs, or change one.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import stat
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from photinus.core.errors import UsageError
from photinus.core.factories import code_names

Trust = bool | Collection[str]
"""True: whatever code a folder names may run. Or the names that may."""
TRUST_CODE = "PHOTINUS_TRUST_CODE"
"""The environment variable that stands for True."""

_KEY_BYTES = 32
_KEY_FILE = "signing.key"
_SHARED = Path("/var/tmp")  # noqa: S108 - only a folder of this user's in it is taken


def signature_of(kind: str, plain: object) -> str:
    """Returns this user's signature of plain JSON values; "" where no key can be kept.

    Args:
        kind: what they are, so that the signature of one thing never fits another.
        plain: the values.
    """
    key = next(_keys(), None) or _new_key()
    return "" if key is None else _signature(key, kind, plain)


def is_signed(kind: str, plain: object, signature: object) -> bool:
    """Returns whether a signature is this user's, of these values."""
    if not isinstance(signature, str) or not signature.isascii():
        return False
    return any(hmac.compare_digest(_signature(key, kind, plain), signature) for key in _keys())


def check_code(plain: object, what: str, trust_code: Trust = False) -> None:
    """Refuses plain values from elsewhere that name code, unless the user trusts it.

    Args:
        plain: what this user has not signed.
        what: it is, for people.
        trust_code: as the user gave it.

    Raises:
        UsageError: it names code that the user does not trust.
    """
    if trust_code is True or os.environ.get(TRUST_CODE, "") not in ("", "0"):
        return
    trusted = frozenset(trust_code) if trust_code else frozenset()
    untrusted = [name for name in code_names(plain) if name not in trusted]
    if untrusted:
        raise UsageError(
            f"{what} names code, and no run of yours on this machine made it",
            got=", ".join(untrusted),
            do="if you trust who made it (or it is your own, from another machine): --trust-code, "
            f"trust_code=True or {TRUST_CODE}=1",
        )


def _signature(key: bytes, kind: str, plain: object) -> str:
    text = json.dumps([f"photinus {kind}", plain], sort_keys=True)
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def _key_folders() -> Iterator[Path]:
    """Yields where a key may lie: the user's state; where that is read-only, a shared folder."""
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    if state.is_absolute():
        yield state / "photinus"
    else:
        with contextlib.suppress(RuntimeError, OSError):  # no home at all
            home = Path.home()
            if home.stat().st_uid == os.geteuid():
                yield home / ".local" / "state" / "photinus"
    yield _SHARED / f"photinus-{os.geteuid()}"


def _keys() -> Iterator[bytes]:
    for folder in _key_folders():
        with contextlib.suppress(OSError):
            if (key := _read_key(folder)) is not None:
                yield key


def _read_key(folder: Path) -> bytes | None:
    """Returns a folder's key, if no other user can have put it there or can read it."""
    if not _is_private(folder.lstat(), stat.S_ISDIR):
        return None
    # O_NONBLOCK: a FIFO put in its place must not hang the reader
    descriptor = os.open(folder / _KEY_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        key = file.read(_KEY_BYTES) if _is_private(os.fstat(descriptor), stat.S_ISREG) else b""
    return key if len(key) == _KEY_BYTES else None


def _is_private(status: os.stat_result, is_kind: Callable[[int], bool]) -> bool:
    is_mine = status.st_uid == os.geteuid() and not status.st_mode & 0o077
    return is_kind(status.st_mode) and is_mine


def _new_key() -> bytes | None:
    for folder in _key_folders():
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write_key(folder)
            if (key := _read_key(folder)) is not None:
                return key
    return None


def _write_key(folder: Path) -> None:
    """Makes a key, whole or not at all; of several who do so at once the first one's stays."""
    if not _is_private(folder.lstat(), stat.S_ISDIR):
        return
    temporary = folder / f".{_KEY_FILE}-{secrets.token_hex(6)}"
    descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(temporary, folder / _KEY_FILE)
    finally:
        temporary.unlink(missing_ok=True)
