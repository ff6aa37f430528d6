"""Files that only the members of a run can read or write: AES-256-GCM."""

from __future__ import annotations

import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from photinus.core.errors import AuthenticationError
from photinus.transport.credentials import WorkerKey

_NONCE_BYTES = 12


class Seal:
    """Seals and opens files, each bound to the run and to its name.

    Args:
        key: of the run; one without security leaves files as they are.

    Example:
        >>> from photinus.transport.credentials import Credentials
        >>> seal = Seal(Credentials.make(bytes(16)).worker())
        >>> seal.open("a", seal.close("a", b"weights"))
        b'weights'
    """

    def __init__(self, key: WorkerKey) -> None:
        self._run = key.run
        self._cipher = AESGCM(key.seal) if key.seal else None

    def close(self, name: str, data: bytes | memoryview) -> bytes:
        """Returns a file's bytes, sealed under its name."""
        if self._cipher is None:
            return bytes(data)
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, data, self._run + name.encode())

    def open(self, name: str, sealed: bytes) -> bytes:
        """Returns the bytes of a sealed file.

        Raises:
            AuthenticationError: it is not of this run, was changed, or had another name.
        """
        if self._cipher is None:
            return sealed
        nonce, ciphertext = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        try:
            return self._cipher.decrypt(nonce, ciphertext, self._run + name.encode())
        except (InvalidTag, ValueError) as error:
            raise AuthenticationError("a file is not sealed by this run", got=name) from error
