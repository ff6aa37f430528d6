"""Keys of one run: a certificate authority, the server's certificate, the workers' certificates.

They are valid as long as the run. A `WorkerKey` is plain bytes and travels only in a task's
closure.
"""

from __future__ import annotations

import os
import secrets
import ssl
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from photinus.core.errors import AuthenticationError, UsageError

_VALID_BEFORE = timedelta(days=1)
_VALID_AFTER = timedelta(days=90)
_NO_CHECK_TIME = ssl.VerifyFlags(0x200000)
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which Python has no name for."""


@dataclass(frozen=True, slots=True)
class WorkerKey:
    """What a worker needs to join its run: bytes only, so that it fits into a task's closure.

    Without a certificate (security "none") it holds the run's name alone.
    """

    run: bytes
    """The run's 16 bytes."""
    authority: bytes = b""
    """The run's certificate authority, PEM."""
    certificate: bytes = field(default=b"", repr=False)
    secret: bytes = field(default=b"", repr=False)
    """The private key, PEM, locked with `password`."""
    password: bytes = field(default=b"", repr=False)
    seal: bytes = field(default=b"", repr=False)
    """The run's 32 bytes that seal files in a folder, the same for all."""

    def __repr__(self) -> str:
        return f"WorkerKey(run={self.run.hex()}, security={self.security!r})"

    @property
    def security(self) -> str:
        """Returns "tls" or "none"."""
        return "tls" if self.secret else "none"

    def client_context(self) -> ssl.SSLContext | None:
        """Returns the worker's side of mutual TLS 1.3, or None without security.

        Raises:
            AuthenticationError: the key is damaged.
        """
        return _tls_context(ssl.PROTOCOL_TLS_CLIENT, self) if self.secret else None

    def server_context(self) -> ssl.SSLContext | None:
        """Returns the listening side of mutual TLS 1.3, or None without security.

        Others connect only where the key was made to listen.

        Raises:
            AuthenticationError: the key is damaged.
        """
        return _tls_context(ssl.PROTOCOL_TLS_SERVER, self) if self.secret else None


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    """The driver's keys of one run: it makes the workers' and serves with its own.

    Example:
        >>> credentials = Credentials.make(bytes(16))
        >>> credentials.worker()
        WorkerKey(run=00000000000000000000000000000000, security='tls')
    """

    run: bytes
    _server: WorkerKey
    _issue: Callable[[bool], WorkerKey]

    @classmethod
    def make(cls, run: bytes) -> Credentials:
        """Makes a certificate authority for this run alone, and the server's certificate.

        Args:
            run: the run's 16 bytes.

        Raises:
            UsageError: `run` has another length.
        """
        _check_run(run)
        authority_key = ec.generate_private_key(ec.SECP256R1())
        name = _common_name("photinus run " + run.hex())
        # a path length of 0: no certificate of this run can make another one
        authority = (
            _certificate_builder(name, name, authority_key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(is_authority=True), critical=True)
            .sign(authority_key, hashes.SHA256())
        )

        seal = secrets.token_bytes(32)

        def issue(title: str, *roles: x509.ObjectIdentifier) -> WorkerKey:
            return replace(_issue(run, authority, authority_key, roles, title), seal=seal)

        client_role, server_role = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH

        def worker(is_peer: bool) -> WorkerKey:
            return (
                issue("worker", client_role, server_role)
                if is_peer
                else issue("worker", client_role)
            )

        return cls(run, issue("server", server_role), worker)

    @classmethod
    def none(cls, run: bytes) -> Credentials:
        """Returns no keys at all: frames in clear, distinguished by the run's name alone.

        For a network that is trusted as a whole.

        Raises:
            UsageError: `run` is not 16 bytes long.
        """
        _check_run(run)
        return cls(run, WorkerKey(run), lambda is_peer: WorkerKey(run))  # noqa: ARG005

    def __repr__(self) -> str:
        return f"Credentials(run={self.run.hex()}, security={self.security!r})"

    @property
    def security(self) -> str:
        """Returns "tls" or "none"."""
        return self._server.security

    def worker(self, *, is_peer: bool = False) -> WorkerKey:
        """Returns a new worker's key, signed by this run's authority.

        Args:
            is_peer: whether other workers may connect to it.
        """
        return self._issue(is_peer)

    def server_context(self) -> ssl.SSLContext | None:
        """Returns the server's side of mutual TLS 1.3, or None without security."""
        return _tls_context(ssl.PROTOCOL_TLS_SERVER, self._server) if self._server.secret else None


def _check_run(run: bytes) -> None:
    if not isinstance(run, bytes) or len(run) != 16:
        raise UsageError("a run is named by 16 bytes", got=repr(run))


def _common_name(title: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, title)])


def _certificate_builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    # clocks of a cluster differ: valid since yesterday
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _VALID_BEFORE)
        .not_valid_after(now + _VALID_AFTER)
    )


def _key_usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _issue(
    run: bytes,
    authority: x509.Certificate,
    signer: ec.EllipticCurvePrivateKey,
    roles: Iterable[x509.ObjectIdentifier],
    title: str,
) -> WorkerKey:
    private_key = ec.generate_private_key(ec.SECP256R1())
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    certificate = (
        _certificate_builder(
            _common_name(f"photinus {title}"), authority.subject, private_key.public_key()
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(is_authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(roles), critical=True)
        .add_extension(identifier, critical=False)
        .sign(signer, hashes.SHA256())
    )
    password = secrets.token_hex(16).encode()
    pem = serialization.Encoding.PEM
    encrypted_key = private_key.private_bytes(
        pem,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(password),
    )
    return WorkerKey(
        run, authority.public_bytes(pem), certificate.public_bytes(pem), encrypted_key, password
    )


def _tls_context(protocol: int, key: WorkerKey) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # the authority of this one run is pinned; names and addresses of machines are not checked,
    # and OpenSSL checks the role (extended key usage) that the certificate must have
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(cadata=key.authority.decode("ascii"))
        _load_certificate(context, key)
    except (ssl.SSLError, ValueError) as error:
        raise AuthenticationError("the run's key is damaged", got=error) from error
    # the authority is valid as long as the run: no clock, of a day or of another machine, ends a
    # key
    context.verify_flags |= _NO_CHECK_TIME
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0
    return context


def _load_certificate(context: ssl.SSLContext, key: WorkerKey) -> None:
    # ssl reads certificates from files only: one in memory, without a name in any folder
    if sys.platform == "linux" and os.path.isdir("/proc/self/fd"):
        with open(os.memfd_create("photinus"), "wb", buffering=0) as memory:
            memory.write(key.certificate + key.secret)
            context.load_cert_chain(f"/proc/self/fd/{memory.fileno()}", password=key.password)
        return
    # elsewhere one in a directory of ours alone, its key locked with a password that stays in
    # memory, gone before this returns
    with tempfile.TemporaryDirectory(prefix="photinus-") as folder:
        path = os.path.join(folder, "worker.pem")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(key.certificate + key.secret)
        context.load_cert_chain(path, password=key.password)
